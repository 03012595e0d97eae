package serve_test

import (
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/adaptivethrottler/throttler/internal/memcachedtest"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const jobs = `
rules:
  - name: jobs
    for: {api: true}
    count-authorized-only: true
    either:
      - {name: customer, value: any, max: 2, algorithm: in-flight, lease: 3s}
      - {name: month, value: any, max: 5, per: month, algorithm: calendar, zone: Europe/Berlin}
`

// Two services share the leases. A program that dies frees its place within a lease,
// also if the service that it asked died with it.
func TestWhatIsInFlightOutlivesNeitherItsProgramNorItsRelease(t *testing.T) {
	server := memcachedtest.Process(t)
	first, second := startAPI(t, programs, jobs, server.Addr), startAPI(t, programs, jobs, server.Addr)
	question := `{"rule":"jobs","values":{"customer":"a","month":"a"}}`
	at := func(s *service, path, body string) (int, map[string]any) {
		return askAPI(t, http.DefaultClient, "http://"+s.api, path, body)
	}
	lease := func(a map[string]any) string { return fmt.Sprintf(`{"lease":%q}`, a["lease"]) }

	_, dies := at(first, "/v1/acquire", question)
	_, lives := at(first, "/v1/acquire", question)
	require.Equal(t, "authorized", lives["status"])
	_, full := at(second, "/v1/acquire", question)
	require.Equal(t, "blocked", full["status"])
	first.stop()

	var next map[string]any
	began := time.Now()
	for next["status"] != "authorized" {
		status, _ := at(second, "/v1/renew", lease(lives))
		require.Equal(t, 200, status)
		require.Less(t, time.Since(began), 30*time.Second)
		_, next = at(second, "/v1/acquire", question)
	}
	status, told := at(second, "/v1/renew", lease(dies))
	assert.Equal(t, 410, status)
	assert.Contains(t, told["error"], "Stop the work")
	_, full = at(second, "/v1/acquire", question)
	assert.Equal(t, "blocked", full["status"])
	for range 2 {
		status, _ = at(second, "/v1/release", lease(lives))
		assert.Equal(t, 200, status)
	}
	_, next = at(second, "/v1/acquire", question)
	assert.Equal(t, "authorized", next["status"])
}

func TestAMonthOfTheCalendarIsCountedByAllServices(t *testing.T) {
	zone, err := time.LoadLocation("Europe/Berlin")
	require.NoError(t, err)
	server := memcachedtest.Process(t)
	services := []*service{startAPI(t, programs, jobs, server.Addr), startAPI(t, programs, jobs, server.Addr)}
	begun := time.Now().In(zone)
	var last map[string]any
	var authorized []bool
	for i := range 6 {
		_, last = askAPI(t, http.DefaultClient, "http://"+services[i%2].api, "/v1/authorize", fmt.Sprintf(`{"rule":"jobs","values":{"customer":"c%d","month":"a"}}`, i))
		authorized = append(authorized, last["status"] == "authorized")
	}
	y, m, _ := time.Now().In(zone).Date()
	if m != begun.Month() {
		return // a month has ended meanwhile
	}
	assert.Equal(t, []bool{true, true, true, true, true, false}, authorized)
	next := time.Until(time.Date(y, m+1, 1, 0, 0, 0, 0, zone)).Seconds()
	assert.InDelta(t, next, last["retry_after"], 60)
}
