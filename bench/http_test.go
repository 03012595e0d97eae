// Package bench measures the throttler beside other limiters. It is a module of
// its own so that none of them is a requirement of the throttler.
//
// On a busy machine the limiters are best measured in turn, several times over:
//
//	go test -c -o bench.test . && for i in $(seq 10); do ./bench.test -test.bench . -test.benchtime 100ms; done | benchstat /dev/stdin
package bench

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	tollbooth "github.com/didip/tollbooth/v7"
	"github.com/didip/tollbooth/v7/limiter"
	"github.com/go-chi/httprate"
	"github.com/stretchr/testify/require"
	ulule "github.com/ulule/limiter/v3"
	"github.com/ulule/limiter/v3/drivers/middleware/stdlib"
	"github.com/ulule/limiter/v3/drivers/store/memory"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/httpthrottle"
	"github.com/adaptivethrottler/throttler/memstore"
)

// wraps are the middlewares that are measured: each allows max requests a minute
// from an address, that of the peer, with its records in process memory.
var wraps = []struct {
	name string
	wrap func(max int, next http.Handler) http.Handler
}{
	{"bare", func(_ int, next http.Handler) http.Handler { return next }},
	{"throttler-window", func(max int, next http.Handler) http.Handler {
		return ours(throttler.SlidingWindow, max, false).Handler(next)
	}},
	{"throttler-window-public", func(max int, next http.Handler) http.Handler {
		return ours(throttler.SlidingWindow, max, true).Handler(next)
	}},
	{"throttler-bucket", func(max int, next http.Handler) http.Handler {
		return ours(throttler.LeakyBucket, max, false).Handler(next)
	}},
	{"throttler-window-and-bucket", func(max int, next http.Handler) http.Handler {
		return oursTwice(max).Handler(next)
	}},
	{"httprate", func(max int, next http.Handler) http.Handler {
		return httprate.LimitBy(max, time.Minute, httprate.KeyByIP)(next)
	}},
	{"ulule", func(max int, next http.Handler) http.Handler {
		rate := ulule.Rate{Period: time.Minute, Limit: int64(max)}
		return stdlib.NewMiddleware(ulule.New(memory.NewStore(), rate)).Handler(next)
	}},
	{"tollbooth", func(max int, next http.Handler) http.Handler {
		lmt := tollbooth.NewLimiter(float64(max)/60, &limiter.ExpirableOptions{DefaultExpirationTTL: time.Hour})
		lmt.SetBurst(max)
		return tollbooth.LimitHandler(lmt, next)
	}},
}

func ours(algorithm throttler.Algorithm, max int, public bool) *httpthrottle.Middleware {
	var source httpthrottle.Source
	m := httpthrottle.New(throttler.New(memstore.New()), func(r *http.Request) throttler.Rule {
		return throttler.Rule{Identifier: "bench", Either: []throttler.Condition{
			{Name: "address", Value: source.Key(r), Max: max, TTL: time.Minute, Algorithm: algorithm},
		}}
	})
	if public {
		m.Public = []string{"address"}
	}
	return m
}

// oursTwice has a second condition, on what the address asks for.
func oursTwice(max int) *httpthrottle.Middleware {
	var source httpthrottle.Source
	return httpthrottle.New(throttler.New(memstore.New()), func(r *http.Request) throttler.Rule {
		key := source.Key(r)
		return throttler.Rule{Identifier: "bench", Either: []throttler.Condition{
			{Name: "address", Value: key, Max: max, TTL: time.Minute},
			{Name: "path", Value: key + r.URL.Path, Max: max, TTL: time.Minute, Algorithm: throttler.LeakyBucket},
		}}
	})
}

// sink is a ResponseWriter that keeps nothing but the status.
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

var next = http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})

func requests(n int) []*http.Request {
	all := make([]*http.Request, n)
	for i := range all {
		all[i] = httptest.NewRequest(http.MethodGet, "/", nil)
		all[i].RemoteAddr = fmt.Sprintf("10.%d.%d.%d:4711", i>>16&255, i>>8&255, i&255)
	}
	return all
}

// BenchmarkAllowed measures a request that is allowed: 10,000 addresses in turn,
// none of which comes near its limit of 100,000 a minute.
func BenchmarkAllowed(b *testing.B) {
	all := requests(10_000)
	for _, w := range wraps {
		b.Run("http="+w.name, func(b *testing.B) {
			h := w.wrap(100_000, next)
			answer := &sink{header: http.Header{}}
			b.ReportAllocs()
			i := 0
			for b.Loop() {
				answer.reset()
				h.ServeHTTP(answer, all[i%len(all)])
				i++
			}
			if answer.status != http.StatusOK {
				b.Fatalf("status %d", answer.status)
			}
		})
	}
}

// BenchmarkRefused measures a request that is refused: one address, whose limit
// of 1 is used up. The answer is what each sends by default.
func BenchmarkRefused(b *testing.B) {
	r := requests(1)[0]
	for _, w := range wraps[1:] {
		b.Run("http="+w.name, func(b *testing.B) {
			h := w.wrap(1, next)
			answer := &sink{header: http.Header{}}
			h.ServeHTTP(answer, r)
			refused := 0
			b.ReportAllocs()
			for b.Loop() {
				answer.reset()
				h.ServeHTTP(answer, r)
				if answer.status == http.StatusTooManyRequests {
					refused++
				}
			}
			// Not all: some begin a new window each minute.
			if refused == 0 {
				b.Fatal("nothing was refused")
			}
		})
	}
}

// What is measured works: each allows as many as it should and no more.
func TestLimits(t *testing.T) {
	for _, w := range wraps[1:] {
		t.Run(w.name, func(t *testing.T) {
			h := w.wrap(5, next)
			statuses := make(map[int]int)
			for _, r := range requests(2) {
				for range 8 {
					answer := httptest.NewRecorder()
					h.ServeHTTP(answer, r)
					statuses[answer.Code]++
				}
			}
			require.Equal(t, map[int]int{http.StatusOK: 10, http.StatusTooManyRequests: 6}, statuses)
		})
	}
}
