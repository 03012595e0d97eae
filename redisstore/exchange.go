package redisstore

import (
	"context"
	"strings"

	"github.com/adaptivethrottler/throttler/exchange"
	"github.com/adaptivethrottler/throttler/internal/fanout"
)

// Exchange writes records and reads them back, each in one round trip, as
// [exchange.Exchanger] says. On a Cluster it asks all nodes at once.
func (s *Store) Exchange(ctx context.Context, xs ...exchange.Exchange) {
	if len(xs) == 1 {
		s.exchange(ctx, xs[0])
		return
	}
	requests, refused := s.requests(xs)
	for _, r := range refused {
		r.done(exchange.Result{Conn: conn, Err: r.err})
	}
	if len(requests) > 0 {
		s.do(ctx, new(fanout.Latch), requests)
	}
}

// exchange is Exchange for a single one.
func (s *Store) exchange(ctx context.Context, x exchange.Exchange) {
	alone := s.newSingle()
	r := &alone.request
	r.x, r.key = x, s.stored(x.Key())
	if err := s.admit(r); err != nil {
		s.release(alone)
		x.Done(exchange.Result{Conn: conn, Err: err})
		return
	}
	if s.do(ctx, &alone.latch, alone.list[:]) {
		s.release(alone)
	}
}

// Start starts exchanges and returns without waiting for a server. Done is called on
// another goroutine, even if the exchange fails at once.
func (s *Store) Start(xs ...exchange.Exchange) {
	requests, refused := s.requests(xs)
	fanout.By(requests, nodeOf, func(n *node, group []*request) {
		if n.submit(group) {
			go n.lead(nil)
		}
	})
	if len(refused) > 0 {
		go func() {
			for _, r := range refused {
				r.done(exchange.Result{Conn: conn, Err: r.err})
			}
		}()
	}
}

// requests returns the requests for xs, and those that no server is to be asked for,
// with their errors.
func (s *Store) requests(xs []exchange.Exchange) (requests, refused []*request) {
	all := make([]request, len(xs))
	requests = make([]*request, 0, len(xs))
	for i, x := range xs {
		r := &all[i]
		r.x, r.key = x, s.stored(x.Key())
		if r.err = s.admit(r); r.err != nil {
			refused = append(refused, r)
		} else {
			requests = append(requests, r)
		}
	}
	return requests, refused
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

// admit finds the node of a request. It returns an error if no server is to be asked.
func (s *Store) admit(r *request) error {
	if s.isClosed() {
		return ErrClosed
	}
	s.init()
	r.node = s.routes.Load().of(r.key)
	return r.node.Admit()
}

// do makes requests, for which it holds latch, and returns when all have ended, or ctx has.
// It reports which. If only one node is to be asked, and ctx cannot end, the caller may lead
// there.
//
// If ctx can end, another goroutine leads. A caller that leaves a Do of rueidis loses the
// answer. The exchange would have to be sent again, and would count a hit twice if another
// process has written in between.
func (s *Store) do(ctx context.Context, latch *fanout.Latch, requests []*request) (ended bool) {
	latch.Hold(len(requests))
	for _, r := range requests {
		r.latch = latch
	}
	all, own := len(requests), ctx.Done() == nil
	fanout.By(requests, nodeOf, func(n *node, group []*request) {
		switch lead := n.submit(group); {
		case !lead:
		case own && len(group) == all:
			n.lead(latch)
		default:
			go n.lead(nil)
		}
	})
	return latch.Wait(ctx)
}

func nodeOf(r *request) *node { return r.node }
