package main

import (
	"context"
	"net"
	"time"
)

// A system is one of those that are compared: a rate limiter, and where it keeps
// its records.
type system struct {
	name    string
	how     string // its algorithm, in a few words
	backend backend

	// open returns the limiter, with its records in e. What was opened with
	// another e.space shares no records with it.
	open func(e env, l limit) (limiter, error)
}

// An env is what a limiter is given.
type env struct {
	server *server // nil for one in process memory
	dial   func(context.Context) (net.Conn, error)
	space  string // distinguishes keys; plain letters and digits
}

// A limit allows Max calls for a value in any time of Window.
type limit struct {
	Max    int
	Window time.Duration
}

// bucket returns a limit of l's rate for a leaky bucket, whose window is a second
// or longer. A bucket keeps one time only, whatever its window; a caller that
// is not served for as long as a short one lasts would find it full.
func (l limit) bucket() limit {
	if l.Window >= time.Second {
		return l
	}
	return limit{int(int64(l.Max) * int64(time.Second) / int64(l.Window)), time.Second}
}

// A limiter is an open system.
type limiter interface {
	// caller returns a function that asks for one more call for value. It is
	// used by one goroutine at a time.
	caller() func(value string) (allowed bool, err error)

	// flush waits for what the limiter goes on to do after it has answered.
	flush()

	close()
}

// A simple limiter has the same function for all callers and does all of its
// work before it answers.
type simple struct {
	allow func(value string) (bool, error)
	end   func()
}

func (s simple) caller() func(string) (bool, error) { return s.allow }

func (s simple) flush() {}

func (s simple) close() { s.end() }
