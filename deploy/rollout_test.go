package deploy_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/adaptivethrottler/throttler/internal/servertest"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// What docs/operations.md says of a record that a later version has written, while both are
// rolled out on one memcached.
func TestARecordOfALaterVersionIsLeftAlone(t *testing.T) {
	memcached := servertest.NewMemcached(t)
	s := serve(t, write(t, "rules.yaml", fmt.Sprintf(
		"servers: [%s]\nrules: [{name: pages, either: [{name: address, value: \"{address}\", max: 2, per: 1h}]}]\n", memcached.Addr)))
	const key, later = "pages#address#203.0.113.9", "\x02 of version 2"
	memcached.Command(t, fmt.Sprintf("set %s 0 0 %d\r\n%s", key, len(later), later))

	assert.Equal(t, []int{200, 200, 429}, []int{s.status(t, "203.0.113.9"), s.status(t, "203.0.113.9"), s.status(t, "203.0.113.9")}, "the process decides alone")
	assert.Contains(t, memcached.Command(t, "get "+key), later)
	require.Eventually(t, func() bool { return strings.Contains(s.log.String(), "the backend fails") }, time.Minute, 10*time.Millisecond)
	assert.Contains(t, s.log.String(), "the stored record is of a later version")
	assert.Positive(t, s.metric(t, `throttler_failures_total{error_type="_OTHER",otel_scope_name="github.com/adaptivethrottler/throttler/otelthrottle",otel_scope_schema_url="",otel_scope_version="",throttler_condition="address",throttler_rule="pages"}`))
	assert.Equal(t, []int{200, 200, 429}, []int{s.status(t, "203.0.113.8"), s.status(t, "203.0.113.8"), s.status(t, "203.0.113.8")}, "other values as ever")
}
