package throttler

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"
)

// maxNap is how long a waiting call sleeps at most before it looks again: a
// limit may open early, by a Cancel or a Reset.
const maxNap = time.Minute

// Wait postpones a call until rule authorizes it, and returns the Decision that
// does. A call that has to wait is counted nowhere and bans nobody, as if the
// rule were CountAuthorizedOnly and without lockouts; bans that others have set
// it waits for.
//
// Those who wait for the same values in one process stand in line: one after
// the other tries as the limit opens, the first to come first, however many
// there are. Lines of several processes compete.
//
// A limit that opens early, by a Cancel or a Reset, is noticed within a minute.
//
// Wait gives up when ctx is done, and at once when ctx's deadline comes before
// the limit opens. The error then matches ctx.Err() or context.DeadlineExceeded,
// and the Decision is Blocked; what a try that ctx has cut short may have counted
// can be taken back with [Throttler.Cancel]. Otherwise the error is that of an
// invalid rule, as with [Throttler.Authorize]; and as there, a backend that fails
// does not block.
func (t *Throttler) Wait(ctx context.Context, rule Rule) (Decision, error) {
	if err := rule.Validate(); err != nil {
		return Decision{}, err
	}
	start := t.startObserving()
	d, err := t.wait(ctx, rule)
	if err != nil {
		d.Status = Blocked // even if the last look, or a backend that failed, would let it pass
	}
	t.observe(ctx, rule, &d, start)
	return d, err
}

func (t *Throttler) wait(ctx context.Context, rule Rule) (Decision, error) {
	// With nobody in line there is no need to stand in it. Otherwise a look
	// tells whether the limit opens in time at all.
	inLine := t.lines.waiting(lineKey(rule))
	d, done, err := t.attempt(ctx, rule, inLine)
	if err != nil || done && !inLine {
		return d, err
	}
	leave, err := t.lines.stand(ctx, lineKey(rule))
	if err != nil {
		return d, err
	}
	defer leave()
	for {
		d, done, err = t.attempt(ctx, rule, false)
		if err != nil || done {
			return d, err
		}
		if err := sleep(ctx, min(d.RetryAfter, maxNap)); err != nil {
			return d, err
		}
	}
}

// attempt decides rule for a call that can wait; if dry is set it only looks.
// done says that the call is authorized, and err that it is no use to go on.
func (t *Throttler) attempt(ctx context.Context, rule Rule, dry bool) (d Decision, done bool, err error) {
	c := newCall(t.client, rule)
	c.rule.CountAuthorizedOnly = true
	c.dry = dry
	for _, e := range c.entries {
		e.lockout.length = 0
	}
	d = t.decide(ctx, c)
	if d.Err != nil && ctx.Err() != nil {
		return d, false, ctx.Err() // it failed open over that
	}
	if d.Status == Authorized {
		return d, true, nil
	}
	if deadline, ok := ctx.Deadline(); ok && time.Until(deadline) < d.RetryAfter {
		return d, false, fmt.Errorf("throttler: the limit opens in %v, which is too late: %w", d.RetryAfter, context.DeadlineExceeded)
	}
	return d, false, nil
}

// sleep returns after d, or with ctx's error when that is done.
func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// lines are the lines of those who wait, by what they wait for. The zero lines
// are empty.
type lines struct {
	mu    sync.Mutex // guards byKey and the length of each line
	byKey map[string]*line
}

type line struct {
	length int           // how many stand in it; at 0 it is removed
	head   chan struct{} // holds one token, that of who is at the head
}

// lineKey returns the key of the line for rule's values. No key of a record
// holds the byte that separates them.
func lineKey(rule Rule) string {
	var keys []string
	for _, c := range rule.conditions() {
		keys = append(keys, key(rule.Identifier, c.Name, c.Value))
	}
	return strings.Join(keys, "\n")
}

// waiting reports whether anybody stands in the line.
func (ls *lines) waiting(key string) bool {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	return ls.byKey[key] != nil
}

// stand returns when the caller has come to the head of the line, which it
// holds until it calls leave, or with ctx's error when that is done.
func (ls *lines) stand(ctx context.Context, key string) (leave func(), err error) {
	l := ls.join(key)
	// Those who block in a send are served in the order in which they came.
	select {
	case l.head <- struct{}{}:
		return func() { <-l.head; ls.quit(key) }, nil
	case <-ctx.Done():
		ls.quit(key)
		return nil, ctx.Err()
	}
}

func (ls *lines) join(key string) *line {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if ls.byKey == nil {
		ls.byKey = make(map[string]*line)
	}
	l := ls.byKey[key]
	if l == nil {
		l = &line{head: make(chan struct{}, 1)}
		ls.byKey[key] = l
	}
	l.length++
	return l
}

func (ls *lines) quit(key string) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	l := ls.byKey[key]
	l.length--
	if l.length == 0 {
		delete(ls.byKey, key)
	}
}
