package throttler_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/internal/containertest"
	"github.com/adaptivethrottler/throttler/internal/servertest"
	"github.com/adaptivethrottler/throttler/internal/skiptest"
	"github.com/adaptivethrottler/throttler/pool"
	"github.com/bradfitz/gomemcache/memcache"
	"github.com/stretchr/testify/require"
)

func TestBehavioursOverMemcached(t *testing.T) {
	t.Parallel()
	testBehavioursOver(t, servertest.AnyMemcached(t))
}

func TestBehavioursOverContainer(t *testing.T) {
	t.Parallel()
	testBehavioursOver(t, containertest.Memcached(t))
}

func testBehavioursOver(t *testing.T, server *servertest.Memcached) {
	testBehaviours(t, func(tb testing.TB) throttler.Client { return clientOf(tb, server.Addr) })
}

// clientOf returns a client of its own for each caller.
func clientOf(tb testing.TB, addrs ...string) *memcache.Client {
	c := memcache.New(addrs...)
	c.Timeout = 20 * time.Second // a busy machine is no failure of the server
	c.MaxIdleConns = 64
	tb.Cleanup(func() { c.Close() })
	return c
}

// sceneOn returns a scene on a memcached server.
func sceneOn(t *testing.T, server *servertest.Memcached) *scene {
	return newScene(t, func(tb testing.TB) throttler.Client { return clientOf(tb, server.Addr) })
}

// TestMain lets the tests start their own binary as a process that calls a rule.
func TestMain(m *testing.M) {
	if j := os.Getenv(jobVariable); j != "" {
		if err := work(j); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(skiptest.Run(m))
}

const jobVariable = "THROTTLER_TEST_JOB"

// A job is a number of calls that are made at once.
type job struct {
	Addr  string // of the server
	Rule  throttler.Rule
	Calls int  // each on a goroutine of its own
	Times int  // how often each of them calls
	Pool  bool // over package pool
}

// A tally is what came of a job.
type tally struct{ Authorized, Blocked, Failed int }

// do makes the calls, after start is closed.
func (j job) do(start <-chan struct{}) (total tally) {
	client, end := j.client()
	defer end()
	th := throttler.New(client)
	var mu sync.Mutex
	var wg sync.WaitGroup
	for range j.Calls {
		wg.Go(func() {
			<-start
			for range j.Times {
				d, err := th.Authorize(context.Background(), j.Rule)
				mu.Lock()
				total.add(d, err)
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	return total
}

// client returns a client that is patient, and how to close it.
func (j job) client() (client throttler.Client, end func() error) {
	if j.Pool {
		p, err := pool.New(j.Addr)
		if err != nil {
			panic(err)
		}
		bePatient(p)
		return p, p.Close
	}
	c := memcache.New(j.Addr)
	c.Timeout = 20 * time.Second
	c.MaxIdleConns = j.Calls
	return c, c.Close
}

func (t *tally) add(d throttler.Decision, err error) {
	switch {
	case err != nil || d.Err != nil:
		t.Failed++
	case d.Status == throttler.Authorized:
		t.Authorized++
	default:
		t.Blocked++
	}
}

// work is the life of a process: it says that it is ready, waits for its input
// to end, and writes what came of its job.
func work(encoded string) error {
	var j job
	if err := json.Unmarshal([]byte(encoded), &j); err != nil {
		return err
	}
	fmt.Println("ready")
	start := make(chan struct{})
	go func() {
		io.Copy(io.Discard, os.Stdin)
		close(start)
	}()
	return json.NewEncoder(os.Stdout).Encode(j.do(start))
}

// inProcesses has n processes do j at the same time.
func inProcesses(t *testing.T, n int, j job) tally {
	encoded, err := json.Marshal(j)
	require.NoError(t, err)
	var inputs []io.Closer
	var outputs []*json.Decoder
	for range n {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), jobVariable+"="+string(encoded))
		cmd.Stderr = os.Stderr
		in, err := cmd.StdinPipe()
		require.NoError(t, err)
		out, err := cmd.StdoutPipe()
		require.NoError(t, err)
		require.NoError(t, cmd.Start())
		t.Cleanup(func() {
			in.Close()
			require.NoError(t, cmd.Wait())
		})
		ready := make([]byte, len("ready\n"))
		_, err = io.ReadFull(out, ready)
		require.NoError(t, err)
		inputs, outputs = append(inputs, in), append(outputs, json.NewDecoder(out))
	}
	for _, in := range inputs {
		require.NoError(t, in.Close())
	}
	var total tally
	for _, out := range outputs {
		var one tally
		require.NoError(t, out.Decode(&one))
		total.Authorized += one.Authorized
		total.Blocked += one.Blocked
		total.Failed += one.Failed
	}
	return total
}

func Test4ProcessesAreAdmittedExactlyMax(t *testing.T) {
	t.Parallel()
	server := servertest.AnyMemcached(t)
	eachAlgorithm(t, 50, func(t *testing.T, c throttler.Condition) {
		for _, overPool := range []bool{false, true} {
			rule := throttler.Rule{Identifier: uniqueID(), Either: []throttler.Condition{c}, Lockout: time.Hour}
			got := inProcesses(t, 4, job{Addr: server.Addr, Rule: rule, Calls: 16, Times: 10, Pool: overPool})
			require.Equal(t, tally{Authorized: 50, Blocked: 4*16*10 - 50}, got)
		}
	})
}

// A call that is counted by one condition and refused by the other is given
// back to the first. Until it is, the first may look full to others, so more
// may be refused than need be; but nothing is lost in the end.
func TestRefusedCallsOfManyAreGivenBack(t *testing.T) {
	t.Parallel()
	server := servertest.AnyMemcached(t)
	for range 5 {
		s := sceneOn(t, server)
		large, small := limit("large", 12, time.Hour), limit("small", 7, time.Hour)
		rule := s.either(large, small)
		rule.CountAuthorizedOnly = true
		got := s.callAtOnce(32, rule)
		require.Zero(t, got.Failed)
		require.LessOrEqual(t, got.Authorized, 7)
		s.requireCounted(got.Authorized, s.either(large))
		s.requireCounted(got.Authorized, s.either(small))
		for range 7 - got.Authorized {
			s.requireAuthorized(rule)
		}
		require.Equal(t, []string{"small"}, s.requireBlocked(rule).Messages)
		s.requireCounted(7, s.either(large))
	}
}

// With buckets rather too little is given back than too much.
func TestBucketsAreNotGivenBackTooMuch(t *testing.T) {
	t.Parallel()
	server := servertest.AnyMemcached(t)
	for range 5 {
		s := sceneOn(t, server)
		large, small := limit("large", 12, 1000*time.Hour), limit("small", 7, 1000*time.Hour)
		large.Algorithm, small.Algorithm = throttler.LeakyBucket, throttler.LeakyBucket
		rule := s.either(large, small)
		rule.CountAuthorizedOnly = true
		got := s.callAtOnce(32, rule)
		require.Zero(t, got.Failed)
		require.LessOrEqual(t, got.Authorized, 7)
		for _, c := range []throttler.Condition{large, small} {
			held := s.counted(s.either(c))
			require.GreaterOrEqual(t, held, got.Authorized)
			t.Logf("%s: %d authorized, %d held", c.Name, got.Authorized, held)
		}
	}
}

// callAtOnce makes n calls, all of which have read before any of them writes.
func (s *scene) callAtOnce(n int, rule throttler.Rule) (total tally) {
	decisions, errs := decideAtOnce(meet(s.client, n), n, rule)
	for i := range n {
		total.add(decisions[i], errs[i])
	}
	return total
}

// decideAtOnce makes n calls, each as in a process of its own.
func decideAtOnce(client throttler.Client, n int, rule throttler.Rule) ([]throttler.Decision, []error) {
	decisions, errs := make([]throttler.Decision, n), make([]error, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			th := throttler.New(client)
			th.QueueTimeout = 20 * time.Second // a busy machine is no overload
			decisions[i], errs[i] = th.Authorize(context.Background(), rule)
		})
	}
	wg.Wait()
	return decisions, errs
}

// expiryOnServer returns how many seconds the server will keep the record, -1
// for ever.
func expiryOnServer(t *testing.T, server *servertest.Memcached, key string) int64 {
	answer := server.Command(t, "mg "+key+" t")
	require.Regexp(t, `^HD t-?\d+$`, answer[0])
	seconds, err := strconv.ParseInt(strings.TrimPrefix(answer[0], "HD t"), 10, 64)
	require.NoError(t, err)
	return seconds
}

// memcached reads more than 30 days as a date, in 1970 for the original. A
// 40-day ban of its did not hold at all.
func TestBansBeyond30DaysHold(t *testing.T) {
	t.Parallel()
	server := servertest.AnyMemcached(t)
	for _, days := range []time.Duration{29, 30, 31, 40, 400} {
		s := sceneOn(t, server)
		length := days * 24 * time.Hour
		rule := s.either(limit("c", 1, time.Minute))
		rule.Lockout = length
		s.requireAuthorized(rule)
		requireAbout(t, length, s.requireBlocked(rule).RetryAfter)

		seconds := expiryOnServer(t, server, s.key(rule))
		require.GreaterOrEqual(t, seconds, int64(length/time.Second))
		require.Less(t, seconds, int64((length+2*time.Hour)/time.Second))
		held := s.requireBlocked(rule)
		require.True(t, held.Outcomes[0].Banned)
		require.Greater(t, held.RetryAfter, length-time.Hour)
	}
}

// What should last beyond 2038, the end of memcached's dates, lasts until then.
func TestLongestBansAndWindowsAreKept(t *testing.T) {
	t.Parallel()
	server := servertest.AnyMemcached(t)
	s := sceneOn(t, server)
	const century = 100 * 365 * 24 * time.Hour
	banned := s.either(limit("banned", 1, time.Minute))
	banned.Lockout = century
	window, bucket := s.either(limit("window", 1, century)), s.either(limit("bucket", 1, century))
	bucket.Either[0].Algorithm = throttler.LeakyBucket
	for _, rule := range []throttler.Rule{banned, window, bucket} {
		s.requireAuthorized(rule)
		require.Greater(t, s.requireBlocked(rule).RetryAfter, time.Duration(0))
		require.Greater(t, expiryOnServer(t, server, s.key(rule)), int64(365*24*60*60))
		s.requireBlocked(rule)
	}
}

// The original gave the whole list the newest, shorter expiry.
func TestShorterTTLDoesNotShortenTheExpiryOfTheRecord(t *testing.T) {
	t.Parallel()
	server := servertest.AnyMemcached(t)
	s := sceneOn(t, server)
	s.requireAuthorized(s.either(limit("c", 3, time.Hour)))
	rule := s.either(limit("c", 3, time.Second))
	s.requireAuthorized(rule)
	require.Greater(t, expiryOnServer(t, server, s.key(rule)), int64(3500))
}

// Whatever calls do, an item goes by itself when it is not needed any more.
func TestEveryItemOnTheServerHasAnExpiry(t *testing.T) {
	t.Parallel()
	server := servertest.NewMemcached(t)
	s := sceneOn(t, server)
	ctx := context.Background()
	for i, value := range append(s.hostile(), "x") {
		window, bucket, banned := limit("window", 2, time.Hour), limit("bucket", 2, time.Hour), limit("banned", 1, 90*24*time.Hour)
		bucket.Algorithm = throttler.LeakyBucket
		banned.Lockout = time.Duration(1+i) * 20 * 24 * time.Hour
		window.Value, bucket.Value, banned.Value = value, value, value
		canceled := window
		canceled.Name = "canceled"
		s.cancel(s.requireAuthorized(s.either(canceled)))
		rule := s.either(window, bucket, banned)
		rule.LockoutGrowth = 3
		s.requireAuthorized(rule)
		s.requireBlocked(rule)
		rule.Shadow, rule.CountAuthorizedOnly = true, true
		s.requireAuthorized(rule)
		s.call(s.throttler.Wait, s.all(window, limit("waited for", 100, time.Second)))
	}
	foreign := s.either(limit("foreign", 2, time.Hour))
	require.NoError(t, s.client.Add(&memcache.Item{Key: s.key(foreign), Value: []byte("for ever")}))
	require.EqualValues(t, -1, expiryOnServer(t, server, s.key(foreign)))
	s.requireAuthorized(foreign)
	require.NoError(t, s.throttler.Reset(ctx, s.either(limit("never used", 1, time.Hour))))

	var items []string
	require.Eventually(t, func() bool { // memcached crawls by itself now and then
		items = server.Command(t, "lru_crawler metadump all")
		return len(items) != 1 || !strings.HasPrefix(items[0], "BUSY")
	}, 30*time.Second, 10*time.Millisecond)
	require.Greater(t, len(items), 3*len(s.hostile()))
	for _, item := range items {
		require.Contains(t, item, " exp=")
		require.NotContains(t, item, " exp=-1 ")
		require.NotContains(t, item, " exp=0 ")
	}
}

// The 32 calls have all read the same full window before any of them goes on.
func TestBanFoundBy32CallsAtOnceIsSetOnce(t *testing.T) {
	t.Parallel()
	const n = 32
	s := sceneOn(t, servertest.AnyMemcached(t))
	rule := s.either(limit("c", 1, time.Hour))
	rule.Lockout = 2 * time.Hour
	s.requireAuthorized(rule)

	rec := &recorder{Client: meet(s.client, n)}
	decisions, errs := decideAtOnce(rec, n, rule)
	lost := 0
	for i, d := range decisions {
		require.NoError(t, errs[i])
		require.NoError(t, d.Err)
		require.True(t, d.Outcomes[0].Banned)
		lost += d.Outcomes[0].LostRaces
	}
	require.Equal(t, n-1, lost, "each but one was too late once")
	require.Len(t, rec.stored, 1)
	for range 10 {
		s.requireBlocked(rule)
	}
	require.Equal(t, rec.stored[0], s.record(rule).Value, "and nothing has moved it since")
}

// In the original, as in others, a call that had read the list before a ban was
// set wrote it back afterwards, and the ban was gone.
func TestLateWriteErasesNoBan(t *testing.T) {
	t.Parallel()
	s := sceneOn(t, servertest.AnyMemcached(t))
	rule := s.either(limit("c", 2, time.Hour))
	rule.Lockout = 2 * time.Hour
	s.requireAuthorized(rule)

	late, arrived, held := over(s.newClient(t)), make(chan struct{}), make(chan struct{})
	late.before = func(op string, _ ...string) error {
		if op == "cas" {
			close(arrived)
			<-held
		}
		return nil
	}
	var d throttler.Decision
	var err error
	done := make(chan struct{})
	go func() {
		defer close(done)
		d, err = throttler.New(late).Authorize(context.Background(), rule)
	}()
	<-arrived // it has found room for its hit, and is about to write
	s.requireAuthorized(rule)
	set := s.requireBlocked(rule)
	require.True(t, set.Outcomes[0].Banned)
	before := s.record(rule)
	close(held)
	<-done

	require.NoError(t, err)
	require.NoError(t, d.Err)
	require.True(t, d.Outcomes[0].Banned, "it has looked again")
	require.Equal(t, 1, d.Outcomes[0].LostRaces)
	require.Equal(t, before, s.record(rule))
}
