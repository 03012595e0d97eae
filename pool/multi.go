package pool

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/bradfitz/gomemcache/memcache"
)

// A MultiError is the error of [Pool.GetMulti] if it failed for any of the keys.
// It says for each key what became of it.
type MultiError struct {
	Keys  map[string]error // the errors of those that failed, at least one
	Asked int              // how many keys were asked for
}

// KeyError returns the error of key, or nil if its server answered: then a key that is
// not among the items is a miss.
func (e *MultiError) KeyError(key string) error { return e.Keys[key] }

// Unwrap returns the errors of the keys, but only one of several that say the same.
func (e *MultiError) Unwrap() []error {
	var causes []error
	said := make(map[string]bool)
	for _, key := range slices.Sorted(maps.Keys(e.Keys)) {
		if err := e.Keys[key]; !said[err.Error()] {
			said[err.Error()] = true
			causes = append(causes, err)
		}
	}
	return causes
}

func (e *MultiError) Error() string {
	var texts []string
	for _, err := range e.Unwrap() {
		texts = append(texts, err.Error())
	}
	return fmt.Sprintf("%d of %d keys: %s", len(e.Keys), e.Asked, strings.Join(texts, "; "))
}

// GetMulti returns the items at keys, by key; those that are not there are left
// out. It asks all servers at once, each in one round trip.
//
// If it fails for some keys the error is a *[MultiError], and the items of the
// others are there all the same. The map is never nil.
func (p *Pool) GetMulti(keys []string) (map[string]*memcache.Item, error) {
	b := p.batches.Get(len(keys))
	defer p.release(b)
	for i, key := range keys {
		b.All[i].key, b.All[i].reads = key, true
	}
	b.Admit(p.admit)
	do(context.Background(), b)
	items, failed := make(map[string]*memcache.Item, len(keys)), make(map[string]error)
	for i := range b.All {
		switch r := &b.All[i]; {
		case r.err != nil:
			failed[r.key] = r.err
		case r.reply.found != nil:
			items[r.key] = r.reply.found
		}
	}
	if len(failed) > 0 {
		return items, &MultiError{Keys: failed, Asked: len(keys)}
	}
	return items, nil
}
