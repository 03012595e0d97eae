package pool

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/adaptivethrottler/throttler/internal/upstream"
)

// A link is what leads to a server: one connection at a time, and the requests that wait for
// it in turn.
//
// One goroutine at a time writes to the connection, and one reads from it. These are
// its roles. A lone caller takes both. As soon as there are more callers, goroutines
// that end with the work take them.
type link struct {
	server *server

	mu         sync.Mutex
	queue      upstream.Queue[*request] // not sent yet
	conn       *conn                    // nil while there is none
	connecting bool
	refusal    error // why there is no connection yet: the server has too many
	closed     bool
	alone      int // how many calls in a row found no other waiting
	life       context.Context
	endLife    context.CancelCauseFunc // ends what connecting is under way
	clock      *time.Timer             // runs tick; nil: was never set
	tickDue    time.Time               // what it is set for; zero: it is not
}

// aloneEnough is how many calls in a row must find no other waiting before the
// next one takes the connection for itself: among many callers there is always
// one that comes first, and it would send a packet of its own each time.
const aloneEnough = 4

func newLink(s *server) *link {
	l := &link{server: s, alone: aloneEnough}
	l.life, l.endLife = context.WithCancelCause(context.Background())
	return l
}

// claimOrSubmit gives the caller both roles of the connection, to make the requests
// itself, if no other call is there. Otherwise it submits them and returns nil.
func (l *link) claimOrSubmit(requests []*request) (*conn, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lookAtIdleLocked()
	if c := l.claimLocked(); c != nil {
		return c, nil
	}
	return nil, l.pushLocked(requests)
}

// claimLocked gives the caller both roles of the connection if no other call is there.
// Otherwise it returns nil.
func (l *link) claimLocked() *conn {
	c := l.conn
	if l.queue.Len() > 0 || c == nil || c.dead != nil || c.sent.Len() > 0 {
		l.alone = 0
		return nil
	}
	if l.alone < aloneEnough {
		l.alone++
		return nil
	}
	if c.writing || c.reading {
		return nil
	}
	c.writing, c.reading = true, true
	return c
}

// submit has requests sent in their turn, by others.
func (l *link) submit(requests []*request) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lookAtIdleLocked()
	return l.pushLocked(requests)
}

// pushLocked is submit.
func (l *link) pushLocked(requests []*request) error {
	if l.closed {
		return ErrClosed
	}
	now := time.Now()
	for _, r := range requests {
		r.queued = now
		l.queue.Push(r)
	}
	l.tickByLocked(now.Add(l.server.queueTimeout))
	l.wakeLocked()
	return nil
}

// resubmit has requests that are under way sent next, on whichever connection.
func (l *link) resubmit(requests []*request) {
	if len(requests) == 0 {
		return
	}
	l.mu.Lock()
	closed := l.closed
	if !closed {
		for _, r := range requests {
			r.fate = awaited
		}
		l.putBackLocked(requests)
		l.wakeLocked()
	}
	l.mu.Unlock()
	if closed {
		for _, r := range requests {
			r.finish(ErrClosed)
		}
	}
}

// putBackLocked puts requests before all others, to be sent once more or after all.
// Their time in the queue goes on.
func (l *link) putBackLocked(requests []*request) {
	if len(requests) == 0 {
		return
	}
	for _, r := range requests {
		if r.queued.IsZero() { // a lone caller sent it
			r.queued = time.Now()
		}
	}
	l.queue.PutBack(requests)
	l.tickByLocked(requests[0].unsentBy())
}

// wakeLocked starts a writer, or a connection, if something is queued.
func (l *link) wakeLocked() {
	switch {
	case l.queue.Len() == 0:
	case l.conn == nil:
		if !l.connecting {
			l.connecting = true
			go l.connect(l.life)
		}
	case !l.conn.writing && l.conn.dead == nil && l.conn.spareLocked() > 0:
		l.conn.writing = true
		go l.conn.write()
	}
}

// connect makes a connection for the requests in the queue.
func (l *link) connect(life context.Context) {
	c, err := l.dial(life)
	l.mu.Lock()
	l.connecting, l.refusal = false, nil
	if life.Err() != nil { // and l.cut has ended the requests that waited
		l.wakeLocked()
		l.mu.Unlock()
		if c != nil {
			hangUp(c.nc)
		}
		return
	}
	if err == nil {
		l.waitFromNowLocked()
		l.conn = c
		l.wakeLocked()
		l.mu.Unlock()
		return
	}
	failed := l.queue.Take(nil, l.queue.Len())
	l.mu.Unlock()
	l.server.failed(len(failed), err)
	for _, r := range failed {
		r.finish(err)
	}
}

// dial makes a connection. If the server has too many it tries again, for as long
// as anybody waits.
func (l *link) dial(life context.Context) (*conn, error) {
	for pause := 5 * time.Millisecond; ; pause = min(2*pause, 100*time.Millisecond) {
		c, err := l.server.dial(life, l)
		if !errors.Is(err, errTooMany) {
			return c, err
		}
		waiting := l.refused(err)
		if waiting == 0 {
			return nil, err
		}
		select {
		case <-time.After(pause):
		case <-life.Done():
			return nil, context.Cause(life)
		}
	}
}

// refused notes why the server, which is there, gives no connection. From the first
// time on, those in the queue wait for it. It returns how many do.
func (l *link) refused(err error) (waiting int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.refusal == nil {
		l.waitFromNowLocked()
	}
	l.refusal = err
	return l.queue.Len()
}

// waitFromNowLocked has the time of the queue begin.
func (l *link) waitFromNowLocked() {
	now := time.Now()
	for _, r := range l.queue.All() {
		r.queued = now
	}
}

// cut ends the connection, the making of one, and all requests that wait, with the
// given reason.
func (l *link) cut(reason error) {
	l.mu.Lock()
	l.endLife(reason)
	l.life, l.endLife = context.WithCancelCause(context.Background())
	if reason == ErrClosed {
		l.closed = true
		l.endLife(reason)
	}
	waiting := l.queue.Take(nil, l.queue.Len())
	c := l.conn
	l.mu.Unlock()
	for _, r := range waiting {
		r.finish(reason)
	}
	if c != nil {
		c.cut(reason)
	}
}
