package main

import (
	"context"
	"net"
	"sync/atomic"
	"time"
)

// A system is a rate limiter with its store.
type system struct {
	name    string
	how     string // its algorithm, in a few words
	backend backend

	// open returns the limiter, with its records in e. It shares none with a
	// limiter of another e.space.
	open func(e env, l limit) (limiter, error)
}

// An env is the environment of a limiter.
type env struct {
	server *server // nil for one in process memory
	dial   func(context.Context) (net.Conn, error)
	space  string // distinguishes keys; letters and digits only
}

// A limit allows Max calls for a value in any time of Window.
type limit struct {
	Max    int
	Window time.Duration
}

// bucket returns a limit of l's rate with a window of a second or longer, for a
// leaky bucket. With a short window, a caller that is not scheduled for that
// long would find the bucket full.
func (l limit) bucket() limit {
	if l.Window >= time.Second {
		return l
	}
	return limit{int(int64(l.Max) * int64(time.Second) / int64(l.Window)), time.Second}
}

// A limiter is an open system.
type limiter interface {
	// caller returns a function that asks for one more call for value. One
	// goroutine uses it at a time.
	caller() func(value string) (allowed bool, err error)

	// flush waits for work that the limiter does after its answers.
	flush()

	close()
}

// A simple limiter has one function for all callers, and finishes its work
// before it answers.
type simple struct {
	allow   func(ctx context.Context, value string) (bool, error)
	end     func()
	callers endings
}

func (s *simple) caller() func(string) (bool, error) {
	ctx := s.callers.begin()
	return func(value string) (bool, error) { return s.allow(ctx, value) }
}

func (s *simple) flush() {}

func (s *simple) close() {
	s.callers.end()
	s.end()
}

// A counter counts round trips.
type counter = atomic.Int64

// A countedConn counts changes from reading to sending. For a client that waits
// for each answer these are its round trips. Requests that are sent together
// count as one.
type countedConn struct {
	net.Conn
	trips *counter
	sent  atomic.Bool // since the last read
}

func (c *countedConn) Write(b []byte) (int, error) {
	if !c.sent.Swap(true) {
		c.trips.Add(1)
	}
	return c.Conn.Write(b)
}

func (c *countedConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if n > 0 {
		c.sent.Store(false)
	}
	return n, err
}
