package engine

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/adaptivethrottler/throttler/internal/failure"
	"github.com/adaptivethrottler/throttler/internal/record"
	"github.com/adaptivethrottler/throttler/internal/waitqueue"
)

// Wait sleeps until p authorizes a call, and sets r and out, which are zero, to those of the
// last try. If there is an error, retry is when the call could be authorized, as the queue knows,
// or negative if that is what out says.
func (p *Plan) Wait(ctx context.Context, demands []Demand, r *Receipt, out []Outcome) (retry time.Duration, err error) {
	p = p.patient()
	queue := &p.engine.queue
	w := queue.Arrive(p.wants(demands), p.Mode != Either, p.Shadow)
	defer queue.Leave(w)
	for tried := false; ; {
		nap, err := queue.Next(ctx, w)
		if errors.Is(err, waitqueue.ErrFull) {
			err = fmt.Errorf("%w: %w", failure.ErrOverloaded, err)
		}
		if err == nil && nap != 0 {
			err = sleep(ctx, nap, w.Signals())
		}
		switch {
		case err != nil:
			return p.giveUp(w, tried, demands, r, out), err
		case nap != 0:
			continue
		}
		r.clear()
		clear(out)
		p.Authorize(ctx, demands, r, out)
		tried = true
		authorized := !p.Blocks(out) || p.Shadow
		switch {
		case cutShort(ctx, out):
			return -1, ctx.Err()
		case queue.Report(w, authorized, p.seen(out)):
			return -1, nil
		case authorized:
			// It failed open too early. What it has counted at servers that answer is taken back.
			if err := r.Cancel(ctx, p.engine, nil); err != nil {
				out[0].Err = Join(out[0].Err, err)
			}
			r.clear()
		}
	}
}

// cutShort reports whether ctx ended before out was complete. A complete decision
// stands, even if ctx has ended since.
func cutShort(ctx context.Context, out []Outcome) bool {
	if ctx.Err() == nil {
		return false
	}
	for i := range out {
		if errors.Is(out[i].Err, ctx.Err()) {
			return true
		}
	}
	return false
}

// sleep returns after d, or when called gets a value, or with ctx's error when ctx ends.
// With a negative d it sleeps until called gets one.
func sleep(ctx context.Context, d time.Duration, called <-chan struct{}) error {
	var over <-chan time.Time
	if d > 0 {
		timer := time.NewTimer(d)
		defer timer.Stop()
		over = timer.C
	}
	select {
	case <-over:
	case <-called:
	case <-ctx.Done():
		return ctx.Err()
	}
	return nil
}

// wants returns what a call wants of each record.
func (p *Plan) wants(demands []Demand) []waitqueue.Want {
	keys := p.Keys(demands)
	wants := make([]waitqueue.Want, len(demands))
	for i := range demands {
		limit := p.limit(i, &demands[i])
		wants[i] = waitqueue.Want{
			Key: keys[i], Name: p.Conditions[i].Name, Needed: limit.Needed(), Cost: limit.Hits(), Max: limit.Max, TTL: limit.TTL,
			Sooner: limit.Algorithm == record.Leases,
		}
		switch limit.Algorithm {
		case record.Bucket:
			wants[i].Leaks, wants[i].Interval = true, time.Duration(limit.Interval())
		case record.Calendar:
			wants[i].TTL, wants[i].Longest = limit.Period.Length()
		}
	}
	return wants
}

// seen returns what out has found of each record.
func (p *Plan) seen(out []Outcome) []waitqueue.Seen {
	seen := make([]waitqueue.Seen, len(out))
	for i := range out {
		o := &out[i]
		seen[i] = waitqueue.Seen{
			Unasked: !o.Asked, Blocked: o.Blocked, Failed: o.failedOpen(p.Conditions[i].Limit.Max), Remaining: o.Remaining, RetryAfter: o.RetryAfter,
		}
	}
	return seen
}

// giveUp returns when the call of w could be authorized, or a negative time. If it has not
// tried, it sets out by the queue alone. r is that of a call like any other, though it may have
// counted nothing.
func (p *Plan) giveUp(w *waitqueue.Waiter, tried bool, demands []Demand, r *Receipt, out []Outcome) (retry time.Duration) {
	if r.plan == nil {
		r.plan = p
		for i, key := range p.Keys(demands) {
			r.parts()[i].key = key
		}
	}
	closed, retry := p.engine.queue.Outlook(w)
	if tried {
		return retry
	}
	for i := range out {
		o := &out[i]
		if o.Asked = true; closed[i] > 0 {
			o.Blocked, o.RetryAfter, o.ResetAfter, o.Again = true, closed[i], closed[i], closed[i]
		} else {
			o.Remaining = p.Conditions[i].Limit.Max
		}
	}
	return retry
}
