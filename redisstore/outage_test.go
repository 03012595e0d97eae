package redisstore_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/internal/servertest"
	"github.com/adaptivethrottler/throttler/pool"
	"github.com/adaptivethrottler/throttler/redisstore"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A crowd calls one rule after the other until it is stopped.
type crowd struct {
	stop chan struct{}
	wg   sync.WaitGroup

	mu       sync.Mutex
	admitted map[string]int // by value, without an error
	failed   []error
}

// gather starts callers of values over each of clients.
func gather(t *testing.T, max int, values []string, clients ...throttler.Client) *crowd {
	c := &crowd{stop: make(chan struct{}), admitted: make(map[string]int)}
	for _, client := range clients {
		th := throttler.New(client)
		for i := range 8 {
			c.wg.Go(func() {
				for ; ; i++ {
					select {
					case <-c.stop:
						return
					default:
					}
					value := values[i%len(values)]
					d, err := th.Authorize(context.Background(), rule(value, max))
					if !assert.NoError(t, err) {
						return
					}
					c.note(value, d)
				}
			})
		}
	}
	t.Cleanup(func() { c.disperse() })
	return c
}

func (c *crowd) note(value string, d throttler.Decision) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case d.Err != nil:
		c.failed = append(c.failed, d.Err)
	case d.Status == throttler.Authorized:
		c.admitted[value]++
	}
}

func (c *crowd) count(value string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.admitted[value]
}

// total returns how many hits were admitted without an error.
func (c *crowd) total() (sum int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, n := range c.admitted {
		sum += n
	}
	return sum
}

// disperse stops all callers and waits for that.
func (c *crowd) disperse() {
	select {
	case <-c.stop:
	default:
		close(c.stop)
	}
	c.wg.Wait()
}

// requireUnavailable requires that all failures were those of a server that is away.
func (c *crowd) requireUnavailable(t *testing.T) {
	t.Helper()
	for _, err := range c.failed {
		if !errors.Is(err, throttler.ErrUnavailable) {
			require.ErrorContains(t, err, "the answer to a write was lost")
		}
	}
}

// requireFull requires that value has no room left.
func requireFull(t *testing.T, client throttler.Client, value string, max int) {
	t.Helper()
	d, err := throttler.New(client).Peek(context.Background(), rule(value, max))
	require.NoError(t, err)
	require.NoError(t, d.Err)
	require.Equal(t, throttler.Blocked, d.Status)
}

func names(n int) []string {
	values := make([]string, n)
	for i := range values {
		values[i] = "v" + strconv.Itoa(i)
	}
	return values
}

func TestAServerThatIsKilledAndKeepsItsDataAdmitsNoMoreThanMax(t *testing.T) {
	t.Parallel()
	server := servertest.NewRedis(t, "--appendonly", "yes", "--appendfsync", "always")
	url := "redis://" + server.Addr
	a, b := open(t, url), open(t, url)
	a.BreakerPause, b.BreakerPause = 20*time.Millisecond, 20*time.Millisecond
	values, max := names(20), 150
	c := gather(t, max, values, a, b)
	for range 5 {
		time.Sleep(50 * time.Millisecond)
		server.Kill()
		server.Start()
	}
	require.Eventually(t, func() bool {
		for _, value := range values {
			d, err := throttler.New(a).Peek(context.Background(), rule(value, max))
			if err != nil || d.Err != nil || d.Status != throttler.Blocked {
				return false
			}
		}
		return true
	}, 2*time.Minute, 10*time.Millisecond)
	c.disperse()
	for _, value := range values {
		require.LessOrEqual(t, c.count(value), max, value)
		require.Greater(t, c.count(value), max*3/4, value)
	}
	require.NotEmpty(t, c.failed)
	c.requireUnavailable(t)
}

func TestScriptsAndDataThatAreFlushedCostNoErrors(t *testing.T) {
	t.Parallel()
	for command, max := range map[string]int{"SCRIPT FLUSH": 100_000, "FLUSHALL": 5} {
		t.Run(command, func(t *testing.T) {
			t.Parallel()
			server := servertest.NewRedis(t)
			url := "redis://" + server.Addr
			c := gather(t, max, names(20), open(t, url), open(t, url))
			const times = 100
			for range times {
				time.Sleep(time.Millisecond)
				server.Command(strings.Fields(command)...)
			}
			c.disperse()
			require.Empty(t, c.failed[:min(3, len(c.failed))])
			require.NotZero(t, c.total())
			for _, value := range names(20) {
				require.LessOrEqual(t, c.count(value), max*(times+1))
			}
		})
	}
}

// lostMeanwhile returns how much time this process has lost on a busy machine until it is asked:
// by how much pauses of 5 ms were longer than that.
func lostMeanwhile(t *testing.T) (lost func() time.Duration) {
	stop, sum := make(chan struct{}), make(chan time.Duration, 1)
	end := sync.OnceFunc(func() { close(stop) })
	t.Cleanup(end)
	go func() {
		const pause = 5 * time.Millisecond
		all := time.Duration(0)
		for stopped := false; !stopped; {
			begun := time.Now()
			select {
			case <-stop:
				stopped = true
			case <-time.After(pause):
			}
			all += max(0, time.Since(begun)-pause)
		}
		sum <- all
	}()
	return func() time.Duration {
		end()
		return <-sum
	}
}

// pingMeanwhile pings a server, over connections of its own, every 5 ms. late ends that, and
// returns the time of four pings as the slowest, with what it waited beyond the 5 ms: by so
// much a busy machine may delay what takes several connections and commands.
func pingMeanwhile(t *testing.T, server *servertest.Redis) (late func() time.Duration) {
	stop, slowest := make(chan struct{}), make(chan time.Duration, 1)
	end := sync.OnceFunc(func() { close(stop) })
	t.Cleanup(end)
	go func() {
		longest := time.Duration(0)
		for stopped := false; !stopped; {
			begun := time.Now()
			select {
			case <-stop:
				stopped = true
			case <-time.After(5 * time.Millisecond):
				server.Try("PING")
			}
			longest = max(longest, time.Since(begun)-5*time.Millisecond)
		}
		slowest <- longest
	}()
	return func() time.Duration {
		end()
		return 4 * <-slowest
	}
}

func TestAServerThatIsTooSlowForItsCallersIsOverloaded(t *testing.T) {
	t.Parallel()
	server := servertest.NewRedis(t)
	s := open(t, "redis://"+server.Addr)
	s.QueueTimeout = 20 * time.Millisecond
	th := throttler.New(s)
	_, err := th.Authorize(context.Background(), rule("a", 5))
	require.NoError(t, err)
	unpause := pauseWrites(server)
	first := newSingle("first", true)
	s.Start(first)
	awaitUnderWay(t, s, 1, 0)
	const late = 10 // a second bundle goes out for more
	var wg sync.WaitGroup
	for i := range late {
		wg.Go(func() {
			d, err := th.Authorize(context.Background(), rule(strconv.Itoa(i), 5))
			assert.NoError(t, err)
			assert.ErrorIs(t, d.Err, throttler.ErrOverloaded)
			assert.NotErrorIs(t, d.Err, throttler.ErrUnavailable)
		})
	}
	awaitUnderWay(t, s, 1, late)
	time.Sleep(time.Second) // longer than a process that is short of processor time lets them wait
	unpause()
	wg.Wait()
	require.NoError(t, (<-first.done).Err)
	require.EqualValues(t, late, s.Stats()[0].Overloads)
	require.False(t, s.Stats()[0].Down)
}

// A new record is written without the script, and the server refuses that even if another process
// has written the record.
func TestAServerWithoutMemoryFailsOpenForNewHitsAlone(t *testing.T) {
	t.Parallel()
	server := servertest.NewRedis(t, "--maxmemory", "3mb", "--maxmemory-policy", "noeviction")
	other, s := open(t, "redis://"+server.Addr), open(t, "redis://"+server.Addr)
	require.Equal(t, 2, admitted(t, rule("full", 2), 1, s))
	require.Equal(t, 2, admitted(t, rule("filled", 2), 1, other))
	server.Command("CONFIG", "SET", "maxmemory", "1")
	requireFull(t, s, "full", 2)
	filled := decide(t, s, "filled")
	require.NoError(t, filled.Err)
	require.Equal(t, throttler.Blocked, filled.Status)
	d, err := throttler.New(s).Authorize(context.Background(), rule("new", 2))
	require.NoError(t, err)
	require.Equal(t, throttler.Authorized, d.Status)
	require.ErrorContains(t, d.Err, "raise maxmemory")
	require.NotErrorIs(t, d.Err, throttler.ErrUnavailable)
	require.False(t, s.Stats()[0].Down)
}

// A server that hangs accepts connections.
func TestWhatAServerThatHangsIsAskedEndsWithItsCtx(t *testing.T) {
	t.Parallel()
	for name, ask := range map[string]func(*redisstore.Store, context.Context) error{
		"Check": (*redisstore.Store).Check,
		"Keys": func(s *redisstore.Store, ctx context.Context) (err error) {
			for _, err = range s.Keys(ctx) {
			}
			return err
		},
	} {
		for _, connected := range []bool{false, true} {
			var hangs atomic.Bool
			hung := make(chan struct{})
			s := open(t, "redis://"+servertest.Serve(t, func(nc net.Conn) {
				if hangs.Load() {
					io.Copy(io.Discard, nc)
					return
				}
				converse(nc, "7.0.0", alone(func(args []string) string {
					if hangs.Load() {
						<-hung
						return "" // ends the connection
					}
					switch args[0] {
					case "INFO":
						return "$8\r\nrun_id:a"
					case "SCAN":
						return "*2\r\n$1\r\n0\r\n*0"
					}
					return ":1"
				}))
			}))
			t.Cleanup(func() { close(hung) })
			s.Timeout = time.Minute // connections have half an hour
			require.NoError(t, writeIn(s, true))
			if connected {
				require.NoError(t, ask(s, context.Background()))
			}
			hangs.Store(true)
			ctx, cancel := context.WithCancel(context.Background())
			time.AfterFunc(50*time.Millisecond, cancel)
			ended := make(chan error, 1)
			go func() { ended <- ask(s, ctx) }()
			select {
			case err := <-ended:
				require.ErrorIs(t, err, context.Canceled)
			case <-time.After(20 * time.Second):
				require.Fail(t, "it does not end", "%s, connected: %t", name, connected)
			}
		}
	}
}

func TestWhatAServerForgetsIsNoticed(t *testing.T) {
	t.Parallel()
	server := servertest.NewRedis(t, "--maxmemory", "3mb", "--maxmemory-policy", "allkeys-lru")
	s := open(t, "redis://"+server.Addr)
	var evicted atomic.Uint64
	s.Forgot = func(_ string, l pool.Loss) { evicted.Add(l.Evictions) }
	require.NoError(t, s.Check(context.Background()))
	server.Command("FLUSHALL")
	server.Command("FLUSHDB")
	require.NoError(t, s.Check(context.Background()))
	require.Equal(t, pool.Loss{Flushes: 2}, s.Stats()[0].Loss)
	server.Kill()
	require.ErrorIs(t, s.Check(context.Background()), throttler.ErrUnavailable)
	server.Start()
	require.Eventually(t, func() bool { return s.Check(context.Background()) == nil }, 30*time.Second, time.Millisecond)
	require.Equal(t, pool.Loss{Flushes: 2, Restarts: 1}, s.Stats()[0].Loss)
	for i := 0; evicted.Load() == 0; i++ {
		require.Less(t, i, 30_000)
		require.NoError(t, decide(t, s, strconv.Itoa(i)).Err)
		if i%1000 == 0 {
			require.NoError(t, s.Check(context.Background()))
		}
	}
	stats := s.Stats()[0]
	require.Equal(t, pool.Loss{Flushes: 2, Restarts: 1, Evictions: evicted.Load()}, stats.Loss)
	require.EqualValues(t, 3<<20, stats.MaxBytes)
	require.NotZero(t, stats.Bytes)
}

// A failover forgets what was not replicated, at most Max hits of each value. The store
// uses the new primary within a second of Sentinel naming it.
func TestAFailoverOfSentinel(t *testing.T) {
	t.Parallel()
	for _, killed := range []bool{false, true} {
		t.Run(fmt.Sprintf("killed=%t", killed), func(t *testing.T) {
			t.Parallel()
			w := servertest.NewSentinel(t)
			s := open(t, "redis://"+w.Sentinel.Addr+"?master_set=mymaster")
			values, max := names(10), 400
			c := gather(t, max, values, s)
			require.Eventually(t, func() bool { return c.count("v0") > 20 }, 30*time.Second, time.Millisecond)
			if killed {
				w.Primary.Kill() // which Sentinel now notices soon
				w.Sentinel.Command("SENTINEL", "SET", "mymaster", "down-after-milliseconds", "500")
			} else {
				require.Eventually(t, func() bool { // it must know the replica well
					_, err := w.Sentinel.Try("SENTINEL", "FAILOVER", "mymaster")
					return err == nil
				}, time.Minute, 10*time.Millisecond)
			}
			require.Eventually(t, func() bool {
				role, err := w.Replica.Try("ROLE")
				return err == nil && strings.HasPrefix(role, "master")
			}, time.Minute, time.Millisecond)
			promoted := time.Now()
			for w.PrimaryAddr() != w.Replica.Addr { // before that, nobody can know
				require.Less(t, time.Since(promoted), time.Minute)
				time.Sleep(time.Millisecond)
			}
			named, late := time.Now(), pingMeanwhile(t, w.Replica)
			th := throttler.New(s)
			for i := 0; ; i++ {
				d, err := th.Authorize(context.Background(), rule("after"+strconv.Itoa(i), 5))
				require.NoError(t, err)
				stored, _ := w.Replica.Try("EXISTS", "test#ip#after"+strconv.Itoa(i))
				if d.Err == nil && stored == "1" {
					break
				}
				require.Less(t, time.Since(named), time.Minute)
				time.Sleep(time.Millisecond)
			}
			took := time.Since(named)
			lateness := late()
			require.Eventually(t, func() bool {
				for _, value := range values {
					d, err := th.Peek(context.Background(), rule(value, max))
					if err != nil || d.Err != nil || d.Status != throttler.Blocked {
						return false
					}
				}
				return true
			}, 2*time.Minute, 10*time.Millisecond)
			c.disperse()
			more := 0
			for _, value := range values {
				require.LessOrEqual(t, c.count(value), 2*max)
				more += c.count(value) - max
			}
			t.Logf("named %v after the promotion, back %v later, %v late, %d of %d hits more, %d calls failed",
				named.Sub(promoted), took, lateness, more, max*len(values), len(c.failed))
			require.Less(t, took, time.Second+lateness)
			c.requireUnavailable(t)
		})
	}
}
