package pool

import "time"

// tickLocked sees to it that expire runs when a request that is queued now has waited
// too long.
func (l *link) tickLocked() {
	if !l.clock.isSet {
		l.tickAfterLocked(l.server.queueTimeout)
	}
}

func (l *link) tickAfterLocked(d time.Duration) { l.clock.afterLocked(d, l.expire) }

// expire sees to it that requests end which the server keeps waiting too long: for their
// turn, as it is behind with those before them, or for an answer after it. Those that wait
// for a connection are not concerned: that has a time of its own, unless the server is
// there and refuses it.
func (l *link) expire() {
	l.mu.Lock()
	l.clock.isSet = false
	now, c, refusal := time.Now(), l.conn, l.refusal
	var refused []*request
	switch left, waits := l.untilExpiredLocked(now); {
	case !waits:
	case left > ahead:
		l.tickAfterLocked(left)
	case c != nil && c.sent.Len() > 0:
		c.askLocked(now.Add(left))
	case left > 0:
		l.tickAfterLocked(left + ahead)
	case c == nil && refusal != nil:
		refused = l.takeUnsentLocked(now)
		l.tickOnLocked(now)
	default:
		l.tickOnLocked(now)
	}
	l.mu.Unlock()
	if len(refused) > 0 {
		l.server.failed(1, refusal)
	}
	for _, r := range refused {
		r.finish(refusal)
	}
}

// tickOnLocked is tickLocked for the requests that are there. What has waited too long
// for this process is about to be sent.
func (l *link) tickOnLocked(now time.Time) {
	left, waits := l.untilExpiredLocked(now)
	if !waits {
		return
	}
	if left <= 0 {
		left = ahead + l.server.timeout/10
	}
	l.tickAfterLocked(left)
}

// untilExpiredLocked returns when the first of the requests will have waited too long. It
// may have already. waits is false if none waits.
func (l *link) untilExpiredLocked(now time.Time) (left time.Duration, waits bool) {
	if l.queue.Len() > 0 {
		left, waits = l.queue.All()[0].untilUnsent(now), true
	}
	if l.conn == nil {
		return left, waits
	}
	for _, r := range l.conn.sent.All() {
		if !r.mayExpire() {
			continue
		}
		if soon := r.untilUnanswered(now); !waits || soon < left {
			return soon, true
		}
		break // the others were sent later
	}
	return left, waits
}

// expired are requests that have waited too long for a server that answers.
type expired struct {
	unsent, unanswered []*request
}

// expireLocked takes the requests that have waited too long, now that the reader of c,
// the link's connection, has found nothing more. The caller ends them without the lock.
func (c *conn) expireLocked(now time.Time) {
	l := c.link
	if c.holdsUpLocked(now) {
		c.expired.unsent = l.takeUnsentLocked(now)
	}
	c.expired.unanswered = c.takeUnansweredLocked(now)
	l.tickOnLocked(now)
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
	return l.queue.TakeWhile(nil, func(r *request) bool { return r.untilUnsent(now) <= 0 })
}

// takeUnansweredLocked returns the requests whose answers come too late because of all
// those before them. They stay among those that were sent.
func (c *conn) takeUnansweredLocked(now time.Time) (unanswered []*request) {
	for _, r := range c.sent.All() {
		if !r.mayExpire() {
			continue
		}
		if r.untilUnanswered(now) > 0 {
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

// untilUnsent returns when r, which is queued, will have waited too long.
func (r *request) untilUnsent(now time.Time) time.Duration {
	return r.link.server.queueTimeout - now.Sub(r.queued)
}

// untilUnanswered returns when r, which was sent, will have waited too long: since it was
// queued, and since the server could have answered. What is sent again when it has been
// read, as behind a proxy, has no more time for that.
func (r *request) untilUnanswered(now time.Time) time.Duration {
	s := r.link.server
	left := s.queueTimeout + s.timeout - now.Sub(r.queued)
	if r.step != onRead {
		left = max(left, s.timeout-now.Sub(r.sent))
	}
	return left
}
