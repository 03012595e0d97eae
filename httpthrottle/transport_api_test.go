package httpthrottle_test

import (
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"time"
)

// An api is a server with a limit, as a RoundTripper.
type api struct {
	window  time.Duration
	aligned bool          // windows begin at multiples of window; otherwise any window holds limit
	way     time.Duration // the longest time that a request or its answer takes to arrive
	tell    dialect       // what answers tell, or nil

	mu      sync.Mutex // guards what follows
	limit   int
	taken   []time.Time
	refused map[string][]time.Time // by process
}

// A dialect adds the fields of an answer.
type dialect func(h http.Header, status int, s state)

// A state is what an API tells of its limit.
type state struct {
	limit, remaining int
	window, reset    time.Duration
}

func newAPI(limit int, window time.Duration, tell dialect) *api {
	return &api{limit: limit, window: window, tell: tell, way: 2 * time.Millisecond, refused: map[string][]time.Time{}}
}

func (a *api) setLimit(limit int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.limit = limit
}

func (a *api) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Body != nil {
		io.Copy(io.Discard, r.Body)
		r.Body.Close()
	}
	time.Sleep(rand.N(a.way) + 1)
	response := a.answer(r.Header.Get("Process"))
	time.Sleep(rand.N(a.way) + 1)
	return response, r.Context().Err()
}

// answer counts a request that has arrived, and answers it.
func (a *api) answer(process string) *http.Response {
	a.mu.Lock()
	defer a.mu.Unlock()
	now := time.Now()
	begin := now.Add(-a.window)
	if a.aligned {
		begin = now.Truncate(a.window).Add(-1)
	}
	first := len(a.taken)
	for first > 0 && a.taken[first-1].After(begin) {
		first--
	}
	in := a.taken[first:]
	s := state{limit: a.limit, window: a.window, reset: a.window}
	status := http.StatusOK
	if len(in) >= a.limit {
		status = http.StatusTooManyRequests
		a.refused[process] = append(a.refused[process], now)
	} else {
		a.taken = append(a.taken, now)
		in = append(in, now)
	}
	s.remaining = max(a.limit-len(in), 0)
	switch {
	case a.aligned:
		s.reset = now.Truncate(a.window).Add(a.window).Sub(now)
	case len(in) >= a.limit:
		s.reset = in[len(in)-a.limit].Add(a.window).Sub(now)
	}
	h := http.Header{"Date": {now.UTC().Format(http.TimeFormat)}}
	if a.tell != nil {
		a.tell(h, status, s)
	}
	return &http.Response{StatusCode: status, Header: h, Body: io.NopCloser(strings.NewReader("")), Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1}
}

// refusals returns how many requests of each process were refused from then on.
func (a *api) refusals(since time.Time) map[string]int {
	a.mu.Lock()
	defer a.mu.Unlock()
	n := map[string]int{}
	for process, times := range a.refused {
		for _, at := range times {
			if !at.Before(since) {
				n[process]++
			}
		}
	}
	return n
}

// takenBetween returns how many requests were taken then.
func (a *api) takenBetween(from, to time.Time) (n int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, at := range a.taken {
		if !at.Before(from) && at.Before(to) {
			n++
		}
	}
	return n
}

func seconds(d time.Duration) string { return fmt.Sprint(int64((d + time.Second - 1) / time.Second)) }

// The dialects of APIs.
var dialects = map[string]dialect{
	"draft 11": func(h http.Header, status int, s state) {
		h.Set("RateLimit-Policy", fmt.Sprintf(`"default";q=%d;w=%s`, s.limit, seconds(s.window)))
		h.Set("RateLimit", fmt.Sprintf(`"default";r=%d;t=%s`, s.remaining, seconds(s.reset)))
	},
	"draft 3": func(h http.Header, status int, s state) {
		h.Set("RateLimit-Limit", fmt.Sprintf("%d, %d;w=%s", s.limit, s.limit, seconds(s.window)))
		h.Set("RateLimit-Remaining", fmt.Sprint(s.remaining))
		h.Set("RateLimit-Reset", seconds(s.reset))
	},
	"X-RateLimit in seconds": func(h http.Header, status int, s state) {
		h.Set("X-RateLimit-Limit", fmt.Sprint(s.limit))
		h.Set("X-RateLimit-Remaining", fmt.Sprint(s.remaining))
		h.Set("X-RateLimit-Reset", seconds(s.reset))
	},
	"X-RateLimit as Unix time": func(h http.Header, status int, s state) {
		h.Set("X-RateLimit-Limit", fmt.Sprint(s.limit))
		h.Set("X-RateLimit-Remaining", fmt.Sprint(s.remaining))
		h.Set("X-RateLimit-Reset", fmt.Sprint(time.Now().Add(s.reset+time.Second-1).Unix()))
	},
	"Retry-After": func(h http.Header, status int, s state) {
		if status == http.StatusTooManyRequests {
			h.Set("Retry-After", seconds(s.reset))
		}
	},
	"nothing": nil,
}
