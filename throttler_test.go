package throttler_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
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

// faulty is a client that a test can make fail, hang or be overtaken. before is
// called with the name of each operation and its keys; if it returns an error,
// that is the operation's.
type faulty struct {
	throttler.Client
	before func(op string, keys ...string) error

	mu  sync.Mutex
	ops []string
}

func newFaulty() *faulty {
	return &faulty{Client: memstore.New(), before: func(string, ...string) error { return nil }}
}

func (f *faulty) call(op string, keys ...string) error {
	f.mu.Lock()
	f.ops = append(f.ops, op)
	f.mu.Unlock()
	return f.before(op, keys...)
}

// took returns the operations since the last time it was called.
func (f *faulty) took() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	ops := f.ops
	f.ops = nil
	return ops
}

func (f *faulty) Get(key string) (*memcache.Item, error) {
	if err := f.call("get", key); err != nil {
		return nil, err
	}
	return f.Client.Get(key)
}

func (f *faulty) GetMulti(keys []string) (map[string]*memcache.Item, error) {
	if err := f.call("multi", keys...); err != nil {
		return nil, err
	}
	return f.Client.GetMulti(keys)
}

func (f *faulty) Add(item *memcache.Item) error {
	if err := f.call("add", item.Key); err != nil {
		return err
	}
	return f.Client.Add(item)
}

func (f *faulty) CompareAndSwap(item *memcache.Item) error {
	if err := f.call("cas", item.Key); err != nil {
		return err
	}
	return f.Client.CompareAndSwap(item)
}

func (f *faulty) Delete(key string) error {
	if err := f.call("delete", key); err != nil {
		return err
	}
	return f.Client.Delete(key)
}

// failing returns a before that fails the given operations with err, for keys
// that hold part.
func failing(err error, part string, ops ...string) func(string, ...string) error {
	return func(op string, keys ...string) error {
		if slices.Contains(ops, op) && slices.ContainsFunc(keys, func(key string) bool { return key == part || part == "" }) {
			return err
		}
		return nil
	}
}

var errDown = errors.New("server is down")

func authorize(t *testing.T, th *throttler.Throttler, rule throttler.Rule) throttler.Decision {
	t.Helper()
	d, err := th.Authorize(context.Background(), rule)
	require.NoError(t, err)
	return d
}

func peek(t *testing.T, th *throttler.Throttler, rule throttler.Rule) throttler.Decision {
	t.Helper()
	d, err := th.Peek(context.Background(), rule)
	require.NoError(t, err)
	return d
}

func remaining(d throttler.Decision) []int {
	var n []int
	for _, o := range d.Outcomes {
		n = append(n, o.Remaining)
	}
	return n
}

func TestNewWithoutAClientPanics(t *testing.T) {
	for _, client := range []throttler.Client{nil, (*memcache.Client)(nil), (*memstore.Store)(nil)} {
		require.PanicsWithValue(t, "throttler: New with a nil Client", func() { throttler.New(client) })
	}
}

func TestRoundTrips(t *testing.T) {
	one, two := either(condition("a", 2, time.Minute)), either(condition("a", 9, time.Minute), condition("b", 9, time.Minute))
	two.Identifier = "two"
	client := newFaulty()
	th := throttler.New(client)
	authorize(t, th, one)
	require.Equal(t, []string{"get", "add"}, client.took())
	authorize(t, th, one)
	require.Equal(t, []string{"get", "cas"}, client.took())
	authorize(t, th, one)
	require.Equal(t, []string{"get"}, client.took(), "blocked")
	authorize(t, th, two)
	require.Equal(t, []string{"multi", "add", "add"}, client.took())
	authorize(t, th, two)
	require.Equal(t, []string{"multi", "cas", "cas"}, client.took())
	peek(t, th, one)
	peek(t, th, two)
	require.Equal(t, []string{"get", "multi"}, client.took())
}

// The writes of a call go out together: all of them are under way before the
// first is answered.
func TestWritesOfACallGoOutTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := newFaulty()
		client.before = func(string, ...string) error { time.Sleep(20 * time.Millisecond); return nil }
		th := throttler.New(client)
		var rule throttler.Rule
		for i := range 8 {
			rule = either(append(rule.Either, condition(fmt.Sprint(i), 1, time.Minute))...)
		}
		start := time.Now()
		require.Equal(t, throttler.Authorized, authorize(t, th, rule).Status)
		require.Equal(t, 2*20*time.Millisecond, time.Since(start))
		require.Equal(t, throttler.Blocked, authorize(t, th, rule).Status)
		require.Equal(t, 3*20*time.Millisecond, time.Since(start))
	})
}

func TestPeekChangesNothingEvenWhenItFindsTheConditionFull(t *testing.T) {
	client := newFaulty()
	th := throttler.New(client)
	rule := either(condition("a", 1, time.Minute))
	rule.Lockout = time.Hour
	authorize(t, th, rule)
	client.took()
	for range 3 {
		// It answers what Authorize would: that one would ban it.
		d := peek(t, th, rule)
		require.Equal(t, throttler.Blocked, d.Status)
		require.True(t, d.Outcomes[0].Banned)
	}
	require.Equal(t, []string{"get", "get", "get"}, client.took())
	rule.Lockout = 0
	require.False(t, peek(t, th, rule).Outcomes[0].Banned)
}

func TestDoneContextEndsTheCallBeforeAnyOperation(t *testing.T) {
	client := newFaulty()
	th := throttler.New(client)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	for _, rule := range []throttler.Rule{
		either(condition("a", 1, time.Minute)),
		either(condition("a", 1, time.Minute), condition("b", 1, time.Minute)),
	} {
		d, err := th.Authorize(ctx, rule)
		require.NoError(t, err)
		require.Equal(t, throttler.Authorized, d.Status)
		require.Equal(t, context.Canceled, d.Err)
		for i, c := range rule.Either {
			require.Equal(t, throttler.Outcome{Name: c.Name, Limit: 1, Remaining: 1, Err: context.Canceled}, d.Outcomes[i])
		}
		require.ErrorIs(t, th.Reset(ctx, rule), context.Canceled)
	}
	require.Empty(t, client.took())
}

func TestContextEndsACallThatHangs(t *testing.T) {
	ops := map[string]throttler.Rule{
		"get":   either(condition("a", 5, time.Minute)),
		"multi": either(condition("a", 5, time.Minute), condition("b", 5, time.Minute)),
		"add":   either(condition("a", 5, time.Minute), condition("b", 5, time.Minute)),
	}
	for hung, rule := range ops {
		t.Run(hung, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				client := newFaulty()
				client.before = func(op string, _ ...string) error {
					if op == hung {
						time.Sleep(500 * time.Millisecond) // the client's timeout
						return errDown
					}
					return nil
				}
				ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond) // before each key is asked for by itself
				defer cancel()
				start := time.Now()
				d, err := throttler.New(client).Authorize(ctx, rule)
				require.NoError(t, err)
				require.Equal(t, 30*time.Millisecond, time.Since(start))
				require.Equal(t, throttler.Authorized, d.Status)
				require.Equal(t, context.DeadlineExceeded, d.Err)
				time.Sleep(time.Second) // what was left behind ends by itself
			})
		})
	}
}

// A call is left, but what is known of it stands.
func TestContextThatEndsDuringAWriteLeavesOtherConditionsDecided(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := newFaulty()
		th := throttler.New(client)
		full, open := condition("full", 1, time.Minute), condition("open", 5, time.Minute)
		authorize(t, th, either(full))
		client.before = func(op string, keys ...string) error {
			if op == "add" {
				time.Sleep(time.Second)
			}
			return nil
		}
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		d, err := th.Authorize(ctx, either(full, open))
		require.NoError(t, err)
		require.Equal(t, throttler.Blocked, d.Status)
		require.Equal(t, []string{"full is full"}, d.Messages)
		require.Equal(t, context.DeadlineExceeded, d.Outcomes[1].Err)
		require.NoError(t, d.Outcomes[0].Err)
		time.Sleep(time.Second)
	})
}

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

// partial fails as gomemcache does when one of several servers is dead: items
// of the others, and one error for all.
type partial struct {
	*faulty
	dead string // the key on that server
	err  error
}

func (p *partial) GetMulti(keys []string) (map[string]*memcache.Item, error) {
	items, _ := p.faulty.GetMulti(slices.DeleteFunc(slices.Clone(keys), func(key string) bool { return key == p.dead }))
	return items, p.err
}

// keyed is an error that knows which keys it concerns.
type keyed struct{ dead string }

func (keyed) Error() string { return "one of the servers is down" }
func (k keyed) KeyError(key string) error {
	if key == k.dead {
		return errDown
	}
	return nil
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
	require.Equal(t, "server is down\nanother server is down", d.Err.Error())
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
	require.Equal(t, "[down]\n[down]", d.Err.Error())
}

// The client repeats an Add whose answer was lost, and finds that it has been
// done: the record tells that it holds this very write.
func TestLostAnswerBansNobody(t *testing.T) {
	client := newFaulty()
	lost := &lostAdd{faulty: client}
	rule := either(condition("a", 1, time.Minute))
	rule.Lockout = time.Hour
	d := authorize(t, throttler.New(lost), rule)
	require.Equal(t, throttler.Authorized, d.Status)
	require.NoError(t, d.Err)
	require.True(t, authorize(t, throttler.New(client), rule).Outcomes[0].Banned)
}

// lostAdd carries out an Add and answers that it may have.
type lostAdd struct{ *faulty }

func (l *lostAdd) Add(item *memcache.Item) error {
	if err := l.faulty.Add(item); err != nil {
		return err
	}
	return maybeDone{memcache.ErrNotStored}
}

func TestDecisionDoesNotKeepTheRecord(t *testing.T) {
	th := throttler.New(memstore.New())
	rule := either(condition("a", 1000, time.Hour))
	var d throttler.Decision
	for range 1000 {
		d = authorize(t, th, rule)
	}
	require.NoError(t, th.Cancel(context.Background(), d))
	require.Equal(t, 0, peek(t, th, rule).Outcomes[0].Remaining)
	require.Equal(t, throttler.Authorized, authorize(t, th, rule).Status)
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

func TestLostRaceIsDecidedAnew(t *testing.T) {
	client := newFaulty()
	th := throttler.New(client)
	rule := either(condition("a", 3, time.Minute), condition("b", 3, time.Minute))
	races := 2
	client.before = func(op string, keys ...string) error {
		if (op == "add" || op == "cas") && keys[0] == "test#b#v" && races > 0 {
			races--
			authorize(t, throttler.New(client.Client), either(rule.Either[1]))
		}
		return nil
	}
	d := authorize(t, th, rule)
	require.Equal(t, throttler.Authorized, d.Status)
	require.Equal(t, []int{2, 0}, remaining(d))
	require.Equal(t, 0, d.Outcomes[0].LostRaces)
	require.Equal(t, 2, d.Outcomes[1].LostRaces)
	// Only the one that lost went round again.
	require.Equal(t, "multi", client.took()[0])
	require.Equal(t, []int{2, 0}, remaining(peek(t, throttler.New(client.Client), all(condition("a", 4, time.Minute), condition("b", 3, time.Minute)))))
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
			require.ErrorIs(t, d.Err, throttler.ErrStalled)
			require.Len(t, client.took(), 2*(throttler.MaxStalls+1))
			client.before = failing(nil, "")
			authorize(t, th, rule) // now there is a record
		}
	}
}

// torn answers each read with another token, and refuses them all, as a proxy
// may that has several copies of each record.
type torn struct {
	*faulty
	token uint64
}

func (r *torn) Get(key string) (*memcache.Item, error) {
	item, err := r.faulty.Get(key)
	if err == nil {
		r.token++
		item.CasID += r.token << 32
	}
	return item, err
}

func TestBackendWhoseReadsAndWritesDisagreeIsGivenUp(t *testing.T) {
	client := &torn{faulty: newFaulty()}
	th := throttler.New(client)
	rule := either(condition("a", 3, time.Minute))
	first := authorize(t, th, rule)
	client.took()
	d := authorize(t, th, rule)
	require.Equal(t, throttler.Authorized, d.Status)
	require.ErrorIs(t, d.Err, throttler.ErrStalled)
	require.Len(t, client.took(), 2*(throttler.MaxLosses+3+1))
	require.ErrorIs(t, th.Cancel(t.Context(), first), throttler.ErrStalled)
	require.Len(t, client.took(), 2*(throttler.MaxLosses+1))
}

func TestBlockedCallUsesUpNothingWithCountAuthorizedOnly(t *testing.T) {
	client := newFaulty()
	th := throttler.New(client)
	rule := either(condition("narrow", 1, time.Minute), condition("broad", 5, time.Minute))
	rule.CountAuthorizedOnly = true
	require.Equal(t, []int{0, 4}, remaining(authorize(t, th, rule)))
	client.took()
	for range 3 {
		d := authorize(t, th, rule)
		require.Equal(t, throttler.Blocked, d.Status)
		require.Equal(t, []int{0, 4}, remaining(d))
		require.Equal(t, []string{"multi"}, client.took())
		require.Equal(t, d.Outcomes[1].Blocked, false)
	}
}

func TestHitIsGivenBackWhenAnotherConditionTurnsOutFull(t *testing.T) {
	client := newFaulty()
	th := throttler.New(client)
	rule := either(condition("a", 5, time.Minute), condition("b", 1, time.Minute))
	rule.CountAuthorizedOnly = true
	overtaken := false
	client.before = func(op string, keys ...string) error {
		if op == "add" && keys[0] == "test#b#v" && !overtaken {
			overtaken = true
			authorize(t, throttler.New(client.Client), either(rule.Either[1]))
		}
		return nil
	}
	d := authorize(t, th, rule)
	require.Equal(t, throttler.Blocked, d.Status)
	require.Equal(t, []string{"b is full"}, d.Messages)
	require.Equal(t, []int{5, 0}, remaining(d))
	require.Zero(t, d.Outcomes[0].RetryAfter)
	require.Equal(t, 4, peek(t, th, either(rule.Either[0])).Outcomes[0].Remaining, "nothing is left of it")
	require.NoError(t, th.Cancel(context.Background(), d))
	require.Equal(t, 4, peek(t, th, either(rule.Either[0])).Outcomes[0].Remaining, "there was nothing to cancel")
}

// The condition that blocked is reset before its ban could be set: the call is
// authorized after all, and counted in both.
func TestConditionsThatWerePassedOverAreCountedWhenTheCallIsNotRefusedAfterAll(t *testing.T) {
	client := newFaulty()
	th := throttler.New(client)
	rule := either(condition("a", 5, time.Minute), condition("b", 1, time.Minute))
	rule.CountAuthorizedOnly, rule.Lockout = true, time.Hour
	authorize(t, th, rule)
	reset := false
	client.before = func(op string, keys ...string) error {
		if op == "cas" && keys[0] == "test#b#v" && !reset {
			reset = true
			require.NoError(t, client.Client.Delete(keys[0]))
		}
		return nil
	}
	d := authorize(t, th, rule)
	require.Equal(t, throttler.Authorized, d.Status)
	require.Equal(t, []int{3, 0}, remaining(d))
}

func TestShadowAuthorizesWhatItWouldBlock(t *testing.T) {
	th := throttler.New(memstore.New())
	rule := either(condition("a", 1, time.Minute))
	rule.Shadow, rule.Lockout = true, time.Hour
	d := authorize(t, th, rule)
	require.False(t, d.WouldBlock)
	for range 3 {
		d = authorize(t, th, rule)
		require.Equal(t, throttler.Authorized, d.Status)
		require.True(t, d.WouldBlock)
		require.Nil(t, d.Messages)
		require.Zero(t, d.RetryAfter)
		require.True(t, d.Outcomes[0].Blocked)
		require.True(t, d.Outcomes[0].Banned, "bans as usual")
	}
	rule.Shadow = false
	require.Equal(t, throttler.Blocked, authorize(t, th, rule).Status)
}

func TestObserveSeesEveryDecisionThatCounts(t *testing.T) {
	th := throttler.New(memstore.New())
	type key struct{}
	ctx := context.WithValue(context.Background(), key{}, "the caller's")
	var seen []throttler.Decision
	th.Observe = func(ctx context.Context, rule throttler.Rule, d throttler.Decision) {
		require.Equal(t, "the caller's", ctx.Value(key{}))
		require.Equal(t, "test", rule.Identifier)
		seen = append(seen, d)
	}
	rule := either(condition("a", 1, time.Minute))
	first, _ := th.Authorize(ctx, rule)
	second, _ := th.Authorize(ctx, rule)
	_, _ = th.Peek(ctx, rule)
	_, _ = th.Authorize(ctx, throttler.Rule{})
	require.Equal(t, []throttler.Decision{first, second}, seen)
	require.Equal(t, throttler.Blocked, second.Status)
}

func TestResetForgetsHitsAndLiftsBans(t *testing.T) {
	client := newFaulty()
	th := throttler.New(client)
	rule := either(condition("a", 1, time.Minute), condition("b", 2, time.Minute))
	rule.Lockout = time.Hour
	for range 3 {
		authorize(t, th, rule)
	}
	other := rule
	other.Identifier = "other"
	authorize(t, th, other)
	client.took()
	require.NoError(t, th.Reset(context.Background(), rule))
	require.ElementsMatch(t, []string{"delete", "delete"}, client.took())
	require.Equal(t, []int{0, 1}, remaining(authorize(t, th, rule)))
	require.Equal(t, throttler.Blocked, authorize(t, th, other).Status)
	require.NoError(t, th.Reset(context.Background(), rule))
	require.NoError(t, th.Reset(context.Background(), rule), "nothing there is as good")
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
