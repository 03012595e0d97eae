package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/internal/memcachedtest"
	"github.com/adaptivethrottler/throttler/memstore"
)

// A robot visits a site, and notes what it saw.
type robot struct {
	agent string
	get   func(agent string) (status int, header http.Header, err error)
	pause func(status int, header http.Header) time.Duration // before it comes again

	visits []visit
}

// A visit is a request and its answer. It was decided at some time between the
// two.
type visit struct {
	sent, answered time.Time
	status         int
}

// roam visits the site for so long.
func (r *robot) roam(t *testing.T, long time.Duration) {
	for end := time.Now().Add(long); time.Now().Before(end); {
		sent := time.Now()
		status, header, err := r.get(r.agent)
		if !assert.NoError(t, err) {
			return
		}
		r.visits = append(r.visits, visit{sent, time.Now(), status})
		assert.Equal(t, `"robot";q=10;w=1`, header.Get("RateLimit-Policy"))
		assert.NotEmpty(t, header.Get("RateLimit"))
		assert.Equal(t, status == http.StatusTooManyRequests, header.Get("Retry-After") == "1")
		time.Sleep(r.pause(status, header))
	}
}

// hasty comes 200 times a second, whatever it is told.
func hasty(int, http.Header) time.Duration { return 5 * time.Millisecond }

// obedient comes as fast as it can, but waits when it is told so.
func obedient(status int, header http.Header) time.Duration {
	seconds, _ := strconv.Atoi(header.Get("Retry-After"))
	return max(time.Duration(seconds)*time.Second, time.Millisecond)
}

// even spreads the requests that it has left over the time for which they must
// do.
func even(_ int, header http.Header) time.Duration {
	var r, t int
	fmt.Sscanf(header.Get("RateLimit"), `"robot";r=%d;t=%d`, &r, &t)
	return time.Duration(t) * time.Second / time.Duration(r+1)
}

// allowed returns how many visits were allowed in each second since the first.
func (r *robot) allowed() []int {
	var perSecond []int
	for _, v := range r.visits {
		second := int(v.sent.Sub(r.visits[0].sent) / time.Second)
		for len(perSecond) <= second {
			perSecond = append(perSecond, 0)
		}
		if v.status == http.StatusOK {
			perSecond[second]++
		}
	}
	return perSecond
}

func (r *robot) refused() int {
	n := 0
	for _, v := range r.visits {
		if v.status != http.StatusOK {
			n++
		}
	}
	return n
}

// requireLimit fails if more than 10 visits were surely allowed in less than a
// second, however late their answers were noted.
func (r *robot) requireLimit(t *testing.T) {
	t.Helper()
	var ok []visit
	for _, v := range r.visits {
		if v.status == http.StatusOK {
			ok = append(ok, v)
		}
	}
	slices.SortFunc(ok, func(a, b visit) int { return a.sent.Compare(b.sent) })
	for i := 10; i < len(ok); i++ {
		require.GreaterOrEqual(t, ok[i].answered.Sub(ok[i-10].sent), time.Second,
			"%s: visits %d to %d", r.agent, i-10, i)
	}
}

func newSite() http.Handler { return site(memstore.New(), &options{rate: 10}) }

// visitor returns a get that calls h, with no network.
func visitor(h http.Handler) func(string) (int, http.Header, error) {
	return func(agent string) (int, http.Header, error) {
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		r.Header.Set("User-Agent", agent)
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		return w.Code, w.Header(), nil
	}
}

// In time that stands still but for the robots: all there is to allow is
// allowed, and not one more.
func TestTenASecondAreAllowedToTheRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &robot{agent: "hasty/1.0", get: visitor(newSite()), pause: hasty}
		r.roam(t, 15*time.Second)
		r.requireLimit(t)
		require.Equal(t, slices.Repeat([]int{10}, 15), r.allowed())
		require.Equal(t, 3000-150, r.refused())
	})
}

func TestObedientRobotGetsItsShareWithFewRefusals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &robot{agent: "obedient/1.0", get: visitor(newSite()), pause: obedient}
		r.roam(t, 15*time.Second)
		r.requireLimit(t)
		require.Equal(t, 15, r.refused(), "one each second")
		require.Equal(t, 150, len(r.visits)-r.refused())
	})
}

func TestEvenRobotIsNeverRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &robot{agent: "even/1.0", get: visitor(newSite()), pause: even}
		r.roam(t, 15*time.Second)
		require.Zero(t, r.refused())
		require.Greater(t, len(r.visits), 15*4)
	})
}

// Over the network, all three at once, with the counts in memory and in a
// memcached server.
func TestLoad(t *testing.T) {
	t.Run("memstore", func(t *testing.T) { load(t) })
	t.Run("memcached", func(t *testing.T) {
		load(t, "-memcached", memcachedtest.Any(t).Addr)
	})
}

func load(t *testing.T, args ...string) {
	const seconds = 3
	url := start(t, args...)
	robots := []*robot{
		{agent: "hasty/1.0", pause: hasty},
		{agent: "obedient/1.0", pause: obedient},
		{agent: "even/1.0", pause: even},
	}
	var roaming sync.WaitGroup
	for _, r := range robots {
		r.get = func(agent string) (int, http.Header, error) { return fetch(url, agent) }
		roaming.Go(func() { r.roam(t, seconds*time.Second) })
	}
	roaming.Wait()
	t.Log("robot          requests  refused  allowed in each second")
	for _, r := range robots {
		t.Logf("%-14s %8d %8d  %v", r.agent, len(r.visits), r.refused(), r.allowed())
		r.requireLimit(t)
	}
	// A busy machine may make robots slow, so the number of visits is not
	// checked, only that no robot was banned or kept out by another.
	for _, r := range robots {
		require.Greater(t, len(r.visits)-r.refused(), 5*seconds/2, r.agent)
		last := r.visits[len(r.visits)-1].sent
		require.True(t, slices.ContainsFunc(r.visits, func(v visit) bool {
			return v.status == http.StatusOK && last.Sub(v.sent) < 2*time.Second
		}), "%s got in until the end", r.agent)
	}
	require.Zero(t, robots[2].refused())
}

// start runs the program on a free port until the end of the test, and returns
// the site's URL.
func start(t *testing.T, args ...string) string {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	stdout, printed := io.Pipe()
	exited := make(chan int, 1)
	var stderr strings.Builder
	go func() {
		exited <- run(ctx, printed, &stderr, append([]string{"-listen", "127.0.0.1:0"}, args...)...)
		printed.Close()
	}()
	t.Cleanup(func() {
		stop()
		assert.Zero(t, <-exited)
		assert.Empty(t, stderr.String())
	})
	var url string
	_, err := fmt.Fscanf(stdout, "robots: listening on %s\n", &url)
	require.NoError(t, err)
	return url
}

func fetch(url, agent string) (int, http.Header, error) {
	request, err := http.NewRequest(http.MethodGet, url, nil)
	if err != nil {
		return 0, nil, err
	}
	request.Header.Set("User-Agent", agent)
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return 0, nil, err
	}
	defer response.Body.Close()
	_, err = io.Copy(io.Discard, response.Body)
	return response.StatusCode, response.Header, err
}

func TestRobotsBehindAProxyAreToldApart(t *testing.T) {
	var stderr strings.Builder
	o, err := parse([]string{"-rate", "1", "-proxy", "192.0.2.0/24"}, &stderr)
	require.NoError(t, err)
	h := site(memstore.New(), o)
	get := func(client string) int {
		r := httptest.NewRequest(http.MethodGet, "/", nil) // from 192.0.2.1
		r.Header.Set("X-Forwarded-For", client)
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		return w.Code
	}
	synctest.Test(t, func(t *testing.T) {
		require.Equal(t, http.StatusOK, get("203.0.113.1"))
		require.Equal(t, http.StatusTooManyRequests, get("203.0.113.1"))
		require.Equal(t, http.StatusOK, get("203.0.113.2"))
	})
}

func TestFlags(t *testing.T) {
	for _, args := range [][]string{
		{"-rate", "0"}, {"-rate", fmt.Sprint(throttler.MaxHits + 1)}, {"-rate", "x"},
		{"-proxy", "10.0.0.1"}, {"-memcached", "localhost"}, {"-no-such-flag"}, {"argument"},
	} {
		var stdout, stderr strings.Builder
		require.Equal(t, 2, run(t.Context(), &stdout, &stderr, args...), "%q", args)
		require.Contains(t, stderr.String(), "robots: ")
		require.Empty(t, stdout.String())
	}
	var stdout, stderr strings.Builder
	require.Equal(t, 0, run(t.Context(), &stdout, &stderr, "-h"))
	require.Contains(t, stderr.String(), "-memcached")
	stderr.Reset()
	require.Equal(t, 1, run(t.Context(), &stdout, &stderr, "-listen", "256.0.0.1:0"))
	require.Contains(t, stderr.String(), "256.0.0.1")
}
