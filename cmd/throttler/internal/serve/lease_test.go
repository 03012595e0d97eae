package serve_test

import (
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/adaptivethrottler/throttler/internal/servertest"
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
	t.Parallel()
	server := servertest.NewMemcached(t)
	second := startAPI(t, programs, jobs, server.Addr)
	for try := 1; !leasesEnd(t, startAPI(t, programs, jobs, server.Addr), second, fmt.Sprint("a", try)); try++ {
		require.Less(t, try, 20, "no lease was renewed in time")
	}
	second.stop()
	assert.Regexp(t, `msg=ended .* released=[1-9]`, second.log.String())
}

// leasesEnd tries that with a fresh customer. It reports false where this machine was so busy
// that a lease ended because it was not renewed in time.
func leasesEnd(t *testing.T, first, second *service, customer string) bool {
	const length = 3 * time.Second
	at := func(s *service, path, body string) (int, map[string]any) {
		return askAPI(t, http.DefaultClient, "http://"+s.api, path, body)
	}
	question := fmt.Sprintf(`{"rule":"jobs","values":{"customer":%q,"month":%q}}`, customer, customer)
	acquire := func(s *service) map[string]any {
		_, answer := at(s, "/v1/acquire", question)
		return answer
	}
	lease := func(a map[string]any) string { return fmt.Sprintf(`{"lease":%q}`, a["lease"]) }

	renewed := time.Now() // or before
	late := func() bool { return time.Since(renewed) >= length }
	dies, lives := acquire(first), acquire(first)
	require.Equal(t, "authorized", dies["status"])
	require.Equal(t, "authorized", lives["status"])
	full := acquire(second)
	if late() {
		return false
	}
	require.Equal(t, "blocked", full["status"])
	first.stop()

	var next map[string]any
	began := time.Now()
	for next["status"] != "authorized" {
		now := time.Now()
		status, _ := at(second, "/v1/renew", lease(lives))
		if late() {
			return false
		}
		require.Equal(t, 200, status)
		renewed = now
		require.Less(t, time.Since(began), 30*time.Second)
		time.Sleep(20 * time.Millisecond)
		next = acquire(second)
	}
	status, told := at(second, "/v1/renew", lease(dies))
	assert.Equal(t, 410, status)
	assert.Contains(t, told["detail"], "Stop the work")
	full = acquire(second)
	var released [2]int
	for i := range released {
		released[i], _ = at(second, "/v1/release", lease(lives))
	}
	if late() {
		return false
	}
	assert.Equal(t, "blocked", full["status"])
	assert.Equal(t, [2]int{200, 200}, released)
	assert.Equal(t, "authorized", acquire(second)["status"])
	return true
}

func TestAMonthOfTheCalendarIsCountedByAllServices(t *testing.T) {
	zone, err := time.LoadLocation("Europe/Berlin")
	require.NoError(t, err)
	server := servertest.NewMemcached(t)
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
