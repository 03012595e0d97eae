package pool

import (
	"context"
	"runtime"
	"time"
)

// A writer is what the goroutine that writes to a connection keeps.
type writer struct {
	packet []byte
	bundle []*request
}

// write sends what is queued until nothing is, or no more may be in flight. It
// has the writer's role, and gives it up.
func (c *conn) write() {
	for {
		runtime.Gosched() // callers that are about to ask come along
		bundle := c.next()
		if len(bundle) == 0 {
			c.stopWriting()
			return
		}
		c.transmit(c.enqueue(bundle, false))
	}
}

// next takes the requests whose turn has come.
func (c *conn) next() []*request {
	l := c.link
	l.mu.Lock()
	defer l.mu.Unlock()
	n := min(l.queue.Len(), c.spareLocked(), maxRequests)
	c.transmitting = false
	if c.dead != nil || n <= 0 {
		return nil
	}
	c.bundle = append(c.bundle[:0], l.queue.All()[:n]...)
	l.queue.Drop(n)
	return c.bundle
}

// enqueue notes requests as sent and returns the packet with them, which is then
// to be transmitted. Those that do not fit go back to the queue. It needs the
// writer's role, and starts a reader unless the caller has the
// reader's role as well.
func (c *conn) enqueue(bundle []*request, alone bool) (packet []byte) {
	packet, n := c.encode(bundle)
	l := c.link
	l.mu.Lock()
	defer l.mu.Unlock()
	if c.dead != nil {
		l.putBackLocked(bundle)
		return nil
	}
	if n < len(bundle) {
		l.putBackLocked(bundle[n:])
	}
	now := time.Now()
	for _, r := range bundle[:n] {
		r.start += c.offset
		r.sent = now
		c.sent.Push(r)
	}
	c.offset += int64(len(packet))
	c.transmitting, c.lone = true, alone && len(packet) <= maxAlone
	l.tickByLocked(now.Add(l.server.timeout))
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
	c.link.mu.Lock()
	defer c.link.mu.Unlock()
	c.offset += int64(written - len(packet))
	c.failLocked(lostError{err})
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
	c.link.mu.Lock()
	c.writing, c.transmitting = false, false
	c.link.wakeLocked()
	last := c.desertedLocked()
	c.link.mu.Unlock()
	if last {
		c.bury()
	}
}

// encode returns a packet of as many of the requests as fit, at least one, and
// how many that are. It sets where in the packet each begins.
func (c *conn) encode(bundle []*request) (packet []byte, n int) {
	packet = c.packet[:0]
	now := time.Now()
	var g *group
	for n < len(bundle) && len(packet) < maxPacket {
		r := bundle[n]
		switch {
		case r.x == nil, r.step == onRead: // sends what it has
		case r.step == readsAfterMeta && c.id != 0: // a proxy's may be proposed on
			r.conn = c.id
		default:
			r.propose(c.id, now)
			c.metas.choose(r)
		}
		if g != nil && !g.takes(r) {
			packet, g = g.appendRead(packet), nil
		}
		r.start = int64(len(packet))
		packet = r.appendWrite(packet)
		if c.id != 0 && r.shares() { // a proxy may reach the servers of some keys alone
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
