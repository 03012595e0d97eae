package throttler_test

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/internal/containertest"
	"github.com/adaptivethrottler/throttler/internal/servertest"
	"github.com/adaptivethrottler/throttler/internal/upstream"
	"github.com/adaptivethrottler/throttler/memstore"
	"github.com/adaptivethrottler/throttler/pool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The figures in docs/operations.md come from
//
//	go test -v -run OfThree ./test -outage 10s
//
// on two cores, over 127.0.0.1, with memcached 1.6.18 and Go 1.26. Calls of the other two
// servers took 5.7 ms at most, and none failed. The server was used again 0.8 s after a cut or
// a hang ended, and 0.01 s after a kill. With a Fallback, a value may have its Max hits three
// times: before the outage, during it, and after it if the server comes back empty.
var outageTime = flag.Duration("outage", 0, "let each outage last this long, with the pool's default settings; 0: until enough calls have met it, with timeouts that no busy machine reaches")

const (
	outageCallers = 6
	outageValues  = 120 // on each server
	outageLimit   = 5
)

// An outage befalls the second of three servers while several goroutines make
// calls. Each value is tried more often than it may be, by all of them at the
// same time, in rules of one condition and in rules with one on each server.
type outage struct {
	servers   [3]*servertest.Memcached
	pool      *pool.Pool
	throttler *throttler.Throttler
	values    [3][]string // by the server that keeps them

	failing  atomic.Bool // failures of the second server are expected
	next     atomic.Int64
	admitted [3][outageValues]atomic.Int64

	calls, failed, refused, waited atomic.Int64 // of conditions on the second server
	slowest, slowestElsewhere      longest

	stop    chan struct{}
	callers sync.WaitGroup
}

const sick = 1 // which of the servers has the outage

// longest is the longest of several times.
type longest struct{ atomic.Int64 }

func (l *longest) note(d time.Duration) {
	for most := l.Load(); int64(d) > most && !l.CompareAndSwap(most, int64(d)); most = l.Load() {
	}
}

func (l *longest) String() string {
	return time.Duration(l.Load()).Round(10 * time.Microsecond).String()
}

// Timeouts of the pool that no busy machine reaches. The calls of a server that hangs, or is cut
// off, wait for them, but fewer of them.
const (
	timeoutOfKilled = 10 * time.Second
	timeoutOfHung   = 3 * time.Second
)

// underLoad begins the calls, which end with the test.
func underLoad(t *testing.T, servers [3]*servertest.Memcached, fallback throttler.Client, timeout time.Duration) *outage {
	t.Helper()
	p, err := pool.New(servers[0].Addr, servers[1].Addr, servers[2].Addr)
	require.NoError(t, err)
	if *outageTime == 0 {
		p.Timeout, p.DialTimeout = timeout, timeout
		p.BreakerPause = 100 * time.Millisecond
		if timeout == timeoutOfHung {
			p.BreakerFailures = 2
		}
	} else {
		p.Timeout, p.DialTimeout, p.BreakerPause = poolTimeout, poolTimeout, poolPause
	}
	o := &outage{servers: servers, pool: p, throttler: throttler.New(p), stop: make(chan struct{})}
	o.throttler.Fallback = fallback
	o.findValues(t)
	for range outageCallers {
		o.callers.Go(func() { o.call(t) })
	}
	t.Cleanup(func() {
		o.end()
		p.Close()
	})
	return o
}

// end stops the calls.
func (o *outage) end() {
	select {
	case <-o.stop:
	default:
		close(o.stop)
	}
	o.callers.Wait()
}

// rule is a rule of a condition for each of the values.
func (o *outage) rule(values ...string) throttler.Rule {
	r := throttler.Rule{Identifier: "outage", Lockout: time.Hour}
	for i, v := range values {
		r.Either = append(r.Either, throttler.Condition{Name: fmt.Sprint("c", i), Value: v, Max: outageLimit, TTL: time.Hour})
	}
	return r
}

// findValues finds out which values are kept by which server. Those of server i
// are for condition i.
func (o *outage) findValues(t *testing.T) {
	t.Helper()
	for i := 0; len(o.values[0])+len(o.values[1])+len(o.values[2]) < 3*outageValues; i++ {
		value := fmt.Sprint(i)
		for server := range o.values {
			if len(o.values[server]) == outageValues {
				continue
			}
			before := o.pool.Stats()[server].Calls
			_, err := o.pool.GetMulti([]string{throttler.RecordKey("outage", fmt.Sprint("c", server), value)})
			require.NoError(t, err)
			if o.pool.Stats()[server].Calls > before {
				o.values[server] = append(o.values[server], value)
			}
		}
	}
}

// call makes calls until stop.
func (o *outage) call(t *testing.T) {
	for {
		select {
		case <-o.stop:
			return
		case <-time.After(time.Millisecond): // to leave some of the machine to others
		}
		i := int(o.next.Add(1)/(2*outageLimit)) % outageValues
		rule := o.rule(o.values[0][i], o.values[1][i], o.values[2][i])
		if i%2 == 0 {
			o.authorize(t, rule, i, 0)
			continue
		}
		for server, c := range rule.Either {
			alone := rule
			alone.Either = []throttler.Condition{c}
			o.authorize(t, alone, i, server)
		}
	}
}

// authorize makes a call whose first condition is on the given server, and those
// that follow on the next ones.
func (o *outage) authorize(t *testing.T, rule throttler.Rule, value, server int) {
	failing := o.failing.Load()
	begin := time.Now()
	d, err := o.throttler.Authorize(context.Background(), rule)
	took := time.Since(begin)
	assert.NoError(t, err)
	failing = failing || o.failing.Load()

	o.slowest.note(took)
	if len(d.Outcomes) == 1 && server != sick {
		o.slowestElsewhere.note(took)
	}
	for i, outcome := range d.Outcomes {
		if !outcome.Blocked {
			o.admitted[server+i][value].Add(1)
		}
		if server+i == sick {
			o.note(t, outcome.Err, took, failing)
		} else {
			assert.NoError(t, outcome.Err, "on a server that is well")
		}
	}
}

// note counts what became of a condition on the sick server.
func (o *outage) note(t *testing.T, err error, took time.Duration, failing bool) {
	o.calls.Add(1)
	if err == nil {
		return
	}
	assert.True(t, failing, "while all is well: %v", err)
	if took >= o.pool.Timeout {
		o.waited.Add(1)
	}
	if errors.Is(err, upstream.ErrDown) {
		o.refused.Add(1)
	} else {
		o.failed.Add(1)
	}
}

// untilDown waits until the sick server is, or is not, taken to be down.
func (o *outage) untilDown(t *testing.T, down bool) {
	t.Helper()
	require.Eventually(t, func() bool { return o.pool.Stats()[sick].Down == down }, 30*time.Second, time.Millisecond)
}

// more waits for n more calls of the sick server.
func (o *outage) more(t *testing.T, n int64) {
	t.Helper()
	until := o.calls.Load() + n
	require.Eventually(t, func() bool { return o.calls.Load() >= until }, 30*time.Second, time.Millisecond)
}

// befall lets the outage begin and end, and checks what came of it.
func (o *outage) befall(t *testing.T, begin, end func(), forgets bool) {
	t.Helper()
	o.more(t, 300)
	full := min(int(o.next.Load())/(2*outageLimit)-outageCallers, outageValues)
	began := time.Now()
	o.failing.Store(true)
	begin()
	o.untilDown(t, true)
	o.more(t, 1000)
	time.Sleep(*outageTime - time.Since(began))
	end()
	returned := time.Now()
	o.untilDown(t, false)
	noticed := time.Now()

	t.Logf("outage of %v, noticed to be over after %v: %d calls of the server, of which %d failed, %d were refused at once; "+
		"%d waited for a timeout (%.2f %%); slowest call %v, of the other servers alone %v",
		returned.Sub(began).Round(time.Millisecond), noticed.Sub(returned).Round(time.Millisecond),
		o.calls.Load(), o.failed.Load(), o.refused.Load(),
		o.waited.Load(), 100*float64(o.waited.Load())/float64(o.calls.Load()), &o.slowest, &o.slowestElsewhere)
	// Those in a row, and what was under way beside them. The probes are nobody's calls.
	// A call that an old connection still answers may come in between, once.
	bound := 2 * (cmp.Or(o.pool.BreakerFailures, poolFailures) + 1) * outageCallers
	require.LessOrEqual(t, o.failed.Load(), int64(bound), "a lost connection fails all that share it")
	require.LessOrEqual(t, o.waited.Load(), int64(bound))

	o.failing.Store(false)
	o.more(t, 300)
	o.end()
	o.checkTheOthers(t)
	o.checkLimited(t, full, forgets)
}

// checkTheOthers checks that the servers that are well have admitted what they
// may.
func (o *outage) checkTheOthers(t *testing.T) {
	t.Helper()
	tried := min(int(o.next.Load())/(2*outageLimit), outageValues)
	for _, server := range []int{0, 2} {
		for i := range outageValues {
			n := o.admitted[server][i].Load()
			require.LessOrEqual(t, n, int64(outageLimit), "over-admitted")
			if i < tried-outageCallers {
				require.Equal(t, int64(outageLimit), n)
			}
		}
	}
}

// checkLimited checks that the server that is back limits every value again.
// Those before full were banned before the outage.
func (o *outage) checkLimited(t *testing.T, full int, forgets bool) {
	t.Helper()
	for i, value := range o.values[sick] {
		rule := o.rule("", value)
		rule.Either = rule.Either[1:]
		if d := authorize(t, o.throttler, rule); !forgets && i < full {
			require.True(t, d.Outcomes[0].Banned, "forgotten")
		}
		for range outageLimit - 1 {
			authorize(t, o.throttler, rule)
		}
		d := authorize(t, o.throttler, rule)
		require.NoError(t, d.Err)
		require.True(t, d.Outcomes[0].Banned, "not limited")
	}
}

// three starts three servers.
func three(t *testing.T, start func(testing.TB, ...string) *servertest.Memcached) (servers [3]*servertest.Memcached) {
	for i := range servers {
		servers[i] = start(t)
	}
	return servers
}

func TestOneOfThreeServersIsKilled(t *testing.T) {
	t.Parallel()
	o := underLoad(t, three(t, servertest.NewMemcached), nil, timeoutOfKilled)
	o.befall(t, o.servers[sick].Kill, o.servers[sick].Start, true)
}

func TestOneOfThreeServersHangs(t *testing.T) {
	t.Parallel()
	o := underLoad(t, three(t, servertest.NewMemcached), nil, timeoutOfHung)
	o.befall(t, o.servers[sick].Pause, o.servers[sick].Resume, false)
}

// The fallback lets each value through as often as the limit says, beside what
// the server did before the outage and does after it.
func TestOneOfThreeServersIsKilledWithAFallback(t *testing.T) {
	t.Parallel()
	o := underLoad(t, three(t, servertest.NewMemcached), memstore.New(), timeoutOfKilled)
	o.befall(t, o.servers[sick].Kill, o.servers[sick].Start, true)
	for i := range o.admitted[sick] {
		require.LessOrEqual(t, o.admitted[sick][i].Load(), int64(3*outageLimit))
	}
}

// Behind a published port, a container that is paused still accepts, and one that
// is killed takes its port and its network with it.
func TestOneOfThreeContainersIsPausedAndKilled(t *testing.T) {
	t.Parallel()
	servers := three(t, containertest.Memcached)
	t.Run("paused", func(t *testing.T) {
		o := underLoad(t, servers, nil, timeoutOfHung)
		o.befall(t, servers[sick].Pause, servers[sick].Resume, false)
	})
	for _, server := range servers {
		server.Command(t, "flush_all")
	}
	t.Run("killed", func(t *testing.T) {
		o := underLoad(t, servers, nil, timeoutOfKilled)
		o.befall(t, servers[sick].Kill, servers[sick].Start, true)
	})
}
