package httpthrottle_test

import (
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/adaptivethrottler/throttler/httpthrottle"
)

// xFields returns the X-RateLimit fields of an answer, "limit remaining reset",
// reset in seconds from this one.
func xFields(w *httptest.ResponseRecorder) string {
	var fields []string
	for _, name := range []string{"Limit", "Remaining", "Reset"} {
		value := strings.Join(w.Header().Values("X-RateLimit-"+name), "|")
		if reset, err := strconv.ParseInt(value, 10, 64); name == "Reset" && err == nil {
			value = strconv.FormatInt(reset-time.Now().Unix(), 10)
		}
		fields = append(fields, value)
	}
	return strings.TrimSpace(strings.Join(fields, " "))
}

func TestXRateLimitOfMiddlewaresInsideEachOtherIsThatOfTheTighter(t *testing.T) {
	synctest.Test(t, xRateLimitOfMiddlewaresInsideEachOther)
}

func xRateLimitOfMiddlewaresInsideEachOther(t *testing.T) {
	limit := func(n int) *httpthrottle.Middleware {
		m := perMinute(n)
		m.Public, m.XRateLimit = []string{"address"}, true
		return m
	}
	require.Equal(t, "3 2 60", xFields(get(limit(9).Handler(limit(3).Handler(hello)))))
	require.Equal(t, "3 2 60", xFields(get(limit(3).Handler(limit(9).Handler(hello)))))

	inner := limit(1)
	h := limit(1).Handler(inner.Handler(hello))
	get(inner.Handler(hello))
	w := get(h)
	require.Equal(t, http.StatusTooManyRequests, w.Code)
	require.Equal(t, "1 0 60", xFields(w), "the one that refuses")
}

func TestXRateLimitOfARefusalIsThatOfTheRuleThatRefuses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		outer := perMinute(1)
		inner, _ := byItems()
		outer.Public, outer.XRateLimit = []string{"address"}, true
		inner.XRateLimit = true
		order(inner.Handler(hello), "8")
		w := order(outer.Handler(inner.Handler(hello)), "3")
		require.Equal(t, http.StatusTooManyRequests, w.Code)
		require.Equal(t, "10 2 60", xFields(w), "though the other has less left")
	})
}
