package main

import (
	"bytes"
	"regexp"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/adaptivethrottler/throttler/internal/skiptest"
)

// Both services are built, limit alike, and are measured in one run.
func TestServicesForEnvoyAreMeasured(t *testing.T) {
	skiptest.Slow(t)
	started(t, onMemcached, "tcp")
	started(t, onRedis, "tcp")
	var out, messages bytes.Buffer
	require.NoError(t, run(t.Context(), []string{"-services", "-short"}, &out, &messages), messages.String())
	t.Log(out.String())
	row := regexp.MustCompile(`(?m)^\| (below|over) \| [a-z/]+ \| [a-z-]+ \| \d+ / \d+ / \d+ \| .* \|$`)
	assert.Len(t, row.FindAllString(out.String(), -1), 2*4)
}
