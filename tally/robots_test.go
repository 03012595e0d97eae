package tally_test

import (
	"fmt"
	"net/http/httptest"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/adaptivethrottler/throttler/tally"
)

func TestRobotsAreCountedByGroupAndStanding(t *testing.T) {
	counts := tally.New()
	require.Empty(t, snapshotOf(counts).Robots)
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for range 100 {
				counts.ObserveRobot("search", "verified")
			}
			counts.ObserveRobot("", "person")
		})
	}
	all.Wait()
	require.Equal(t, []RobotCount{{"search", "verified", 400}, {"", "person", 4}}, snapshotOf(counts).Robots)

	w := httptest.NewRecorder()
	counts.ServeHTTP(w, httptest.NewRequest("GET", "/", nil))
	require.Contains(t, w.Body.String(), `<tr><th scope="row"><bdi>search</bdi></th><td><bdi>verified</bdi></td><td>400</td></tr>`)
	require.Contains(t, w.Body.String(), `<em>none</em></th><td><bdi>person</bdi>`)

	for i := range 100 {
		counts.ObserveRobot(fmt.Sprint(i), "made up")
	}
	require.Len(t, snapshotOf(counts).Robots, 64)
	require.EqualValues(t, 38, snapshotOf(counts).Uncounted)
	counts.Reset()
	require.Empty(t, snapshotOf(counts).Robots)
}
