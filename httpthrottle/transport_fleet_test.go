package httpthrottle_test

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/httpthrottle"
	"github.com/adaptivethrottler/throttler/memstore"
)

// outgoing returns a rule of max requests in ttl.
func outgoing(max int, ttl time.Duration) func(*http.Request) throttler.Rule {
	return func(r *http.Request) throttler.Rule {
		return throttler.Rule{Identifier: "api", Either: []throttler.Condition{{Name: "window", Max: max, TTL: ttl}}}
	}
}

// A fleet is 8 processes that send as fast as they may, each one request after the other.
//
// At 50 requests in 2 s, a known limit was never refused, at 98 % of the rate and with delays
// of up to 40 ms. A limit that is told with its window but not known cost each process at most
// one 429 when it got lower, and after three windows at least 95 % of it were used. A limit
// that is told without a window, or not at all, costs up to one 429 for each request that is
// under way when the limit is reached, in each window.
const processes = 8

// run has a fleet with this rule ask a for that long. Each process has a Throttler of its own,
// and sends inEach requests at once; all share store.
func run(t *testing.T, a *api, store throttler.Client, rule func(*http.Request) throttler.Rule, inEach int, length time.Duration) {
	ctx, cancel := context.WithCancel(t.Context()) // with a deadline, Wait would end early
	defer cancel()
	time.AfterFunc(length, cancel)
	var fleet sync.WaitGroup
	for p := range processes {
		transport := &httpthrottle.Transport{Base: a, Throttler: throttler.New(store), Rule: rule}
		for range inEach {
			fleet.Go(func() {
				for ctx.Err() == nil {
					r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://api.example/", nil)
					assert.NoError(t, err)
					r.Header.Set("Process", fmt.Sprint(p))
					if response, err := transport.RoundTrip(r); err == nil {
						assert.NoError(t, response.Body.Close())
					} else {
						assert.Error(t, ctx.Err(), err)
					}
				}
			})
		}
	}
	fleet.Wait()
}

func TestAFleetThatKnowsTheLimitIsNeverRefused(t *testing.T) {
	for name, tell := range dialects {
		for _, aligned := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/aligned=%t", name, aligned), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					a := newAPI(50, 2*time.Second, tell)
					a.aligned, a.way = aligned, 40*time.Millisecond // as long as the margin
					began := time.Now()
					run(t, a, memstore.New(), outgoing(50, 2*time.Second), 4, 102*time.Second)
					require.Empty(t, a.refused)
					rate := float64(a.takenBetween(began.Add(2*time.Second), began.Add(102*time.Second))) / 100 / 25
					t.Logf("%.1f %% of the rate", 100*rate)
					require.Greater(t, rate, 0.95)
				})
			})
		}
	}
}

func TestWithoutAMarginAFleetIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAPI(50, 2*time.Second, nil)
		a.way = 40 * time.Millisecond
		began := time.Now()
		run(t, a, memstore.New(), outgoing(51, 2*time.Second), 1, 20*time.Second)
		require.NotEmpty(t, a.refusals(began), "a limit of one too many is noticed")
	})
}

// The limit is not known, and changes: each process is refused at most once for each change,
// and from the fourth window on the fleet has 95 % of what it may have.
func TestAFleetFindsALimitThatTheServerTells(t *testing.T) {
	for _, name := range []string{"draft 11", "draft 3"} {
		for _, aligned := range []bool{false, true} {
			for _, rule := range []struct {
				name   string
				window time.Duration // of the server
				rule   func(*http.Request) throttler.Rule
			}{
				{"same window", 5 * time.Second, outgoing(1000, 5*time.Second)},
				{"other window", time.Minute, outgoing(100, time.Second)},
				{"other short window", 5 * time.Second, outgoing(1000, time.Second)},
			} {
				t.Run(fmt.Sprintf("%s/aligned=%t/%s", name, aligned, rule.name), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						window := rule.window
						phase := 20*window + 3*time.Second
						a := newAPI(50, window, dialects[name])
						a.aligned = aligned
						time.AfterFunc(phase, func() { a.setLimit(20) })
						time.AfterFunc(2*phase, func() { a.setLimit(80) })
						began := time.Now()
						run(t, a, memstore.New(), rule.rule, 1, 3*phase)
						for i, limit := range []int{50, 20, 80} {
							from, to := began.Add(time.Duration(i)*phase), began.Add(time.Duration(i+1)*phase)
							for process, n := range a.refusals(from) {
								n -= a.refusals(to)[process]
								assert.LessOrEqual(t, n, 1, "process %s, limit %d", process, limit)
							}
							from = from.Add(3 * window)
							rate := float64(a.takenBetween(from, to)) / (float64(limit) * to.Sub(from).Seconds() / window.Seconds())
							t.Logf("limit %d: %.1f %% of the rate", limit, 100*rate)
							assert.Greater(t, rate, 0.95, "limit %d", limit)
						}
					})
				})
			}
		}
	}
}

// A limit that is told without its window is not learned. All processes pause when it is
// reached, so that each is refused at most once a pause, and most of the limit is used.
func TestAFleetPausesTogether(t *testing.T) {
	for _, name := range []string{"X-RateLimit in seconds", "X-RateLimit as Unix time", "Retry-After"} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const window, windows = 10 * time.Second, 30
				a := newAPI(50, window, dialects[name])
				a.aligned = true
				began := time.Now()
				run(t, a, memstore.New(), outgoing(1000, window), 1, windows*window)
				refused := 0
				for process, n := range a.refusals(began) {
					assert.LessOrEqual(t, n, windows, "process %s", process)
					refused += n
				}
				taken := a.takenBetween(began, began.Add(windows*window))
				t.Logf("%d taken, %d refused", taken, refused)
				require.Greater(t, taken, 95*50*windows/100)
			})
		})
	}
}
