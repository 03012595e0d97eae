package httpthrottle_test

import (
	"context"
	"math"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/httpthrottle"
)

// full returns a handler that refuses everything after one request, which has
// been made, with conditions that say message and nothing.
func full(t *testing.T, m *httpthrottle.Middleware) http.Handler {
	t.Helper()
	h := m.Handler(hello)
	require.Equal(t, http.StatusOK, get(h).Code)
	return h
}

func twoConditions(message string) throttler.Rule {
	return throttler.Rule{
		Identifier: "test",
		Either: []throttler.Condition{
			{Name: "first", Max: 1, TTL: time.Minute, Message: message},
			{Name: "second", Max: 1, TTL: time.Hour},
		},
	}
}

// The answers to a request that two conditions refuse.
func TestAnswersToRefusedRequests(t *testing.T) {
	for name, test := range map[string]struct {
		message, accept string
		change          func(*httpthrottle.Middleware)
		status          int
		kind            string
		body            string // or what a page has
	}{
		"problem details": {"not <so> fast", "", nil, 429, "application/problem+json",
			`{"title": "Too Many Requests", "status": 429, "detail": "not <so> fast; Too many requests.",
				"messages": ["not <so> fast", "Too many requests."], "retry_after": 3600}`},
		"problem details of public policies": {"", "", func(m *httpthrottle.Middleware) { m.Public = []string{"second"} }, 429, "application/problem+json",
			`{"type": "https://iana.org/assignments/http-problem-types#quota-exceeded", "title": "Quota Exceeded", "status": 429,
				"detail": "Too many requests.", "violated-policies": ["second"], "messages": ["Too many requests."], "retry_after": 3600}`},
		"plain text": {"not <so> fast", "text/plain", nil, 429, "text/plain; charset=utf-8",
			"Too Many Requests\nnot <so> fast\nToo many requests.\nTry again in 60 minutes.\n"},
		"HTML": {`<script>alert("1&2")</script>`, "text/html", nil, 429, "text/html; charset=utf-8",
			"<p>&lt;script&gt;alert(&#34;1&amp;2&#34;)&lt;/script&gt;</p>\n<p>Too many requests.</p>\n<p>Try again in 60 minutes.</p>"},
		"another status": {"", "text/plain", func(m *httpthrottle.Middleware) { m.Status = 509 }, 509, "text/plain; charset=utf-8",
			"Request Refused\nToo many requests.\nTry again in 60 minutes.\n"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := withRule(twoConditions(test.message))
				if test.change != nil {
					test.change(m)
				}
				h := full(t, m)
				w := get(h, "Accept", test.accept)
				require.Equal(t, test.status, w.Code)
				require.Equal(t, test.kind, w.Header().Get("Content-Type"))
				require.Equal(t, "nosniff", w.Header().Get("X-Content-Type-Options"))
				require.Equal(t, "3600", w.Header().Get("Retry-After"))
				require.Equal(t, strconv.Itoa(w.Body.Len()), w.Header().Get("Content-Length"))
				switch body := w.Body.String(); test.kind {
				case "application/problem+json":
					require.JSONEq(t, test.body, body)
				case "text/html; charset=utf-8":
					require.True(t, strings.HasPrefix(body, "<!DOCTYPE html>\n"))
					require.Contains(t, body, test.body)
				default:
					require.Equal(t, test.body, body)
				}
				r := httptest.NewRequest(http.MethodHead, "/", nil)
				r.Header.Set("Accept", test.accept)
				head := httptest.NewRecorder()
				h.ServeHTTP(head, r)
				require.Equal(t, w.Header(), head.Header())
				require.Zero(t, head.Body.Len())
			})
		})
	}
}

func TestBodyByAccept(t *testing.T) {
	const problem, plain, html = "application/problem+json", "text/plain; charset=utf-8", "text/html; charset=utf-8"
	h := full(t, perMinute(1))
	for _, test := range []struct {
		accept []string
		want   string
	}{
		{nil, problem},
		{[]string{""}, problem},
		{[]string{"*/*"}, problem},
		{[]string{"application/json"}, problem},
		{[]string{"application/problem+json"}, problem},
		{[]string{"application/*"}, problem},
		{[]string{"text/*"}, plain},
		{[]string{"text/plain"}, plain},
		{[]string{"TEXT/HTML"}, html},
		{[]string{"text/html;charset=utf-8"}, html},
		{[]string{"text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,image/webp,*/*;q=0.8"}, html},
		{[]string{"text/html;q=0.5, text/plain;q=0.6"}, plain},
		{[]string{"text/html;q=0.5", "text/plain;q=0.6"}, plain},
		{[]string{"text/html;level=1;q=0.5, text/plain;q=0.4"}, html},
		{[]string{"text/html; Q=0.2 , text/plain ; q = 0.1"}, html},
		// The most specific range counts, whichever stands first.
		{[]string{"*/*, application/problem+json;q=0.1, application/json;q=0.1, text/plain;q=0.5"}, html},
		{[]string{"text/*;q=0.9, text/plain;q=0.2, */*;q=0.1"}, html},
		{[]string{"application/json;q=0.1, application/problem+json;q=1, text/plain;q=0.5"}, problem},
		// 0 means never.
		{[]string{"application/json;q=0, application/problem+json;q=0, */*"}, plain},
		{[]string{"*/*;q=0"}, problem},
		{[]string{"*/*;q=0, text/html;q=0.001"}, html},
		// Nothing of what there is, and nonsense.
		{[]string{"image/png"}, problem},
		{[]string{"text/html;q=2, text/plain"}, plain},
		{[]string{"text/html;q=x, text/plain"}, plain},
		{[]string{"text/html;q=NaN, text/plain"}, plain},
		{[]string{"text/html;q=-1"}, problem},
		{[]string{";;;,,,=,q=1,/,*"}, problem},
		{[]string{"*/html"}, problem},
		{[]string{strings.Repeat("image/png,", 100_000) + "text/html"}, problem},
	} {
		t.Run(strings.Join(test.accept, "|")[:min(40, len(strings.Join(test.accept, "|")))], func(t *testing.T) {
			var fields []string
			for _, a := range test.accept {
				fields = append(fields, "Accept", a)
			}
			require.Equal(t, test.want, get(h, fields...).Header().Get("Content-Type"))
		})
	}
}

func TestAnswerMayCallTheDefault(t *testing.T) {
	m := perMinute(1)
	refused := 0
	m.Answer = func(w http.ResponseWriter, r *http.Request, d throttler.Decision) {
		refused++
		of, ok := httpthrottle.DecisionFrom(r.Context())
		require.True(t, ok)
		require.Equal(t, d, of)
		require.NotEmpty(t, w.Header().Get("Retry-After"))
		w.Header().Set("Retry-After", "7")
		m.WriteAnswer(w, r, d)
	}
	w := get(full(t, m))
	require.Equal(t, 1, refused)
	require.Equal(t, http.StatusTooManyRequests, w.Code)
	require.Equal(t, "7", w.Header().Get("Retry-After"))
	require.Contains(t, w.Body.String(), "this address")
}

func TestHeaderFieldsOfARefusalChangeByThemselves(t *testing.T) {
	m := perMinute(1)
	m.Answer = func(w http.ResponseWriter, r *http.Request, d throttler.Decision) {
		w.Header().Add("Cache-Control", "private")
		w.Header()["Retry-After"][0] = "7"
		m.WriteAnswer(w, r, d)
	}
	h := full(t, m)
	for range 2 {
		w := get(h)
		require.Equal(t, []string{"no-store", "private"}, w.Header()["Cache-Control"])
		require.Equal(t, []string{"7"}, w.Header()["Retry-After"])
		require.Equal(t, []string{strconv.Itoa(w.Body.Len())}, w.Header()["Content-Length"])
	}
}

func TestTimesInWords(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for ttl, want := range map[time.Duration]string{
			time.Second:                 "1 second",
			1500 * time.Millisecond:     "2 seconds",
			2 * time.Minute:             "120 seconds",
			2*time.Minute + 1:           "120 seconds", // a nanosecond over is no second more
			2*time.Minute + time.Second: "3 minutes",
			2*time.Hour + time.Second:   "3 hours",
			48*time.Hour + time.Second:  "3 days",
			1000 * 24 * time.Hour:       "1000 days",
			100 * 365 * 24 * time.Hour:  "36500 days",
			math.MaxInt64:               "95795 days",
		} {
			h := full(t, withRule(throttler.Rule{Identifier: "test", All: []throttler.Condition{{Name: "all", Max: 1, TTL: ttl}}}))
			require.Contains(t, get(h, "Accept", "text/plain").Body.String(), "Try again in "+want+".\n")
		}
	})
}

func TestDelayBeforeTheRefusal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := perMinute(1)
		m.Delay = 5500 * time.Millisecond
		m.Public = []string{"address"}
		start := time.Now()
		h := full(t, m)
		require.Zero(t, time.Since(start), "an allowed request does not wait")
		w := get(h)
		require.Equal(t, m.Delay, time.Since(start))
		require.Equal(t, http.StatusTooManyRequests, w.Code)
		require.Equal(t, "55", w.Header().Get("Retry-After"), "as of the end of the delay")
		require.Equal(t, `"address";r=0;t=55`, w.Header().Get("RateLimit"))
	})
}

func TestNoMoreThan100WaitAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := perMinute(1)
		m.Delay = 10 * time.Second
		h := full(t, m)
		for range 2 { // and the places are free again afterwards
			var waited, refusedAtOnce atomic.Int64
			var requests sync.WaitGroup
			for range 117 {
				requests.Go(func() {
					start := time.Now()
					get(h)
					if time.Since(start) >= m.Delay {
						waited.Add(1)
					} else {
						refusedAtOnce.Add(1)
					}
				})
			}
			synctest.Wait()
			require.EqualValues(t, 17, refusedAtOnce.Load())
			requests.Wait()
			require.EqualValues(t, 100, waited.Load())
		}
	})
}

func TestDelayEndsWithTheRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := perMinute(1)
		m.Delay = time.Hour
		h := full(t, m)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		start := time.Now()
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", nil).WithContext(ctx))
		require.Equal(t, time.Second, time.Since(start))
		require.Equal(t, http.StatusTooManyRequests, w.Code)
		require.Equal(t, "59", w.Header().Get("Retry-After"))
	})
}
