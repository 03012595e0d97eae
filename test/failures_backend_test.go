package throttler_test

import (
	"context"
	"errors"
	"fmt"
	"github.com/adaptivethrottler/throttler/internal/coalesce"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/memstore"
	"github.com/bradfitz/gomemcache/memcache"
	"github.com/stretchr/testify/require"
)

// What a call answers when its backend fails, by a client that fails as it is told.

func TestFailingBackendOpensItsConditionsAndSaysSo(t *testing.T) {
	for _, op := range []string{"get", "add"} {
		client := newFaulty()
		client.before = failing(errDown, "", op)
		d := authorize(t, throttler.New(client), either(condition("a", 3, time.Minute)))
		require.Equal(t, throttler.Authorized, d.Status)
		require.Equal(t, errDown, d.Err)
		require.Equal(t, throttler.Outcome{Name: "a", Limit: 3, Remaining: 3, Err: errDown}, d.Outcomes[0])
	}
}

func TestDeadServerOpensOnlyItsOwnConditions(t *testing.T) {
	const dead = "test#dead#v"
	for name, err := range map[string]error{"plain error": errDown, "error by key": keyed{dead}} {
		t.Run(name, func(t *testing.T) {
			client := &partial{faulty: newFaulty(), dead: dead, err: err}
			client.before = failing(errDown, dead, "get", "add", "cas")
			th := throttler.New(client)
			rule := either(condition("dead", 1, time.Minute), condition("alive", 2, time.Minute))
			for i := range 2 {
				d := authorize(t, th, rule)
				require.Equal(t, throttler.Authorized, d.Status)
				require.Equal(t, errDown, d.Err)
				require.Equal(t, errDown, d.Outcomes[0].Err)
				require.NoError(t, d.Outcomes[1].Err)
				require.Equal(t, 1-i, d.Outcomes[1].Remaining, "it counts")
			}
			for _, d := range []throttler.Decision{peek(t, th, rule), authorize(t, th, rule)} {
				require.Equal(t, throttler.Blocked, d.Status, "it blocks")
				require.Equal(t, []string{"alive is full"}, d.Messages)
				require.ErrorIs(t, d.Err, errDown)
			}
			// With all, the condition that nobody could look at is open.
			rule.All, rule.Either = rule.Either, nil
			require.Equal(t, throttler.Authorized, authorize(t, th, rule).Status)
		})
	}
}

func TestErrMatchesTheErrorOfEveryOutcome(t *testing.T) {
	client := newFaulty()
	other := errors.New("another server is down")
	client.before = func(op string, keys ...string) error {
		switch {
		case op == "add" && keys[0] == "test#a#v":
			return errDown
		case op == "add":
			return other
		}
		return nil
	}
	d := authorize(t, throttler.New(client), either(condition("a", 1, t1), condition("b", 1, t1), condition("c", 1, t1)))
	require.ErrorIs(t, d.Err, errDown)
	require.ErrorIs(t, d.Err, other)
	require.Equal(t, "server is down; another server is down", d.Err.Error())
}

// uncomparable is an error that == panics on if what it holds is a slice.
type uncomparable struct{ what any }

func (u uncomparable) Error() string { return fmt.Sprint(u.what) }

func TestErrorsThatCannotBeComparedAreReportedAll(t *testing.T) {
	client, down := newFaulty(), uncomparable{[]string{"down"}}
	client.before = failing(fmt.Errorf("wrapped: %w", down), "", "add")
	d := authorize(t, throttler.New(client), either(condition("a", 1, t1), condition("b", 1, t1)))
	require.Equal(t, throttler.Authorized, d.Status)
	require.ErrorAs(t, d.Err, new(uncomparable))
	client.before = failing(down, "", "add")
	d = authorize(t, throttler.New(client), either(condition("a", 1, t1), condition("b", 1, t1)))
	require.Equal(t, "[down]", d.Err.Error(), "one line, each text once")
}

func TestFullConditionBlocksEvenIfItsBanCannotBeSet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := newFaulty()
		th := throttler.New(client)
		rule := either(condition("a", 1, time.Minute))
		rule.Lockout = time.Hour
		authorize(t, th, rule)
		client.before = failing(errDown, "", "cas")
		for _, fallback := range []throttler.Client{nil, memstore.New()} {
			th.Fallback = fallback // knows of nothing, and is not asked
			d := authorize(t, th, rule)
			require.Equal(t, throttler.Blocked, d.Status)
			require.Equal(t, throttler.Outcome{
				Name: "a", Blocked: true, Limit: 1, RetryAfter: time.Minute, ResetAfter: time.Minute, Err: errDown,
			}, d.Outcomes[0])
		}
	})
}

// A ban that keeps the hits is too large for the store.
func TestFullConditionBlocksEvenIfItsBanDoesNotFitIntoMemory(t *testing.T) {
	th := throttler.New(&memstore.Store{MaxBytes: 31})
	rule := either(window(1, time.Hour), condition("other", 10, time.Hour))
	rule.Lockout, rule.LockoutGrowth, rule.CountAuthorizedOnly = time.Hour, 2, true
	require.Equal(t, throttler.Authorized, authorize(t, th, rule).Status)
	for range 2 {
		d := authorize(t, th, rule)
		require.Equal(t, throttler.Blocked, d.Status)
		require.True(t, d.Outcomes[0].Blocked)
		require.False(t, d.Outcomes[0].Banned)
		require.ErrorContains(t, d.Outcomes[0].Err, "too large")
	}
}

func TestBackendThatRefusesEveryWriteIsGivenUp(t *testing.T) {
	for _, err := range []error{memcache.ErrCASConflict, memcache.ErrNotStored, memcache.ErrCacheMiss} {
		client := newFaulty()
		th := throttler.New(client)
		rule := either(condition("a", 3, time.Minute))
		refuse := failing(err, "", "add", "cas")
		for range 2 {
			client.before = refuse
			client.took()
			d := authorize(t, th, rule)
			require.Equal(t, throttler.Authorized, d.Status)
			require.ErrorIs(t, d.Err, coalesce.ErrStalled)
			require.Len(t, client.took(), 2*(coalesce.MaxStalls+1))
			require.Equal(t, coalesce.MaxStalls+1, d.Outcomes[0].LostRaces)
			client.before = failing(nil, "")
			authorize(t, th, rule) // now there is a record
		}
	}
}

func TestBackendWhoseReadsAndWritesDisagreeIsGivenUp(t *testing.T) {
	client := &torn{faulty: newFaulty()}
	th := throttler.New(client)
	rule := either(condition("a", 3, time.Minute))
	first := authorize(t, th, rule)
	client.took()
	d := authorize(t, th, rule)
	require.Equal(t, throttler.Authorized, d.Status)
	require.ErrorIs(t, d.Err, coalesce.ErrStalled)
	require.Len(t, client.took(), 2*(coalesce.MaxLosses+3+1))
	require.ErrorIs(t, th.Cancel(t.Context(), first), coalesce.ErrStalled)
	require.Len(t, client.took(), 2*(coalesce.MaxLosses+1))
}

func TestResetReportsWhatItCouldNotDelete(t *testing.T) {
	client := newFaulty()
	th := throttler.New(client)
	rule := either(condition("a", 1, time.Minute), condition("b", 1, time.Minute))
	authorize(t, th, rule)
	client.before = failing(errDown, "test#a#v", "delete")
	require.ErrorIs(t, th.Reset(context.Background(), rule), errDown)
	client.before = failing(nil, "")
	d := authorize(t, th, rule)
	require.Equal(t, []string{"a is full"}, d.Messages, "the other one is gone")
}

// A slowness says that it is a timeout, and nothing else of itself.
type slowness struct{ error }

func (slowness) Timeout() bool { return true }

func TestErrorsOfAClientTellAServerThatDoesNotAnswer(t *testing.T) {
	for _, tt := range []struct {
		err         error
		unavailable bool
	}{
		{os.ErrDeadlineExceeded, true},
		{&memcache.ConnectTimeoutError{Addr: &net.TCPAddr{}}, true},
		{slowness{errDown}, true},
		{io.EOF, true},
		{io.ErrUnexpectedEOF, true},
		{net.ErrClosed, true},
		{&net.OpError{Op: "dial", Err: errDown}, true},
		{memcache.ErrNoServers, true},
		{memcache.ErrServerError, false},
		{errDown, false},
	} {
		client := newFaulty()
		client.before = failing(fmt.Errorf("of the client: %w", tt.err), "", "get")
		err := authorize(t, throttler.New(client), valued("hot")).Err
		require.ErrorIs(t, err, tt.err)
		require.Equal(t, tt.unavailable, errors.Is(err, throttler.ErrUnavailable), "%v", err)
	}
}

func TestResetTellsAServerThatDoesNotAnswer(t *testing.T) {
	plain := newFaulty()
	plain.before = failing(io.EOF, "", "delete")
	r := newRemote()
	r.Client = plain // which deletes
	for _, client := range []throttler.Client{plain, r} {
		err := throttler.New(client).Reset(t.Context(), valued("hot"))
		require.ErrorIs(t, err, throttler.ErrUnavailable)
		require.ErrorIs(t, err, io.EOF)
	}
}

// Calls of every kind, with contexts that end in their middle, over a backend
// that is slow and fails: nothing races, and nothing is left behind.
func TestAbandonedOperationsTouchNothingOfTheCall(t *testing.T) {
	client := newFaulty()
	client.before = func(string, ...string) error {
		switch rand.IntN(6) {
		case 0:
			time.Sleep(time.Duration(rand.IntN(3000)) * time.Microsecond)
		case 1:
			return errDown
		}
		return nil
	}
	th := throttler.New(client)
	th.Fallback = memstore.New()
	th.BlockCache, th.BlockCacheTTL = 5, time.Millisecond
	th.Observe = func(_ context.Context, _ throttler.Rule, d throttler.Decision) { _ = slices.Clone(d.Outcomes) }
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			for i := range 200 {
				callAndScribble(th, g+i)
			}
		})
	}
	wg.Wait()
}

// callAndScribble makes the nth call of a kind, whose ctx ends soon, and then
// overwrites all that is its caller's.
func callAndScribble(th *throttler.Throttler, n int) {
	conditions := []throttler.Condition{condition("a", 3, 5*time.Millisecond), condition("b", 4, 3*time.Millisecond), leaky(3, 4*time.Millisecond)}
	rule := either(conditions...)
	if n%2 == 0 {
		rule = all(conditions...)
	}
	rule.CountAuthorizedOnly = n%3 == 0
	rule.LockoutGrowth, rule.Lockout = float64(n%2*2), time.Duration(1+n%5)*time.Millisecond
	ctx, cancel := context.WithTimeout(context.Background(), time.Duration(rand.IntN(2000))*time.Microsecond)
	defer cancel()
	var d throttler.Decision
	switch n % 5 {
	case 0:
		d, _ = th.Wait(ctx, rule)
	case 1:
		d, _ = th.Peek(ctx, rule)
	case 2:
		_ = th.Reset(ctx, rule)
	default:
		d, _ = th.Authorize(ctx, rule)
	}
	var cancels sync.WaitGroup
	cancels.Go(func() { _ = th.Cancel(ctx, d) })
	_ = th.Cancel(context.Background(), d)
	cancels.Wait()
	clear(d.Outcomes)
	clear(conditions)
}
