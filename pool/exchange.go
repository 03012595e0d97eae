package pool

import (
	"context"

	"github.com/adaptivethrottler/throttler/exchange"
	"github.com/adaptivethrottler/throttler/internal/fanout"
)

var _ exchange.Exchanger = (*Pool)(nil)

// Exchange writes records and reads them back, each in one round trip, as
// [exchange.Exchanger] says: a CompareAndSwap or an Add and a Get in one packet,
// with those of other callers. It asks all servers at once.
//
// If ctx has ended already they are started all the same: an exchange may be that
// of several callers, or take back what one of them has counted.
func (p *Pool) Exchange(ctx context.Context, xs ...exchange.Exchange) {
	if len(xs) == 1 && ctx.Err() == nil {
		p.exchange(ctx, xs[0])
		return
	}
	s := p.newBatch()
	s.exchanges(p, xs)
	for _, r := range s.refused {
		r.x.Done(exchange.Result{Err: r.err})
	}
	if s.do(ctx) {
		p.releaseBatch(s)
	}
}

// exchange is Exchange for a single one.
func (p *Pool) exchange(ctx context.Context, x exchange.Exchange) {
	s := p.newSingle()
	s.request.x, s.request.key = x, x.Key()
	ended, err := p.one(ctx, s)
	if ended {
		p.release(s)
	}
	if err != nil {
		x.Done(exchange.Result{Err: err})
	}
}

// Start starts exchanges and returns without waiting for any server. Done is
// called on another goroutine, even if the exchange fails at once.
func (p *Pool) Start(xs ...exchange.Exchange) {
	s := new(batch)
	s.exchanges(p, xs)
	refused := s.refused
	fanout.By(s.requests, shardOf, func(l *shard, group []*request) {
		if err := l.submit(group); err != nil {
			refused = append(refused, failed(group, err)...)
		}
	})
	if len(refused) > 0 {
		go func() {
			for _, r := range refused {
				r.x.Done(exchange.Result{Err: r.err})
			}
		}()
	}
}

// failed sets the error of requests that were not submitted.
func failed(requests []*request, err error) []*request {
	for _, r := range requests {
		r.err = err
	}
	return requests
}

// admit finds the shard of a request. It returns an error if no server is to be
// asked.
func (p *Pool) admit(r *request) error {
	s, err := p.server(r.key)
	if err != nil {
		return err
	}
	r.shard = s.shard(r.key)
	return s.Admit()
}

// one makes the request of s and returns when it has ended, or ctx has. It reports
// which; err is why no server was asked.
func (p *Pool) one(ctx context.Context, s *single) (ended bool, err error) {
	r := &s.request
	if err := p.admit(r); err != nil {
		return true, err
	}
	r.latch, s.list[0] = &s.latch, r
	s.latch.Hold(1)
	switch c, err := r.shard.claimOrSubmit(s.list[:]); {
	case err != nil:
		r.finish(err)
	case c != nil && c.sendAlone(s.list[:]):
		c.receiveOwn(ctx, &s.latch)
	}
	return s.latch.Wait(ctx), nil
}

func shardOf(r *request) *shard { return r.shard }
