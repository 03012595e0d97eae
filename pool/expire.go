package pool

import "time"

// tickByLocked sees to it that tick runs by the time at which what is queued or sent now will
// have waited too long.
func (l *link) tickByLocked(due time.Time) {
	if l.tickDue.IsZero() || due.Before(l.tickDue) {
		l.tickAtLocked(due)
	}
}

// tickAtLocked has tick run so much earlier than due that the reader can be asked.
func (l *link) tickAtLocked(due time.Time) {
	l.tickDue = due
	d := time.Until(due) - ahead
	if l.clock == nil {
		l.clock = time.AfterFunc(d, l.tick)
		return
	}
	l.clock.Reset(d)
}

// tick sees to it that requests end which the server keeps waiting too long: for their
// turn, as it is behind with those before them, or for an answer after it. It fails the
// connection if its oldest request has waited too long since it was sent or, if it had to
// wait for the answers to others, since the last of these. A server that is slow for want of
// time is there. Those that wait for a connection are not concerned: that has a time of its
// own, unless the server is there and refuses it.
func (l *link) tick() {
	l.mu.Lock()
	l.tickDue = time.Time{}
	now, c, refusal := time.Now(), l.conn, l.refusal
	due := earlier(l.expiryLocked(), l.conn.overdueLocked())
	var refused []*request
	switch {
	case due.IsZero():
	case due.After(now.Add(ahead)):
		l.tickAtLocked(due)
	case c != nil && c.sent.Len() > 0 && !c.blockedLocked(now):
		c.askLocked(due)
	case due.After(now):
		l.tickAtLocked(due.Add(ahead))
	case c.isOverdueLocked(now):
		c.unblockLocked()
	case c == nil && refusal != nil:
		refused = l.takeUnsentLocked(now)
		l.tickOnLocked(now)
	default:
		l.tickOnLocked(now)
	}
	last := c != nil && c.desertedLocked()
	l.mu.Unlock()
	if last {
		c.bury()
	}
	if len(refused) > 0 {
		l.server.failed(1, refusal)
	}
	for _, r := range refused {
		r.finish(refusal)
	}
}

// tickOnLocked is tickByLocked for the requests that are there. What has waited too long for
// this process is about to be sent.
func (l *link) tickOnLocked(now time.Time) {
	expiry := l.expiryLocked()
	if !expiry.IsZero() && !expiry.After(now) {
		expiry = now.Add(ahead + l.server.timeout/10)
	}
	if due := earlier(expiry, l.conn.overdueLocked()); !due.IsZero() {
		l.tickAtLocked(due)
	}
}

// earlier returns the earlier of two times. A zero one is never.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// expiryLocked returns when the first of the requests will have waited too long though the
// server answers. It may have already. It is zero if none waits.
func (l *link) expiryLocked() (expiry time.Time) {
	if l.queue.Len() > 0 {
		expiry = l.queue.All()[0].unsentBy()
	}
	if l.conn == nil {
		return expiry
	}
	for _, r := range l.conn.sent.All() {
		if r.mayExpire() {
			return earlier(expiry, r.unansweredBy()) // the others were sent later
		}
	}
	return expiry
}

// expired are requests that have waited too long for a server that answers.
type expired struct {
	unsent, unanswered []*request
}

// expireLocked takes the requests that have waited too long, now that the reader of c,
// the link's connection, has found nothing more. The caller ends them without the lock.
func (c *conn) expireLocked(now time.Time) {
	if c.holdsUpLocked(now) {
		c.expired.unsent = c.link.takeUnsentLocked(now)
	}
	c.expired.unanswered = c.takeUnansweredLocked(now)
}

// holdsUpLocked reports whether the server keeps requests from being sent: as many are in
// flight as may be, or it does not take the packet that is being written. Otherwise this
// process has yet to send them.
func (c *conn) holdsUpLocked(now time.Time) bool {
	if c.spareLocked() <= 0 {
		return true
	}
	n := c.sent.Len()
	return c.transmitting && n > 0 && now.Sub(c.sent.All()[n-1].sent) >= c.link.server.timeout/10
}

// takeUnsentLocked takes those out of the queue that have waited too long.
func (l *link) takeUnsentLocked(now time.Time) []*request {
	return l.queue.TakeWhile(nil, func(r *request) bool { return !r.unsentBy().After(now) })
}

// takeUnansweredLocked returns the requests whose answers come too late because of all
// those before them. They stay among those that were sent.
func (c *conn) takeUnansweredLocked(now time.Time) (unanswered []*request) {
	for _, r := range c.sent.All() {
		if !r.mayExpire() {
			continue
		}
		if r.unansweredBy().After(now) {
			break
		}
		r.fate = givenUp
		unanswered = append(unanswered, r)
	}
	return unanswered
}

// endExpired ends the requests that have waited too long. Only the reader calls it.
func (c *conn) endExpired() {
	for _, r := range c.expired.unsent {
		r.finish(errOverloaded)
	}
	for _, r := range c.expired.unanswered {
		r.giveUp()
	}
	c.expired = expired{}
}

// mayExpire reports whether r, which was sent, may end for want of an answer though the
// server answers others. A lone caller's has not waited for its turn.
func (r *request) mayExpire() bool { return r.fate == awaited && !r.queued.IsZero() }

// unsentBy returns when r, which is queued, will have waited too long.
func (r *request) unsentBy() time.Time { return r.queued.Add(r.link.server.queueTimeout) }

// unansweredBy returns when r, which was sent, will have waited too long: since it was
// queued, and since the server could have answered. What is sent again when it has been
// read, as behind a proxy, has no more time for that.
func (r *request) unansweredBy() time.Time {
	timeout := r.link.server.timeout
	by := r.unsentBy().Add(timeout)
	if sent := r.sent.Add(timeout); r.step != onRead && sent.After(by) {
		return sent
	}
	return by
}
