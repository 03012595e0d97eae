package throttler

import (
	"context"
	"fmt"
	"sync"
	"time"
)

const (
	// MaxWaiting is how many calls of one process may wait for one condition.
	// A further one gets [ErrOverloaded].
	MaxWaiting = 10_000

	// maxNap is how long a waiter that is first in line sleeps at most before
	// it asks again: another process may have opened the limit early.
	maxNap = time.Minute

	// minNap is how long it sleeps at least if it was refused and not told how
	// long that lasts.
	minNap = time.Millisecond

	// patience is how often a waiter may come to its turn and find that another
	// of its conditions was taken, before it holds places in all its lines.
	patience = 3
)

// A waitQueue holds the calls of one Throttler that wait, in lines: one for each
// condition's record that somebody waits for. It does no I/O and starts no
// goroutine. Each waiter sleeps on its own goroutine, asks [waitQueue.next] what
// to do, tries, and hands over what it was told with [waitQueue.answer].
//
// A waiter of Either stands in one line at a time, that of the condition which
// takes it last as far as is known, and so holds no place in the others. A waiter
// of All stands in all its lines. Whoever comes first of all has the lower
// ticket, and stands before the others in every line.
//
// The zero waitQueue is empty.
type waitQueue struct {
	mu     sync.Mutex       // guards what follows, and all lines and waiters but for their called
	ticket uint64           // the last one given
	wakes  uint64           // counts the calls of wake
	lines  map[string]*line // by the key of the record

	openings openings // of the records that were full when they were seen last
}

// A line is that of one condition's record.
type line struct {
	key      string
	wanted   int       // how many waiters have the condition, wherever they stand; at 0 the line is removed
	standing []*waiter // by ticket
	hits     int       // what all who stand in it take together

	opening           // as a waiter was told last
	ask     time.Time // when the first one asks: then, or after maxNap
	woken   uint64    // wakes of the queue at the last wake of this line
}

// A waiter is one call of Wait.
type waiter struct {
	ticket uint64
	rule   *Rule
	tried  bool          // it is no newcomer any more
	places []place       // one for each condition, in the rule's order; nil until it has to wait
	called chan struct{} // holds a token if it has to look again
	wakes  uint64        // of the queue, when the waiter looked last

	missed int       // how often another condition was taken when its turn had come
	hold   *line     // the line that it waits for; nil: it is not first there
	until  time.Time // when that opens
}

// A place is what a waiter has in one line.
type place struct {
	line      *line
	condition *Condition
	standing  bool
}

// arrive returns the waiter of a call that begins.
func (q *waitQueue) arrive(rule *Rule) *waiter {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.ticket++
	return &waiter{ticket: q.ticket, rule: rule}
}

// next says what w has to do now: 0 is to try, more is to sleep so long or until
// it is called, and less is to sleep until it is called. The error says that w has
// to leave, as it would come too late or too many wait.
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

// free reports whether nobody stands before w, which is a newcomer.
func (q *waitQueue) free(w *waiter, now time.Time) bool {
	if len(q.lines) == 0 {
		return true
	}
	all := len(w.rule.All) > 0 // then one free line will do
	for i := range w.rule.conditions() {
		c := &w.rule.conditions()[i]
		l := q.lines[w.key(c)]
		if free := l == nil || l.free(w, c, now); free == all {
			return free
		}
	}
	return !all
}

// enter gives w, if it has none yet, places in the lines of its conditions.
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
			return fmt.Errorf("%w: %d calls wait for %q already", ErrOverloaded, l.wanted, c.Name)
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

// wake has the first in the lines of the records with these keys ask at once,
// since this process has changed the records: it has taken hits back, or set or
// lifted bans.
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

// answer takes d, which a try of w has come to, and reports whether w is through,
// and so out of all lines. If it is not although d is Authorized, a backend failed,
// and it is too early for a further hit.
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
		return false // next says so too
	}
	for i := range d.Outcomes {
		q.learn(w, &w.rule.conditions()[i], &d.Outcomes[i], now)
	}
	return through
}

// learn takes the outcome o that w was told of its condition c, for those who
// stand in that line.
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
	case l.woken > w.wakes: // what w was told may be of before
		l.told(opening{now, 1}, now)
	case w.places == nil || l.free(w, c, now): // not for one before w, who may take more hits
		l.told(at, now)
	}
	l.call(w)
}

// refusal returns the Decision that w leaves with, which has waited in vain. d is
// that of its last try, if there was one.
func (q *waitQueue) refusal(w *waiter, d Decision) Decision {
	q.mu.Lock()
	defer q.mu.Unlock()
	now := time.Now()
	if d.Outcomes == nil {
		d = w.rule.decision(q.outlook(w, now), nil)
	}
	if w.places != nil {
		d.RetryAfter = w.opens(now).Sub(now)
	}
	return d
}

// outlook returns outcomes for w by the lines alone.
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
