package throttler_test

import (
	"testing"
	"time"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/memstore"
	"github.com/stretchr/testify/require"
)

// tick is the resolution of windows of more than 32 hits.
const tick = 100 * time.Microsecond

const (
	t1 = 1 * time.Second
	t2 = 2 * time.Second
	t3 = 3 * time.Second
	t4 = 4 * time.Second
	t5 = 5 * time.Second
	t9 = 9 * time.Second
)

// epoch is when the calls of tests with a time of their own happen: a whole second.
var epoch = time.Unix(1_800_000_000, 0)

// inspect returns the record that value is, which must be one.
func inspect(t require.TestingT, value []byte) throttler.Record {
	r, err := throttler.Inspect(value)
	require.NoError(t, err)
	return r
}

// recordOf returns what is stored after one call of rule, of one condition.
func recordOf(t *testing.T, rule throttler.Rule) []byte {
	store := memstore.New()
	authorize(t, throttler.New(store), rule)
	c := rule.Either[0]
	item, err := store.Get(throttler.RecordKey(rule.Identifier, c.Name, c.Value))
	require.NoError(t, err)
	return item.Value
}
