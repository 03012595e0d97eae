package pool_test

import (
	"runtime"
	"testing"

	"github.com/adaptivethrottler/throttler/internal/servertest"
	"github.com/bradfitz/gomemcache/memcache"
	"github.com/stretchr/testify/require"
)

// heap returns how many bytes are in use.
func heap() int64 {
	runtime.GC()
	runtime.GC() // what a sync.Pool has held is gone after two
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// A connection keeps the memory of usual requests and answers for the next ones, and not
// that of a large one.
func TestALargeValueLeavesNoMemoryBehind(t *testing.T) {
	const large = 1000 << 10
	p := patient(t, servertest.NewMemcached(t).Addr)
	require.NoError(t, p.Add(&memcache.Item{Key: "small", Value: []byte("small")}))
	before := heap()
	require.NoError(t, p.Add(&memcache.Item{Key: "large", Value: make([]byte, large)}))
	item, err := p.Get("large")
	require.NoError(t, err)
	require.Len(t, item.Value, large)
	item = nil
	_, err = p.Get("small")
	require.NoError(t, err)
	require.Less(t, heap()-before, int64(large/4))
}
