package pool_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/adaptivethrottler/throttler/internal/memcachedtest"
	"github.com/adaptivethrottler/throttler/pool"
	"github.com/bradfitz/gomemcache/memcache"
	"github.com/stretchr/testify/assert"
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

// A fault is what becomes of one request.
type fault int

const (
	none        fault = iota
	loseRequest       // the connection breaks before anything is sent
	cutRequest        // it breaks after half of the request
	loseAnswer        // it breaks after the server has carried the request out
	cutAnswer         // it breaks after the answer's first half
	resetAnswer       // as loseAnswer, with ECONNRESET
	garbage           // something else comes instead of the answer
	faults
)

func (f fault) String() string {
	return [...]string{"none", "lose request", "cut request", "lose answer", "cut answer", "reset answer", "garbage"}[f]
}

// A wire makes connections to real servers on which requests meet faults. A request
// that is lost is one that the server has carried out or will never see: which
// of them the fault says.
type wire struct {
	next func() fault // asked for each request
}

func (w *wire) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	nc, err := new(net.Dialer).DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	return &wireConn{Conn: nc, wire: w}, nil
}

type wireConn struct {
	net.Conn
	wire    *wire
	fault   fault // of the request under way
	writing bool
}

func (c *wireConn) Write(b []byte) (int, error) {
	if !c.writing {
		c.writing = true
		c.fault = c.wire.next()
	}
	switch c.fault {
	case loseRequest:
		c.Conn.Close()
		return 0, syscall.EPIPE
	case cutRequest:
		n, _ := c.Conn.Write(b[:len(b)/2])
		c.Conn.Close()
		return n, syscall.EPIPE
	}
	return c.Conn.Write(b)
}

func (c *wireConn) Read(b []byte) (int, error) {
	c.writing = false
	n, err := c.Conn.Read(b)
	switch c.fault {
	case loseAnswer:
		c.Conn.Close()
		return 0, io.EOF
	case resetAnswer:
		c.Conn.Close()
		return 0, &net.OpError{Op: "read", Err: syscall.ECONNRESET}
	case cutAnswer:
		c.Conn.Close()
		return n / 2, err
	case garbage:
		return copy(b, "220 mail.example.org ESMTP\r\n"), nil
	}
	return n, err
}

// once has the n-th request meet f, and no other, counted from now.
func (w *wire) once(n int64, f fault) {
	var requests atomic.Int64
	w.next = func() fault {
		if requests.Add(1) == n {
			return f
		}
		return none
	}
}

// process returns a pool of one real server, with no faults yet.
func process(t *testing.T, args ...string) (*memcachedtest.Server, *pool.Pool, *wire) {
	t.Helper()
	server := memcachedtest.Process(t, args...)
	p, err := pool.New(server.Addr)
	require.NoError(t, err)
	t.Cleanup(func() { p.Close() })
	p.Timeout, p.DialTimeout = 10*time.Second, 10*time.Second // whatever the machine is at
	w := &wire{next: func() fault { return none }}
	p.DialContext = w.DialContext
	return server, p, w
}

// What a write answers whose first attempt met a fault, and what is stored after
// it.
func TestALostWriteIsRepeated(t *testing.T) {
	executed := map[fault]bool{loseAnswer: true, cutAnswer: true, resetAnswer: true}
	for _, f := range []fault{loseRequest, cutRequest, loseAnswer, cutAnswer, resetAnswer} {
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

			w.once(1, f)
			check(p.Add(&memcache.Item{Key: "key", Value: []byte("1"), Expiration: 60}), memcache.ErrNotStored)
			stored, err := p.Get("key")
			require.NoError(t, err)
			require.Equal(t, "1", string(stored.Value))

			stored.Value = []byte("2")
			w.once(1, f)
			check(p.CompareAndSwap(stored), memcache.ErrCASConflict)
			stored, err = p.Get("key")
			require.NoError(t, err)
			require.Equal(t, "2", string(stored.Value))

			w.once(1, f)
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

	for f, want := range map[fault]bool{loseRequest: false, cutRequest: true, loseAnswer: true} {
		for err, write := range map[error]func() error{
			memcache.ErrNotStored:   func() error { return p.Add(other) },
			memcache.ErrCASConflict: func() error { return p.CompareAndSwap(older) },
			memcache.ErrCacheMiss:   func() error { return p.Delete("other") },
		} {
			w.once(1, f)
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

func TestALostReadIsRepeated(t *testing.T) {
	for f := loseRequest; f < garbage; f++ {
		t.Run(f.String(), func(t *testing.T) {
			_, p, w := process(t)
			for _, key := range []string{"a", "b", "c"} {
				require.NoError(t, p.Add(&memcache.Item{Key: key, Value: bytes.Repeat([]byte(key), 10_000), Expiration: 60}))
			}
			w.once(1, f)
			got, err := p.Get("a")
			require.NoError(t, err)
			require.Len(t, got.Value, 10_000)
			w.once(1, f)
			items, err := p.GetMulti([]string{"a", "b", "c", "d"})
			require.NoError(t, err)
			require.Len(t, items, 3)
			for key, item := range items {
				require.Equal(t, strings.Repeat(key, 10_000), string(item.Value))
			}
		})
	}
}

func TestGarbageIsAFailureAndNotAskedForAgain(t *testing.T) {
	_, p, w := process(t)
	for name, operation := range operations {
		w.once(1, garbage)
		require.False(t, answered(operation(p, "key")), name)
	}
	require.Zero(t, p.Stats()[0].Retries)
	require.Equal(t, uint64(len(operations)), p.Stats()[0].Failures)
}

// Callers count to a limit by reading, deciding and swapping, as a throttler
// does, over a wire that breaks at every point. However many answers are
// lost, no count is lost with them: nobody is admitted beyond what is stored.
func TestNoCountIsLostWithAnAnswer(t *testing.T) {
	const limit, callers = 400, 8
	server, _, _ := process(t)
	for _, share := range []float64{0.02, 0.3} {
		key := fmt.Sprintf("count%v", share)
		var met [faults]atomic.Int64
		var admitted, failed atomic.Int64
		var running sync.WaitGroup
		for caller := range callers {
			random := rand.New(rand.NewPCG(7, uint64(caller)))
			var mu sync.Mutex
			p, err := pool.New(server.Addr)
			require.NoError(t, err)
			defer p.Close()
			p.Timeout, p.DialTimeout = 10*time.Second, 10*time.Second
			p.BreakerFailures = 1_000_000
			p.DialContext = (&wire{next: func() fault {
				mu.Lock()
				defer mu.Unlock()
				f := none
				if random.Float64() < share {
					f = fault(1 + random.IntN(int(faults)-1))
				}
				met[f].Add(1)
				return f
			}}).DialContext
			running.Go(func() { count(p, key, limit, &admitted, &failed) })
		}
		running.Wait()

		stored := stored(t, server, key)
		assert.LessOrEqual(t, stored, int64(limit))
		assert.LessOrEqual(t, admitted.Load(), stored, "admitted more than is counted: share %v", share)
		for f := loseRequest; f < faults; f++ {
			assert.NotZero(t, met[f].Load(), "%v never happened", f)
		}
		t.Logf("share %v: %d admitted, %d stored, %d calls failed", share, admitted.Load(), stored, failed.Load())
	}
}

// count counts up to limit under key and adds to admitted what it has counted for
// certain.
func count(p *pool.Pool, key string, limit int64, admitted, failed *atomic.Int64) {
	for {
		err := countOne(p, key, limit)
		switch {
		case err == nil:
			admitted.Add(1)
		case errors.Is(err, errFull):
			return
		case !answered(err):
			failed.Add(1)
		}
	}
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

// stored returns what is counted under key, asked over a sound wire.
func stored(t *testing.T, server *memcachedtest.Server, key string) int64 {
	p, err := pool.New(server.Addr)
	require.NoError(t, err)
	defer p.Close()
	item, err := p.Get(key)
	require.NoError(t, err)
	return int64(binary.BigEndian.Uint64(item.Value))
}
