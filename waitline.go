package throttler

import (
	"cmp"
	"math"
	"slices"
	"time"
)

// An opening is when a condition takes so many hits, as far as this process
// knows.
type opening struct {
	opens time.Time
	room  int
}

// openingOf returns what o, an outcome of c at now, says of the next hits.
func openingOf(o *Outcome, c *Condition, now time.Time) opening {
	switch {
	case o.Blocked:
		return opening{now.Add(cmp.Or(o.RetryAfter, minNap)), c.cost()}
	case o.RetryAfter > 0:
		return opening{now.Add(o.RetryAfter), 1}
	}
	return opening{now, o.Remaining + 1} // 1 for what has leaked of a further hit
}

// key returns the key of c's record.
func (w *waiter) key(c *Condition) string {
	return key(w.rule.Identifier, c.Name, c.Value)
}

// condition returns the one of w that l is for.
func (w *waiter) condition(l *line) *Condition {
	for i := range w.places {
		if w.places[i].line == l {
			return w.places[i].condition
		}
	}
	panic("throttler: waiter in the line of another's condition")
}

// stand puts w where it has to stand, and returns its nap, as next does.
func (w *waiter) stand(now time.Time) (nap time.Duration) {
	if len(w.rule.All) > 0 {
		return w.standInAll(now)
	}
	var last *place
	var when time.Time
	for i := range w.places {
		p := &w.places[i]
		if at := p.line.turn(w, p.condition, now); at.After(now) && (last == nil || at.After(when)) {
			last, when = p, at
		}
	}
	if last == nil {
		return 0
	}
	if w.hold != nil && w.hold != last.line && !w.hold.ask.After(now) {
		w.missed++ // its turn has come, but another of its conditions was taken
	}
	for i := range w.places {
		p := &w.places[i]
		if p == last || w.holds() {
			w.join(p)
		} else {
			w.quit(p)
		}
	}
	if !last.line.free(w, last.condition, now) {
		w.waitFor(nil)
		return -1
	}
	w.waitFor(last.line)
	return when.Sub(now)
}

// standInAll is stand for a waiter that one condition is enough for.
func (w *waiter) standInAll(now time.Time) (nap time.Duration) {
	nap = math.MaxInt64
	for i := range w.places {
		p := &w.places[i]
		w.join(p)
		if p.line.free(w, p.condition, now) {
			nap = min(nap, max(0, p.line.turn(w, p.condition, now).Sub(now)))
		}
	}
	if nap == math.MaxInt64 {
		return -1
	}
	return nap
}

// join has w stand in the line of p.
func (w *waiter) join(p *place) {
	if p.standing {
		return
	}
	p.standing = true
	i := p.line.index(w)
	p.line.standing = slices.Insert(p.line.standing, i, w)
	p.line.hits += p.condition.cost()
}

// quit takes w out of the line of p, and calls those who stand first now.
func (w *waiter) quit(p *place) {
	if !p.standing {
		return
	}
	p.standing = false
	i := p.line.index(w)
	p.line.standing = slices.Delete(p.line.standing, i, i+1)
	p.line.hits -= p.condition.cost()
	p.line.call(w)
}

// holds reports whether w stands in all its lines, as it has missed its turn
// too often.
func (w *waiter) holds() bool {
	return w.missed >= patience
}

// waitFor notes the line that w waits for as the first in it. Who may pass w in
// other lines depends on it.
func (w *waiter) waitFor(l *line) {
	var until time.Time
	if l != nil {
		until = l.opens
	}
	if l == w.hold && until.Equal(w.until) {
		return
	}
	w.hold, w.until = l, until
	for i := range w.places {
		if w.holds() {
			w.places[i].line.call(w)
		}
	}
}

// letsPass reports whether one behind w in l may take a hit of c at now: it is gone
// before w can go.
func (w *waiter) letsPass(l *line, c *Condition, now time.Time) bool {
	if !w.holds() || w.hold == l {
		return false
	}
	return w.hold == nil || !now.Add(c.lifetime()).After(w.until)
}

// opens returns when w can be let through at the earliest, by its places.
func (w *waiter) opens(now time.Time) time.Time {
	var opens time.Time
	for i := range w.places {
		p := &w.places[i]
		at := p.line.earliest(w, p.condition, now)
		if i == 0 || at.After(opens) == (len(w.rule.Either) > 0) {
			opens = at
		}
	}
	return opens
}

// index returns where w stands in l, or would.
func (l *line) index(w *waiter) int {
	i, _ := slices.BinarySearchFunc(l.standing, w, func(a, b *waiter) int {
		return cmp.Compare(a.ticket, b.ticket)
	})
	return i
}

// free reports whether nobody stands before w in l who does not let it pass.
func (l *line) free(w *waiter, c *Condition, now time.Time) bool {
	for _, v := range l.standing {
		if v.ticket >= w.ticket {
			break
		}
		if !v.letsPass(l, c, now) {
			return false
		}
	}
	return true
}

// before returns how many hits those take who stand before w.
func (l *line) before(w *waiter) int {
	i := l.index(w)
	if i == len(l.standing) {
		return l.hits
	}
	n := 0
	for _, v := range l.standing[:i] {
		n += v.condition(l).cost()
	}
	return n
}

// turn returns when it is w's turn to try, as far as l is concerned; later than now
// if it is not.
func (l *line) turn(w *waiter, c *Condition, now time.Time) time.Time {
	switch {
	case !l.free(w, c, now):
		return latest(l.earliest(w, c, now), now.Add(1))
	case l.untold(w, c):
		return now
	}
	return l.ask
}

// untold reports whether what l was told last is of no use to w, as it is of a
// larger call, which stands behind w.
func (l *line) untold(w *waiter, c *Condition) bool {
	return c.cost() < l.room && l.index(w) == 0
}

// earliest returns when w, with its condition c, can have its hits at the
// earliest, if those before it have theirs.
func (l *line) earliest(w *waiter, c *Condition, now time.Time) time.Time {
	if l.untold(w, c) {
		return now
	}
	n := l.before(w) + c.cost()
	if c.Algorithm == LeakyBucket {
		return latest(now, l.opens.Add(times(max(0, n-l.room), time.Duration(c.interval()))))
	}
	return latest(now, l.opens).Add(times((n-1)/c.Max, c.TTL))
}

// told takes at for the first in l.
func (l *line) told(at opening, now time.Time) {
	l.opening = at
	l.ask = at.opens
	if nap := now.Add(maxNap); nap.Before(l.ask) {
		l.ask = nap
	}
}

// call has the first in l look again what they have to do, but for w itself.
func (l *line) call(w *waiter) {
	for _, v := range l.standing {
		if v != w {
			select {
			case v.called <- struct{}{}:
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
