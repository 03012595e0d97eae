package main

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func requests(n int) []*http.Request {
	all := make([]*http.Request, n)
	for i := range all {
		all[i] = httptest.NewRequest(http.MethodGet, "/", nil)
		all[i].RemoteAddr = addressNames[i]
	}
	return all
}

// benchmarkName returns a name as those of benchmarks are.
func benchmarkName(name, how string) string {
	return "http=" + strings.NewReplacer(" ", "-", ",", "", "/", "-").Replace(name+" "+how)
}

// BenchmarkAllowed measures a request that is allowed: 10,000 addresses in turn,
// none of which comes near its limit of 100,000 a minute.
func BenchmarkAllowed(b *testing.B) {
	all := requests(len(addressNames))
	for _, m := range middlewares {
		b.Run(benchmarkName(m.name, m.how), func(b *testing.B) {
			h := m.wrap(limit{100_000, time.Minute}, passed)
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
	for _, m := range middlewares {
		b.Run(benchmarkName(m.name, m.how), func(b *testing.B) {
			h := m.wrap(limit{1, time.Minute}, passed)
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
func TestMiddlewaresAllowTheirLimitAndNoMore(t *testing.T) {
	for _, m := range middlewares {
		t.Run(fmt.Sprint(m.name, " ", m.how), func(t *testing.T) {
			h := m.wrap(limit{5, time.Minute}, passed)
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
