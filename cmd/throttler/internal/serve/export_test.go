package serve

import (
	"testing"
	"time"

	"github.com/adaptivethrottler/throttler/memstore"
)

// A busy machine must not count as an outage, nor as a slow client.
func init() {
	storeTimeout = 10 * time.Second
	headerTimeout, readTimeout, writeTimeout = time.Minute, time.Minute, time.Minute
}

// SetDrained has services that end until the test does drain until over returns.
func SetDrained(t *testing.T, over func()) {
	before := drained
	drained = func(time.Duration) { over() }
	t.Cleanup(func() { drained = before })
}

// SetStoreTimeout has services that are started until the test ends wait so long for a
// server of their store.
func SetStoreTimeout(t *testing.T, d time.Duration) {
	before := storeTimeout
	storeTimeout = d
	t.Cleanup(func() { storeTimeout = before })
}

// SetMaxItems has services that are started until the test ends keep so few items in process
// memory.
func SetMaxItems(t *testing.T, n int) {
	before := newMemory
	newMemory = func() *memstore.Store { return &memstore.Store{MaxItems: n} }
	t.Cleanup(func() { newMemory = before })
}
