package httpthrottle_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/httpthrottle"
	"github.com/adaptivethrottler/throttler/memstore"
)

// discard is a ResponseWriter that keeps only the status.
type discard struct {
	header http.Header
	status int
}

func (d *discard) Header() http.Header         { return d.header }
func (d *discard) Write(b []byte) (int, error) { return len(b), nil }
func (d *discard) WriteHeader(status int)      { d.status = status }

func (d *discard) reset() {
	clear(d.header)
	d.status = http.StatusOK
}

// clients returns requests from n addresses.
func clients(n int) []*http.Request {
	requests := make([]*http.Request, n)
	for i := range requests {
		requests[i] = httptest.NewRequest(http.MethodGet, "/", nil)
		requests[i].RemoteAddr = fmt.Sprintf("10.%d.%d.%d:4711", i>>16&255, i>>8&255, i&255)
	}
	return requests
}

// BenchmarkAllowed measures an allowed request beside the decision on it alone:
// what lies between is the Middleware's own. Hits expire at once, so that the
// records stay as small as they are.
func BenchmarkAllowed(b *testing.B) {
	rule := httpthrottle.Source{}.PerAddress("bench", 100_000, time.Millisecond)
	next := http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})
	requests := clients(1000)

	b.Run("part=decision", func(b *testing.B) {
		th := throttler.New(memstore.New())
		rules := make([]throttler.Rule, len(requests))
		for i, r := range requests {
			rules[i] = rule(r)
		}
		b.ReportAllocs()
		for i := 0; b.Loop(); i++ {
			if _, err := th.Authorize(b.Context(), rules[i%len(rules)]); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("part=rule", func(b *testing.B) {
		b.ReportAllocs()
		for i := 0; b.Loop(); i++ {
			rule(requests[i%len(requests)])
		}
	})
	for _, public := range []bool{false, true} {
		b.Run(fmt.Sprintf("part=all/public=%t", public), func(b *testing.B) {
			m := httpthrottle.New(throttler.New(memstore.New()), rule)
			if public {
				m.Public = []string{"address"}
			}
			h := m.Handler(next)
			w := &discard{header: make(http.Header)}
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				w.reset()
				h.ServeHTTP(w, requests[i%len(requests)])
			}
			if w.status != http.StatusOK {
				b.Fatal(w.status)
			}
		})
	}
}

// BenchmarkRefused measures a refused request, whose answer is the default one.
func BenchmarkRefused(b *testing.B) {
	rule := httpthrottle.Source{}.PerAddress("bench", 1, time.Hour)
	h := httpthrottle.New(throttler.New(memstore.New()), rule).Handler(hello)
	r, w := clients(1)[0], &discard{header: make(http.Header)}
	h.ServeHTTP(w, r)
	b.ReportAllocs()
	for b.Loop() {
		w.reset()
		h.ServeHTTP(w, r)
	}
	if w.status != http.StatusTooManyRequests {
		b.Fatal(w.status)
	}
}

// BenchmarkAddr measures who is calling, behind proxies or not.
func BenchmarkAddr(b *testing.B) {
	for _, bench := range []struct {
		name   string
		source httpthrottle.Source
		r      *http.Request
	}{
		{"peer", httpthrottle.Source{}, request("203.0.113.9:4711")},
		{"proxy", httpthrottle.Source{Trusted: trusted, Header: "X-Forwarded-For"}, request(proxy, "X-Forwarded-For: 1.2.3.4, 203.0.113.9, 10.2.2.2")},
	} {
		b.Run("from="+bench.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				bench.source.Key(bench.r)
			}
		})
	}
}

// The rule has its conditions, and the request a copy with the Decision: no more is allocated
// for an allowed request than these two and what the decision takes. A refused one has the
// conditions, the values of the header fields, two of which are written, and the body. One more
// is for the race detector, with which a sync.Pool forgets.
func TestMiddlewareAllocatesLittleBesideTheDecision(t *testing.T) {
	for _, test := range []struct {
		max, status int
		besides     float64
	}{
		{throttler.MaxHits, http.StatusOK, 2},
		{1, http.StatusTooManyRequests, 5},
	} {
		const runs = 1000
		rule := httpthrottle.Source{}.PerAddress("test", test.max, time.Hour)
		r, w := clients(1)[0], &discard{header: make(http.Header)}
		th := throttler.New(memstore.New())
		fixed := rule(r)
		decision := testing.AllocsPerRun(runs, func() { th.Authorize(t.Context(), fixed) })
		h := httpthrottle.New(th, rule).Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { w.status = http.StatusOK }))
		all := testing.AllocsPerRun(runs, func() {
			clear(w.header)
			h.ServeHTTP(w, r)
		})
		require.Equal(t, test.status, w.status)
		require.LessOrEqual(t, all, decision+test.besides+1)
	}
}
