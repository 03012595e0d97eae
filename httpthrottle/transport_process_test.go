package httpthrottle_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"sync"
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
	transport := &httpthrottle.Transport{
		Throttler: throttler.New(servers),
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
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, j.URL, nil)
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

// runProcesses has 8 processes ask a, over TCP and a real memcached.
func runProcesses(t *testing.T, a *api, j job) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		response := a.answer(r.Header.Get("Process"))
		for name, values := range response.Header {
			w.Header()[name] = values
		}
		w.WriteHeader(response.StatusCode)
	}))
	t.Cleanup(server.Close)
	j.URL, j.Memcached = server.URL, memcachedtest.Any(t).Addr
	j.Identifier = fmt.Sprintf("outgoing-%d", time.Now().UnixNano())
	var fleet sync.WaitGroup
	for p := range processes {
		j := j
		j.Process = fmt.Sprint(p)
		encoded, err := json.Marshal(j)
		require.NoError(t, err)
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), jobVariable+"="+string(encoded))
		fleet.Go(func() {
			out, err := cmd.CombinedOutput()
			assert.NoError(t, err, string(out))
		})
	}
	fleet.Wait()
}

// The margin is for a machine that is busy.
func TestProcessesThatKnowTheLimitAreNeverRefused(t *testing.T) {
	a := newAPI(40, time.Second, nil)
	runProcesses(t, a, job{Max: 40, TTL: time.Second, Margin: 500 * time.Millisecond, Length: 6 * time.Second})
	require.Empty(t, a.refused)
	require.Greater(t, len(a.taken), 120, "3 windows, in 6 s")
}

func TestProcessesFindALimitTogether(t *testing.T) {
	a := newAPI(40, time.Second, dialects["draft 11"])
	began := time.Now()
	runProcesses(t, a, job{Max: 10_000, TTL: time.Second, Margin: 500 * time.Millisecond, Length: 6 * time.Second})
	for process, n := range a.refusals(began) {
		require.LessOrEqual(t, n, 1, "process %s", process)
	}
	require.Greater(t, len(a.taken), 120, "3 windows, in 6 s")
}
