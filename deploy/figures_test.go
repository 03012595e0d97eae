package deploy_test

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/adaptivethrottler/throttler/internal/servertest"
	"github.com/adaptivethrottler/throttler/internal/skiptest"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestWhatADecisionCosts measures what docs/production.md says of sizes. A service with one
// condition is asked about 200,000 addresses, a request each, by callers as a proxy makes them.
func TestWhatADecisionCosts(t *testing.T) {
	skiptest.Slow(t)
	const requests, callers = 200_000, 16
	memcached := servertest.NewMemcached(t, "-m", "256")
	s := serve(t, write(t, "rules.yaml", fmt.Sprintf("servers: [%s]\nrules: [{name: pages, either: [{name: address, value: \"{address}\", max: 300, per: 10m}]}]\n", memcached.Addr)))
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: callers}}
	was, idle := s.spent(t, memcached), s.metric(t, "process_resident_memory_bytes")

	var all sync.WaitGroup
	for c := range callers {
		all.Go(func() {
			for i := c; i < requests; i += callers {
				r, err := http.NewRequest("GET", "http://"+s.listen+"/auth", nil)
				require.NoError(t, err)
				r.Header.Set("X-Forwarded-For", fmt.Sprintf("10.%d.%d.%d", i>>16, i>>8&255, i&255))
				answer, err := client.Do(r)
				if !assert.NoError(t, err) {
					return
				}
				io.Copy(io.Discard, answer.Body)
				answer.Body.Close()
				assert.Equal(t, 200, answer.StatusCode)
			}
		})
	}
	all.Wait()
	now := s.spent(t, memcached)
	service, store := (now.service-was.service)/requests*1e6, (now.store-was.store)/requests*1e6
	t.Logf("a request takes %.0f µs of the service's processor time, and %.0f µs of memcached's", service, store)
	t.Logf("the service has %.0f MB at the start, and %.0f MB after %d addresses", idle/1e6, s.metric(t, "process_resident_memory_bytes")/1e6, requests)
	t.Logf("memcached keeps %.0f bytes a record", number(t, memcached, "bytes")/requests)
	assert.Less(t, service, 1000.)
	assert.Less(t, store, 1000.)
	assert.EqualValues(t, requests, number(t, memcached, "curr_items"))
}

// A spent is processor time, in seconds.
type spent struct{ service, store float64 }

func (s *service) spent(t *testing.T, memcached *servertest.Memcached) spent {
	return spent{s.metric(t, "process_cpu_seconds_total"), number(t, memcached, "rusage_user") + number(t, memcached, "rusage_system")}
}

// metric returns the value of a metric without labels.
func (s *service) metric(t *testing.T, name string) float64 {
	t.Helper()
	answer, err := http.Get("http://" + s.admin + "/metrics")
	require.NoError(t, err)
	defer answer.Body.Close()
	for lines := bufio.NewScanner(answer.Body); lines.Scan(); {
		if value, ok := strings.CutPrefix(lines.Text(), name+" "); ok {
			n, err := strconv.ParseFloat(value, 64)
			require.NoError(t, err)
			return n
		}
	}
	require.Fail(t, "no metric "+name)
	return 0
}

// number returns a statistic of memcached.
func number(t *testing.T, memcached *servertest.Memcached, name string) float64 {
	t.Helper()
	for _, line := range memcached.Command(t, "stats") {
		if value, ok := strings.CutPrefix(line, "STAT "+name+" "); ok {
			n, err := strconv.ParseFloat(strings.TrimSpace(value), 64)
			require.NoError(t, err)
			return n
		}
	}
	require.Fail(t, "no statistic "+name)
	return 0
}
