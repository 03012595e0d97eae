package pool_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/internal/failure"
	"github.com/adaptivethrottler/throttler/internal/upstream"
	"github.com/adaptivethrottler/throttler/pool"
	"github.com/bradfitz/gomemcache/memcache"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const (
	one     = "192.0.2.1:11211"
	two     = "192.0.2.2:11211"
	three   = "192.0.2.3:11211"
	timeout = pool.DefaultTimeout
)

// item returns an item that can be swapped.
func item(key string) *memcache.Item {
	return &memcache.Item{Key: key, Value: []byte("value"), Expiration: 60, CasID: 7}
}

// operations are all that a pool does with one key.
var operations = map[string]func(p *pool.Pool, key string) error{
	"Get": func(p *pool.Pool, key string) error {
		_, err := p.Get(key)
		return err
	},
	"GetMulti": func(p *pool.Pool, key string) error {
		_, err := p.GetMulti([]string{key})
		return err
	},
	"Exchange": func(p *pool.Pool, key string) error {
		x := &scripted{key: key}
		p.Exchange(context.Background(), x)
		return x.results[0].Err
	},
	"Add":            func(p *pool.Pool, key string) error { return p.Add(item(key)) },
	"CompareAndSwap": func(p *pool.Pool, key string) error { return p.CompareAndSwap(item(key)) },
	"Delete":         func(p *pool.Pool, key string) error { return p.Delete(key) },
}

// What a server reports is an answer, too.
func TestAnAnswerBetweenFailuresKeepsTheBreakerClosed(t *testing.T) {
	bubbles(t, map[string]func(net.Conn, string){
		"success":   misses,
		"complaint": says("SERVER_ERROR out of memory writing get response\r\n"),
	}, func(t *testing.T, answer func(net.Conn, string)) {
		var calls atomic.Int64
		s := &station{answer: func(conn net.Conn, request string) {
			if calls.Add(1)%pool.DefaultBreakerFailures == 0 {
				answer(conn, request)
			}
		}}
		p := s.newPool(t, one)
		for i := range 10 * pool.DefaultBreakerFailures {
			_, err := p.Get("key")
			require.NotErrorIs(t, err, upstream.ErrDown, "call %d", i)
		}
	})
}

func TestWhatIsNoFailureOfTheServer(t *testing.T) {
	const value = "VALUE key 0 5 7\r\nvalue\r\nEND\r\n"
	for _, tc := range []struct {
		operation, answer string
		want              error // nil: any that is not ErrDown
	}{
		{"Get", "END\r\n", memcache.ErrCacheMiss},
		{"Get", "SERVER_ERROR out of memory writing get response\r\n", nil},
		{"Get", "ERROR Too many open connections\r\n", nil},
		{"GetMulti", "SERVER_ERROR proxy could not reach the server behind it\r\n", nil},
		{"GetMulti", "VALUE key 0 5 7\r\nvalue\r\nSERVER_ERROR out of memory\r\n", nil},
		{"Add", "NOT_STORED\r\n", memcache.ErrNotStored},
		{"Add", "SERVER_ERROR object too large for cache\r\n", nil},
		{"Add", "SERVER_ERROR out of memory storing object\r\n", nil},
		{"CompareAndSwap", "EXISTS\r\n", memcache.ErrCASConflict},
		{"CompareAndSwap", "NOT_FOUND\r\n", memcache.ErrCacheMiss},
		{"CompareAndSwap", "CLIENT_ERROR bad data chunk\r\n", nil},
		{"CompareAndSwap", "ERROR\r\n", nil},
		{"Delete", "NOT_FOUND\r\n", memcache.ErrCacheMiss},
		{"Delete", "SERVER_ERROR\r\n", nil},
	} {
		t.Run(tc.operation+strings.ReplaceAll(tc.answer, "\r\n", "|"), func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				s := &station{answer: says(tc.answer)}
				p := s.newPool(t, one)
				for range 5 * pool.DefaultBreakerFailures {
					err := operations[tc.operation](p, "key")
					require.Error(t, err)
					require.NotErrorIs(t, err, upstream.ErrDown)
					if tc.want != nil {
						require.Equal(t, tc.want, err, "as memcache.Client returns it")
					} else {
						require.ErrorContains(t, err, one)
						require.NotErrorIs(t, err, throttler.ErrUnavailable)
					}
				}
				assert.Len(t, s.heard(), 5*pool.DefaultBreakerFailures, "asked again")
				s.now(says(value))
				_, err := p.Get("key")
				assert.NoError(t, err)
			})
		})
	}
}

func TestWhatIsAFailureOfTheServer(t *testing.T) {
	for name, answer := range map[string]func(net.Conn, string){
		"garbage":          says("HTTP/1.1 400 Bad Request\r\n\r\n"),
		"zeros":            says(strings.Repeat("\x00", 100_000)),
		"other data":       says("VALUE key 0 3 7\r\nvalue\r\nEND\r\n"),
		"negative":         says("VALUE key 0 -1 7\r\nvalue\r\nEND\r\n"),
		"half a line":      says("STOR"),
		"half an item":     says("VALUE key 0 5 7\r\nva"),
		"nothing":          hangs,
		"hangs up":         hangsUp,
		"half, hangs up":   func(conn net.Conn, _ string) { io.WriteString(conn, "EN"); conn.Close() },
		"item, hangs up":   func(conn net.Conn, _ string) { io.WriteString(conn, "VALUE key 0 1 7\r\nv\r\n"); conn.Close() },
		"another's item":   says("VALUE another 0 5 7\r\nvalue\r\nEND\r\n"),
		"no line feed":     says("VALUE key 0 5 7\r\nvalue\r_END\r\n"),
		"no return":        says("VALUE key 0 5 7\r\nvalue_\nEND\r\n"),
		"no key":           says("VALUE  0 5 7\r\nvalue\r\nEND\r\n"),
		"no flags":         says("VALUE key x 5 7\r\nvalue\r\nEND\r\n"),
		"large flags":      says("VALUE key 4294967296 5 7\r\nvalue\r\nEND\r\n"),
		"no token":         says("VALUE key 0 5 x\r\nvalue\r\nEND\r\n"),
		"no digit":         says("VALUE key 0 5 :\r\nvalue\r\nEND\r\n"),
		"items too many":   says(strings.Repeat("VALUE key 0 5 7\r\nvalue\r\n", 3) + "END\r\n"),
		"a complaint's id": says("VALUE ERROR 0 5 7\r\nvalue\r\nEND\r\n"),
	} {
		for operation, call := range operations {
			t.Run(operation+"/"+name, func(t *testing.T) {
				bubble(t, func(t *testing.T) {
					p := (&station{answer: answer}).newPool(t, one)
					for i := range pool.DefaultBreakerFailures {
						err := call(p, "key")
						require.ErrorContains(t, err, one)
						require.ErrorIs(t, err, throttler.ErrUnavailable)
						require.NotErrorIs(t, err, throttler.ErrOverloaded)
						require.NotErrorIs(t, err, upstream.ErrDown, "call %d", i)
					}
					require.ErrorIs(t, call(p, "key"), upstream.ErrDown)
				})
			})
		}
	}
}

func TestAMalformedKeyIsRefusedAsSuchWhileTheServerIsDown(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := &station{answer: hangs}
		p := s.newPool(t, one)
		for range pool.DefaultBreakerFailures {
			p.Get("key")
		}
		for _, key := range []string{"", "bob smith", "a\r\nflush_all", "\x00", "\x7f", strings.Repeat("x", 251)} {
			for name, operation := range operations {
				require.ErrorIs(t, operationErr(operation, p, key), memcache.ErrMalformedKey, "%s of %q", name, key)
			}
		}
		require.True(t, p.Stats()[0].Down)
	})
}

func operationErr(operation func(*pool.Pool, string) error, p *pool.Pool, key string) error {
	err := operation(p, key)
	var multi *failure.MultiError
	if errors.As(err, &multi) {
		return multi.KeyError(key)
	}
	return err
}

// onEach returns a key for each of the servers that belongs to it.
func onEach(p *pool.Pool, servers ...string) map[string]string {
	keys := make(map[string]string)
	for i := 0; len(keys) < len(servers); i++ {
		key := "key" + string(rune('A'+i%26)) + strings.Repeat("x", i/26)
		if _, have := keys[p.Place(key)]; !have {
			keys[p.Place(key)] = key
		}
	}
	return keys
}

func TestAConnectionThatIsMadeAfterCloseIsClosed(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := &station{answer: misses, dial: func(context.Context) error {
			time.Sleep(2 * time.Nanosecond) // and heed no ctx
			return nil
		}}
		p := s.newPool(t, one)
		var call sync.WaitGroup
		call.Go(func() {
			_, err := p.Get("key")
			assert.ErrorIs(t, err, pool.ErrClosed)
		})
		time.Sleep(time.Nanosecond)
		require.NoError(t, p.Close())
		call.Wait()
		require.Len(t, s.dialled(), 1)
		require.Zero(t, p.Stats()[0].Conns)
		require.Empty(t, s.heard())
	})
}

// slowFirst answers the first request too slowly, but is there. Others are sent again, then.
func slowFirst(conn net.Conn, request string) {
	_, err := fmt.Fprintf(conn, "VALUE %s 0 1000 7\r\n", strings.Fields(request)[1])
	for err == nil {
		time.Sleep(timeout / 10)
		_, err = io.WriteString(conn, "x")
	}
}

// When the breaker opens others may be about to be sent again. They do not wait for timeouts of
// their own, nor for a dial that does not heed its ctx, and neither does the probe.
func TestCallsThatAreSentAgainWhileTheBreakerOpensEndWithIt(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var dials atomic.Int64
		s := &station{answer: misses, dial: func(context.Context) error {
			if dials.Add(1) == 2 {
				time.Sleep(pool.DefaultBreakerPause * 2)
			}
			return nil
		}}
		p := s.newPool(t, one)
		p.DialContext = deepConns(s, nil)
		p.BreakerFailures = 1
		p.Get("connect")
		s.now(slowFirst)
		begin := time.Now()
		atOnce(20, func(i int) {
			time.Sleep(time.Duration(i) * time.Millisecond)
			_, err := p.Get("key")
			assert.Equal(t, i > 0, errors.Is(err, upstream.ErrDown), "%d: %v", i, err)
			assert.Equal(t, timeout, time.Since(begin))
		})
		s.now(misses)
		time.Sleep(2*pool.DefaultBreakerPause + 1)
		synctest.Wait()
		require.False(t, p.Stats()[0].Down)
	})
}
