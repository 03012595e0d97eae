package httpthrottle

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/adaptivethrottler/throttler"
)

// maxAnew is how often a request is decided anew because something was learned meanwhile.
const maxAnew = 3

// cancel gives the hits back, of a request that was not sent or that the server did not take.
// If the backend fails they expire in their time.
func (t *Transport) cancel(ctx context.Context, allowed []throttler.Decision) {
	for _, d := range allowed {
		t.Throttler.Cancel(ctx, d)
	}
}

// admit returns when a request of l may be sent, with what has allowed it. The error is a
// [*LimitError], or matches [throttler.ErrInvalidRule].
func (t *Transport) admit(ctx context.Context, l *limited) ([]throttler.Decision, error) {
	m := t.memory.of(l.key)
	t.refresh(ctx, m, l, time.Now().Add(-refreshEvery), false)
	waiting, cancel := ctx, func() {}
	if t.MaxWait > 0 {
		waiting, cancel = context.WithTimeout(ctx, t.MaxWait)
	}
	defer cancel()
	most := firstAnswer
	if t.MaxWait != 0 {
		most = min(most, t.MaxWait/2) // the rest is for its turn
	}
	if err := m.begin(ctx, most); err != nil {
		return nil, &LimitError{Err: err}
	}
	for anew := 0; ; anew++ {
		began := time.Now()
		learned, version := m.known()
		allowed, err := t.pass(ctx, waiting, m, l.rules(learned, t.margin, began))
		if err != nil {
			m.answered() // nobody need wait for the answer to this request
			return nil, err
		}
		if time.Since(began) > refreshEvery/100 { // it has waited: others may have learned something
			t.refresh(ctx, m, l, began, true)
		}
		if _, latest := m.known(); latest == version || anew == maxAnew {
			return allowed, nil
		}
		t.cancel(ctx, allowed)
	}
}

// pass returns when a request may be sent by all rules. It waits until waiting ends, a part of
// ctx.
func (t *Transport) pass(ctx, waiting context.Context, m *remembered, rules []throttler.Rule) (allowed []throttler.Decision, err error) {
	if err := t.passPause(ctx, waiting, m); err != nil {
		return nil, err
	}
	for _, rule := range rules {
		d, err := t.decide(waiting, rule)
		if err == nil && d.Status == throttler.Authorized {
			allowed = append(allowed, d)
			continue
		}
		t.cancel(ctx, allowed)
		if errors.Is(err, throttler.ErrInvalidRule) {
			return nil, fmt.Errorf("httpthrottle: %w", err)
		}
		return nil, notSent(ctx, waiting, d, err)
	}
	return allowed, nil
}

// decide waits for rule, unless no request may wait.
func (t *Transport) decide(ctx context.Context, rule throttler.Rule) (throttler.Decision, error) {
	if t.MaxWait >= 0 {
		return t.Throttler.Wait(ctx, rule)
	}
	d, err := t.Throttler.Authorize(ctx, rule)
	if err == nil && ctx.Err() != nil {
		d.Status, err = throttler.Blocked, ctx.Err() // it may have failed open
	}
	return d, err
}

// passPause waits for the end of a pause that could not be stored as a ban.
func (t *Transport) passPause(ctx, waiting context.Context, m *remembered) error {
	for pause := m.closedFor(); pause > 0; pause = m.closedFor() {
		d := throttler.Decision{RetryAfter: pause, Messages: []string{closedMessage}}
		deadline, ok := waiting.Deadline()
		if t.MaxWait < 0 || ok && time.Now().Add(pause).After(deadline) {
			return notSent(ctx, waiting, d, context.DeadlineExceeded)
		}
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-waiting.Done():
			timer.Stop()
			return notSent(ctx, waiting, d, waiting.Err())
		}
	}
	return nil
}

// notSent returns the error of a request whose waiting ended, or would have, with err. It is a
// part of ctx: if ctx has nothing to do with that, MaxWait has.
func notSent(ctx, waiting context.Context, d throttler.Decision, err error) error {
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		end, ok := ctx.Deadline()
		if part, _ := waiting.Deadline(); !ok || part.Before(end) {
			err = nil
		}
	}
	return &LimitError{Decision: d, Err: err}
}
