package pool_test

import (
	"bufio"
	"context"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/adaptivethrottler/throttler/internal/servertest"
	"github.com/adaptivethrottler/throttler/pool"
	"github.com/bradfitz/gomemcache/memcache"
	"github.com/stretchr/testify/require"
)

// idle waits for longer than a connection is used without a look at it.
func idle() { time.Sleep(60 * time.Millisecond) }

// getTenTimes makes so many calls that the next one has the connection for itself.
func getTenTimes(p *pool.Pool) {
	for range 10 {
		p.Get("key")
	}
}

// A connection that the server has closed meanwhile would swallow the next write. Nobody
// could tell then whether it was carried out.
func TestAWriteAfterTheServerHasClosedAnIdleConnectionIsAnsweredForCertain(t *testing.T) {
	for name, through := range map[string]func(*testing.T, string) (string, dialFunc){
		"TCP":    func(_ *testing.T, addr string) (string, dialFunc) { return addr, nil },
		"TLS":    terminated,
		"socket": nil,
	} {
		t.Run(name, func(t *testing.T) {
			var p *pool.Pool
			var server *servertest.Memcached
			if through == nil {
				server = servertest.NewMemcachedSocket(t)
				p = patient(t, server.Addr)
			} else {
				server = servertest.NewMemcached(t)
				addr, dial := through(t, server.Addr)
				p = patient(t, addr)
				p.DialContext = dial
			}
			getTenTimes(p)
			for alone := range 2 {
				server.Kill()
				server.Start()
				other := patient(t, server.Addr)
				require.NoError(t, other.Add(item("key")))
				idle()
				if alone == 0 {
					require.Equal(t, memcache.ErrNotStored, p.Add(item("key")))
				} else {
					x := &scripted{key: "key", propose: always(valued("mine", 0))}
					done := make(chan struct{})
					x.then = func() { close(done) }
					p.Start(x)
					<-done
					require.NoError(t, x.results[0].Err)
					require.False(t, x.results[0].Unknown)
					require.Len(t, x.turns, 1, "proposed once")
				}
			}
			require.Zero(t, p.Stats()[0].Retries)
			require.Zero(t, p.Stats()[0].Failures)
		})
	}
}

// Bytes that nobody asked for would be taken for the next answer: a call that was never
// counted would be authorized.
func TestBytesThatCameMeanwhileAreNoAnswer(t *testing.T) {
	conns := make(chan net.Conn, 10)
	p := patient(t, servertest.Serve(t, func(conn net.Conn) {
		conns <- conn
		answerMisses(conn)
	}))
	getTenTimes(p)
	_, err := io.WriteString(<-conns, "STORED\r\n")
	require.NoError(t, err)
	idle()
	require.Equal(t, memcache.ErrNotStored, p.Add(item("key")))
	require.Len(t, conns, 1, "another connection")
}

// answerMisses answers as misses does, and the version before.
func answerMisses(conn net.Conn) {
	for r := bufio.NewReader(conn); ; {
		request, err := r.ReadString('\n')
		switch {
		case err != nil:
			return
		case strings.HasPrefix(request, "version"):
			io.WriteString(conn, "VERSION 1.6.18\r\n")
			continue
		case strings.HasPrefix(request, "add"):
			r.ReadString('\n')
		}
		misses(conn, strings.TrimSpace(request))
	}
}

// counted is a net.Dialer's DialContext that counts its calls.
func counted(dials *atomic.Int64) dialFunc {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		dials.Add(1)
		return new(net.Dialer).DialContext(ctx, network, address)
	}
}

// A connection that is used all the time is not looked at, and one that was idle and is
// well is used on.
func TestAnIdleConnectionThatIsWellIsUsedOn(t *testing.T) {
	p := patient(t, servertest.NewMemcached(t).Addr)
	var dials atomic.Int64
	p.DialContext = counted(&dials)
	for range 3 {
		getTenTimes(p)
		idle()
	}
	require.EqualValues(t, 1, dials.Load())
}
