package pool

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/adaptivethrottler/throttler/internal/turns"
)

// dial makes a connection for l and has it ready for requests. It ends with life, or
// when dialTimeout is over and this process has had its turns.
func (s *server) dial(life context.Context, l *link) (*conn, error) {
	ctx, cancel := context.WithCancel(life)
	defer cancel()
	defer time.AfterFunc(s.dialTimeout, func() {
		turns.Pass(turnsToConnect)
		cancel()
	}).Stop()
	c, err := s.greeted(ctx, l, s.proxy)
	if errors.Is(err, io.EOF) && !s.proxy {
		// twemproxy before 0.5 hangs up on a command that it does not know. A memcached may
		// hang up while it restarts.
		c, err = s.greeted(ctx, l, !s.isMemcached.Load())
		if errors.Is(err, io.EOF) {
			s.isMemcached.Store(false) // it may be another one now
		}
	}
	if err != nil && life.Err() != nil {
		return nil, context.Cause(life)
	}
	return c, err
}

// A hinting context says when a net.Dialer is to give up by itself, so that this process is known
// to be late. It does not end then.
type hinting struct {
	context.Context
	deadline time.Time
}

func (h hinting) Deadline() (time.Time, bool) { return h.deadline, true }

// connect calls DialContext until ctx ends. If that gives up by itself when its time is
// over, this process was late.
func (s *server) connect(ctx context.Context) (net.Conn, error) {
	for {
		h := hinting{ctx, time.Now().Add(s.dialTimeout + time.Second)}
		nc, err := s.dialContext(h, s.addr.network, s.addr.text)
		switch {
		case err == nil:
			return nc, nil
		case ctx.Err() != nil:
			return nil, errTimeout
		case time.Now().Before(h.deadline):
			return nil, err
		}
	}
}

// greeted makes a connection, logs in, and asks for the version unless that is known
// to be a proxy.
func (s *server) greeted(ctx context.Context, l *link, proxy bool) (*conn, error) {
	nc, err := s.connect(ctx)
	if err != nil {
		return nil, err
	}
	c := &conn{link: l, nc: nc, reader: reader{buf: make([]byte, minBuffer)}}
	stop := context.AfterFunc(ctx, func() { _ = nc.SetDeadline(past) })
	err = c.greet(proxy)
	if !stop() && err == nil {
		err = ctx.Err()
	}
	if err != nil {
		hangUp(nc)
		if ctx.Err() != nil {
			err = errTimeout
		}
		return nil, err
	}
	return c, nil
}

// greet is the part of the conversation that comes before all requests.
func (c *conn) greet(proxy bool) error {
	s := c.link.server
	if s.user != "" || s.password != "" {
		if err := c.login(s.user, s.password); err != nil {
			return err
		}
	}
	if proxy {
		return nil
	}
	answer, err := c.ask("version\r\n")
	if err != nil {
		return err
	}
	if isMemcached(answer) {
		c.id = connIDs.Add(1)
		s.isMemcached.Store(true)
	}
	return nil
}

// login sends what memcached -Y wants to see first: a set of any key. A server that
// wants no login takes it for a real one, so the item is to expire at once.
func (c *conn) login(user, password string) error {
	answer, err := c.ask(fmt.Sprintf("set login 0 -1 %d\r\n%s %s\r\n", len(user)+1+len(password), user, password))
	if err != nil {
		return fmt.Errorf("login: %w", err)
	}
	if string(answer) != "STORED" {
		return fmt.Errorf("login: %w", errGarbage(answer))
	}
	return nil
}

// isMemcached reports whether the answer to version is a memcached's own, "VERSION
// 1.6.18". mcrouter and others put their name where the number is.
func isMemcached(answer []byte) bool {
	number, ok := bytes.CutPrefix(answer, []byte("VERSION "))
	return ok && len(number) > 0 && '0' < number[0] && number[0] <= '9'
}

// ask sends text and returns the one line that answers it.
func (c *conn) ask(text string) ([]byte, error) {
	if _, err := io.WriteString(c.nc, text); err != nil {
		return nil, lostError{err}
	}
	for {
		if line, size, ok := cutLine(c.buf[c.r:c.w]); ok {
			c.r += size
			return line, refused(line)
		}
		if c.w-c.r > maxLine {
			return nil, errGarbage(c.buf[c.r:c.w])
		}
		n, err := c.nc.Read(c.buf[c.w:])
		c.w += n
		if n == 0 && err != nil {
			return nil, lostError{err}
		}
	}
}

// refused returns the error that a server answers which wants no requests.
func refused(line []byte) error {
	switch {
	case bytes.HasPrefix(line, []byte("ERROR Too many open connections")):
		return errTooMany
	case bytes.HasPrefix(line, []byte("CLIENT_ERROR")), bytes.HasPrefix(line, []byte("SERVER_ERROR")):
		return fmt.Errorf("%s", line)
	}
	return nil
}
