package pool

import (
	"context"
	"errors"
	"net"
	"os"
	"runtime"
	"sync/atomic"
	"time"
)

// What may be in flight on a connection. 64 KiB of requests are in one packet, and
// 256 KiB and a packet in flight: what is more would only wait in the server.
const (
	maxInFlight      = 1024
	maxInFlightBytes = 256 << 10
	maxPacket        = 64 << 10
	maxRequests      = 2 * maxGroup // in a packet: the server answers half of them while it gets the next one
	maxAlone         = 16 << 10     // the most that a lone caller writes itself: it fits into any socket's buffer
	minBuffer        = 16 << 10
)

// How long readers have to catch up, see [catchUp]. To make a connection takes several
// turns, each behind all other goroutines.
const (
	turnsToCatchUp = 5
	maxCatchUp     = time.Second
)

// connIDs counts the connections of this process.
var connIDs atomic.Uint64

// A conn is a connection to a server.
type conn struct {
	lane *lane
	nc   net.Conn
	id   uint64 // 0: a proxy is in between, or might be

	// Guarded by lane.mu.
	writing, reading bool // a goroutine has the role
	sent             fifo // without the whole of their answers, in order
	offset           int64
	progress         time.Time   // when the last answer was complete, or one more of a group's
	heard            time.Time   // when a part of an answer last came, and no more than that
	slow             *request    // whose answer was still coming when it was overdue
	dead             error       // why it is not used any more
	buried           bool        // bury has been called, or is about to be
	interrupted      bool        // the read deadline has been set to wake the reader
	watch            *time.Timer // runs overdue
	watching         bool

	// The writer's.
	packet []byte
	batch  []*request

	// The reader's: buf[r:w] is read and not yet parsed.
	buf   []byte
	r, w  int
	heads []*request // the first of sent
	ready []*request // have their answers
	fault *request   // whose answer makes no sense, or is an error after which none can be trusted

	came     bool // something has been read
	advanced bool // a part of a group's answers is complete

	spoilt *request // whose answer made no sense, or came too slowly; set when that killed the connection
}

// room returns how many requests may be sent now. lane.mu is held.
func (c *conn) room() int {
	if c.sent.len() > 0 && c.offset-c.sent.all()[0].start >= maxInFlightBytes {
		return 0
	}
	return maxInFlight - c.sent.len()
}

// write sends what is queued until nothing is, or no more may be in flight. It
// has the writer's role, and gives it up.
func (c *conn) write() {
	for {
		runtime.Gosched() // callers that are about to ask come along
		batch := c.next()
		if len(batch) == 0 {
			c.stopWriting()
			return
		}
		c.transmit(c.enqueue(batch, false))
	}
}

// next takes the requests whose turn has come.
func (c *conn) next() []*request {
	l := c.lane
	l.mu.Lock()
	defer l.mu.Unlock()
	n := min(l.queue.len(), c.room(), maxRequests)
	if c.dead != nil || n <= 0 {
		return nil
	}
	c.batch = append(c.batch[:0], l.queue.all()[:n]...)
	l.queue.drop(n)
	return c.batch
}

// enqueue notes requests as sent and returns the packet with them, which is then
// to be transmitted. Those that do not fit go back to the queue. It needs the
// writer's role, and starts a reader unless the caller has the
// reader's role as well.
func (c *conn) enqueue(batch []*request, alone bool) (packet []byte) {
	packet, n := c.encode(batch)
	l := c.lane
	l.mu.Lock()
	defer l.mu.Unlock()
	if c.dead != nil {
		l.putBack(batch)
		return nil
	}
	if n < len(batch) {
		l.putBack(batch[n:])
	}
	now := time.Now()
	for _, r := range batch[:n] {
		r.start += c.offset
		r.sent = now
		c.sent.push(r)
	}
	c.offset += int64(len(packet))
	c.watchOver()
	if !alone && !c.reading {
		c.reading = true
		go c.receive(context.Background(), nil)
	}
	return packet
}

// transmit writes a packet.
func (c *conn) transmit(packet []byte) {
	if len(packet) == 0 {
		return
	}
	written, err := c.nc.Write(packet)
	if err == nil {
		return
	}
	c.lane.mu.Lock()
	defer c.lane.mu.Unlock()
	c.offset += int64(written - len(packet))
	c.fail(lostError{err})
}

// sendAlone sends requests for a caller that has both roles, and gives up the
// writer's. It reports whether the caller still has the reader's: what is so
// large that it may take its time is left to others, for no ctx can end it.
func (c *conn) sendAlone(requests []*request) bool {
	packet := c.enqueue(requests, true)
	if len(packet) <= maxAlone {
		c.transmit(packet)
		c.stopWriting()
		return true
	}
	go c.receive(context.Background(), nil)
	go func() {
		c.transmit(packet)
		c.stopWriting()
	}()
	return false
}

// stopWriting gives up the writer's role, to another one if there is something to
// be sent.
func (c *conn) stopWriting() {
	c.lane.mu.Lock()
	c.writing = false
	c.lane.wake()
	last := c.deserted()
	c.lane.mu.Unlock()
	if last {
		c.bury()
	}
}

// encode returns a packet of as many of the requests as fit, at least one, and
// how many that are. It sets where in the packet each begins.
func (c *conn) encode(batch []*request) (packet []byte, n int) {
	packet = c.packet[:0]
	var g *group
	for n < len(batch) && len(packet) < maxPacket {
		r := batch[n]
		if r.x != nil && !r.known {
			r.propose(c.id)
		}
		if g != nil && !g.takes(r) {
			packet, g = g.appendRead(packet), nil
		}
		r.start = int64(len(packet))
		packet = r.appendWrite(packet)
		if r.shares() {
			if g == nil {
				g = new(group)
			}
			g.add(r)
		} else {
			r.group = nil
			packet = r.appendRead(packet)
		}
		n++
	}
	if g != nil {
		packet = g.appendRead(packet)
	}
	c.packet = packet
	if cap(packet) > 2*maxPacket {
		c.packet = nil
	}
	return packet, n
}

// receiveOwn is receive for a caller whose own call is among those that wait for
// answers.
func (c *conn) receiveOwn(ctx context.Context, own *call) {
	if ctx.Done() != nil {
		defer context.AfterFunc(ctx, c.interrupt)()
	}
	c.receive(ctx, own)
}

// receive hands out answers. It has the reader's role, and gives it up when own
// has ended or ctx has. Without own it does when there is no answer to wait for.
func (c *conn) receive(ctx context.Context, own *call) {
	defer c.leave()
	c.look()
	for idle := 0; idle < 3; {
		unread := c.r < c.w && len(c.heads) == 0 // of no request so far
		n, err := c.parse()
		waits, good := c.settle(n, err)
		c.handOut()
		switch {
		case !good, own != nil && own.pending.Load() == 0:
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
	c.lane.mu.Lock()
	defer c.lane.mu.Unlock()
	c.lookLocked()
}

func (c *conn) lookLocked() {
	waiting := c.sent.all()
	c.heads = append(c.heads[:0], waiting[:min(len(waiting), 256)]...)
}

// parse reads the answers that are there. It returns how many are complete, and
// an error if the connection is of no use any more.
func (c *conn) parse() (n int, err error) {
	for n < len(c.heads) && c.r < c.w {
		r := c.heads[n]
		used, done, err := r.parse(c.buf[c.r:c.w], c.lane.server.maxValue)
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
	l := c.lane
	l.mu.Lock()
	defer l.mu.Unlock()
	if n > 0 {
		for _, r := range c.sent.all()[:n] {
			if !r.finished {
				r.finished = true
				c.ready = append(c.ready, r)
			}
		}
		c.sent.drop(n)
		l.wake()
	}
	if n > 0 || c.advanced {
		c.progress = time.Now()
	} else if c.came {
		c.heard = time.Now()
	}
	c.came, c.advanced = false, false
	switch {
	case c.dead != nil:
	case isLost(err):
		c.fail(err)
	case err != nil:
		if c.fault != nil {
			c.spoil(c.fault)
		}
		c.fail(lostError{err})
	case c.sent.len() == 0 && c.r < c.w:
		c.fail(lostError{errUnasked})
	}
	c.lookLocked()
	return len(c.heads) > 0, c.dead == nil
}

// spoil notes whose answer killed the connection.
func (c *conn) spoil(r *request) {
	if r.finished {
		return
	}
	if r.reply.complaint == nil {
		r.lost(true)
	}
	r.finished = true
	c.spoilt = r
}

// handOut ends the requests that are ready.
func (c *conn) handOut() {
	for _, r := range c.ready {
		if r.halfDone() && r.proposeKnown() {
			c.lane.resubmit(r)
			continue
		}
		r.end(nil)
	}
	clear(c.ready)
	c.ready = c.ready[:0]
}

// fill reads more of the answers. It reports whether to go on: the connection is
// good, and ctx has not ended.
func (c *conn) fill(ctx context.Context) bool {
	c.makeRoom()
	for {
		n, err := c.nc.Read(c.buf[c.w:])
		c.w += n
		c.came = n > 0
		if n > 0 || err == nil {
			return true
		}
		if !c.resume(err) {
			return false
		}
		if ctx.Err() != nil {
			return false
		}
	}
}

// makeRoom makes room in buf for more of an answer.
func (c *conn) makeRoom() {
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
// woken, see interrupt.
func (c *conn) resume(err error) bool {
	l := c.lane
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case c.dead != nil:
		return false
	case !errors.Is(err, os.ErrDeadlineExceeded):
		// Not net.Error's Timeout: that is also true of ETIMEDOUT, by which the
		// kernel says that the peer of an idle connection is gone.
		c.fail(lostError{err})
		return false
	case !c.interrupted:
		c.fail(errTimeout)
		return false
	}
	c.interrupted = false
	_ = c.nc.SetReadDeadline(time.Time{})
	return true
}

// interrupt wakes the reader, for it to see that its ctx has ended.
func (c *conn) interrupt() {
	c.lane.mu.Lock()
	defer c.lane.mu.Unlock()
	if c.dead == nil {
		c.interrupted = true
		_ = c.nc.SetReadDeadline(past)
	}
}

var past = time.Unix(1, 0)

// leave gives up the reader's role, to another one if there are answers to come.
func (c *conn) leave() {
	l := c.lane
	l.mu.Lock()
	c.reading = false
	clear(c.heads)
	if c.dead == nil && c.sent.len() > 0 {
		c.reading = true
		go c.receive(context.Background(), nil)
	}
	last := c.deserted()
	l.mu.Unlock()
	if last {
		c.bury()
	}
}

// watchOver sees to it that overdue runs when an answer is. lane.mu is held.
func (c *conn) watchOver() {
	if c.watching {
		return
	}
	c.watching = true
	if c.watch == nil {
		c.watch = time.AfterFunc(c.lane.server.timeout, c.overdue)
		return
	}
	c.watch.Reset(c.lane.server.timeout)
}

// overdue fails the connection if its oldest request has waited too long since it
// was sent or, if it had to wait for the answers to others, since the last of
// these: a server that is slow for want of time is there.
func (c *conn) overdue() {
	l := c.lane
	l.mu.Lock()
	if late, waits := c.lateness(); waits && late >= 0 {
		l.mu.Unlock()
		catchUp(late)
		l.mu.Lock()
	}
	c.watching = false
	late, waits := c.lateness()
	switch {
	case !waits:
	case late < 0:
		c.watching = true
		c.watch.Reset(-late)
	default:
		c.giveUp()
	}
	last := c.deserted()
	l.mu.Unlock()
	if last {
		c.bury()
	}
}

// giveUp fails the connection, whose oldest request is overdue. If its answer has begun
// to come, the server is there: then this request alone fails, and those behind it are
// lost with the connection. lane.mu is held.
func (c *conn) giveUp() {
	if !c.heard.After(c.waitingSince()) {
		c.fail(errTimeout)
		return
	}
	c.slow = c.sent.all()[0]
	c.fail(lostError{errTimeout})
}

// lateness returns for how much too long the oldest request has waited. waits is
// false if there is none, or the connection is of no use any more. lane.mu is held.
func (c *conn) lateness() (late time.Duration, waits bool) {
	if c.dead != nil || c.sent.len() == 0 {
		return 0, false
	}
	return time.Since(c.waitingSince()) - c.lane.server.timeout, true
}

// waitingSince returns since when the server could have answered the oldest request.
// lane.mu is held.
func (c *conn) waitingSince() time.Time {
	since := c.sent.all()[0].sent
	if c.progress.After(since) {
		return c.progress
	}
	return since
}

// catchUp returns when what came in time has most likely been read. A process that is
// short of processor time reads late, and its timers come before its readers. late is
// by how much a timer was late itself.
func catchUp(late time.Duration) {
	start := time.Now()
	if late > time.Millisecond {
		time.Sleep(min(late, maxCatchUp/10))
	}
	for turn := 0; turn < turnsToCatchUp && time.Since(start) < maxCatchUp; turn++ {
		runtime.Gosched() // all that can run now come first
	}
}

// late returns the requests whose answers come too late because of all those
// before them, and when the next one will. lane.mu is held.
func (c *conn) late(now time.Time) (late []*request, next time.Duration) {
	bound := c.lane.server.queueTimeout + c.lane.server.timeout
	for _, r := range c.sent.all() {
		if r.finished || r.queued.IsZero() {
			continue
		}
		if left := bound - now.Sub(r.queued); left > 0 {
			return late, left
		}
		r.finished = true
		late = append(late, r)
	}
	return late, bound
}

// fail ends the use of the connection, because of err. It wakes the reader and the
// writer, and the last of them to leave buries it. lane.mu is held.
func (c *conn) fail(err error) {
	if c.dead != nil {
		return
	}
	c.dead = err
	if c.lane.conn == c {
		c.lane.conn = nil
	}
	_ = c.nc.SetDeadline(past)
}

// cut is fail for a caller without a role.
func (c *conn) cut(reason error) {
	c.lane.mu.Lock()
	c.fail(reason)
	last := c.deserted()
	c.lane.mu.Unlock()
	if last {
		c.bury()
	}
}

// deserted reports whether the caller is to call bury. lane.mu is held.
func (c *conn) deserted() bool {
	if c.dead == nil || c.writing || c.reading || c.buried {
		return false
	}
	c.buried = true
	return true
}

// bury closes the connection and decides what becomes of the requests that it had
// sent. It is the last to use the connection.
func (c *conn) bury() {
	l, s := c.lane, c.lane.server
	if c.watch != nil {
		c.watch.Stop()
	}
	l.mu.Lock()
	reason := c.dead
	if c.slow != nil && c.sent.len() > 0 && c.sent.all()[0] == c.slow { // not answered since
		c.spoil(c.slow.atFault())
	}
	failed, again := c.sort(isLost(reason) && !l.closed)
	s.retries.Add(uint64(len(again))) // before anybody can have the answer
	l.putBack(again)
	if l.closed {
		reason = ErrClosed
		failed = append(failed, l.queue.take(l.queue.len())...)
	}
	l.wake()
	l.mu.Unlock()

	c.nc.Close()
	if c.spoilt != nil || len(failed) > 0 {
		s.failed(1, reason)
	}
	if c.spoilt != nil {
		c.spoilt.end(errors.Unwrap(c.dead))
	}
	for _, r := range failed {
		r.end(reason)
	}
}

// sort sorts the requests that were sent into those that have failed and those
// that are to be sent again, if any may. lane.mu is held.
func (c *conn) sort(retry bool) (failed, again []*request) {
	for _, r := range c.sent.all() {
		if r.finished {
			continue
		}
		r.lost(r.start < c.offset)
		if retry && r.mayRetry() {
			r.again()
			again = append(again, r)
			continue
		}
		r.finished = true
		failed = append(failed, r)
	}
	c.sent.drop(c.sent.len())
	return failed, again
}
