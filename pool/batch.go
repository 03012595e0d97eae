package pool

import (
	"context"

	"github.com/adaptivethrottler/throttler/exchange"
	"github.com/adaptivethrottler/throttler/internal/fanout"
)

// A batch is a number of requests that are made together, with what waiting for them takes.
type batch struct {
	requests []*request      // that are made
	refused  []*request      // for which no server is to be asked, with their errors
	all      []request       // memory for both
	latches  []*fanout.Latch // one for each shard
}

// maxBatch is for how many requests a batch is used again.
const maxBatch = 64

// newBatch returns a batch without requests. Those whose requests have ended are used
// again, by the same Pool: a channel must not leave its synctest bubble.
func (p *Pool) newBatch() *batch {
	if s, ok := p.batches.Get().(*batch); ok {
		return s
	}
	return new(batch)
}

// releaseBatch gives s back, once its requests have ended and are not used any more.
func (p *Pool) releaseBatch(s *batch) {
	if len(s.all) > maxBatch {
		return
	}
	for i := range s.all {
		if s.all[i].fate == givenUp {
			return
		}
	}
	clear(s.all)
	clear(s.requests)
	clear(s.refused)
	s.all, s.requests, s.refused = s.all[:0], s.requests[:0], s.refused[:0]
	p.batches.Put(s)
}

// exchanges makes the requests for xs.
func (s *batch) exchanges(p *Pool, xs []exchange.Exchange) {
	if len(xs) > cap(s.all) {
		s.all, s.requests = make([]request, len(xs)), make([]*request, 0, len(xs))
	}
	s.all = s.all[:len(xs)]
	for i, x := range xs {
		r := &s.all[i]
		r.x, r.key = x, x.Key()
		if r.err = p.admit(r); r.err != nil {
			s.refused = append(s.refused, r)
		} else {
			s.requests = append(s.requests, r)
		}
	}
}

// do makes the requests and returns when all have ended, or ctx has. It reports which. A lone
// caller writes by itself, and reads the answers of one server. Other goroutines read
// those of the other servers, so that a server that hangs delays none of them.
func (s *batch) do(ctx context.Context) (ended bool) {
	n := 0                     // shards
	var own *conn              // is read here, for ownLatch
	var ownLatch *fanout.Latch // of which it has the answers
	fanout.By(s.requests, shardOf, func(l *shard, group []*request) {
		latch := s.latch(n, group)
		n++
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
	for _, latch := range s.latches[:n] {
		ended = latch.Wait(ctx) && ended
	}
	return ended
}

// latch returns the latch of the i-th shard, for requests.
func (s *batch) latch(i int, requests []*request) *fanout.Latch {
	if i == len(s.latches) {
		s.latches = append(s.latches, new(fanout.Latch))
	}
	l := s.latches[i]
	l.Hold(len(requests))
	for _, r := range requests {
		r.latch = l
	}
	return l
}
