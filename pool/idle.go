package pool

import (
	"errors"
	"net"
	"syscall"
	"time"
)

// mayBeGone is how long a connection must have been idle to be looked at before it is
// used. A server may have closed it meanwhile, because it restarted or has an idle
// timeout, and would swallow the next write.
const mayBeGone = 50 * time.Millisecond

var errGone = errors.New("closed by the server while it was idle")

// lookAtIdleLocked fails the connection if it has been idle for some time and has an end
// by now, or bytes that nobody asked for, which the next request would take for its
// answer.
func (l *link) lookAtIdleLocked() {
	c := l.conn
	if c == nil || c.writing || c.reading || c.sent.Len() > 0 || time.Since(c.progress) < mayBeGone {
		return
	}
	if err := waiting(c.nc); err != nil {
		c.failLocked(lostError{err})
		if c.desertedLocked() {
			go c.bury()
		}
	}
}

// waiting returns what there is to be read from an idle connection: errGone for its end,
// errUnasked for bytes, nil for nothing, or if that cannot be told.
func waiting(nc net.Conn) error {
	if wrapped, ok := nc.(interface{ NetConn() net.Conn }); ok { // tls.Conn
		nc = wrapped.NetConn()
	}
	socket, ok := nc.(syscall.Conn)
	if !ok {
		return nil
	}
	raw, err := socket.SyscallConn()
	if err != nil {
		return nil
	}
	var found error
	if raw.Control(func(fd uintptr) { found = peek(fd) }) != nil {
		return nil
	}
	return found
}
