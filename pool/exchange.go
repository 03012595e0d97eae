package pool

import (
	"context"

	"github.com/adaptivethrottler/throttler/exchange"
	"github.com/adaptivethrottler/throttler/internal/fanout"
	"github.com/bradfitz/gomemcache/memcache"
)

var _ exchange.Exchanger = (*Pool)(nil)

// Exchange writes records and reads them back, each in one round trip, as
// [exchange.Exchanger] says: a CompareAndSwap or an Add and a Get in one packet,
// with those of other callers. It asks all servers at once.
//
// If ctx has ended already they are started all the same: an exchange may be that
// of several callers, or take back what one of them has counted.
func (p *Pool) Exchange(ctx context.Context, xs ...exchange.Exchange) {
	b := p.exchanges(xs)
	for _, r := range b.Refused {
		r.x.Done(exchange.Result{Err: r.err})
	}
	if do(ctx, b) {
		p.release(b)
	}
}

// Start starts exchanges and returns without waiting for any server. Done is
// called on another goroutine, even if the exchange fails at once.
func (p *Pool) Start(xs ...exchange.Exchange) {
	b := p.exchanges(xs)
	refused := b.Refused
	fanout.By(b.Admitted, linkOf, func(l *link, group []*request) {
		if err := l.submit(group); err != nil {
			for _, r := range group {
				r.err = err
			}
			refused = append(refused, group...)
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

// A batch is a number of requests that are made together.
type batch = fanout.Batch[request]

// exchanges returns the requests for xs.
func (p *Pool) exchanges(xs []exchange.Exchange) *batch {
	b := p.batches.Get(len(xs))
	for i, x := range xs {
		b.All[i].x, b.All[i].key = x, x.Key()
	}
	b.Admit(p.admit)
	return b
}

// call makes a request that writes with v, or reads if that is none. maybe says that the server
// may have carried out a write whose answer was lost.
func (p *Pool) call(v verb, key string, item *memcache.Item) (answer reply, maybe bool, err error) {
	b := p.batches.Get(1)
	defer p.release(b)
	r := &b.All[0]
	r.verb, r.key, r.item, r.reads = v, key, item, v == none
	b.Admit(p.admit)
	do(context.Background(), b)
	return r.reply, r.maybe, r.err
}

// admit finds the link of a request. It reports false, and sets the request's error, if no
// server is to be asked.
func (p *Pool) admit(r *request) bool {
	s, err := p.server(r.key)
	if err == nil {
		r.link = s.link(r.key)
		err = s.Admit()
	}
	r.err = err
	return err == nil
}

// release gives b back, once its requests have ended and are not used any more.
func (p *Pool) release(b *batch) {
	for i := range b.All {
		if b.All[i].fate == givenUp {
			return
		}
	}
	p.batches.Put(b)
}

// do makes the requests of b and returns when all have ended, or ctx has. It reports which. A
// lone caller writes by itself, and reads the answers of one server. Other goroutines read
// those of the other servers, so that a server that hangs delays none of them.
func do(ctx context.Context, b *batch) (ended bool) {
	if len(b.Admitted) == 0 {
		return true
	}
	n := 0                     // servers
	var own *conn              // is read here, for ownLatch
	var ownLatch *fanout.Latch // of which it has the answers
	fanout.By(b.Admitted, linkOf, func(l *link, group []*request) {
		latch := b.Latch(n)
		n++
		latch.Hold(len(group))
		for _, r := range group {
			r.latch = latch
		}
		conn, err := l.claimOrSubmit(group)
		switch {
		case err != nil:
			for _, r := range group {
				r.finish(err)
			}
		case conn == nil:
		case !conn.sendAlone(group):
		case own == nil:
			own, ownLatch = conn, latch
		default:
			go conn.receive(context.Background(), nil)
		}
	})
	if own != nil {
		own.receiveOwn(ctx, ownLatch)
	}
	ended = true
	for i := range n {
		ended = b.Latch(i).Wait(ctx) && ended
	}
	return ended
}

func linkOf(r *request) *link { return r.link }
