package main

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"time"

	tollbooth "github.com/didip/tollbooth/v7"
	tollboothlimiter "github.com/didip/tollbooth/v7/limiter"
	"github.com/go-chi/httprate"
	"github.com/sethvargo/go-limiter/memorystore"
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

// The middlewares to compare.
var (
	httpRate = wrapped("go-chi/httprate", "two fixed windows", func(l limit, next http.Handler) http.Handler {
		return httprate.LimitBy(l.Max, l.Window, peer)(next)
	})
	middlewares = []system{
		wrapped("httpthrottle", "sliding window", ours(false, nil)),
		wrapped("httpthrottle, RateLimit fields", "sliding window", ours(false, []string{"address"})),
		wrapped("httpthrottle, NoDecision", "sliding window", ours(true, nil)),
		wrapped("httpthrottle.PerValue", "sliding window", oursPerValue(nil)),
		wrapped("httpthrottle.PerValue, RateLimit fields", "sliding window", oursPerValue([]string{"address"})),
		httpRate,
		wrapped("ulule/limiter", "fixed window", func(l limit, next http.Handler) http.Handler {
			rate := ulule.Rate{Period: l.Window, Limit: int64(l.Max)}
			return stdlib.NewMiddleware(ulule.New(ululememory.NewStore(), rate)).Handler(next)
		}),
		wrapped("didip/tollbooth", "token bucket", func(l limit, next http.Handler) http.Handler {
			rate := float64(l.Max) / l.Window.Seconds()
			lmt := tollbooth.NewLimiter(rate, &tollboothlimiter.ExpirableOptions{DefaultExpirationTTL: time.Hour})
			lmt.SetBurst(l.Max)
			return tollbooth.LimitHandler(lmt, next)
		}),
	}
)

// The works for the middlewares.
var (
	allowedRequests = work{
		name: "allowed", about: "10,000 addresses at random, none of which comes near its limit of 1,000 in 100 ms",
		limit: spreadWork.limit, values: anyOf(addressNames),
	}
	refusedRequests = usedUp("refused", "one address for all callers whose 50 a day are used up", fullWork.limit, addressNames[0])
)

// peer returns the address of r, for httprate.
func peer(r *http.Request) (string, error) {
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	return httprate.CanonicalizeIP(host), err
}

// ours shows the conditions of public in RateLimit fields. With noDecision it does not copy the
// request to hand the Decision on.
func ours(noDecision bool, public []string) wrap {
	return func(l limit, next http.Handler) http.Handler {
		var source httpthrottle.Source
		m := httpthrottle.New(throttler.New(memstore.New()), func(r *http.Request) throttler.Rule { return perAddress(l, source.Key(r)) })
		m.NoDecision, m.Public = noDecision, public
		return m.Handler(next)
	}
}

// oursPerValue does not copy the request.
func oursPerValue(public []string) wrap {
	return func(l limit, next http.Handler) http.Handler {
		prepared, err := throttler.New(memstore.New()).Limit(perAddress(l, ""))
		if err != nil {
			panic(err)
		}
		m := httpthrottle.PerValue(prepared, httpthrottle.Source{}.Key)
		m.NoDecision, m.Public = true, public
		return m.Handler(next)
	}
}

func perAddress(l limit, address string) throttler.Rule {
	return throttler.Rule{Identifier: "bench", Either: []throttler.Condition{{Name: "address", Value: address, Max: l.Max, TTL: l.Window}}}
}

// wrapped returns a middleware as a system, whose values are addresses. Each caller has
// one request and changes its address.
func wrapped(name, how string, w wrap) system {
	return system{name: name, how: how, open: func(_ env, l limit) (limiter, error) {
		handler := w(l, passed)
		return limiter{caller: func() allow {
			request := httptest.NewRequest(http.MethodGet, "/", nil)
			answer := &sink{header: http.Header{}}
			return func(_ context.Context, address string) (bool, error) {
				request.RemoteAddr = address
				answer.reset()
				handler.ServeHTTP(answer, request)
				return answer.allowed()
			}
		}, flush: func() {}, close: func() {}}, nil
	}}
}

// passed is the handler behind the middlewares.
var passed = http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})

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

// goLimiter is the memory store of go-limiter, which gives all tokens back at once when an
// interval ends.
var goLimiter = system{name: "sethvargo/go-limiter", how: "token bucket", open: func(_ env, l limit) (limiter, error) {
	store, err := memorystore.New(&memorystore.Config{Tokens: uint64(l.Max), Interval: l.Window})
	return simple(func(ctx context.Context, value string) (bool, error) {
		_, _, _, ok, err := store.Take(ctx, value)
		return ok, err
	}, func() { store.Close(context.Background()) }), err
}}
