//lint:file-ignore SA1019 these are the calls that programs have today

package main_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-chi/httprate"
	"github.com/go-redis/redis_rate/v10"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
	"github.com/ulule/limiter/v3"
	"github.com/ulule/limiter/v3/drivers/middleware/stdlib"
	"github.com/ulule/limiter/v3/drivers/store/memory"
	"golang.org/x/time/rate"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/httpthrottle"
	"github.com/adaptivethrottler/throttler/memstore"
)

// The bodies of these functions are the snippets of docs/migrating.md, in its order.

func rateBefore(ctx context.Context) error {
	bursts := rate.NewLimiter(10, 20) // 10 a second, and bursts of 20
	if err := bursts.Wait(ctx); err != nil {
		return err
	}
	return nil
}

func rateAfter(ctx context.Context, th *throttler.Throttler) error {
	_, err := th.Wait(ctx, throttler.Rule{Identifier: "api", Either: []throttler.Condition{
		{Name: "rate", Max: 20, TTL: 2 * time.Second, Algorithm: throttler.LeakyBucket}, // TTL: Max / rate
	}})
	if err != nil {
		return err
	}
	return nil
}

func redisRateBefore(ctx context.Context, client *redis.Client, id string) error {
	result, err := redis_rate.NewLimiter(client).Allow(ctx, "customer:"+id, redis_rate.PerMinute(10))
	if err != nil {
		return err
	}
	if result.Allowed == 0 {
		return fmt.Errorf("try again in %v", result.RetryAfter)
	}
	return nil
}

func redisRateAfter(ctx context.Context, th *throttler.Throttler, id string) error {
	d, err := th.Authorize(ctx, throttler.Rule{Identifier: "customer", Either: []throttler.Condition{
		{Name: "minute", Value: id, Max: 10, TTL: time.Minute, Algorithm: throttler.LeakyBucket},
	}})
	if err != nil {
		return err // the rule is wrong. If Redis fails, calls pass, and d.Err says so
	}
	if d.Status == throttler.Blocked {
		return fmt.Errorf("try again in %v", d.RetryAfter)
	}
	return nil
}

func httprateBefore(mux *http.ServeMux) http.Handler {
	handler := httprate.LimitByIP(100, time.Minute)(mux)
	return handler
}

func ululeBefore(mux *http.ServeMux) http.Handler {
	perMinute := limiter.Rate{Period: time.Minute, Limit: 100}
	handler := stdlib.NewMiddleware(limiter.New(memory.NewStore(), perMinute)).Handler(mux)
	return handler
}

func handlerAfter(th *throttler.Throttler, mux *http.ServeMux) http.Handler {
	handler := httpthrottle.New(th, httpthrottle.Source{}.PerAddress("site", 100, time.Minute)).Handler(mux)
	return handler
}

func TestThePageOnMigratingShowsTheCodeOfThisFile(t *testing.T) {
	page, err := os.ReadFile("../docs/migrating.md")
	require.NoError(t, err)
	file, err := os.ReadFile("migrating_test.go")
	require.NoError(t, err)
	_, section, ok := strings.Cut(string(page), "\n## From another limiter\n")
	require.True(t, ok)
	section, _, ok = strings.Cut(section, "\n## ")
	require.True(t, ok)
	snippets := regexp.MustCompile("(?s)```go\n(.*?)```").FindAllStringSubmatch(section, -1)
	require.Len(t, snippets, 7)
	for _, s := range snippets {
		indented := strings.ReplaceAll("\n"+s[1], "\n", "\n\t")
		require.Contains(t, string(file), " {"+strings.TrimSuffix(indented, "\t"), s[1])
	}
}

// What takes the place of another limiter has the same limit: a burst, and then the rate.
func TestCodeThatMovedHasTheSameLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		th := throttler.New(memstore.New())
		for range 20 {
			require.NoError(t, rateAfter(t.Context(), th))
		}
		began := time.Now()
		require.NoError(t, rateAfter(t.Context(), th))
		require.Equal(t, 100*time.Millisecond, time.Since(began))
		require.NoError(t, rateBefore(t.Context()))

		for range 10 {
			require.NoError(t, redisRateAfter(t.Context(), th, "ann"))
		}
		require.EqualError(t, redisRateAfter(t.Context(), th, "ann"), "try again in 6s")
		require.NoError(t, redisRateAfter(t.Context(), th, "bob"))

		handler := handlerAfter(th, http.NewServeMux())
		for range 100 {
			require.Equal(t, http.StatusNotFound, status(handler))
		}
		require.Equal(t, http.StatusTooManyRequests, status(handler))
	})
	require.Equal(t, http.StatusNotFound, status(httprateBefore(http.NewServeMux())))
	require.Equal(t, http.StatusNotFound, status(ululeBefore(http.NewServeMux())))
}

var _ = redisRateBefore // needs a server

func status(handler http.Handler) int {
	w := httptest.NewRecorder()
	handler.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", nil))
	return w.Code
}
