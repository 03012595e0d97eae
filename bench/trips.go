package main

import (
	"net"
	"sync/atomic"
)

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
