package proxy

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/adaptivethrottler/throttler"
)

// This file reads bodies, with bounds for their memory.

// MaxLogin is how many bytes the body of a login has at most. Where requests without a name pass,
// a form or JSON may be larger: it is read as a whole to see that it has none.
const (
	MaxLogin = 64 << 10
	maxWhole = 1 << 20
)

// firstTimeout is the time for the first bytes of a body to come, as many as a login has, and for
// each further doubling.
var firstTimeout = 10 * time.Second

// How many bytes of bodies are held at most: in all, of one client, and of one that is banned.
// Below the last, bans are not looked at.
var (
	maxHeld       = 256 << 20
	maxHeldOfOne  = 16 << 20
	maxHeldBanned = 256 << 10
)

// The errors of bodies.
var (
	errBody = errors.New("the body cannot be read")
	errBusy = errors.New("too many bodies are being read")
)

// bodies counts the bytes that are held of bodies.
type bodies struct {
	mu  sync.Mutex
	all int
	of  map[string]int // by client
}

// hold adds n bytes of a client, or fails if there would be too many. It returns how many the
// client then has. A negative n gives them back.
func (b *bodies) hold(client string, n int) (held int, ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	held = b.of[client] + n
	if n > 0 && (held > maxHeldOfOne || b.all+n > maxHeld) {
		return 0, false
	}
	b.all += n
	if b.of[client] = held; held == 0 {
		delete(b.of, client)
	}
	return held, true
}

// hold counts n more bytes of c's body, or returns why there must be no more.
func (c *call) hold(n int) error {
	held, ok := c.proxy.bodies.hold(c.client, n)
	if !ok {
		return errBusy
	}
	if c.held += n; held <= maxHeldBanned || c.isNotBanned {
		return nil
	}
	decision, err := c.proxy.Guard.Peek(c.request.Context(), "", c.addr)
	if err == nil && decision.Status == throttler.Blocked {
		return &throttler.BlockedError{Decision: decision}
	}
	c.isNotBanned = true
	return err
}

// readBody reads a body up to a number of bytes. all is false if there are more.
func (c *call) readBody(w http.ResponseWriter, limit int) (text []byte, all bool, err error) {
	// An error: the server sets no deadlines, so a slow client is waited for.
	control := http.NewResponseController(w)
	defer control.SetReadDeadline(time.Time{})
	control.SetReadDeadline(time.Now().Add(firstTimeout))
	for size := 4 << 10; ; size = min(2*size, limit+1) {
		if err := c.hold(size - cap(text)); err != nil {
			return nil, false, err
		}
		if size > MaxLogin+1 {
			control.SetReadDeadline(time.Now().Add(firstTimeout))
		}
		text = append(make([]byte, 0, size), text...)
		for len(text) < size {
			n, err := c.request.Body.Read(text[len(text):size])
			if text = text[:len(text)+n]; err == io.EOF {
				return text, true, nil
			}
			if err != nil {
				return nil, false, fmt.Errorf("%w: %w", errBody, err)
			}
		}
		if size > limit {
			return text, false, nil
		}
	}
}
