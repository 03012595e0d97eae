package redisstore_test

import (
	"bytes"
	"context"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/exchange"
	"github.com/adaptivethrottler/throttler/internal/servertest"
	"github.com/bradfitz/gomemcache/memcache"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A cutter is between a store and its server. It counts what it passes on, and cuts the
// connection in the middle, once for each time that a side is told to.
type cutter struct {
	listener net.Listener
	server   atomic.Value // the address, a string
	onCut    func()       // called when a connection is to be cut; nil: nothing

	asked, answered side
	cuts            atomic.Int64
}

// A side is what passes a cutter in one direction, over all connections.
type side struct {
	passed atomic.Int64           // bytes
	at     atomic.Int64           // cut after so many; 0: never
	in     atomic.Pointer[string] // cut after the first byte of this text; nil: never
}

// cutIn has the next connection cut in text.
func (s *side) cutIn(text string) { s.in.Store(&text) }

// takes returns how much of data, which has come now, is passed on. cut is true if the
// connection is to be cut then.
func (s *side) takes(data []byte) (n int, cut bool) {
	before := s.passed.Add(int64(len(data))) - int64(len(data))
	if at := s.at.Load(); at > 0 && before+int64(len(data)) >= at {
		s.at.Store(0)
		return int(max(at-before, 0)), true
	}
	if text := s.in.Load(); text != nil {
		if i := bytes.Index(data, []byte(*text)); i >= 0 {
			s.in.Store(nil)
			return i + 1, true
		}
	}
	return len(data), false
}

func newCutter(t *testing.T, server string) *cutter {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	c := &cutter{listener: l}
	c.server.Store(server)
	servertest.ServeOn(t, l, c.serve)
	return c
}

func (c *cutter) serve(client net.Conn) {
	server, err := net.Dial("tcp", c.server.Load().(string))
	if err != nil {
		return
	}
	cut := func() { client.Close(); server.Close() }
	var both sync.WaitGroup
	both.Go(func() { c.pass(server, client, &c.asked); cut() })
	both.Go(func() { c.pass(client, server, &c.answered); cut() })
	both.Wait()
}

// pass passes bytes on until the connection ends or is to be cut.
func (c *cutter) pass(to io.Writer, from io.Reader, side *side) {
	buf := make([]byte, 64<<10)
	for {
		read, err := from.Read(buf)
		n, cut := side.takes(buf[:read])
		if cut {
			c.cuts.Add(1)
			if c.onCut != nil {
				c.onCut()
			}
		}
		if n > 0 {
			if _, err := to.Write(buf[:n]); err != nil {
				return
			}
		}
		if cut || err != nil {
			return
		}
	}
}

// The connection is cut at each byte of a bundle, and of its answers. All calls are
// answered, and exactly Max hits of each value are admitted and stored.
func TestAConnectionThatIsCutAtEachByteOfABatch(t *testing.T) {
	t.Parallel()
	server := servertest.NewRedis(t)
	for _, name := range []string{"request", "answer", "request by SET", "answer to SET"} {
		cuts, lost := 0, 0
		for at := int64(1); ; at++ {
			server.Command("FLUSHALL")
			c := newCutter(t, server.Addr)
			s := open(t, "redis://"+c.listener.Addr().String())
			th := throttler.New(s)
			warmUp := th.Peek // the connection is there
			if strings.Contains(name, "SET") {
				warmUp = th.Authorize
			}
			d, err := warmUp(context.Background(), rule("warm", 3))
			require.NoError(t, err)
			require.NoError(t, d.Err)
			side := &c.asked
			if strings.HasPrefix(name, "answer") {
				side = &c.answered
			}
			side.at.Store(side.passed.Load() + at)
			values := []string{"a", "b", "c"}
			var admitted [3]atomic.Int64
			var doubts atomic.Int64
			var wg sync.WaitGroup
			for i, value := range values {
				for range 3 {
					wg.Go(func() {
						d, err := th.Authorize(context.Background(), rule(value, 2))
						if assert.NoError(t, err) && d.Err != nil {
							doubts.Add(1)
						} else if d.Status == throttler.Authorized {
							admitted[i].Add(1)
						}
					})
				}
			}
			wg.Wait()
			for i, value := range values {
				n := admitted[i].Load()
				require.LessOrEqual(t, n, int64(2), "%s cut at %d", name, at)
				if doubts.Load() == 0 {
					require.EqualValues(t, 2, n, "%s cut at %d", name, at)
				}
				requireFull(t, s, value, 2)
			}
			if doubts.Load() > 0 {
				lost++
			}
			side.at.Store(0)
			s.Close()
			c.listener.Close()
			if c.cuts.Load() == 0 {
				break // beyond the end
			}
			cuts++
		}
		t.Logf("%s: %d cuts, %d with a call that failed", name, cuts, lost)
		require.Greater(t, cuts, 20)
		require.Zero(t, lost, "a connection that is lost costs no call")
	}
}

// A stubborn exchange adds an item although there is one. It counts how often it was asked.
type stubborn struct {
	*single
	asked int
}

func (s *stubborn) Propose(turn exchange.Turn) *memcache.Item {
	s.asked++
	return s.single.Propose(turn)
}

// After a lost answer the exchange is asked once more what to write. A conflict then ends it.
func TestALostAnswerIsAskedAboutOnce(t *testing.T) {
	t.Parallel()
	server := servertest.NewRedis(t)
	c := newCutter(t, server.Addr)
	s := open(t, "redis://"+c.listener.Addr().String())
	require.NoError(t, s.Add(&memcache.Item{Key: "k", Value: []byte("there"), Expiration: 60}))
	c.asked.cutIn("SET")
	x := &stubborn{single: newSingle("k", true)}
	s.Exchange(context.Background(), x)
	r := <-x.done
	require.NoError(t, r.Err)
	require.False(t, r.Stored)
	require.Equal(t, "there", string(r.Found.Value))
	require.Equal(t, 2, x.asked)
	require.EqualValues(t, 1, c.cuts.Load())
}

// Whether the first item was stored is not known though the second one was refused.
func TestALostWriteStaysUnknownIfTheNextOneIsRefused(t *testing.T) {
	t.Parallel()
	var writes atomic.Int64
	s := open(t, "redis://"+scripted(t, alone(func([]string) string {
		switch writes.Add(1) {
		case 1:
			return "" // the connection ends
		case 2:
			return "$10\r\n12345678xx" // the record of another write
		}
		return "-OOM command not allowed when used memory > 'maxmemory'."
	})))
	x := &stubborn{single: newSwap("k")}
	s.Exchange(context.Background(), x)
	r := <-x.done
	require.ErrorContains(t, r.Err, "OOM")
	require.True(t, r.Unknown)
	require.Equal(t, 2, x.asked)
	require.EqualValues(t, 3, writes.Load())
}

// A primary that has become a replica is left for the one that its address now leads to.
func TestAPrimaryThatIsDemotedIsLeft(t *testing.T) {
	t.Parallel()
	before, after := servertest.NewRedis(t), servertest.NewRedis(t)
	c := newCutter(t, before.Addr)
	s := open(t, "redis://"+c.listener.Addr().String())
	require.NoError(t, decide(t, s, "a").Err)
	host, port := split(t, after.Addr)
	before.Command("REPLICAOF", host, port)
	c.server.Store(after.Addr)
	require.NoError(t, decide(t, s, "b").Err, "it is asked again at the new primary")
	require.Equal(t, "test#ip#b", after.Command("KEYS", "*"))
	require.Eventually(t, func() bool {
		return strings.Count(before.Command("CLIENT", "LIST", "TYPE", "normal"), "id=") == 1
	}, 20*time.Second, time.Millisecond, "its connections are closed, but for the one that asks")
}

func TestALoneCallerTakesOneTripAndManyShareThem(t *testing.T) {
	t.Parallel()
	server := servertest.NewRedis(t)
	s := open(t, "redis://"+server.Addr)
	th := throttler.New(s)
	for range 100 {
		_, err := th.Authorize(context.Background(), rule("a", 1000))
		require.NoError(t, err)
	}
	require.EqualValues(t, 100, calls(server, "evalsha")+calls(server, "eval")-1, "one more because the script was not known")
	server.Command("CONFIG", "RESETSTAT")
	unpause := pauseWrites(server) // until all are there
	var wg sync.WaitGroup
	var called atomic.Int64
	for range 100 {
		wg.Go(func() {
			called.Add(1)
			d, err := th.Authorize(context.Background(), rule("a", 1000))
			assert.NoError(t, err)
			assert.NoError(t, d.Err)
		})
	}
	require.Eventually(t, func() bool { return called.Load() == 100 }, 30*time.Second, time.Millisecond)
	unpause()
	wg.Wait()
	require.LessOrEqual(t, calls(server, "evalsha"), int64(10))
	for range 100 { // a look needs no script
		_, err := th.Peek(context.Background(), rule("a", 1000))
		require.NoError(t, err)
	}
	require.EqualValues(t, 100, calls(server, "get")-calls(server, "set"))
	server.Command("CONFIG", "RESETSTAT")
	_, err := s.GetMulti([]string{"a", "b"})
	require.NoError(t, err)
	require.Zero(t, calls(server, "evalsha")+calls(server, "eval"))
	require.EqualValues(t, 1, calls(server, "mget"))
}

// calls returns how often the server has carried out a command.
func calls(server *servertest.Redis, command string) int64 {
	_, text, _ := strings.Cut(server.Command("INFO", "commandstats"), "cmdstat_"+command+":calls=")
	text, _, _ = strings.Cut(text, ",")
	n, _ := strconv.ParseInt(text, 10, 64)
	return n
}
