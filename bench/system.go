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

	// Each call over a network has a ctx of its own that can end, as an HTTP
	// request has.
	background bool          // instead, all have context.Background()
	deadline   time.Duration // or one that ends after that time
}

// inBackground returns s, called with context.Background().
func (s system) inBackground() system {
	s.name += ", context.Background"
	s.background = true
	return s
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
type limiter struct {
	caller func() allow // returns the function of one caller
	flush  func()       // waits for work that the limiter does after its answers
	close  func()

	// cpu returns the processor time of a service and of its store so far. It is
	// nil for a limiter in this process.
	cpu func() (service, store time.Duration)
}

// An allow asks for one more call for value. One goroutine uses it at a time.
type allow func(ctx context.Context, value string) (allowed bool, err error)

// simple returns a limiter that has one function for all callers, and finishes
// its work before it answers.
func simple(all allow, end func()) limiter {
	return limiter{caller: func() allow { return all }, flush: func() {}, close: end}
}

// A fleet has its clients' records in one place, but connections, memory and
// callers for each of them, as processes have. What one of them remembers of a
// value, another one has changed since.
const (
	fleetClients = 8
	fleetCallers = 8 // of each client
)

// fleetOf returns s, opened once for each client.
func fleetOf(s system) system {
	open := s.open
	s.open = func(e env, l limit) (limiter, error) {
		var clients []limiter
		callers := 0
		fleet := limiter{
			caller: func() allow {
				callers++
				return clients[callers%len(clients)].caller()
			},
			flush: func() {
				for _, one := range clients {
					one.flush()
				}
			},
			close: func() {
				for _, one := range clients {
					one.close()
				}
			},
		}
		for range fleetClients {
			one, err := open(e, l)
			if err != nil {
				fleet.close()
				return limiter{}, err
			}
			clients = append(clients, one)
		}
		return fleet, nil
	}
	return s
}

// fleets returns each of systems as a fleet.
func fleets(systems ...system) (all []system) {
	for _, s := range systems {
		all = append(all, fleetOf(s))
	}
	return all
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
