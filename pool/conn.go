package pool

import (
	"errors"
	"net"
	"sync/atomic"
	"time"

	"github.com/adaptivethrottler/throttler/internal/upstream"
)

// What may be in flight on a connection. 64 KiB of requests are in one packet, and
// 256 KiB and a packet in flight: what is more would only wait in the server.
const (
	maxInFlight      = 1024
	maxInFlightBytes = 256 << 10
	maxPacket        = 64 << 10
	maxRequests      = 4 * maxGroup // in a packet: the first have their answers while the server carries out the others
	maxAlone         = 16 << 10     // the most that a lone caller writes itself: it fits into any socket's buffer
	minBuffer        = 16 << 10
)

// connIDs counts the connections of this process.
var connIDs atomic.Uint64

// A conn is a connection to a server. One goroutine writes to it, and one reads from it.
type conn struct {
	link *link
	nc   net.Conn
	id   uint64 // 0: a proxy is in between, or might be

	inFlight
	writer
	reader
	metas metas

	spoilt *request // whose answer made no sense, or came too slowly; set when that killed the connection
}

// An inFlight is what is under way on a connection. link.mu guards it.
type inFlight struct {
	writing, reading bool                     // a goroutine has the role
	sent             upstream.Queue[*request] // without the whole of their answers, in order
	offset           int64
	transmitting     bool      // what is up to offset is being written
	lone             bool      // by its reader
	silentAt         int64     // offset while nothing came, though what is up to there was being written
	progress         time.Time // when the last answer was complete, or one more of a group's
	heard            time.Time // when a part of an answer last came, and no more than that
	slow             *request  // whose answer was still coming when it was overdue
	dead             error     // why it is not used any more
	buried           bool      // bury has been called, or is about to be
	interrupted      bool      // the read deadline has been set to wake the reader
	lateCheck        lateCheck
}

// spareLocked returns how many requests may be sent now.
func (f *inFlight) spareLocked() int {
	if f.sent.Len() > 0 && f.offset-f.sent.All()[0].start >= maxInFlightBytes {
		return 0
	}
	return maxInFlight - f.sent.Len()
}

// failLocked ends the use of the connection, because of err. It wakes the reader and the
// writer, and the last of them to leave buries it.
func (c *conn) failLocked(err error) {
	if c.dead != nil {
		return
	}
	c.dead = err
	if c.link.conn == c {
		c.link.conn = nil
	}
	_ = c.nc.SetDeadline(past)
}

// cut is fail for a caller without a role.
func (c *conn) cut(reason error) {
	c.link.mu.Lock()
	c.failLocked(reason)
	last := c.desertedLocked()
	c.link.mu.Unlock()
	if last {
		c.bury()
	}
}

// desertedLocked reports whether the caller is to call bury.
func (c *conn) desertedLocked() bool {
	if c.dead == nil || c.writing || c.reading || c.buried {
		return false
	}
	c.buried = true
	return true
}

// bury closes the connection and decides what becomes of the requests that it had
// sent. It is the last to use the connection.
func (c *conn) bury() {
	l, s := c.link, c.link.server
	l.mu.Lock()
	reason := c.dead
	if c.slow != nil && c.sent.Len() > 0 && c.sent.All()[0] == c.slow { // not answered since
		c.spoilLocked(c.slow.atFault())
	}
	failed, again := c.sortLocked(isLost(reason) && !l.closed)
	s.Counts.Retries.Add(uint64(len(again))) // before anybody can have the answer
	l.putBackLocked(again)
	if l.closed {
		reason = ErrClosed
		failed = append(failed, l.queue.Take(nil, l.queue.Len())...)
	}
	l.wakeLocked()
	l.mu.Unlock()

	hangUp(c.nc)
	if c.spoilt != nil || len(failed) > 0 {
		s.failed(1, reason)
	}
	if c.spoilt != nil {
		c.spoilt.finish(errors.Unwrap(c.dead))
	}
	for _, r := range failed {
		r.finish(reason)
	}
}

// hangUp closes a connection at once. TLS would first tell the server, and wait for 5 seconds if
// that takes nothing.
func hangUp(nc net.Conn) {
	c, ok := nc.(interface{ NetConn() net.Conn })
	if !ok {
		_ = nc.Close()
		return
	}
	_ = c.NetConn().Close()
	go nc.Close() // it may have more to close
}

// sortLocked sorts the requests that were sent into those that have failed and those
// that are to be sent again, if any may.
func (c *conn) sortLocked(retry bool) (failed, again []*request) {
	for _, r := range c.sent.All() {
		if r.fate != awaited {
			continue
		}
		r.lost(r.start < c.offset)
		if retry && r.mayRetry() {
			r.again()
			again = append(again, r)
			continue
		}
		r.fate = finished
		failed = append(failed, r)
	}
	c.sent.Drop(c.sent.Len())
	return failed, again
}
