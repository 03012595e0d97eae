package httpthrottle

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/adaptivethrottler/throttler"
)

// defaultConnectionDelay is the default [Refusal.Delay] of [Connections].
const defaultConnectionDelay = time.Second

// Connections limits how fast requests come over each single connection: one
// kept alive with HTTP/1.1, or all streams of one with HTTP/2. It needs no
// Throttler and no backend. Its state lives in the memory of the process and
// ends with the connection.
//
// Set it as the server's handler and its ConnContext:
//
//	perConnection := httpthrottle.NewConnections(100, 10*time.Second)
//	server := &http.Server{
//		Handler:     perConnection.Handler(mux),
//		ConnContext: perConnection.ConnContext,
//	}
//
// Without that ConnContext, requests are answered with 500, and logged.
//
// A request that comes faster than the rate is not counted. It is refused, by
// default with 503 Service Unavailable after a second. Retry-After says when
// the next one is allowed. An HTTP/1 connection is closed only if the refused
// request has a body.
//
// Connections slows down a client that hammers one connection. It does not stop
// a client that opens a connection for each request; a limit per address does.
// Do not use it behind a proxy, whose connections carry many clients.
//
// The exported fields, and those of the embedded [Refusal], are options. They
// must be set before Handler is called. Connections is safe for concurrent use.
type Connections struct {
	// Refusal configures the response to a rejected request. Its default Status
	// is 503, its default Delay 1 s.
	Refusal

	// Minimum is the number of requests of a connection that are allowed at any
	// speed before the rate is judged: a browser asks for many parts of a page
	// at once. Default: the max of NewConnections.
	Minimum int

	max    int
	ttl    time.Duration
	tarpit tarpit
}

var errNoConnContext = errors.New("the connection is unknown: set ConnContext of the http.Server to that of this Connections")

// NewConnections returns a Connections that allows max requests in ttl on each
// connection. It takes the rate over the last max requests, or over all while
// there are fewer. A connection needs up to 8 bytes of memory for each of them.
// NewConnections panics if max is less than 1 or ttl is not positive.
func NewConnections(max int, ttl time.Duration) *Connections {
	if max < 1 || ttl <= 0 {
		panic(fmt.Sprintf("httpthrottle: NewConnections(%d, %v), want a max of 1 or more, and a positive ttl", max, ttl))
	}
	return &Connections{max: max, ttl: ttl}
}

// A connectionKey is the context key of a Connections' connection.
type connectionKey struct{ of *Connections }

// ConnContext is the ConnContext of an http.Server. If the server needs another
// one too, call both, one with the context that the other returned.
func (c *Connections) ConnContext(ctx context.Context, _ net.Conn) context.Context {
	return context.WithValue(ctx, connectionKey{c}, &connection{began: time.Now()})
}

// Handler returns a handler that calls next for each allowed request and
// answers the others itself. It panics if next is nil or an option is invalid.
func (c *Connections) Handler(next http.Handler) http.Handler {
	if next == nil {
		panic("httpthrottle: Handler with a nil next handler")
	}
	c.check()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c.serve(w, r, next)
	})
}

func (c *Connections) serve(w http.ResponseWriter, r *http.Request, next http.Handler) {
	conn, ok := r.Context().Value(connectionKey{c}).(*connection)
	if !ok {
		fail(nil, w, r, errNoConnContext)
		return
	}
	wait := conn.take(c.max, c.minimum(), c.ttl)
	if wait == 0 {
		next.ServeHTTP(w, r)
		return
	}
	d := throttler.Decision{
		Status:     throttler.Blocked,
		Messages:   []string{"Too many requests on this connection."},
		RetryAfter: wait,
		Outcomes:   []throttler.Outcome{{Name: "connection", Blocked: true, Limit: c.max, RetryAfter: wait, ResetAfter: c.ttl}},
		WouldBlock: true,
	}
	d = later(d, c.tarpit.wait(r.Context(), cmp.Or(c.Delay, defaultConnectionDelay)))
	c.refuse(w, r, &d, http.StatusServiceUnavailable, nil)
}

// WriteAnswer writes the default response to a refused request, by the other
// options. It is for an Answer that adds to it.
func (c *Connections) WriteAnswer(w http.ResponseWriter, r *http.Request, d throttler.Decision) {
	c.write(w, r, &d, new(values), http.StatusServiceUnavailable, nil)
}

func (c *Connections) minimum() int {
	if c.Minimum < 1 {
		return c.max
	}
	return c.Minimum
}

// A connection is the state of one net.Conn.
type connection struct {
	began time.Time

	mu    sync.Mutex      // guards what follows: HTTP/2 serves many requests at once
	count int             // requests allowed so far
	last  []time.Duration // times of the last requests, since began; a ring once it is full
}

// take counts a request that comes now and returns 0 if it is allowed.
// Otherwise it returns the time until one is.
func (c *connection) take(max, minimum int, ttl time.Duration) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Since(c.began) // under the lock, so that the ring is in order
	gaps := len(c.last)
	if c.count >= minimum && gaps > 0 {
		if wait := c.oldest() + timeFor(ttl, gaps, max) - now; wait > 0 {
			return wait
		}
	}
	if gaps < max {
		c.last = append(c.last, now)
	} else {
		c.last[c.count%max] = now
	}
	c.count++
	return 0
}

// oldest returns the earliest time in last, which is not empty. Until last is
// full, count is its length and the index 0.
func (c *connection) oldest() time.Duration { return c.last[c.count%len(c.last)] }

// timeFor returns the time that n of max requests take at a rate of max in ttl.
func timeFor(ttl time.Duration, n, max int) time.Duration {
	if n == max {
		return ttl // to the nanosecond
	}
	// A float: hits times nanoseconds can overflow an int64.
	return time.Duration(math.Ceil(float64(n) * float64(ttl) / float64(max)))
}
