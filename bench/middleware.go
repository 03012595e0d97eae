package main

import (
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"time"

	tollbooth "github.com/didip/tollbooth/v7"
	tollboothlimiter "github.com/didip/tollbooth/v7/limiter"
	"github.com/go-chi/httprate"
	ulule "github.com/ulule/limiter/v3"
	"github.com/ulule/limiter/v3/drivers/middleware/stdlib"
	ululememory "github.com/ulule/limiter/v3/drivers/store/memory"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/httpthrottle"
	"github.com/adaptivethrottler/throttler/memstore"
)

// A wrap returns next behind a middleware that limits the peer's address and
// keeps its records in process memory.
type wrap func(l limit, next http.Handler) http.Handler

// middlewares are the middlewares to compare.
var middlewares = []struct {
	name, how string
	wrap      wrap
}{
	{"httpthrottle", "sliding window", ours(throttler.SlidingWindow, false)},
	{"httpthrottle, RateLimit fields", "sliding window", ours(throttler.SlidingWindow, true)},
	{"httpthrottle", "leaky bucket", ours(throttler.LeakyBucket, false)},
	{"httpthrottle, two conditions", "window and bucket", oursTwice},
	{"httpthrottle.PerValue", "sliding window", oursPerValue(throttler.SlidingWindow, false)},
	{"httpthrottle.PerValue, RateLimit fields", "sliding window", oursPerValue(throttler.SlidingWindow, true)},
	{"httpthrottle.PerValue", "leaky bucket", oursPerValue(throttler.LeakyBucket, false)},
	{"go-chi/httprate", "two fixed windows", func(l limit, next http.Handler) http.Handler {
		return httprate.LimitBy(l.Max, l.Window, peer)(next)
	}},
	{"ulule/limiter", "fixed window", func(l limit, next http.Handler) http.Handler {
		rate := ulule.Rate{Period: l.Window, Limit: int64(l.Max)}
		return stdlib.NewMiddleware(ulule.New(ululememory.NewStore(), rate)).Handler(next)
	}},
	{"didip/tollbooth", "token bucket", func(l limit, next http.Handler) http.Handler {
		rate := float64(l.Max) / l.Window.Seconds()
		lmt := tollbooth.NewLimiter(rate, &tollboothlimiter.ExpirableOptions{DefaultExpirationTTL: time.Hour})
		lmt.SetBurst(l.Max)
		return tollbooth.LimitHandler(lmt, next)
	}},
}

// peer returns the address of r, for httprate.
func peer(r *http.Request) (string, error) {
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	return httprate.CanonicalizeIP(host), err
}

func ours(algorithm throttler.Algorithm, public bool) wrap {
	return func(l limit, next http.Handler) http.Handler {
		var source httpthrottle.Source
		m := httpthrottle.New(throttler.New(memstore.New()), func(r *http.Request) throttler.Rule {
			return throttler.Rule{Identifier: "bench", Either: []throttler.Condition{
				{Name: "address", Value: source.Key(r), Max: l.Max, TTL: l.Window, Algorithm: algorithm},
			}}
		})
		if public {
			m.Public = []string{"address"}
		}
		return m.Handler(next)
	}
}

// oursPerValue does not copy the request.
func oursPerValue(algorithm throttler.Algorithm, public bool) wrap {
	return func(l limit, next http.Handler) http.Handler {
		perAddress, err := throttler.New(memstore.New()).Limit(throttler.Rule{Identifier: "bench", Either: []throttler.Condition{
			{Name: "address", Max: l.Max, TTL: l.Window, Algorithm: algorithm},
		}})
		if err != nil {
			panic(err)
		}
		m := httpthrottle.PerValue(perAddress, httpthrottle.Source{}.Key)
		m.NoDecision = true
		if public {
			m.Public = []string{"address"}
		}
		return m.Handler(next)
	}
}

// oursTwice has a second condition, on address and path.
func oursTwice(l limit, next http.Handler) http.Handler {
	var source httpthrottle.Source
	return httpthrottle.New(throttler.New(memstore.New()), func(r *http.Request) throttler.Rule {
		key := source.Key(r)
		return throttler.Rule{Identifier: "bench", Either: []throttler.Condition{
			{Name: "address", Value: key, Max: l.Max, TTL: l.Window},
			{Name: "path", Value: key + r.URL.Path, Max: l.Max, TTL: l.Window, Algorithm: throttler.LeakyBucket},
		}}
	}).Handler(next)
}

// httpSystems returns the middlewares as systems. Their values are addresses.
func httpSystems() []system {
	var all []system
	for _, m := range middlewares {
		all = append(all, system{m.name, m.how, inProcess, func(_ env, l limit) (limiter, error) {
			return handler{m.wrap(l, passed)}, nil
		}})
	}
	return all
}

// passed is the handler behind the middlewares.
var passed = http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})

// A handler is a limiter that sends requests to a middleware. Each caller has
// one request and changes its address.
type handler struct{ http.Handler }

func (h handler) caller() func(string) (bool, error) {
	request := httptest.NewRequest(http.MethodGet, "/", nil)
	answer := &sink{header: http.Header{}}
	return func(address string) (bool, error) {
		request.RemoteAddr = address
		answer.reset()
		h.ServeHTTP(answer, request)
		return answer.allowed()
	}
}

func (handler) flush() {}
func (handler) close() {}

// sink is a ResponseWriter that keeps the status only.
type sink struct {
	header http.Header
	status int
}

func (s *sink) Header() http.Header         { return s.header }
func (s *sink) Write(b []byte) (int, error) { return len(b), nil }
func (s *sink) WriteHeader(status int)      { s.status = status }

func (s *sink) reset() {
	clear(s.header)
	s.status = http.StatusOK
}

func (s *sink) allowed() (bool, error) {
	switch s.status {
	case http.StatusOK:
		return true, nil
	case http.StatusTooManyRequests:
		return false, nil
	}
	return false, fmt.Errorf("status %d", s.status)
}
