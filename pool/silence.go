package pool

import (
	"time"

	"github.com/adaptivethrottler/throttler/internal/turns"
)

// What ends a wait is the server's silence, never this process' own lateness. If more
// goroutines compute than there are processors, each waits for its turn behind the
// others: with 160 of them on 2 processors for almost a second. Timers run at once all
// the same. So a timer does not know what has come. Only the reader can tell that
// nothing has: a timer asks it, it reads once more, and then it judges.
//
// A wait ends if it has been too long and the reader, which looks then, finds nothing.

// grace is how long a reader that was asked waits for something to read.
const grace = time.Millisecond

// enoughEmpty is how many reads must find nothing. The deadline of one of them may pass
// before it has looked, if the reader loses its processor in between.
const enoughEmpty = 2

// enoughReads is how many reads without a complete answer end a lateCheck although they
// find something: it trickles. If it had come in time, fewer would read it, for the
// buffer grows with it.
const enoughReads = 16

// ahead is how long before its time a request is asked for: as long as it takes to find
// nothing. So a reader judges no earlier than at that time.
const ahead = enoughEmpty * grace

// turnsToWrite and turnsToConnect are how many turns a goroutine has to come to its
// system call, and to make a connection: to resolve a name, to connect, for TLS, a login
// and the version. Each needs fewer, but turns are not fair.
const (
	turnsToWrite   = 20
	turnsToConnect = 20
)

// A lateCheck is what the reader of a connection is asked when an answer is late: whether
// anything comes.
type lateCheck struct {
	until time.Time // it reads until then at least; zero: it is not asked
	empty int       // reads that have found nothing since
	reads int       // reads since an answer was complete
}

func (h *lateCheck) asked() bool { return !h.until.IsZero() }

// askLocked has the reader find out whether anything comes, and judge then, but not
// before the time until.
func (c *conn) askLocked(until time.Time) {
	if !c.lateCheck.asked() {
		c.lateCheck.until = until
		_ = c.nc.SetReadDeadline(past)
	}
}

// looks reports whether the reader, if it reads now, will look what there is: with a
// deadline that has passed it would not.
func (c *conn) looks() bool { return !c.lookBy.IsZero() && time.Now().Before(c.lookBy) }

// foundNothingLocked notes that a read of the reader, which was asked, has met its
// deadline. It judges if that was enough, and otherwise sets the next deadline.
func (c *conn) foundNothingLocked(looked bool) {
	h := &c.lateCheck
	if looked && !c.interrupted {
		h.empty++
	}
	if h.empty == enoughEmpty {
		c.judgeLocked()
		return
	}
	c.lookBy = time.Now().Add(grace)
	_ = c.nc.SetReadDeadline(c.lookBy)
}

// heardLocked notes that the reader has found something, and whether an answer is
// complete with it. What comes in pieces after a read has found nothing is late.
func (c *conn) heardLocked(complete bool) {
	now, h := time.Now(), &c.lateCheck
	if complete {
		h.empty, h.reads = 0, 0
		c.progress = now
		return
	}
	c.heard = now
	h.reads++
	if h.asked() && (h.reads > enoughReads || h.empty > 0 && !now.Before(h.until)) {
		c.judgeLocked()
	}
}

// judgeLocked ends what has waited too long for the server: the reader has looked, and
// found nothing more.
func (c *conn) judgeLocked() {
	c.lateCheck, c.lookBy = lateCheck{}, time.Time{}
	_ = c.nc.SetReadDeadline(time.Time{})
	now := time.Now()
	c.expireLocked(now)
	switch {
	case !c.isOverdueLocked(now):
	case c.transmitting:
		c.silentAt = c.offset
	default:
		c.giveUpLocked()
	}
	c.link.tickOnLocked(now)
}

// blockedLocked reports whether the reader, if it is asked, can tell nothing: it has found
// nothing while this packet was being written, or there is none, as a lone caller that writes
// reads only afterwards.
func (c *conn) blockedLocked(now time.Time) bool {
	return c.transmitting && (c.lone || c.silentAt == c.offset && c.isOverdueLocked(now))
}

// unblockLocked fails the connection if the server takes nothing more: a packet is still
// being written though its writer had its turn. It unlocks link.mu meanwhile.
func (c *conn) unblockLocked() {
	l, packet := c.link, c.offset
	l.mu.Unlock()
	turns.Pass(turnsToWrite)
	l.mu.Lock()
	now := time.Now()
	if c.transmitting && c.offset == packet && c.isOverdueLocked(now) {
		c.giveUpLocked()
	}
	l.tickOnLocked(now)
}

// giveUpLocked fails the connection, whose oldest request is overdue. If its answer has
// begun to come, the server is there: then this request alone fails, and those behind it
// are lost with the connection.
func (c *conn) giveUpLocked() {
	if !c.heard.After(c.waitingSinceLocked()) {
		c.failLocked(errTimeout)
		return
	}
	c.slow = c.sent.All()[0]
	c.failLocked(lostError{errTimeout})
}

// overdueLocked returns when the oldest request will have waited too long. It is zero if
// there is none, or the connection is of no use any more, or c is nil.
func (c *conn) overdueLocked() time.Time {
	if c == nil || c.dead != nil || c.sent.Len() == 0 {
		return time.Time{}
	}
	return c.waitingSinceLocked().Add(c.link.server.timeout)
}

func (c *conn) isOverdueLocked(now time.Time) bool {
	due := c.overdueLocked()
	return !due.IsZero() && !due.After(now)
}

// waitingSinceLocked returns since when the server could have answered the oldest
// request.
func (c *conn) waitingSinceLocked() time.Time {
	since := c.sent.All()[0].sent
	if c.progress.After(since) {
		return c.progress
	}
	return since
}
