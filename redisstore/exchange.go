package redisstore

import (
	"context"
	"strings"

	"github.com/adaptivethrottler/throttler/exchange"
	"github.com/adaptivethrottler/throttler/internal/fanout"
	"github.com/adaptivethrottler/throttler/pool"
)

// Exchange writes records and reads them back, each in one round trip, as
// [exchange.Exchanger] says. On a Cluster it asks all nodes at once.
func (s *Store) Exchange(ctx context.Context, xs ...exchange.Exchange) {
	b := s.exchanges(xs)
	if await(ctx, b) {
		s.batches.Put(b)
	}
}

// Start starts exchanges and returns without waiting for a server. Done is called on
// another goroutine, even if the exchange fails at once.
func (s *Store) Start(xs ...exchange.Exchange) {
	b := s.exchanges(xs)
	fanout.By(b.Admitted, nodeOf, func(n *node, group []*request) {
		if n.submit(group) {
			go n.lead(nil)
		}
	})
	if len(b.Refused) > 0 {
		go refuse(b.Refused)
	}
}

// A batch is a number of requests that are made together.
type batch = fanout.Batch[request]

// exchanges returns the requests for xs.
func (s *Store) exchanges(xs []exchange.Exchange) *batch {
	b := s.batches.Get(len(xs))
	for i, x := range xs {
		b.All[i].x, b.All[i].key = x, s.stored(x.Key())
	}
	b.Admit(s.admit)
	return b
}

// untagged is put before a key that has a brace. A Cluster then takes all of the key for its
// slot: if clients chose a part of it, by a value of "{tag}", they could aim at one node.
const untagged = "{}"

// stored returns the key that a record is stored at.
func (s *Store) stored(key string) string {
	if strings.IndexByte(key, '{') >= 0 {
		return s.Prefix + untagged + key
	}
	return s.Prefix + key
}

// key returns the key of a record that is stored at key.
func (s *Store) key(stored string) string {
	return strings.TrimPrefix(strings.TrimPrefix(stored, s.Prefix), untagged)
}

// admit finds the node of a request. It reports false, and sets the request's error, if no
// server is to be asked.
func (s *Store) admit(r *request) bool {
	if s.isClosed() {
		r.err = pool.ErrClosed
		return false
	}
	s.init()
	r.node = s.routes.Load().of(r.key)
	r.err = r.node.Admit()
	return r.err == nil
}

// await makes the requests of b, and returns when all have ended, or ctx has. It reports which.
// If only one node is to be asked, and ctx cannot end, the caller may lead there.
//
// If ctx can end, another goroutine leads. A caller that leaves a Do of rueidis loses the
// answer. The exchange would have to be sent again, and would count a hit twice if another
// process has written in between.
func await(ctx context.Context, b *batch) (ended bool) {
	refuse(b.Refused)
	if len(b.Admitted) == 0 {
		return true
	}
	latch := b.Latch(0)
	latch.Hold(len(b.Admitted))
	for _, r := range b.Admitted {
		r.latch = latch
	}
	own := ctx.Done() == nil
	fanout.By(b.Admitted, nodeOf, func(n *node, group []*request) {
		switch lead := n.submit(group); {
		case !lead:
		case own && len(group) == len(b.Admitted):
			n.lead(latch)
		default:
			go n.lead(nil)
		}
	})
	return latch.Wait(ctx)
}

// refuse ends requests that no server was to be asked for.
func refuse(requests []*request) {
	for _, r := range requests {
		r.done(exchange.Result{Conn: conn, Err: r.err})
	}
}

func nodeOf(r *request) *node { return r.node }
