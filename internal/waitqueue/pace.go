package waitqueue

import (
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"
)

// maxOpenings is the number of openings that a Queue remembers.
const maxOpenings = 10_000

// openings are the times at which records open that were full when a call of Wait last
// saw them. The latest are kept. In an outage they are all that is known, and each
// call that is let through moves them on. The zero openings are empty.
type openings struct {
	byKey *simplelru.LRU[string, time.Time]
}

// none reports whether nothing is remembered.
func (os *openings) none() bool {
	return os.byKey == nil || os.byKey.Len() == 0
}

// of returns when the record opens or opened, and the zero time if that is not known.
func (os *openings) of(key string) time.Time {
	if os.none() {
		return time.Time{}
	}
	opens, _ := os.byKey.Get(key)
	return opens
}

// remember notes that the record opens at that time, unless it is open at now.
func (os *openings) remember(key string, opens, now time.Time) {
	if !opens.After(now) {
		os.forget(key)
		return
	}
	if os.byKey == nil {
		os.byKey, _ = simplelru.NewLRU[string, time.Time](maxOpenings, nil) // fails only for a size of 0
	}
	os.byKey.Add(key, opens)
}

func (os *openings) forget(key string) {
	if !os.none() {
		os.byKey.Remove(key)
	}
}

// pace reports whether w, whose try was authorized, may go. It may if nothing failed or,
// if one record is enough for it, if one that did not fail has room. Of each record that
// failed it takes one hit every TTL/Max from this process, from its opening on.
func (q *Queue) pace(w *Waiter, seen []Seen, now time.Time) bool {
	var open []*Want // failed, and may take a hit
	failed := 0
	for i := range seen {
		if seen[i].Unasked {
			continue
		}
		if !seen[i].Failed {
			if w.oneOf && !seen[i].Blocked {
				return true
			}
			continue
		}
		failed++
		if !q.openings.of(w.wants[i].Key).After(now) {
			open = append(open, &w.wants[i])
		}
	}
	if len(open) < failed && (!w.oneOf || len(open) == 0) {
		return false
	}
	for _, want := range open {
		q.openings.remember(want.Key, now.Add(want.share()), now)
	}
	return true
}
