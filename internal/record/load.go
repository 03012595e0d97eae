package record

import "time"

// A load is hits, and until when they count, in that order.
type load []share

type share struct {
	until Instant
	hits  int64 // an int may have 32 bits, which a debt exceeds
}

// with returns l and a number of hits that count until then, if they do at now.
func (l load) with(now, until Instant, hits int64) load {
	if until > now && hits > 0 {
		l = append(l, share{until, hits})
	}
	return l
}

// hits returns the number of hits.
func (l load) hits() (n int64) {
	for _, s := range l {
		n += s.hits
	}
	return n
}

// end returns when the last of the hits ceases to count, or 0.
func (l load) end() Instant {
	if len(l) == 0 {
		return 0
	}
	return l[len(l)-1].until
}

// untilFits returns how long after now cost more hits fit beside a and b under max, of which cost
// is no more.
func untilFits(cost, max int, now Instant, a, b load) time.Duration {
	at := now
	for over := a.hits() + b.hits() + int64(cost) - int64(max); over > 0 && len(a)+len(b) > 0; {
		first := &a
		if len(a) == 0 || len(b) > 0 && b[0].until < a[0].until {
			first = &b
		}
		at = (*first)[0].until
		over -= (*first)[0].hits
		*first = (*first)[1:]
	}
	return at.Since(now)
}
