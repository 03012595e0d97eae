package httpthrottle_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/httpthrottle"
	"github.com/adaptivethrottler/throttler/internal/memcachedtest"
	"github.com/adaptivethrottler/throttler/pool"
)

const jobVariable = "THROTTLER_TEST_OUTGOING"

// A job is what a process sends.
type job struct {
	Process, Memcached, URL, Identifier string
	Max                                 int
	TTL, Margin, Length                 time.Duration
}

// work sends as many requests as it may, two at a time.
func work(encoded string) error {
	var j job
	if err := json.Unmarshal([]byte(encoded), &j); err != nil {
		return err
	}
	servers, err := pool.New(j.Memcached)
	if err != nil {
		return err
	}
	defer servers.Close()
	servers.Timeout, servers.DialTimeout, servers.QueueTimeout = patience, patience, patience
	timed := &timedPool{Pool: servers}
	limits := throttler.New(timed)
	limits.QueueTimeout = patience
	limits.Observe = func(ctx context.Context, _ throttler.Rule, _ throttler.Decision) {
		*ctx.Value(hitTime{}).(*time.Time) = time.Now().Add(-timed.lateness())
	}
	transport := &httpthrottle.Transport{
		Base:      reporter{noteLost()},
		Throttler: limits,
		Margin:    j.Margin,
		Rule: func(*http.Request) throttler.Rule {
			return throttler.Rule{Identifier: j.Identifier, Either: []throttler.Condition{{Name: "window", Max: j.Max, TTL: j.TTL}}}
		},
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	time.AfterFunc(j.Length, cancel)
	errs := make(chan error, 2)
	for range cap(errs) {
		go func() { errs <- sendUntil(ctx, transport, j) }()
	}
	for range cap(errs) {
		if err := <-errs; err != nil {
			return err
		}
	}
	return nil
}

func sendUntil(ctx context.Context, transport *httpthrottle.Transport, j job) error {
	client := &http.Client{Transport: transport}
	for ctx.Err() == nil {
		r, err := http.NewRequestWithContext(context.WithValue(ctx, hitTime{}, new(time.Time)), http.MethodGet, j.URL, nil)
		if err != nil {
			return err
		}
		r.Header.Set("Process", j.Process)
		response, err := client.Do(r)
		switch {
		case err == nil:
			err = response.Body.Close()
		case ctx.Err() != nil:
			err = nil
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// hitTime is the key of a request's context for the time before which its hit was not counted.
type hitTime struct{}

// A reporter sends that time with each request, and how much time its process has lost so far.
type reporter struct{ lost *atomic.Int64 }

// noteLost notes from now on how much time a process has lost because the machine is busy: by how
// much its pauses of 5 ms are longer than 10.
func noteLost() *atomic.Int64 {
	lost := new(atomic.Int64)
	go func() {
		const pause = 5 * time.Millisecond
		for {
			begun := time.Now()
			time.Sleep(pause)
			lost.Add(max(0, int64(time.Since(begun)-2*pause)))
		}
	}()
	return lost
}

func (p reporter) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Lost", fmt.Sprint(p.lost.Load()))
	r.Header.Set("Counted", fmt.Sprint(r.Context().Value(hitTime{}).(*time.Time).UnixNano()))
	return http.DefaultTransport.RoundTrip(r)
}

// A timedPool notes how long its slowest exchange took.
type timedPool struct {
	*pool.Pool
	mu      sync.Mutex // guards slowest
	slowest time.Duration
}

func (p *timedPool) Exchange(ctx context.Context, xs ...throttler.Exchange) {
	p.Pool.Exchange(ctx, p.timed(xs)...)
}

func (p *timedPool) Start(xs ...throttler.Exchange) { p.Pool.Start(p.timed(xs)...) }

func (p *timedPool) timed(xs []throttler.Exchange) []throttler.Exchange {
	xs = slices.Clone(xs)
	for i, x := range xs {
		xs[i] = &timedExchange{Exchange: x, pool: p, began: time.Now()}
	}
	return xs
}

func (p *timedPool) lateness() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.slowest
}

type timedExchange struct {
	throttler.Exchange
	pool  *timedPool
	began time.Time
}

func (x *timedExchange) Done(r throttler.Result) {
	x.pool.mu.Lock()
	x.pool.slowest = max(x.pool.slowest, time.Since(x.began))
	x.pool.mu.Unlock()
	x.Exchange.Done(r)
}

// A fleet is 8 processes that have asked an API, over TCP and a real memcached.
type fleet struct {
	job

	mu     sync.Mutex    // guards what follows
	late   time.Duration // the longest time from a hit to the arrival of its request
	beyond []time.Time   // when requests arrived that were late by more than the margin
	lost   time.Duration // the most that one of the processes, or this one, has lost
}

func runProcesses(t *testing.T, a *api, j job) *fleet {
	f := &fleet{job: j}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		response := a.answer(r.Header.Get("Process"))
		f.arrived(t, r)
		for name, values := range response.Header {
			w.Header()[name] = values
		}
		w.WriteHeader(response.StatusCode)
	}))
	t.Cleanup(server.Close)
	j.URL, j.Memcached = server.URL, memcachedtest.Any(t).Addr
	j.Identifier = fmt.Sprintf("outgoing-%d", time.Now().UnixNano())
	lost := noteLost()
	var all sync.WaitGroup
	for p := range processes {
		j := j
		j.Process = fmt.Sprint(p)
		encoded, err := json.Marshal(j)
		require.NoError(t, err)
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), jobVariable+"="+string(encoded))
		all.Go(func() {
			out, err := cmd.CombinedOutput()
			assert.NoError(t, err, string(out))
		})
	}
	all.Wait()
	f.lost = max(f.lost, time.Duration(lost.Load()))
	t.Logf("%d requests, %v late at most, %d beyond the margin, %v lost", len(a.taken), f.late, len(f.beyond), f.lost)
	return f
}

// arrived notes that r has arrived.
func (f *fleet) arrived(t *testing.T, r *http.Request) {
	now := time.Now()
	counted, err := strconv.ParseInt(r.Header.Get("Counted"), 10, 64)
	assert.NoError(t, err)
	lost, err := strconv.ParseInt(r.Header.Get("Lost"), 10, 64)
	assert.NoError(t, err)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.lost = max(f.lost, time.Duration(lost))
	late := now.Sub(time.Unix(0, counted))
	f.late = max(f.late, late)
	if late > f.Margin {
		f.beyond = append(f.beyond, now)
	}
}

// requireRefused requires that a has refused each process so many requests at most, beside
// those whose window had one in it that was late by more than the margin.
func (f *fleet) requireRefused(t *testing.T, a *api, most int) {
	for process, refused := range a.refused {
		n := 0
		for _, at := range refused {
			excused := slices.ContainsFunc(f.beyond, func(late time.Time) bool {
				return late.After(at.Add(-a.window)) && late.Before(at.Add(a.window))
			})
			if !excused {
				n++
			}
		}
		require.LessOrEqual(t, n, most, "process %s", process)
	}
}

// requireUsed requires that all windows were used but the last one: each opens when the one
// before it ends, but for how late requests were, and for the time that the machine has taken.
func (f *fleet) requireUsed(t *testing.T, a *api) {
	windows := int((f.Length - f.lost) / (f.TTL + f.Margin + f.late)) // 3
	require.Greater(t, len(a.taken), a.limit*windows)
}

// The margin is for a machine that is busy.
func TestProcessesThatKnowTheLimitAreNeverRefused(t *testing.T) {
	t.Parallel()
	a := newAPI(40, time.Second, nil)
	f := runProcesses(t, a, job{Max: 40, TTL: time.Second, Margin: 500 * time.Millisecond, Length: 6 * time.Second})
	f.requireRefused(t, a, 0)
	f.requireUsed(t, a)
}

// Until a process was told the limit, the API may refuse both requests that it has under way,
// in the first window and in the one that the pause ends in.
func TestProcessesFindALimitTogether(t *testing.T) {
	t.Parallel()
	a := newAPI(40, time.Second, dialects["draft 11"])
	f := runProcesses(t, a, job{Max: 10_000, TTL: time.Second, Margin: 500 * time.Millisecond, Length: 6 * time.Second})
	f.requireRefused(t, a, 4)
	f.requireUsed(t, a)
}
