package httpthrottle

import (
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

// DefaultConnectionDelay is how long a client waits for the refusal of a
// [Connections], if its Delay is not set.
const DefaultConnectionDelay = time.Second

// Connections limits how fast requests come over each connection for itself:
// one kept alive by HTTP/1.1, or all streams together of one with HTTP/2. What
// it knows of a connection lives and dies with it, in the memory of the process:
// there is no backend, nothing to expire, and no goroutine.
//
// It must be told of the connections:
//
//	perConnection := httpthrottle.NewConnections(100, 10*time.Second)
//	server := &http.Server{
//		Handler:     perConnection.Handler(mux),
//		ConnContext: perConnection.ConnContext,
//	}
//
// It bounds what one connection can ask of the server, and slows down a client
// that hammers; not one that opens a new connection for each request, which is
// for a limit per address to hold. A refusal closes an HTTP/1 connection only if
// the request has a body. Behind a proxy the connections are the proxy's, and
// Connections does not belong there.
//
// The rate is taken over the last requests of the connection, as many as
// NewConnections was given, or all while there are fewer. A request that comes
// faster is refused, by default with 503 Service Unavailable after a second,
// and not counted. Retry-After says when the connection is slow enough again.
//
// The exported fields, and those of the embedded [Refusal], are options. They
// must be set before Handler is called. Connections is safe for concurrent use.
type Connections struct {
	// Refusal is how a request is answered that may not happen. Its default
	// Status is 503, its default Delay DefaultConnectionDelay, 1 s.
	Refusal

	// Minimum is how many requests of a connection are allowed however fast
	// they come, before the rate is judged: a page has many parts that a
	// browser asks for at once. Less than 1: as many as the rate is taken
	// over.
	Minimum int

	// Failed answers a request on a connection that was not told of, which is
	// err: the server lacks ConnContext. Nil: err is written to the ErrorLog
	// of the request's http.Server, or else the standard logger, and the
	// answer is 500. Such a request is never just allowed.
	Failed func(w http.ResponseWriter, r *http.Request, err error)

	max    int
	ttl    time.Duration
	tarpit tarpit
}

var errNoConnContext = errors.New("the server's ConnContext does not call that of this Connections")

// NewConnections returns a Connections that allows max requests in ttl on each
// connection, and takes the rate over the last max requests. A connection needs
// up to 8 bytes of memory for each of these. NewConnections panics if max is
// less than 1 or ttl is not positive.
func NewConnections(max int, ttl time.Duration) *Connections {
	if max < 1 || ttl <= 0 {
		panic(fmt.Sprintf("httpthrottle: NewConnections(%d, %v), want 1 or more in a positive time", max, ttl))
	}
	return &Connections{max: max, ttl: ttl}
}

// A connectionKey is the context key of what one Connections knows of a
// connection.
type connectionKey struct{ of *Connections }

// ConnContext tells c of a connection. It is for the ConnContext of an
// http.Server; a server that has one already calls both, one with the context
// that the other returned.
func (c *Connections) ConnContext(ctx context.Context, _ net.Conn) context.Context {
	return context.WithValue(ctx, connectionKey{c}, &connection{began: time.Now()})
}

// Handler returns a handler that calls next for each request that may happen,
// and answers the others itself. It panics if next is nil or an option makes no
// sense.
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
		fail(c.Failed, w, r, errNoConnContext)
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
	d = later(d, c.tarpit.wait(r.Context(), c.delay(), c.maxDelayed()))
	c.refuse(w, r, d, c.WriteAnswer)
}

// WriteAnswer writes the default answer to a refused request, as the other
// options have it, for an Answer that only adds to it.
func (c *Connections) WriteAnswer(w http.ResponseWriter, r *http.Request, d throttler.Decision) {
	c.write(w, r, d, http.StatusServiceUnavailable, nil)
}

func (c *Connections) minimum() int {
	if c.Minimum < 1 {
		return c.max
	}
	return c.Minimum
}

func (c *Connections) delay() time.Duration {
	if c.Delay == 0 {
		return DefaultConnectionDelay
	}
	return c.Delay
}

// A connection is what is known of one net.Conn.
type connection struct {
	began time.Time

	mu    sync.Mutex      // guards what follows: HTTP/2 serves many requests at once
	count int             // requests allowed so far
	last  []time.Duration // when the last of them came, since began; a ring once it is full
}

// take counts a request that comes now if it may happen, and returns 0;
// otherwise it returns how long until one may.
func (c *connection) take(max, minimum int, ttl time.Duration) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Since(c.began) // under the lock, so that the ring is in order
	gaps := len(c.last)
	if c.count >= minimum && gaps > 0 {
		if wait := c.oldest() + share(ttl, gaps, max) - now; wait > 0 {
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

// oldest returns the earliest time in last, which is not empty. Until it is
// full, count is its length and the index 0.
func (c *connection) oldest() time.Duration { return c.last[c.count%len(c.last)] }

// share returns the time that n of max requests take at a rate of max in ttl.
func share(ttl time.Duration, n, max int) time.Duration {
	if n == max {
		return ttl // to the nanosecond
	}
	// A float, since hits times nanoseconds overflow an int64.
	return time.Duration(math.Ceil(float64(n) * float64(ttl) / float64(max)))
}
