package throttler_test

import (
	"context"
	"fmt"
	"github.com/adaptivethrottler/throttler/internal/coalesce"
	"io"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/internal/servertest"
	"github.com/adaptivethrottler/throttler/memstore"
	"github.com/adaptivethrottler/throttler/pool"
	"github.com/bradfitz/gomemcache/memcache"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// What a throttler makes of a wire on which requests and answers break, over
// package pool and real servers. What the pool makes of it is in its own tests.

// onWire returns a pool of server, and the wire between them, which has no faults
// yet.
func onWire(t *testing.T, server *servertest.Memcached) (*pool.Pool, *servertest.Wire) {
	t.Helper()
	p := patientPool(t, server.Addr)
	p.BreakerFailures = 1_000_000
	w := &servertest.Wire{Next: func() servertest.Fault { return servertest.NoFault }}
	p.DialContext = w.DialContext
	return p, w
}

// brokenAnswers are the faults, one kind after the other, for a share of the requests at
// random. It counts them in met.
func brokenAnswers(random *rand.Rand, share float64, met *atomic.Int64) func() servertest.Fault {
	var mu sync.Mutex
	return func() servertest.Fault {
		mu.Lock()
		defer mu.Unlock()
		if random.Float64() >= share {
			return servertest.NoFault
		}
		return 1 + servertest.Fault(met.Add(1))%(servertest.Faults-1)
	}
}

// A station is a throttler at one end of a wire.
type station struct {
	*throttler.Throttler
	random *rand.Rand
	wire   *servertest.Wire
	faults func() servertest.Fault
}

// broken has requests meet faults from now on, and whole no more.
func (s *station) broken() { s.wire.Next = s.faults }
func (s *station) whole()  { s.wire.Next = func() servertest.Fault { return servertest.NoFault } }

// overBrokenWires runs work on several goroutines at once, each with a station of
// its own, all at the same server. The given share of requests meets a fault. All
// faults must have happened in the end.
func overBrokenWires(t *testing.T, share float64, work func(s *station)) {
	t.Helper()
	server := servertest.NewMemcached(t)
	var met atomic.Int64
	var running sync.WaitGroup
	for i := range uint64(8) {
		p, wire := onWire(t, server)
		s := &station{throttler.New(p), rand.New(rand.NewPCG(2, i)), wire, brokenAnswers(rand.New(rand.NewPCG(1, i)), share, &met)}
		s.broken()
		running.Go(func() { work(s) })
	}
	running.Wait()
	assert.GreaterOrEqual(t, met.Load(), int64(servertest.Faults-1), "some faults never happened")
}

// attempt calls Authorize. sound says that the call failed at nothing.
func (s *station) attempt(t *testing.T, rule throttler.Rule) (d throttler.Decision, sound bool) {
	d, err := s.Authorize(context.Background(), rule)
	assert.NoError(t, err)
	return d, d.Err == nil
}

func TestNoAnswerThatIsLostAdmitsMoreThanMax(t *testing.T) {
	const limit = 300
	for _, share := range []float64{0.05, 0.3} {
		t.Run(fmt.Sprint(share), func(t *testing.T) {
			eachAlgorithm(t, limit, func(t *testing.T, c throttler.Condition) {
				var authorized, opened atomic.Int64
				overBrokenWires(t, share, func(s *station) {
					for range 10_000 {
						switch d, sound := s.attempt(t, either(c)); {
						case d.Status == throttler.Blocked:
							return
						case sound:
							authorized.Add(1)
						default:
							opened.Add(1)
						}
					}
					assert.Fail(t, "not full after 10,000 calls")
				})
				assert.LessOrEqual(t, authorized.Load(), int64(limit))
				t.Logf("%d of %d authorized, %d failed open", authorized.Load(), limit, opened.Load())
			})
		})
	}
}

// Half of the calls are cancelled, twice, over a wire that breaks. The others
// never exceed the limit: no Cancel takes back more than its own hit.
func TestNoAnswerThatIsLostTakesBackTwice(t *testing.T) {
	const limit = 200
	eachAlgorithm(t, limit, func(t *testing.T, c throttler.Condition) {
		var held, cancelled, failed atomic.Int64
		overBrokenWires(t, 0.5, func(s *station) {
			for {
				s.whole() // so that each hit is counted once
				d, sound := s.attempt(t, either(c))
				assert.True(t, sound)
				switch {
				case d.Status == throttler.Blocked:
					return
				case s.random.IntN(2) == 0:
					held.Add(1)
					continue
				}
				cancelled.Add(1)
				s.broken()
				for range 2 {
					if s.Cancel(context.Background(), d) != nil {
						failed.Add(1)
					}
				}
			}
		})
		assert.LessOrEqual(t, held.Load(), int64(limit))
		t.Logf("%d of %d held, %d cancelled, %d times with an error", held.Load(), limit, cancelled.Load(), failed.Load())
	})
}

// hitsOfOthers is how many hits a record holds beside that of the call that
// meets a fault.
const hitsOfOthers = 3

// eachFaultBeside runs test for each fault at each of the first requests, with a
// condition that holds the hits of others. Whatever test does with a hit of its
// own, those of the others must be there after it.
func eachFaultBeside(t *testing.T, requests int64, test func(t *testing.T, p *pool.Pool, sound *throttler.Throttler, c throttler.Condition, meet func())) {
	t.Helper()
	server := servertest.NewMemcached(t)
	sound := throttler.New(overPool(t, server))
	eachAlgorithm(t, hitsOfOthers+5, func(t *testing.T, c throttler.Condition) {
		p, wire := onWire(t, server)
		for f := servertest.LoseRequest; f < servertest.Faults; f++ {
			for n := range requests {
				c.Value = fmt.Sprintf("%d-%d-%d", c.Algorithm, f, n)
				for range hitsOfOthers {
					authorize(t, sound, either(c))
				}
				test(t, p, sound, c, func() { wire.Once(n+1, f) })
				wire.Once(0, f) // if nothing has met it yet, nothing will
				d := authorize(t, sound, either(c))
				require.LessOrEqual(t, d.Outcomes[0].Remaining, c.Max-hitsOfOthers-1, "%v at request %d", f, n+1)
			}
		}
	})
}

// A call counts in one condition, finds out that the other one has been filled
// meanwhile, and gives back.
func TestAHitThatIsGivenBackWithALostAnswerLeavesTheHitsOfOthers(t *testing.T) {
	eachFaultBeside(t, 9, func(t *testing.T, p *pool.Pool, sound *throttler.Throttler, broad throttler.Condition, meet func()) {
		narrow := broad
		narrow.Name, narrow.Max = "narrow", 1
		rule := either(narrow, broad)
		rule.CountAuthorizedOnly = true
		meet()
		d := authorize(t, throttler.New(overtaken(p, func() { authorize(t, sound, either(narrow)) })), rule)
		if d.Outcomes[0].Err == nil {
			require.Equal(t, throttler.Blocked, d.Status)
		}
	})
}

// A server that does not speak memcached's language is failed open over, by the
// pool and by a plain client, whatever it says.
func TestAServerThatTalksNonsenseIsFailedOpenOver(t *testing.T) {
	nonsense := []string{
		"HTTP/1.1 400 Bad Request\r\n\r\n", "\r\n", "\n", "END", "END\r\nEND\r\n", "STORED\r\n", "OK\r\n", "VALUE \r\n",
		"VALUE test#c#v 0 5 1\r\nhel", "VALUE test#c#v 0 5 1\r\nhello, world\r\nEND\r\n", "VALUE test#c#v 0 -5 1\r\nEND\r\n",
		"VALUE test#c#v 0 5 x\r\nhello\r\nEND\r\n", "VALUE other 0 5 1\r\nhello\r\nEND\r\n", "NOT_FOUND\r\n",
		"SERVER_ERROR out of memory\r\n", "CLIENT_ERROR bad command line format\r\n", "ERROR\r\n",
		strings.Repeat("x", 10_000), "\x00\xff\x80\x81\x00\x00",
	}
	answer := atomic.Pointer[string]{}
	addr := servertest.Serve(t, func(conn net.Conn) {
		b := make([]byte, 4096)
		if _, err := conn.Read(b); err == nil {
			io.WriteString(conn, *answer.Load())
		}
	})
	p := patientPool(t, addr)
	plain := memcache.New(addr)
	defer plain.Close()
	plain.Timeout = 20 * time.Second
	p.BreakerFailures = 1_000_000
	for _, text := range nonsense {
		answer.Store(&text)
		for _, client := range []throttler.Client{p, plain} {
			for _, rule := range []throttler.Rule{either(condition("c", 1, time.Minute)), both()} {
				d := authorize(t, throttler.New(client), rule)
				require.Equal(t, throttler.Authorized, d.Status, "%q", text)
				require.Error(t, d.Err, "%q", text)
			}
		}
	}
}

func TestARecordEvictedBetweenReadAndWriteIsBegunAnew(t *testing.T) {
	server := servertest.NewMemcached(t)
	eachAlgorithm(t, 3, func(t *testing.T, c throttler.Condition) {
		c.Value = c.Algorithm.String()
		client := overPool(t, server)
		th := throttler.New(client)
		authorize(t, th, either(c))
		authorize(t, th, either(c))
		client.took()
		client.before = func(op string, keys ...string) error {
			if op == "cas" {
				return client.Client.Delete(keys[0])
			}
			return nil
		}
		d := authorize(t, th, either(c))
		require.NoError(t, d.Err)
		require.Equal(t, []int{2}, remaining(d), "the hits before are forgotten, and this one is not")
		require.Equal(t, []string{"get", "cas", "get", "add"}, client.took())
		require.NoError(t, th.Cancel(context.Background(), d), "evicted too, so there is nothing to take back")
		client.before = failing(nil, "")
		require.Equal(t, []int{2}, remaining(peek(t, th, either(c))))
	})
}

// Records that others write and the server evicts between all reads and writes
// would keep a call going for ever.
func TestRecordsThatComeAndGoAreGivenUp(t *testing.T) {
	server := servertest.NewMemcached(t)
	client := overPool(t, server)
	th := throttler.New(client)
	th.QueueTimeout = time.Minute // of many round trips
	other := throttler.New(client.Client)
	rule := either(condition("c", 10, time.Minute))
	client.before = func(op string, keys ...string) error {
		switch op {
		case "cas":
			return client.Client.Delete(keys[0])
		case "add":
			authorize(t, other, rule)
		}
		return nil
	}
	d := authorize(t, th, rule)
	require.ErrorIs(t, d.Err, coalesce.ErrStalled)
	require.Len(t, client.took(), 2*(coalesce.MaxLosses+10+1))
}

func TestAServerWithoutCASIsFailedOpenOver(t *testing.T) {
	server := servertest.NewMemcached(t, "-C")
	plain := memcache.New(server.Addr)
	defer plain.Close()
	plain.Timeout = 20 * time.Second
	for client, want := range map[throttler.Client]error{overPool(t, server): throttler.ErrNoCAS, plain: throttler.ErrNoCAS} {
		eachAlgorithm(t, 3, func(t *testing.T, c throttler.Condition) {
			th := throttler.New(client)
			c.Value = fmt.Sprintf("%v-%T", c.Algorithm, client)
			rule := either(c)
			require.NoError(t, authorize(t, th, rule).Err, "a first hit is added")
			for range 5 {
				d := authorize(t, th, rule)
				require.Equal(t, throttler.Authorized, d.Status)
				require.ErrorIs(t, d.Err, want)
			}
			th.Fallback = memstore.New()
			for i := range 4 {
				d := authorize(t, th, rule)
				require.ErrorIs(t, d.Err, want)
				require.Equal(t, i == 3, d.Status == throttler.Blocked, "the fallback counts")
			}
		})
	}
}

// A server that may not evict refuses new records when it is full, and goes on
// with those that it has.
func TestAServerThatIsFullFailsOpenForNewValuesAlone(t *testing.T) {
	server := servertest.NewMemcached(t, "-m", "2", "-M")
	client := overPool(t, server)
	th := throttler.New(client)
	banned := condition("c", 1, time.Hour)
	banned.Lockout = time.Hour
	authorize(t, th, either(banned))
	require.True(t, authorize(t, th, either(banned)).Outcomes[0].Banned)

	flood(t, server, 0, 8_000)
	fresh := banned
	for i := 0; ; i++ {
		fresh.Value = network64(1_000_000 + i)
		d := authorize(t, th, either(fresh))
		require.Equal(t, throttler.Authorized, d.Status)
		if d.Err != nil {
			require.ErrorContains(t, d.Err, "SERVER_ERROR out of memory")
			t.Logf("%d records more fit", i)
			break
		}
		require.Less(t, i, 100_000)
	}
	for range 2 * poolFailures {
		require.Error(t, authorize(t, th, either(fresh)).Err)
	}
	d := authorize(t, th, either(banned))
	require.NoError(t, d.Err, "no breaker has opened")
	require.True(t, d.Outcomes[0].Banned)
}
