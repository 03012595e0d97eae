package memstore_test

import (
	"testing"
	"time"

	"github.com/adaptivethrottler/throttler/internal/servertest"
	"github.com/bradfitz/gomemcache/memcache"
)

// realClient returns a client of a memcached process that stops with the test.
func realClient(tb testing.TB) *memcache.Client {
	c := memcache.New(servertest.NewMemcached(tb, "-m", "256").Addr)
	c.Timeout = 10 * time.Second
	tb.Cleanup(func() { c.Close() })
	return c
}
