package pool

import (
	"context"
	"errors"
	"os"
	"runtime"
	"time"

	"github.com/adaptivethrottler/throttler/internal/fanout"
)

// A reader is what the goroutine that reads from a connection keeps: buf[r:w] is read and
// not yet parsed.
type reader struct {
	buf     []byte
	r, w    int
	heads   []*request // the first of sent
	ready   []*request // have their answers
	expired expired    // have waited too long
	lookBy  time.Time  // the deadline of its reads, if it was asked; see lateCheck
	fault   *request   // whose answer makes no sense, or is an error after which none can be trusted

	came     bool // something has been read
	advanced bool // a part of a group's answers is complete
}

// receiveOwn is receive for a caller whose own requests are among those that wait for
// answers.
func (c *conn) receiveOwn(ctx context.Context, own *fanout.Latch) {
	if ctx.Done() != nil {
		defer context.AfterFunc(ctx, c.interrupt)()
	}
	c.receive(ctx, own)
}

// receive hands out answers. It has the reader's role, and gives it up when own
// is open or ctx has ended. Without own it does when there is no answer to wait for.
func (c *conn) receive(ctx context.Context, own *fanout.Latch) {
	defer c.leave()
	c.look()
	for idle := 0; idle < 3; {
		unread := c.r < c.w && len(c.heads) == 0 // of no request so far
		n, err := c.parse()
		waits, good := c.settle(n, err)
		c.handOut()
		switch {
		case !good, own.Open():
			return
		case !waits && own == nil:
			idle++ // the callers just answered are about to ask again
			runtime.Gosched()
			c.look()
			continue
		case n == 0 && !unread && !c.fill(ctx):
			return
		}
		idle = 0
	}
}

// look lets the reader see the first of the requests that wait for an answer.
func (c *conn) look() {
	c.link.mu.Lock()
	defer c.link.mu.Unlock()
	c.lookLocked()
}

func (c *conn) lookLocked() {
	waiting := c.sent.All()
	c.heads = append(c.heads[:0], waiting[:min(len(waiting), 256)]...)
}

// parse reads the answers that are there. It returns how many are complete, and
// an error if the connection is of no use any more.
func (c *conn) parse() (n int, err error) {
	for n < len(c.heads) && c.r < c.w {
		r := c.heads[n]
		used, done, err := r.parse(c.buf[c.r:c.w])
		c.r += used
		c.advanced = c.advanced || used > 0 && r.group != nil
		if done {
			n += r.sharing()
		} else if err != nil {
			c.fault = r.atFault()
		}
		if err != nil || !done {
			return n, err
		}
	}
	return n, nil
}

// settle makes those requests ready whose answers are complete. It reports whether any
// are waited for still, and whether the connection is good. err is what was wrong
// with the next answer: its request fails, and the others are lost with the
// connection.
func (c *conn) settle(n int, err error) (waits, good bool) {
	l := c.link
	l.mu.Lock()
	defer l.mu.Unlock()
	if n > 0 {
		for _, r := range c.sent.All()[:n] {
			if r.fate == awaited {
				r.fate = finished
				c.ready = append(c.ready, r)
			}
		}
		c.sent.Drop(n)
		l.wakeLocked()
	}
	if n > 0 || c.advanced || c.came {
		c.heardLocked(n > 0 || c.advanced)
	}
	c.came, c.advanced = false, false
	if isNonsense(err) {
		c.sent.All()[0].distrust()
	}
	switch {
	case c.dead != nil:
	case isLost(err):
		c.failLocked(err)
	case err != nil:
		if c.fault != nil {
			c.spoilLocked(c.fault)
		}
		c.failLocked(lostError{err})
	case c.sent.Len() == 0 && c.r < c.w:
		c.failLocked(lostError{errUnasked})
	}
	c.lookLocked()
	return len(c.heads) > 0, c.dead == nil
}

// spoilLocked notes whose answer killed the connection.
func (c *conn) spoilLocked(r *request) {
	if r.fate != awaited {
		return
	}
	if r.reply.complaint == nil {
		r.lost(true)
	}
	r.fate = finished
	c.spoilt = r
}

// handOut ends the requests that are ready.
func (c *conn) handOut() {
	var again []*request
	for _, r := range c.ready {
		if r.x != nil && r.verb != none {
			c.metas.note(r)
		}
		if r.readsAfterAll() || r.halfDone() && r.proposeOnRead() {
			again = append(again, r)
			continue
		}
		r.finish(nil)
	}
	clear(c.ready)
	c.ready = c.ready[:0]
	c.link.resubmit(again)
	c.endExpired()
}

// fill reads more of the answers. It reports whether to go on: the connection is
// good, and ctx has not ended.
func (c *conn) fill(ctx context.Context) bool {
	c.extend()
	for {
		looks := c.looks()
		n, err := c.nc.Read(c.buf[c.w:])
		c.w += n
		c.came = n > 0
		if n > 0 || err == nil {
			return true
		}
		if !c.resume(err, looks) {
			return false
		}
		if ctx.Err() != nil {
			return false
		}
	}
}

// extend makes space in buf for more of an answer.
func (c *conn) extend() {
	switch {
	case c.r == c.w:
		c.r, c.w = 0, 0
		if len(c.buf) == 0 || len(c.buf) > 4*minBuffer {
			c.buf = make([]byte, minBuffer)
		}
	case c.w < len(c.buf):
	case c.r > 0:
		c.r, c.w = 0, copy(c.buf, c.buf[c.r:c.w])
	default: // one value that is larger, and as much of it has come
		c.buf = append(c.buf, make([]byte, len(c.buf))...)
	}
}

// resume reports whether reading may go on after err: if the reader was only
// woken, see interrupt and askLocked, or has looked, as it was asked to.
func (c *conn) resume(err error, looked bool) bool {
	c.link.mu.Lock()
	good := c.resumeLocked(err, looked)
	c.link.mu.Unlock()
	c.endExpired()
	return good
}

func (c *conn) resumeLocked(err error, looked bool) (good bool) {
	switch {
	case c.dead != nil:
	case !errors.Is(err, os.ErrDeadlineExceeded):
		// Not net.Error's Timeout: that is also true of ETIMEDOUT, by which the
		// kernel says that the peer of an idle connection is gone.
		c.failLocked(lostError{err})
	case c.lateCheck.asked():
		c.foundNothingLocked(looked)
	case c.interrupted:
		_ = c.nc.SetReadDeadline(time.Time{})
	default:
		c.failLocked(errTimeout)
	}
	c.interrupted = false
	return c.dead == nil
}

// interrupt wakes the reader, for it to see that its ctx has ended.
func (c *conn) interrupt() {
	c.link.mu.Lock()
	defer c.link.mu.Unlock()
	if c.dead == nil {
		c.interrupted = true
		_ = c.nc.SetReadDeadline(past)
	}
}

var past = time.Unix(1, 0)

// leave gives up the reader's role, to another one if there are answers to come.
func (c *conn) leave() {
	l := c.link
	l.mu.Lock()
	c.reading = false
	clear(c.heads)
	if c.dead == nil && c.sent.Len() > 0 {
		c.reading = true
		go c.receive(context.Background(), nil)
	}
	last := c.desertedLocked()
	l.mu.Unlock()
	if last {
		c.bury()
	}
}
