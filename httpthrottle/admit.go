package httpthrottle

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/adaptivethrottler/throttler"
)

// admit returns when a request of l may be sent, with what has allowed it. The error is a
// [*LimitError], or matches [throttler.ErrInvalidRule].
func (t *Transport) admit(ctx context.Context, l *target) (allowed []throttler.Decision, err error) {
	k := t.knowledgeOf(l.key)
	t.refresh(l, k)
	waiting, cancel := ctx, func() {}
	if t.MaxWait > 0 {
		waiting, cancel = context.WithTimeout(ctx, t.MaxWait)
	}
	defer cancel()
	if err := t.waitUnstored(ctx, waiting, k); err != nil {
		return nil, err
	}
	for _, rule := range l.rules(k.serverLimits(), t.margin, time.Now()) {
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

// waitUnstored waits for the end of a pause that could not be stored as a ban.
func (t *Transport) waitUnstored(ctx, waiting context.Context, k *knowledge) error {
	for pause := k.unstoredPause(); pause > 0; pause = k.unstoredPause() {
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

// cancel gives the hits back, of a request that was not sent or that the server did not take.
// If the backend fails they expire in their time.
func (t *Transport) cancel(ctx context.Context, allowed []throttler.Decision) {
	for _, d := range allowed {
		t.Throttler.Cancel(ctx, d)
	}
}

// learn learns from the answer to a request that was sent then, by those decisions. If the
// server has refused it for a limit, the result is the time for which it wants no requests.
func (t *Transport) learn(ctx context.Context, l *target, allowed []throttler.Decision, response *http.Response, sent time.Time) time.Duration {
	said := readAnswer(response, time.Now())
	k := t.knowledgeOf(l.key)
	ctx = context.WithoutCancel(ctx) // what was learned is for others too
	for _, q := range said.quotas {
		t.learnLimit(ctx, l, k, q)
	}
	pause := min(said.pause(), t.maxPause())
	if pause > 0 {
		pause += t.margin(pause)
	}
	if !said.refused() {
		k.accepted()
		if pause > 0 && !t.waits(ctx, l, k, pause) {
			t.close(ctx, l, k, pause)
		}
		return 0
	}
	t.cancel(ctx, allowed)
	if pause == 0 {
		pause = k.backOff(sent, t.maxPause())
	}
	t.close(ctx, l, k, pause)
	return pause
}

// waits reports whether the next request of l waits for that long by its rule, but for the
// second to which servers round. Then a pause would only make the wait longer.
func (t *Transport) waits(ctx context.Context, l *target, k *knowledge, pause time.Duration) bool {
	for _, rule := range l.rules(k.serverLimits(), t.margin, time.Now()) {
		d, _ := t.Throttler.Peek(ctx, rule) // it has been asked before, and so is valid
		for i := range d.Outcomes {
			if o := &d.Outcomes[i]; o.Blocked && o.RetryAfter > pause-time.Second {
				return true
			}
		}
	}
	return false
}

// close bans all requests of l for that long, in all processes if the backend allows.
func (t *Transport) close(ctx context.Context, l *target, k *knowledge, pause time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	rule := throttler.Rule{Identifier: l.rule.Identifier, Either: []throttler.Condition{l.closed()}}
	err := t.Throttler.Ban(ctx, rule, pause)
	k.pause(pause, err == nil)
}
