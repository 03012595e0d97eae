package pool

import (
	"context"
	"slices"
)

// admit finds the lane of a request. It returns an error if no server is to be
// asked.
func (p *Pool) admit(r *request) error {
	s, err := p.server(r.key)
	if err != nil {
		return err
	}
	r.lane = s.lane(r.key)
	return s.admit()
}

// one makes the call of s and returns when it has ended, or ctx has. It reports
// which; err is why no server was asked.
func (p *Pool) one(ctx context.Context, s *single) (ended bool, err error) {
	r := &s.request
	if err := p.admit(r); err != nil {
		return true, err
	}
	r.call, s.list[0] = &s.call, r
	s.call.pending.Store(1)
	if c := r.lane.claim(); c == nil {
		if err := r.lane.submit(s.list[:]); err != nil {
			r.end(err)
		}
	} else if c.sendAlone(s.list[:]) {
		if ctx.Done() != nil {
			defer context.AfterFunc(ctx, c.interrupt)()
		}
		c.receive(ctx, &s.call)
	}
	return s.call.wait(ctx), nil
}

// do makes requests and returns when all have ended, or ctx has. Where nobody
// else asks, it writes and reads by itself.
func (p *Pool) do(ctx context.Context, requests []*request) {
	var calls []*call
	var alone []*conn
	byLane(requests, func(l *lane, group []*request) {
		c := newCall(group)
		conn := l.claim()
		if conn != nil && conn.sendAlone(group) {
			// The calls of these come first.
			calls, alone = slices.Insert(calls, len(alone), c), append(alone, conn)
			return
		}
		calls = append(calls, c)
		if conn != nil {
			return
		}
		if err := l.submit(group); err != nil {
			for _, r := range group {
				r.end(err)
			}
		}
	})
	if len(alone) > 0 {
		receiveAlone(ctx, alone, calls)
	}
	for _, c := range calls {
		c.wait(ctx)
	}
}

// receiveAlone reads the answers to calls from connections of which the caller is
// the reader.
func receiveAlone(ctx context.Context, conns []*conn, calls []*call) {
	if ctx.Done() != nil {
		stop := context.AfterFunc(ctx, func() {
			for _, c := range conns {
				c.interrupt()
			}
		})
		defer stop()
	}
	for i, c := range conns {
		c.receive(ctx, calls[i])
	}
}

// byLane calls f for the requests of each lane.
func byLane(requests []*request, f func(l *lane, group []*request)) {
	for len(requests) > 0 {
		l := requests[0].lane
		n := 1
		for i := 1; i < len(requests); i++ {
			if requests[i].lane == l {
				requests[n], requests[i] = requests[i], requests[n]
				n++
			}
		}
		f(l, requests[:n:n])
		requests = requests[n:]
	}
}
