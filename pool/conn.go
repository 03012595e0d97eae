package pool

import (
	"context"
	"errors"
	"net"
	"os"
	"time"
)

// A conn is a connection to a server, as the memcache.Client has it in use or
// idle.
type conn struct {
	net.Conn
	server     *server
	life       context.Context // ended, with its cause, when the pool closes the connection
	generation uint64          // server.generation when it was made

	// asking is true from a request's first write until its answer's first read.
	// The client hands a connection from one goroutine to the next with a
	// lock, so it needs none of its own.
	asking bool
	sent   bool // a part of the request under way has been sent
}

// A lostError says that the connection broke before the answer had been read. The
// same request may fare better on another one.
type lostError struct {
	error
	generation uint64 // of the connection
	sent       bool   // the server may have carried the request out
}

func (e *lostError) Error() string { return "connection lost: " + e.error.Error() }
func (e *lostError) Unwrap() error { return e.error }

// Write sends a part of a request. The first part sets the deadline for all of
// it and for all of the answer.
func (c *conn) Write(b []byte) (int, error) {
	if !c.asking {
		c.asking, c.sent = true, false
		if err := c.Conn.SetDeadline(time.Now().Add(c.server.timeout)); err != nil {
			// It was closed while it was idle, perhaps by cut: that is an
			// error of the connection and not of this request.
			return 0, c.lost(err)
		}
	}
	n, err := c.Conn.Write(b)
	c.sent = c.sent || n > 0
	return n, c.failure(err)
}

func (c *conn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.asking = false
	return n, c.failure(err)
}

// SetDeadline does nothing. The client sets a new deadline before each line of an
// answer, so that a server that sends one item after another, for ever, would
// never be late.
func (c *conn) SetDeadline(time.Time) error { return nil }

func (c *conn) Close() error {
	c.server.forget(c)
	return c.Conn.Close()
}

// failure says what an error of the connection means.
func (c *conn) failure(err error) error {
	switch {
	case err == nil:
		return nil
	case c.life.Err() != nil:
		return context.Cause(c.life)
	case errors.Is(err, os.ErrDeadlineExceeded):
		// Not net.Error's Timeout: that is also true of ETIMEDOUT, by which
		// the kernel says that the peer of an idle connection is gone.
		return err
	}
	return c.lost(err)
}

func (c *conn) lost(err error) error { return &lostError{err, c.generation, c.sent} }

// dial makes a connection. The context that the client gives is left alone: it
// ends after the time for an answer, and does not end with the pool.
func (s *server) dial(_ context.Context, network, address string) (net.Conn, error) {
	life := s.alive()
	ctx, cancel := context.WithTimeout(life, s.dialTimeout)
	defer cancel()
	nc, err := s.dialContext(ctx, network, address)
	switch {
	case err == nil:
	case life.Err() != nil:
		return nil, context.Cause(life)
	default:
		return nil, err
	}
	return s.keep(&conn{Conn: nc, server: s, life: life, generation: s.generation.Load()})
}

// alive returns the context that ends when cut is called.
func (s *server) alive() context.Context {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.life
}

// keep notes an open connection, unless cut was faster.
func (s *server) keep(c *conn) (net.Conn, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c.life.Err() != nil {
		c.Conn.Close()
		return nil, context.Cause(c.life)
	}
	s.conns[c] = struct{}{}
	return c, nil
}

func (s *server) forget(c *conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.conns, c)
}

// cut ends all connections and dials of the server; what waits for them fails for
// the given reason. What comes after gets new ones.
func (s *server) cut(reason error) {
	s.mu.Lock()
	s.endLife(reason)
	s.life, s.endLife = context.WithCancelCause(s.closing)
	conns := s.conns
	s.conns = make(map[*conn]struct{})
	s.mu.Unlock()
	for c := range conns { // not under the lock: closing may write, as TLS does
		c.Conn.Close()
	}
	s.client.Close() // it would hand out those that were idle
}

// purge closes the idle connections that were made together with one that was
// lost: what broke that one has most likely broken them all, and each would
// cost a call its second attempt. Connections made since then are left alone.
func (s *server) purge(generation uint64) {
	if s.generation.CompareAndSwap(generation, generation+1) {
		s.client.Close()
	}
}
