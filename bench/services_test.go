package main

import (
	"bytes"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/adaptivethrottler/throttler/internal/skiptest"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Both services are built, limit alike, and are measured in one run.
func TestServicesForEnvoyAreMeasured(t *testing.T) {
	skiptest.Slow(t)
	started(t, onMemcached, "tcp")
	started(t, onRedis, "tcp")
	var out bytes.Buffer
	require.NoError(t, runServices(t.Context(), 1, 200*time.Millisecond, &out))
	t.Log(out.String())
	row := regexp.MustCompile(`(?m)^\| [a-z/]+, [a-z-]+ \| \d+ / \d+ / \d+ \| .* \|$`)
	assert.Len(t, row.FindAllString(out.String(), -1), 2*4)
	for _, title := range []string{"below their limit", "over its limit"} {
		assert.Contains(t, out.String(), title)
	}
}

func TestServicesAreShownByTheMedianOfTheirRounds(t *testing.T) {
	round := func(answers, late int) serving {
		times := make([]time.Duration, answers+late)
		for i := range times {
			times[i] = time.Duration(i+1) * time.Millisecond
		}
		return serving{took: time.Second, times: times, late: late, cpu: time.Duration(answers) * 50 * time.Microsecond}
	}
	rounds := []serving{round(100, 0), round(90, 10), round(10, 0)}
	var out bytes.Buffer
	servicesTable([]*service{{name: "x"}}, false, [][][]serving{{rounds}}).write(&out)
	assert.Contains(t, out.String(), "| x | 90 | 99 | 0.00 | 50 | 0.00 | 50 |")
	assert.True(t, strings.HasPrefix(out.String(), "### Services for Envoy: 4,000 values below"))
}
