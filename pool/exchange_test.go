package pool_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/exchange"
	"github.com/adaptivethrottler/throttler/internal/servertest"
	"github.com/adaptivethrottler/throttler/pool"
	"github.com/bradfitz/gomemcache/memcache"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A scripted exchange proposes what its test says, and notes what becomes of it.
type scripted struct {
	key     string
	propose func(exchange.Turn) *memcache.Item // nil: nothing
	turns   []exchange.Turn
	results []exchange.Result
	then    func() // called by Done
}

func (x *scripted) Key() string { return x.key }

func (x *scripted) Propose(turn exchange.Turn) *memcache.Item {
	x.turns = append(x.turns, turn)
	if x.propose == nil {
		return nil
	}
	return x.propose(turn)
}

func (x *scripted) Done(result exchange.Result) {
	x.results = append(x.results, result)
	if x.then != nil {
		x.then()
	}
}

// run makes an exchange and returns its result.
func run(t *testing.T, p *pool.Pool, x *scripted) exchange.Result {
	t.Helper()
	x.turns, x.results = nil, nil
	p.Exchange(context.Background(), x)
	require.Len(t, x.results, 1)
	return x.results[0]
}

// always proposes the same, whatever the turn.
func always(item *memcache.Item) func(exchange.Turn) *memcache.Item {
	return func(exchange.Turn) *memcache.Item {
		own := *item
		return &own
	}
}

func valued(value string, token uint64) *memcache.Item {
	return &memcache.Item{Value: []byte(value), Flags: 7, Expiration: 600, CasID: token}
}

// A token is good on the connection that gave it, so a key stays with one of several.
func TestAKeyStaysWithOneConnection(t *testing.T) {
	p := patient(t, servertest.NewMemcached(t).Addr)
	p.Conns = 4
	first := make(map[string]uint64)
	used := make(map[uint64]bool)
	for range 2 {
		for i := range 64 {
			key := fmt.Sprint("key", i)
			conn := run(t, p, &scripted{key: key}).Conn
			if first[key] == 0 {
				first[key] = conn
			}
			require.Equal(t, first[key], conn)
			used[conn] = true
		}
	}
	require.Len(t, used, p.Conns)
	require.Equal(t, p.Conns, p.Stats()[0].Conns)
}

// Whatever the conditions of a rule, and wherever their records are, they are
// asked for at once.
func TestExchangesOfSeveralServersAreMadeAtOnce(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := &station{answer: func(conn net.Conn, request string) {
			time.Sleep(timeout / 2)
			misses(conn, request)
		}}
		p := s.newPool(t, one, two, three)
		var xs []exchange.Exchange
		for _, key := range onEach(p, one, two, three) {
			xs = append(xs, &scripted{key: key})
		}
		for range 10 { // first through others, then alone
			require.Equal(t, timeout/2, took(func() { p.Exchange(context.Background(), xs...) }))
		}
		for _, x := range xs {
			for _, result := range x.(*scripted).results {
				require.NoError(t, result.Err)
			}
			require.Len(t, x.(*scripted).results, 10)
		}
	})
}

func TestARecordWithoutATokenCannotBeReplaced(t *testing.T) {
	p := patient(t, servertest.NewMemcached(t, "-C").Addr)
	require.True(t, run(t, p, &scripted{key: "key", propose: always(valued("1", 0))}).Stored)
	second := run(t, p, &scripted{key: "key", propose: always(valued("2", 0))})
	require.ErrorIs(t, second.Err, throttler.ErrNoCAS)
	require.NotErrorIs(t, second.Err, throttler.ErrUnavailable)
	require.Equal(t, "1", string(second.Found.Value), "it could be read")
	read, err := p.Get("key")
	require.NoError(t, err)
	err = p.CompareAndSwap(read)
	require.ErrorIs(t, err, throttler.ErrNoCAS)
	require.ErrorContains(t, err, p.Stats()[0].Server)
	require.NoError(t, run(t, p, &scripted{key: "key"}).Err)
}

// Tokens begin anew when a server restarts, so that of a record of before may be
// that of another one of after: on a new connection it must not be sent.
func TestATokenOfBeforeARestartNeverMeetsARecordOfAfter(t *testing.T) {
	server := servertest.NewMemcached(t)
	p := patient(t, server.Addr)
	p.DialContext = new(recorder).DialContext // whose connection is not looked at before it is used
	before := run(t, p, &scripted{key: "key", propose: always(valued("before", 0))})
	require.True(t, before.Stored)

	server.Kill()
	server.Start()
	require.Equal(t, []string{"STORED"}, server.Command(t, "add key 0 600 5\r\nafter"))
	other := patient(t, server.Addr)
	after, err := other.Get("key")
	require.NoError(t, err)
	require.Equal(t, before.Found.CasID, after.CasID, "the same token, for another record")

	x := &scripted{key: "key", propose: func(turn exchange.Turn) *memcache.Item {
		if turn.Conn != before.Conn {
			return nil
		}
		return valued("lost update", before.Found.CasID)
	}}
	result := run(t, p, x)
	require.NoError(t, result.Err)
	require.False(t, result.Stored)
	require.Equal(t, "after", string(result.Found.Value))
	require.Len(t, x.turns, 2, "on the connection of before, which was lost, and on a new one")
	require.Equal(t, before.Conn, x.turns[0].Conn)
	require.NotEqual(t, before.Conn, x.turns[1].Conn)
	require.Equal(t, x.turns[1].Conn, result.Conn)
	item, err := other.Get("key")
	require.NoError(t, err)
	require.Equal(t, "after", string(item.Value))
}

// A cutting connection of a station is cut when so many bytes of answers were sent by it.
type cutting struct {
	net.Conn
	left *int
}

func (c cutting) Write(b []byte) (int, error) {
	n := min(*c.left, len(b))
	*c.left -= n
	c.Conn.Write(b[:n])
	if n < len(b) {
		c.Close()
	}
	return n, nil
}

// Whichever byte of a burst of answers is the last to arrive, each exchange is done once, with its
// own answer, and those that were lost are made anew. What is known to be stored is not.
func TestAConnectionThatIsCutAtEachByteOfABurst(t *testing.T) {
	for name, c := range map[string]struct {
		each, whole int // bytes of the answer to a write, and of all
		reads       bool
	}{
		"classic": {
			each: len("STORED\r\n"), reads: true,
			whole: len("STORED\r\nVALUE key0 7 5 9\r\nvalue\r\n")*3 + len("END\r\n"),
		},
		"meta set": {each: len("HD c5\r\n"), whole: len("HD c5\r\n") * 3},
	} {
		for cut := range c.whole + 1 {
			bubble(t, func(t *testing.T) {
				s := newMetaServer("HD c5\r\n", "HD c5\r\n")
				p := s.newPool(t, one)
				if c.reads {
					p.Get("connect")
				} else {
					p = s.trusting(t)
				}
				answer := s.station.answer
				first, left := s.conns[0], cut
				s.now(func(conn net.Conn, request string) {
					if conn.(*peer).Conn == first {
						conn = cutting{conn, &left}
					}
					answer(conn, request)
				})
				var xs []exchange.Exchange
				for i := range 3 {
					xs = append(xs, &scripted{key: fmt.Sprint("key", i), propose: always(valued("value", 8))})
				}
				p.Exchange(context.Background(), xs...)
				for i, x := range xs {
					r, turns := result(t, x), x.(*scripted).turns
					require.True(t, r.Stored, "%s cut at %d", name, cut)
					known := cut >= (i+1)*c.each
					require.Len(t, turns, map[bool]int{true: 1, false: 2}[known], "%s cut at %d", name, cut)
					if known && c.reads && cut < c.whole {
						require.ErrorIs(t, r.Err, throttler.ErrUnavailable)
						require.False(t, r.Read)
						continue
					}
					require.NoError(t, r.Err)
					require.Equal(t, "value", string(r.Found.Value))
					require.Equal(t, x.Key(), r.Found.Key)
					require.EqualValues(t, map[bool]int{true: 5, false: 9}[known && !c.reads], r.Found.CasID)
					require.Equal(t, turns[len(turns)-1].Conn, r.Conn)
					require.Equal(t, known, turns[0].Conn == r.Conn)
				}
			})
		}
	}
}

// A caller whose ctx ends leaves at once, the others notice nothing, and the
// exchange goes on: alone, and in the middle of a pipeline.
func TestACallerLeavesWhenItsContextEnds(t *testing.T) {
	for _, others := range []int{0, 5} {
		t.Run(fmt.Sprint(others, " others"), func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				s := &station{answer: misses}
				p := s.newPool(t, one)
				beAlone(p, "key")
				before := p.Stats()[0]
				s.now(func(conn net.Conn, request string) {
					time.Sleep(20 * time.Millisecond)
					misses(conn, request)
				})
				var running sync.WaitGroup
				for i := range others {
					running.Go(func() {
						_, err := p.Get(fmt.Sprint("other", i))
						assert.Equal(t, memcache.ErrCacheMiss, err)
					})
				}
				ctx, cancel := context.WithTimeout(t.Context(), 5*time.Millisecond)
				defer cancel()
				done := make(chan exchange.Result, 1)
				x := &scripted{key: "key"}
				x.then = func() { done <- x.results[0] }
				require.Equal(t, 5*time.Millisecond, took(func() { p.Exchange(ctx, x) }))
				require.Empty(t, done)
				running.Go(func() {
					_, err := p.Get("late")
					assert.Equal(t, memcache.ErrCacheMiss, err)
				})
				require.NoError(t, (<-done).Err)
				running.Wait()
				stats := p.Stats()[0]
				require.Zero(t, stats.Retries)
				require.Zero(t, stats.Failures)
				require.Equal(t, 1, stats.Conns)
				require.Equal(t, before.Conns, stats.Conns)
			})
		})
	}
}

// beAlone asks for each key until its next caller takes the connection for itself.
func beAlone(p *pool.Pool, keys ...string) {
	for range 10 {
		for _, key := range keys {
			p.Get(key)
			synctest.Wait()
		}
	}
}

func TestACallerOfSeveralServersLeavesWhenItsContextEnds(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := &station{answer: misses}
		p := s.newPool(t, one, two)
		keys := onEach(p, one, two)
		beAlone(p, keys[one], keys[two])
		s.now(hangs)
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		var done sync.WaitGroup
		done.Add(2)
		xs := writes(keys[one], keys[two])
		for _, x := range xs {
			x.(*scripted).then = done.Done
		}
		require.Equal(t, time.Millisecond, took(func() { p.Exchange(ctx, xs...) }))
		require.Equal(t, timeout-time.Millisecond, took(done.Wait), "they are done all the same")
		for _, x := range xs {
			require.ErrorIs(t, result(t, x).Err, throttler.ErrUnavailable)
			require.True(t, result(t, x).Unknown)
		}
	})
}

// A held connection keeps a long write until it is released, as one whose buffer is
// full.
type held struct {
	net.Conn
	release chan struct{}
}

func (c *held) Write(b []byte) (int, error) {
	if len(b) > 10_000 {
		<-c.release
	}
	return c.Conn.Write(b)
}

// No caller waits for a socket, which does not know when its ctx ends.
func TestACallerOfALongWriteLeavesWhenItsContextEnds(t *testing.T) {
	for _, n := range []int{1, 2} {
		bubble(t, func(t *testing.T) {
			s := &station{answer: misses}
			p := s.newPool(t, one)
			release := make(chan struct{})
			p.DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
				conn, err := s.DialContext(ctx, network, addr)
				return &held{conn, release}, err
			}
			beAlone(p, "key")
			ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
			defer cancel()
			var done sync.WaitGroup
			done.Add(n)
			long := always(&memcache.Item{Value: []byte(strings.Repeat("v", 20_000))})
			var xs []exchange.Exchange
			for i := range n {
				xs = append(xs, &scripted{key: fmt.Sprint("key", i), propose: long, then: done.Done})
			}
			require.Equal(t, time.Millisecond, took(func() { p.Exchange(ctx, xs...) }))
			close(release)
			done.Wait()
			for _, x := range xs {
				require.NoError(t, result(t, x).Err)
			}
			for range 10 { // the connection is as good as before
				p.Exchange(context.Background(), &scripted{key: "key"}, &scripted{key: "key0", propose: long})
				require.NoError(t, run(t, p, &scripted{key: "key"}).Err)
				require.NoError(t, run(t, p, &scripted{key: "key", propose: long}).Err)
				synctest.Wait()
			}
			require.Len(t, s.dialled(), 1)
		})
	}
}

// A request that comes during a long write does not wait for the answer to that.
func TestAfterALongWriteTheNextRequestIsSent(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := &station{answer: misses}
		p := s.newPool(t, one)
		release := make(chan struct{})
		var packets atomic.Int64
		p.DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
			conn, err := deepConns(s, func([]byte) { packets.Add(1) })(ctx, network, addr)
			return &held{conn, release}, err
		}
		beAlone(p, "key")
		s.now(hangs)
		packets.Store(0)
		long := &scripted{key: "long", propose: always(&memcache.Item{Value: []byte(strings.Repeat("v", 20_000))})}
		var calls sync.WaitGroup
		calls.Go(func() { p.Exchange(context.Background(), long) })
		synctest.Wait()
		calls.Go(func() { p.Get("key") })
		synctest.Wait()
		require.Zero(t, packets.Load())
		close(release)
		synctest.Wait()
		require.Equal(t, int64(2), packets.Load())
		calls.Wait()
	})
}

// The answers of one server are read by the caller, those of the other by those who
// connect to it.
func TestACallerIsAloneAtOneServerAndTheFirstAtAnother(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := (&station{answer: misses}).newPool(t, one, two)
		keys := onEach(p, one, two)
		beAlone(p, keys[two])
		xs := []exchange.Exchange{&scripted{key: keys[one]}, &scripted{key: keys[two]}}
		p.Exchange(context.Background(), xs...)
		for _, x := range xs {
			require.NoError(t, result(t, x).Err)
		}
	})
}

// A closer closes the pool when its key is asked for.
type closer struct {
	scripted
	pool *pool.Pool
}

func (x *closer) Key() string {
	x.pool.Close()
	return x.scripted.Key()
}

// Between the choice of its server and its turn, the pool may be closed.
func TestExchangesThatMeetCloseAreDone(t *testing.T) {
	bubbles(t, map[string]func(p *pool.Pool, xs ...exchange.Exchange){
		"Exchange": func(p *pool.Pool, xs ...exchange.Exchange) { p.Exchange(context.Background(), xs...) },
		"Start":    (*pool.Pool).Start,
	}, func(t *testing.T, start func(p *pool.Pool, xs ...exchange.Exchange)) {
		p := (&station{answer: misses}).newPool(t, one)
		var done sync.WaitGroup
		done.Add(2)
		x, y := &scripted{key: "x", then: done.Done}, &scripted{key: "y", then: done.Done}
		start(p, x, &closer{scripted: *y, pool: p})
		done.Wait()
		require.ErrorIs(t, result(t, x).Err, pool.ErrClosed)
	})
	bubbles(t, map[string]bool{"Propose": false, "Propose behind a proxy": true}, func(t *testing.T, proxy bool) {
		p := (&station{answer: misses}).newPool(t, one)
		p.Proxy = proxy
		x := &scripted{key: "x", propose: func(exchange.Turn) *memcache.Item {
			p.Close()
			return valued("1", 0)
		}}
		require.ErrorIs(t, run(t, p, x).Err, pool.ErrClosed)
	})
	bubble(t, func(t *testing.T) { // the first server's is proposed while the second is yet to be asked
		p := (&station{answer: misses}).newPool(t, one, two)
		keys := onEach(p, one, two)
		beAlone(p, keys[one], keys[two])
		x := &scripted{key: keys[one], propose: func(exchange.Turn) *memcache.Item { p.Close(); return nil }}
		y := &scripted{key: keys[two]}
		p.Exchange(context.Background(), x, y)
		require.ErrorIs(t, result(t, x).Err, pool.ErrClosed)
		require.ErrorIs(t, result(t, y).Err, pool.ErrClosed)
	})
}

// What was to be read together is not, if the next connection is to a proxy.
func TestExchangesThatFindAProxyInsteadOfAServerAreReadOneByOne(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := &station{answer: has}
		p := s.newPool(t, one)
		var once sync.Once
		var done sync.WaitGroup
		done.Add(2)
		var xs []exchange.Exchange
		for _, key := range numbered(2) {
			xs = append(xs, &scripted{key: key, then: done.Done, propose: func(exchange.Turn) *memcache.Item {
				once.Do(func() {
					s.greets("VERSION mcrouter 0.41.0")
					s.hangUp()
					time.Sleep(time.Millisecond)
				})
				return nil
			}})
		}
		hung := make(chan struct{})
		s.now(hangs)
		p.Start(&scripted{key: "hung", then: func() { close(hung) }})
		synctest.Wait()
		s.now(has)
		p.Start(xs...)
		done.Wait()
		<-hung
		for _, x := range xs {
			require.NoError(t, result(t, x).Err)
			require.Equal(t, "value", string(result(t, x).Found.Value))
		}
	})
}

// A lone caller may have the answer to its write behind a proxy before it has seen
// that the write was sent.
func TestALoneCallerBehindAProxyTakesAnAnswerThatIsEarly(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := &station{answer: misses}
		p := s.newPool(t, one)
		p.Proxy = true
		beAlone(p, "key")
		reads := 0
		s.now(func(conn net.Conn, request string) {
			switch reads++; {
			case strings.HasPrefix(request, "add"):
				reads--
			case reads == 1:
				misses(conn, request)
			default:
				time.Sleep(time.Millisecond)
				io.WriteString(conn, "STORED\r\nEND\r\n") // at once
			}
		})
		x := &scripted{key: "key", propose: always(valued("mine", 0))}
		require.Equal(t, time.Millisecond, took(func() { require.True(t, run(t, p, x).Stored) }))
	})
}

// Done may start what follows, and Start does not call Done by itself, even if
// all fails at once.
func TestStartMayBeCalledByDone(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := &station{answer: misses}
		p := s.newPool(t, one)
		for _, end := range []func(){func() {}, func() { p.Close() }} {
			end()
			var chain sync.WaitGroup
			chain.Add(50)
			var mu sync.Mutex
			var start func(n int)
			start = func(n int) {
				x := &scripted{key: "key"}
				x.then = func() {
					mu.Lock() // held by whoever starts
					defer mu.Unlock()
					chain.Done()
					if n > 1 {
						start(n - 1)
					}
				}
				p.Start(x)
			}
			mu.Lock()
			start(50)
			mu.Unlock()
			chain.Wait()
		}
	})
}

func TestAThousandCallersShareOneConnection(t *testing.T) {
	ending, cancel := context.WithCancel(context.Background())
	defer cancel()
	for name, ctx := range map[string]context.Context{
		"a ctx that cannot end": context.Background(),
		"a ctx that can end":    ending,
	} {
		t.Run(name, func(t *testing.T) {
			server := servertest.NewMemcached(t)
			var dials atomic.Int64
			p := patient(t, server.Addr)
			p.QueueTimeout = 30 * time.Second
			p.DialContext = counted(&dials)
			p.Get("key")
			before := runtime.NumGoroutine()
			var most atomic.Int64
			atOnce(1000, func(i int) {
				key := fmt.Sprint("key", i)
				u := &update{key: key, value: []byte(key)}
				for range 20 {
					p.Exchange(ctx, u)
					if !assert.NoError(t, u.result.Err) || !assert.Equal(t, key, string(u.result.Found.Value)) {
						return
					}
				}
				if n := int64(runtime.NumGoroutine()); n > most.Load() {
					most.Store(n)
				}
			})
			require.Equal(t, int64(1), dials.Load())
			require.Less(t, most.Load()-int64(before), int64(1050), "a goroutine for each operation")
			requireGoroutines(t, before)
			stats := p.Stats()[0]
			require.Zero(t, stats.Failures+stats.Overloads+stats.Retries)
			require.Equal(t, 1, stats.Conns)
			require.Zero(t, stats.InFlight+stats.Queued)
		})
	}
}

// Requests are sent in the order in which they came.
func TestRequestsAreServedInOrder(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := &station{answer: slowly(misses)}
		p := s.newPool(t, one)
		var order []int
		const n = 50
		done := make(chan struct{})
		for i := range n {
			x := &scripted{key: fmt.Sprint("key", i)}
			x.then = func() {
				if order = append(order, i); len(order) == n {
					close(done)
				}
			}
			p.Start(x)
		}
		<-done
		for i, got := range order {
			require.Equal(t, i, got)
		}
		for i, key := range keysRead(s.heard()) {
			require.Equal(t, fmt.Sprint("key", i), key)
		}
	})
}

// Requests that do not fit into a packet are sent before those that came after them.
func TestRequestsThatDoNotFitIntoAPacketKeepTheirPlace(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := &station{answer: misses}
		p := s.newPool(t, one)
		var done sync.WaitGroup
		done.Add(4)
		var xs []exchange.Exchange
		for i := range 3 {
			x := &scripted{key: fmt.Sprint("key", i), then: done.Done}
			x.propose = func(exchange.Turn) *memcache.Item {
				if i == 0 {
					p.Start(&scripted{key: "later", then: done.Done})
				}
				return &memcache.Item{Value: []byte(strings.Repeat("v", 40_000))}
			}
			xs = append(xs, x)
		}
		p.Start(xs...)
		done.Wait()
		require.Equal(t, []string{"key0", "key1", "key2", "later"}, keysRead(s.heard()))
	})
}

// A caller who finds nobody waiting does not write while another packet is made.
func TestALoneCallerWaitsForThePacketThatIsBeingMade(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := &station{answer: misses}
		p := s.newPool(t, one)
		beAlone(p, "key")
		s.heard()
		var done sync.WaitGroup
		done.Add(1)
		p.Start(&scripted{key: "first", then: done.Done, propose: func(exchange.Turn) *memcache.Item {
			done.Go(func() { p.Get("second") })
			time.Sleep(time.Millisecond)
			assert.Empty(t, s.heard())
			return nil
		}})
		done.Wait()
		require.Equal(t, []string{"first", "second"}, keysRead(s.heard()))
	})
}

// A caller who is alone is answered on its own goroutine, and is again when others
// have gone.
func TestALoneCallerReadsItsOwnAnswer(t *testing.T) {
	p := patient(t, servertest.NewMemcached(t).Addr)
	own := func() bool {
		x := &scripted{key: "key"}
		mine := false
		x.then = func() {
			stack := make([]byte, 10_000)
			mine = bytes.Contains(stack[:runtime.Stack(stack, false)], []byte("TestALoneCallerReadsItsOwnAnswer"))
		}
		p.Exchange(context.Background(), x)
		return mine
	}
	for range 3 {
		require.Eventually(t, own, 10*time.Second, time.Microsecond)
		atOnce(50, func(int) { p.Get("key") })
	}
}

// A caller that is alone reads the answers of one server itself. If that one hangs,
// those of the others are read all the same.
func TestAServerIsReadWhileAnotherHangs(t *testing.T) {
	for _, sick := range []int{0, 1} {
		bubble(t, func(t *testing.T) {
			s := &station{answer: misses}
			p := s.newPool(t, one, two)
			keys := [...]string{onEach(p, one, two)[one], onEach(p, one, two)[two]}
			beAlone(p, keys[:]...)
			s.now(func(conn net.Conn, request string) {
				if !strings.Contains(request, keys[sick]) {
					misses(conn, request)
				}
			})
			well := 1 - sick
			xs := []exchange.Exchange{&scripted{key: keys[0]}, &scripted{key: keys[1]}}
			done := make(chan time.Duration, 1)
			begin := time.Now()
			xs[well].(*scripted).then = func() { done <- time.Since(begin) }
			var calls sync.WaitGroup
			calls.Go(func() { p.Exchange(context.Background(), xs...) })
			synctest.Wait()
			require.Zero(t, took(func() { _, err := p.Get(keys[well]); require.Equal(t, memcache.ErrCacheMiss, err) }))
			require.Zero(t, <-done)
			calls.Wait()
			require.Equal(t, timeout, time.Since(begin))
			require.ErrorIs(t, result(t, xs[sick]).Err, throttler.ErrUnavailable)
			require.Zero(t, p.Stats()[well].Failures)
		})
	}
}
