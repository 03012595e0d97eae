package throttler

import (
	"context"
	"fmt"
	"sync"
	"time"
)

const (
	// MaxWaiting is the number of calls of one process that may wait for one
	// condition. A further one gets [ErrOverloaded].
	MaxWaiting = 10_000

	// maxNap is the longest sleep of a waiter that is first in line before it
	// tries again: another process may have opened the limit early.
	maxNap = time.Minute

	// minNap is its shortest sleep, after a refusal without a RetryAfter.
	minNap = time.Millisecond

	// patience is the number of turns that a waiter misses, because another of
	// its conditions is full, before it holds its place in all its lines.
	patience = 3
)

// A waitQueue holds the waiting calls of one Throttler, in a line for each record that
// calls wait for. It does no I/O and starts no goroutine. Each waiter sleeps on its
// own goroutine, asks [waitQueue.next] what to do, tries, and passes its Decision to
// [waitQueue.answer].
//
// A waiter of Either stands in one line at a time: that of the condition that opens
// last, as far as is known. A waiter of All stands in all its lines. In every line,
// lower tickets come first. docs/waiting.md says why no waiter starves.
//
// The zero waitQueue is empty.
type waitQueue struct {
	mu     sync.Mutex       // guards what follows, and all lines and waiters except waiter.called
	ticket uint64           // the last one given
	wakes  uint64           // counts the calls of wake
	lines  map[string]*line // by the key of the record

	openings openings // of records that were full when last seen
}

// A line is the queue for one record.
type line struct {
	key      string
	wanted   int       // waiters that have the condition, in whichever line they stand; at 0 the line is removed
	standing []*waiter // by ticket
	hits     int       // the Cost of all of standing together

	opening           // by the last try of a waiter
	ask     time.Time // when the first waiter tries: when it opens, or after maxNap
	woken   uint64    // waitQueue.wakes at the last wake of this line
}

// A waiter is one call of Wait.
type waiter struct {
	ticket uint64
	rule   *Rule
	tried  bool          // it has tried once, as a new call
	places []place       // one for each condition, in the rule's order; nil until it has to wait
	called chan struct{} // holds a token if it must ask next again
	wakes  uint64        // waitQueue.wakes when it last asked next

	missed int       // turns at which another condition was full
	hold   *line     // the line in which it is first and waits; nil if it is not first
	until  time.Time // when hold opens
}

// A place is that of a waiter in one line.
type place struct {
	line      *line
	condition *Condition
	standing  bool
}

// arrive returns a waiter for a new call.
func (q *waitQueue) arrive(rule *Rule) *waiter {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.ticket++
	return &waiter{ticket: q.ticket, rule: rule}
}

// next tells w what to do. If nap is 0, try. If it is positive, sleep for that long or
// until called. If it is negative, sleep until called. With an error, give up: the
// deadline is too early, or too many calls wait.
func (q *waitQueue) next(ctx context.Context, w *waiter) (nap time.Duration, err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	now := time.Now()
	w.wakes = q.wakes
	if w.rule.Shadow || !w.tried && w.places == nil && q.free(w, now) {
		w.tried = true
		return 0, nil
	}
	if err := q.enter(w); err != nil {
		return 0, err
	}
	nap = w.stand(now)
	if deadline, ok := ctx.Deadline(); ok && nap != 0 {
		if opens := w.opens(now); !opens.Before(deadline) {
			return 0, tooLate(opens, now)
		}
	}
	return nap, nil
}

// free reports whether w, a new call, may try before any waiter.
func (q *waitQueue) free(w *waiter, now time.Time) bool {
	if len(q.lines) == 0 {
		return true
	}
	all := len(w.rule.All) > 0 // then one free line is enough
	for i := range w.rule.conditions() {
		c := &w.rule.conditions()[i]
		l := q.lines[w.key(c)]
		if free := l == nil || l.free(w, c, now); free == all {
			return free
		}
	}
	return !all
}

// enter gives w places in the lines of its conditions, unless it has them.
func (q *waitQueue) enter(w *waiter) error {
	if w.places != nil {
		return nil
	}
	places := make([]place, len(w.rule.conditions()))
	for i := range places {
		c := &w.rule.conditions()[i]
		l := q.lines[w.key(c)]
		if l == nil {
			l = &line{key: w.key(c)}
		} else if l.wanted >= MaxWaiting {
			return fmt.Errorf("%w: %d calls already wait for %q, try again later", ErrOverloaded, l.wanted, c.Name)
		}
		places[i] = place{line: l, condition: c}
	}
	if q.lines == nil {
		q.lines = make(map[string]*line)
	}
	for i := range places {
		l := places[i].line
		q.lines[l.key] = l
		l.wanted++
	}
	w.places, w.called = places, make(chan struct{}, 1)
	return nil
}

// leave takes w out of all lines. It may be called again.
func (q *waitQueue) leave(w *waiter) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.remove(w)
}

func (q *waitQueue) remove(w *waiter) {
	for i := range w.places {
		p := &w.places[i]
		w.quit(p)
		if p.line.wanted--; p.line.wanted == 0 {
			delete(q.lines, p.line.key)
		}
	}
	w.places = nil
}

// wake has the first waiters for the records with these keys try at once, because this
// process has changed the records: it has taken back hits, or set or lifted bans.
func (q *waitQueue) wake(keys ...string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	now := time.Now()
	q.wakes++
	for _, key := range keys {
		q.openings.forget(key)
		if l := q.lines[key]; l != nil {
			l.woken = q.wakes
			l.told(opening{now, 1}, now)
			l.call(nil)
		}
	}
}

// answer takes the Decision d of a try of w. It reports whether w may go, and is out
// of all lines. If it may not although d is Authorized, d failed open too early.
func (q *waitQueue) answer(w *waiter, d *Decision) (through bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if w.rule.Shadow {
		return true
	}
	now := time.Now()
	through = d.Status == Authorized && q.pace(w, d, now)
	if through {
		q.remove(w)
	} else if q.enter(w) != nil {
		return false // next returns this error too
	}
	for i := range d.Outcomes {
		q.learn(w, &w.rule.conditions()[i], &d.Outcomes[i], now)
	}
	return through
}

// learn notes the outcome o of w's condition c, for the waiters in that line.
func (q *waitQueue) learn(w *waiter, c *Condition, o *Outcome, now time.Time) {
	if o.RetryAfter == 0 && len(q.lines) == 0 && q.openings.none() {
		return // the usual case
	}
	key := w.key(c)
	at := openingOf(o, c, now)
	if failedOpen(o) {
		at = opening{q.openings.of(key), c.cost()}
	} else {
		q.openings.remember(key, at.opens, now)
	}
	l := q.lines[key]
	if l == nil {
		return
	}
	switch {
	case l.woken > w.wakes: // o may be older than the change
		l.told(opening{now, 1}, now)
	case w.places == nil || l.free(w, c, now): // else a waiter before w may take more hits
		l.told(at, now)
	}
	l.call(w)
}

// refusal returns the Decision of w when it gives up. d is that of its last try, or
// zero.
func (q *waitQueue) refusal(w *waiter, d Decision) Decision {
	q.mu.Lock()
	defer q.mu.Unlock()
	now := time.Now()
	if d.Outcomes == nil {
		d = Decision{}
		w.rule.combine(&d, q.outlook(w, now), nil)
	}
	if w.places != nil {
		d.RetryAfter = w.opens(now).Sub(now)
	}
	return d
}

// outlook returns the outcomes of w by the lines alone.
func (q *waitQueue) outlook(w *waiter, now time.Time) []Outcome {
	outcomes := make([]Outcome, len(w.rule.conditions()))
	for i := range outcomes {
		c, o := &w.rule.conditions()[i], &outcomes[i]
		*o = Outcome{Name: c.Name, Limit: c.Max, Remaining: c.Max}
		l := q.lines[w.key(c)]
		if l == nil || l.wanted < MaxWaiting && l.free(w, c, now) && !l.ask.After(now) {
			continue
		}
		o.Blocked, o.Remaining = true, 0
		o.RetryAfter = l.earliest(w, c, now).Sub(now)
		o.ResetAfter = o.RetryAfter
	}
	return outcomes
}
