package pool

import (
	"context"

	"github.com/adaptivethrottler/throttler"
)

var _ throttler.Exchanger = (*Pool)(nil)

// Exchange writes records and reads them back, each in one round trip, as
// [throttler.Exchanger] says: a CompareAndSwap or an Add and a Get in one packet,
// with those of other callers. It asks all servers at once.
//
// If ctx has ended already they are started all the same: an exchange may be that
// of several callers, or take back what one of them has counted.
func (p *Pool) Exchange(ctx context.Context, xs ...throttler.Exchange) {
	if len(xs) == 1 && ctx.Err() == nil {
		p.exchange(ctx, xs[0])
		return
	}
	requests, refused := p.exchanges(xs)
	for _, r := range refused {
		r.x.Done(throttler.Result{Err: r.err})
	}
	p.do(ctx, requests)
}

// exchange is Exchange for a single one.
func (p *Pool) exchange(ctx context.Context, x throttler.Exchange) {
	s := p.newSingle()
	s.request.x, s.request.key = x, x.Key()
	ended, err := p.one(ctx, s)
	if ended {
		p.release(s)
	}
	if err != nil {
		x.Done(throttler.Result{Err: err})
	}
}

// Start starts exchanges and returns without waiting for any server. Done is
// called on another goroutine, even if the exchange fails at once.
func (p *Pool) Start(xs ...throttler.Exchange) {
	requests, refused := p.exchanges(xs)
	byLane(requests, func(l *lane, group []*request) {
		if err := l.submit(group); err != nil {
			refused = append(refused, failed(group, err)...)
		}
	})
	if len(refused) > 0 {
		go func() {
			for _, r := range refused {
				r.x.Done(throttler.Result{Err: r.err})
			}
		}()
	}
}

// exchanges returns the requests for xs, and those that no server is to be asked
// for, with their errors.
func (p *Pool) exchanges(xs []throttler.Exchange) (requests, refused []*request) {
	requests = make([]*request, 0, len(xs))
	for _, x := range xs {
		r := &request{x: x, key: x.Key()}
		if r.err = p.admit(r); r.err != nil {
			refused = append(refused, r)
		} else {
			requests = append(requests, r)
		}
	}
	return requests, refused
}

// failed sets the error of requests that were not submitted.
func failed(requests []*request, err error) []*request {
	for _, r := range requests {
		r.err = err
	}
	return requests
}
