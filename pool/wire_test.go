package pool_test

import (
	"context"
	"encoding/binary"
	"errors"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/adaptivethrottler/throttler/internal/servertest"
	"github.com/adaptivethrottler/throttler/pool"
	"github.com/bradfitz/gomemcache/memcache"
	"github.com/stretchr/testify/require"
)

type dialFunc = func(ctx context.Context, network, address string) (net.Conn, error)

// counted is a net.Dialer's DialContext that counts its calls.
func counted(dials *atomic.Int64) dialFunc {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		dials.Add(1)
		return new(net.Dialer).DialContext(ctx, network, address)
	}
}

// process returns a pool of one real server, with no faults yet.
func process(t *testing.T, args ...string) (*servertest.Memcached, *pool.Pool, *servertest.Wire) {
	t.Helper()
	server := servertest.NewMemcached(t, args...)
	p, err := pool.New(server.Addr)
	require.NoError(t, err)
	t.Cleanup(func() { p.Close() })
	p.Timeout, p.DialTimeout = 10*time.Second, 10*time.Second // whatever the machine is at
	w := &servertest.Wire{Next: func() servertest.Fault { return servertest.NoFault }}
	p.DialContext = w.DialContext
	return server, p, w
}

// What a write answers whose first attempt met a fault, and what is stored after
// it.
func TestALostWriteIsRepeated(t *testing.T) {
	executed := map[servertest.Fault]bool{servertest.LoseAnswer: true, servertest.CutAnswer: true, servertest.ResetAnswer: true}
	for f := servertest.LoseRequest; f <= servertest.ResetAnswer; f++ {
		t.Run(f.String(), func(t *testing.T) {
			_, p, w := process(t)
			// ifExecuted is the answer of the second attempt after a first one
			// that the server has carried out.
			check := func(err, ifExecuted error) {
				t.Helper()
				if !executed[f] {
					require.NoError(t, err)
					return
				}
				require.ErrorIs(t, err, ifExecuted)
				require.True(t, maybeDone(err))
			}

			w.Once(1, f)
			check(p.Add(&memcache.Item{Key: "key", Value: []byte("1"), Expiration: 60}), memcache.ErrNotStored)
			stored, err := p.Get("key")
			require.NoError(t, err)
			require.Equal(t, "1", string(stored.Value))

			stored.Value = []byte("2")
			w.Once(1, f)
			check(p.CompareAndSwap(stored), memcache.ErrCASConflict)
			stored, err = p.Get("key")
			require.NoError(t, err)
			require.Equal(t, "2", string(stored.Value))

			w.Once(1, f)
			check(p.Delete("key"), memcache.ErrCacheMiss)
			_, err = p.Get("key")
			require.Equal(t, memcache.ErrCacheMiss, err)
			require.Equal(t, uint64(3), p.Stats()[0].Retries)
		})
	}
}

// maybeDone reports whether err leaves open what was done, as a package asks that
// does not know this one.
func maybeDone(err error) bool {
	var lost interface {
		error
		MaybeDone() bool
	}
	return errors.As(err, &lost) && lost.MaybeDone()
}

// An answer is in doubt only if the server may have carried out the first attempt.
func TestAWriteThatWasNeverSentIsAnsweredForCertain(t *testing.T) {
	_, p, w := process(t)
	other := &memcache.Item{Key: "key", Value: []byte("another's"), Expiration: 60}
	require.NoError(t, p.Add(other))
	older, err := p.Get("key")
	require.NoError(t, err)
	newer := *older
	require.NoError(t, p.CompareAndSwap(&newer))

	for f, want := range map[servertest.Fault]bool{
		servertest.LoseRequest: false, servertest.CutRequest: true, servertest.LoseAnswer: true,
	} {
		for err, write := range map[error]func() error{
			memcache.ErrNotStored:   func() error { return p.Add(other) },
			memcache.ErrCASConflict: func() error { return p.CompareAndSwap(older) },
			memcache.ErrCacheMiss:   func() error { return p.Delete("other") },
		} {
			w.Once(1, f)
			got := write()
			require.ErrorIs(t, got, err)
			require.Equal(t, want, maybeDone(got), "%v, %v", err, f)
			require.Equal(t, err, write(), "with no fault")
		}
	}
	stats := p.Stats()[0]
	require.Equal(t, uint64(9), stats.Retries)
	require.Zero(t, stats.Failures)
	require.NoError(t, stats.LastError)
}

var errFull = errors.New("full")

func countOne(p *pool.Pool, key string, limit int64) error {
	item, err := p.Get(key)
	if err == memcache.ErrCacheMiss {
		return p.Add(&memcache.Item{Key: key, Value: binary.BigEndian.AppendUint64(nil, 1), Expiration: 600})
	}
	if err != nil {
		return err
	}
	n := binary.BigEndian.Uint64(item.Value)
	if n >= uint64(limit) {
		return errFull
	}
	item.Value = binary.BigEndian.AppendUint64(nil, n+1)
	return p.CompareAndSwap(item)
}
