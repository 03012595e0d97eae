package waitqueue

import (
	"cmp"
	"math"
	"slices"
	"time"
)

// An opening is the time at which a record has room, as far as this process knows.
type opening struct {
	opens time.Time
	room  int // the number of hits that fit then

	sooner bool // it may be earlier: see Want.Sooner
}

// openingOf returns the next opening for want by what was seen at now.
func openingOf(seen *Seen, want *Want, now time.Time) opening {
	switch {
	case seen.Blocked:
		return opening{now.Add(cmp.Or(seen.RetryAfter, minNap)), want.Needed, want.Sooner}
	case seen.RetryAfter > 0:
		return opening{now.Add(seen.RetryAfter), 1, want.Sooner}
	}
	return opening{now, seen.Remaining + 1, want.Sooner} // 1 for the part of a further hit that has leaked
}

// want returns what w wants of the record whose line is l.
func (w *Waiter) want(l *line) *Want {
	for i := range w.positions {
		if w.positions[i].line == l {
			return w.positions[i].want
		}
	}
	panic("throttler: a waiter is in a line of a record that it does not want")
}

// stand puts w in the lines in which it has to stand, and returns its nap, as next
// does.
func (w *Waiter) stand(now time.Time) (nap time.Duration) {
	if w.oneOf {
		return w.standInAll(now)
	}
	var last *position
	var when time.Time
	for i := range w.positions {
		p := &w.positions[i]
		if at := p.line.turn(w, p.want, now); at.After(now) && (last == nil || at.After(when)) {
			last, when = p, at
		}
	}
	if last == nil {
		return 0
	}
	if w.hold != nil && w.hold != last.line && !w.hold.ask.After(now) {
		w.missed++ // its turn came, but another of its records was full
	}
	for i := range w.positions {
		p := &w.positions[i]
		if p == last || w.holds() {
			w.join(p)
		} else {
			w.quit(p)
		}
	}
	if !last.line.free(w, last.want, now) {
		w.waitFor(nil)
		return -1
	}
	w.waitFor(last.line)
	return when.Sub(now)
}

// standInAll is stand for a waiter that needs one of its records. It does not wait for those to
// which its last try has not come: that waits for one before them.
func (w *Waiter) standInAll(now time.Time) (nap time.Duration) {
	nap = math.MaxInt64
	for i := range w.positions {
		p := &w.positions[i]
		if p.unasked {
			w.quit(p)
			continue
		}
		w.join(p)
		if p.line.free(w, p.want, now) {
			nap = min(nap, max(0, p.line.turn(w, p.want, now).Sub(now)))
		}
	}
	if nap == math.MaxInt64 {
		return -1
	}
	return nap
}

// join puts w in the line of p.
func (w *Waiter) join(p *position) {
	if p.stands {
		return
	}
	p.stands = true
	i := p.line.index(w)
	p.line.standing = slices.Insert(p.line.standing, i, w)
	p.line.hits = p.line.hits.plus(p.want.Needed)
}

// quit takes w out of the line of p, and signals the waiters that are first now.
func (w *Waiter) quit(p *position) {
	if !p.stands {
		return
	}
	p.stands = false
	i := p.line.index(w)
	p.line.standing = slices.Delete(p.line.standing, i, i+1)
	p.line.hits = p.line.hits.minus(p.want.Needed)
	p.line.signal(w)
}

// holds reports whether w holds its position in all its lines, because it has missed its
// turn too often.
func (w *Waiter) holds() bool {
	return w.missed >= patience
}

// waitFor notes the line in which w is first and waits. This decides which waiters
// may pass w in its other lines. l is nil if w is not first.
func (w *Waiter) waitFor(l *line) {
	var until time.Time
	if l != nil {
		until = l.opens
	}
	if l == w.hold && until.Equal(w.until) {
		return
	}
	w.hold, w.until = l, until
	for i := range w.positions {
		if w.holds() {
			w.positions[i].line.signal(w)
		}
	}
}

// letsPass reports whether a waiter behind w in l may take a hit of want at now, because
// that hit is gone before w can go.
func (w *Waiter) letsPass(l *line, want *Want, now time.Time) bool {
	if !w.holds() || w.hold == l {
		return false
	}
	return w.hold == nil || !now.Add(want.lifetime()).After(w.until)
}

// opens returns the earliest time at which w can be let through.
func (w *Waiter) opens(now time.Time) time.Time {
	var opens time.Time
	for i := range w.positions {
		p := &w.positions[i]
		if p.unasked {
			continue // never the first
		}
		at := p.line.earliest(w, p.want, now)
		if i == 0 || at.After(opens) == !w.oneOf {
			opens = at
		}
	}
	return opens
}

// maySooner reports whether w may be let through before its records open.
func (w *Waiter) maySooner() bool {
	return slices.ContainsFunc(w.wants, func(want Want) bool { return want.Sooner })
}

// index returns the position of w in l, or the one that it would have.
func (l *line) index(w *Waiter) int {
	i, _ := slices.BinarySearchFunc(l.standing, w, func(a, b *Waiter) int {
		return cmp.Compare(a.ticket, b.ticket)
	})
	return i
}

// free reports whether all waiters before w in l let it pass.
func (l *line) free(w *Waiter, want *Want, now time.Time) bool {
	for _, v := range l.standing {
		if v.ticket >= w.ticket {
			break
		}
		if !v.letsPass(l, want, now) {
			return false
		}
	}
	return true
}

// before returns the number of hits that the waiters before w in l take.
func (l *line) before(w *Waiter) sum {
	i := l.index(w)
	if i == len(l.standing) {
		return l.hits
	}
	var n sum
	for _, v := range l.standing[:i] {
		n = n.plus(v.want(l).Needed)
	}
	return n
}

// turn returns when w may try, as far as l is concerned. It is later than now unless
// w may try now.
func (l *line) turn(w *Waiter, want *Want, now time.Time) time.Time {
	switch {
	case !l.free(w, want, now):
		return latest(l.earliest(w, want, now), now.Add(1))
	case l.untold(w, want):
		return now
	}
	return l.ask
}

// untold reports whether the opening of l is of no use to w, because it is that of a
// larger call, which stands behind w.
func (l *line) untold(w *Waiter, want *Want) bool {
	return want.Needed < l.room && l.index(w) == 0
}

// earliest returns the earliest time at which the hits of w fit, after those of
// the waiters before it.
func (l *line) earliest(w *Waiter, want *Want, now time.Time) time.Time {
	if l.untold(w, want) {
		return now
	}
	before := l.before(w)
	if want.Leaks {
		return latest(now, l.opens.Add(times(before.plus(want.Needed).over(l.room), want.Interval)))
	}
	return latest(now, l.opens).Add(times(before.plus(want.Needed-1).times(want.Max), want.TTL))
}

// told notes the opening of l, for the waiter that is first.
func (l *line) told(at opening, now time.Time) {
	l.opening = at
	l.ask = at.opens
	longest := maxNap
	if at.sooner {
		longest = maxSoonerNap
	}
	if nap := now.Add(longest); nap.Before(l.ask) {
		l.ask = nap
	}
}

// signal wakes the waiters that may go first in l, except w, so that they ask next
// again.
func (l *line) signal(w *Waiter) {
	for _, v := range l.standing {
		if v != w {
			select {
			case v.signals <- struct{}{}:
			default:
			}
		}
		if !v.holds() {
			return
		}
	}
}

func latest(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// times returns n times d, or the longest duration if that is longer.
func times(n int, d time.Duration) time.Duration {
	if n > 0 && d > math.MaxInt64/time.Duration(n) {
		return math.MaxInt64
	}
	return time.Duration(n) * d
}
