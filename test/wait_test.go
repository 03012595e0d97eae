package throttler_test

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/internal/waitqueue"
	"github.com/adaptivethrottler/throttler/memstore"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestWaitDoesNotForgetRepeatedBans(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		th := throttler.New(memstore.New())
		rule := growing(time.Minute, 0, 2)
		authorize(t, th, rule)
		require.Equal(t, time.Minute, authorize(t, th, rule).RetryAfter)
		time.Sleep(time.Minute)
		_, err := th.Wait(t.Context(), rule)
		require.NoError(t, err)
		require.Equal(t, 2*time.Minute, authorize(t, th, rule).RetryAfter)
	})
}

func TestWaitThatGivesUpIsBlocked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		th := throttler.New(memstore.New())
		var seen []throttler.Status
		th.Observe = func(_ context.Context, r throttler.Rule, d throttler.Decision) {
			require.False(t, r.CountAuthorizedOnly, "the rule is the caller's")
			seen = append(seen, d.Status)
		}
		rule := either(condition("a", 1, time.Minute))
		done, cancel := context.WithCancel(t.Context())
		cancel()
		d, err := th.Wait(done, rule)
		require.ErrorIs(t, err, context.Canceled)
		require.Equal(t, throttler.Blocked, d.Status)

		_, err = th.Wait(t.Context(), rule)
		require.NoError(t, err)
		soon, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		start := time.Now()
		d, err = th.Wait(soon, rule)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Equal(t, throttler.Blocked, d.Status)
		require.Zero(t, time.Since(start), "at once")
		require.Equal(t, []throttler.Status{throttler.Blocked, throttler.Authorized, throttler.Blocked}, seen)
	})
}

// passed is a call of Wait that was authorized.
type passed struct {
	who int
	at  time.Duration
}

// gather returns who of n callers of Wait gets through when. It returns when all
// have. Those who get through at the same time are in the order of their numbers,
// as nobody could tell which of them was the first. next is called before the
// next one comes.
func gather(t require.TestingT, th *throttler.Throttler, rule throttler.Rule, n int, next func()) []passed {
	var mu sync.Mutex
	var through []passed
	var all sync.WaitGroup
	start := time.Now()
	for i := range n {
		all.Go(func() {
			d, err := th.Wait(context.Background(), rule)
			assert.NoError(t, err)
			assert.Equal(t, throttler.Authorized, d.Status)
			mu.Lock()
			defer mu.Unlock()
			through = append(through, passed{i, time.Since(start)})
		})
		next()
	}
	all.Wait()
	slices.SortFunc(through, func(a, b passed) int {
		return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.who, b.who))
	})
	return through
}

// Each comes when the one before sleeps, stands in line or has got through.
func oneByOne() { synctest.Wait() }

func allAtOnce() {}

func TestWaitingCrowdGetsThroughInOrderAtTheFullRate(t *testing.T) {
	for algorithm, opens := range map[throttler.Algorithm]func(c throttler.Condition, i int) time.Duration{
		throttler.SlidingWindow: func(c throttler.Condition, i int) time.Duration { return time.Duration(i/c.Max) * c.TTL },
		throttler.LeakyBucket: func(c throttler.Condition, i int) time.Duration {
			return (time.Duration(max(0, i-c.Max+1))*c.TTL + time.Duration(c.Max) - 1) / time.Duration(c.Max)
		},
	} {
		t.Run(algorithm.String(), func(t *testing.T) {
			check(t, func(t *rapid.T) {
				c := drawLimiter(t, algorithm)
				c.TTL = c.TTL.Truncate(tick) // so that nothing is rounded
				n := rapid.IntRange(1, 60).Draw(t, "crowd")
				through := gather(t, throttler.New(memstore.New()), either(c), n, oneByOne)
				require.Len(t, through, n)
				for i, p := range through {
					require.Equal(t, passed{i, opens(c, i)}, p)
				}
			})
		})
	}
}

// Two processes have a line each, and no more in common than the records.
func TestWaitingCrowdsOfTwoProcessesGetThroughAtTheFullRate(t *testing.T) {
	check(t, func(t *rapid.T) {
		c := drawLimiter(t, throttler.SlidingWindow)
		c.TTL = c.TTL.Truncate(tick)
		rule := throttler.Rule{Identifier: "test", Either: []throttler.Condition{c}}
		store := memstore.New()
		sizes := [2]int{rapid.IntRange(1, 30).Draw(t, "crowd"), rapid.IntRange(1, 30).Draw(t, "other crowd")}
		start := time.Now()
		var crowds [2][]passed
		var both sync.WaitGroup
		for i := range crowds {
			both.Go(func() { crowds[i] = gather(t, throttler.New(store), rule, sizes[i], allAtOnce) })
		}
		both.Wait()
		require.Len(t, append(crowds[0], crowds[1]...), sizes[0]+sizes[1])
		require.Equal(t, time.Duration((sizes[0]+sizes[1]-1)/c.Max)*c.TTL, time.Since(start))
		at := make(map[time.Duration]int)
		for _, p := range append(crowds[0], crowds[1]...) {
			at[p.at]++
			require.LessOrEqual(t, at[p.at], c.Max)
			require.Zero(t, p.at%c.TTL)
		}
	})
}

func TestWaitGivesUpAtOnceIfTheDeadlineComesFirst(t *testing.T) {
	check(t, func(t *rapid.T) {
		c := drawLimiter(t, throttler.Algorithm(rapid.IntRange(0, 1).Draw(t, "algorithm")))
		rule := throttler.Rule{Identifier: "test", Either: []throttler.Condition{c}, Lockout: time.Hour}
		th := throttler.New(memstore.New())
		for range c.Max {
			_, err := th.Wait(context.Background(), rule)
			require.NoError(t, err)
		}
		before, err := th.Peek(context.Background(), throttler.Rule{Identifier: "test", Either: rule.Either})
		require.NoError(t, err)
		require.Equal(t, throttler.Blocked, before.Status)

		start := time.Now()
		patience := time.Duration(rapid.Int64Range(1, int64(before.RetryAfter)-1).Draw(t, "patience"))
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		d, err := th.Wait(ctx, rule)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Equal(t, throttler.Blocked, d.Status)
		require.Equal(t, before.RetryAfter, d.RetryAfter)
		require.Zero(t, time.Since(start))
		// Nothing was counted, and nobody banned.
		after, err := th.Peek(context.Background(), throttler.Rule{Identifier: "test", Either: rule.Either})
		require.NoError(t, err)
		require.Equal(t, before, after)

		// A deadline that comes just not before is waited for.
		ctx, cancel = context.WithTimeout(context.Background(), before.RetryAfter+1)
		defer cancel()
		d, err = th.Wait(ctx, rule)
		require.NoError(t, err)
		require.Equal(t, throttler.Authorized, d.Status)
		require.Equal(t, before.RetryAfter, time.Since(start))
	})
}

// A limit of an hour opens after ten minutes and a second, in a way of its own.
func TestWaitNoticesThatALimitHasOpenedEarly(t *testing.T) {
	rule := either(window(1, time.Hour))
	for name, tt := range map[string]struct {
		open func(mine, other *throttler.Throttler, d throttler.Decision) error
		want time.Duration
	}{
		"its own Cancel": {
			func(mine, _ *throttler.Throttler, d throttler.Decision) error {
				return mine.Cancel(context.Background(), d)
			},
			10*time.Minute + time.Second,
		},
		"its own Reset": {
			func(mine, _ *throttler.Throttler, _ throttler.Decision) error {
				return mine.Reset(context.Background(), rule)
			},
			10*time.Minute + time.Second,
		},
		"another's Reset": {
			func(_, other *throttler.Throttler, _ throttler.Decision) error {
				return other.Reset(context.Background(), rule)
			},
			11 * time.Minute,
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := memstore.New()
				th := throttler.New(store)
				d, err := th.Wait(t.Context(), rule)
				require.NoError(t, err)
				start := time.Now()
				time.AfterFunc(10*time.Minute+time.Second, func() { assert.NoError(t, tt.open(th, throttler.New(store), d)) })
				_, err = th.Wait(t.Context(), rule)
				require.NoError(t, err)
				require.Equal(t, tt.want, time.Since(start))
			})
		})
	}
}

// Lines: who stands where, and who is served when.

// A post is a call of Wait that a test has made.
type post struct {
	at       time.Duration // since the bubble began, when it came back; 0: not yet
	decision throttler.Decision
	err      error
}

// came reports whether the call is back.
func (p *post) came() bool {
	return p.at != 0 || p.err != nil || p.decision.Status == throttler.Authorized
}

// A hall is a Throttler with calls that wait, in a bubble.
type hall struct {
	*testing.T
	*throttler.Throttler
	start time.Time
	all   sync.WaitGroup
}

// inHall runs test in a bubble, and requires at its end that nothing is left of the
// calls that waited.
func inHall(t *testing.T, client throttler.Client, test func(h *hall)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		h := &hall{T: t, Throttler: throttler.New(client), start: time.Now()}
		test(h)
		h.all.Wait()
		require.Zero(t, h.Throttler.Stats().Waiting)
	})
}

// come has a call of rule come, which gets through or stands in line when come
// returns.
func (h *hall) come(ctx context.Context, rule throttler.Rule) *post {
	p := new(post)
	h.all.Go(func() {
		p.decision, p.err = h.Wait(ctx, rule)
		p.at = time.Since(h.start)
	})
	synctest.Wait()
	return p
}

// named returns a condition of its own value.
func named(name, value string, max int, ttl time.Duration) throttler.Condition {
	return throttler.Condition{Name: name, Value: value, Max: max, TTL: ttl}
}

// fullInTurns returns two conditions that take a hit in 10 s, both taken. b opens 5 s after a.
func (h *hall) fullInTurns(algorithm throttler.Algorithm) (a, b throttler.Condition) {
	a, b = named("a", "", 1, 10*time.Second), named("b", "", 1, 10*time.Second)
	a.Algorithm, b.Algorithm = algorithm, algorithm
	h.come(h.Context(), either(a))
	time.Sleep(5 * time.Second)
	h.come(h.Context(), either(b))
	return a, b
}

func TestUsersOfOneSenderAreServedInTurnWithFewOperations(t *testing.T) {
	const users = 100
	client := newDistant()
	inHall(t, client, func(h *hall) {
		var posts []*post
		for i := range users {
			posts = append(posts, h.come(h.Context(), either(
				named("user", fmt.Sprint(i), 10, time.Hour), named("sender", "", 5, time.Second))))
			time.Sleep(roundTrip / 10)
		}
		h.all.Wait()
		outOfTurn := 0
		for i := range posts {
			for j := range i {
				if posts[j].at > posts[i].at {
					outOfTurn++
				}
			}
		}
		pairs := users * (users - 1) / 2
		require.LessOrEqual(t, client.ops.Load(), int64(8*users), "3 to be let through, and what it takes until a line has formed")
		require.Less(t, outOfTurn, pairs/25)
		require.Less(t, time.Since(h.start), users/5*time.Second+2*roundTrip, "at the full rate")
	})
}

func TestCallWhoseOtherConditionIsFullHoldsNobodyUp(t *testing.T) {
	inHall(t, memstore.New(), func(h *hall) {
		sender := named("sender", "", 1, time.Second)
		full := either(named("user", "full", 1, time.Hour), sender)
		require.Equal(t, throttler.Authorized, h.come(h.Context(), full).decision.Status)
		stuck := h.come(h.Context(), full)
		var others []*post
		for i := range 20 {
			others = append(others, h.come(h.Context(), either(named("user", fmt.Sprint(i), 1, time.Hour), sender)))
		}
		h.all.Wait()
		for i, p := range others {
			require.Equal(t, time.Duration(i+1)*time.Second, p.at)
		}
		require.Equal(t, time.Hour, stuck.at)
	})
}

// Two stand in line for the same two conditions, each blocked by another one first.
func TestLinesDoNotLockEachOther(t *testing.T) {
	inHall(t, memstore.New(), func(h *hall) {
		a, b := h.fullInTurns(throttler.SlidingWindow)
		ab := h.come(h.Context(), either(a, b))
		ba := h.come(h.Context(), either(b, a))
		h.all.Wait()
		require.Equal(t, 15*time.Second, ab.at)
		require.Equal(t, 25*time.Second, ba.at)
	})
}

// The two conditions of one call open in turns, and each time somebody else takes
// the one that is open while the other is not.
func TestCallIsNotStarvedByOthersWhoNeedLess(t *testing.T) {
	t.Run("windows", func(t *testing.T) { isNotStarved(t, throttler.SlidingWindow) })
	t.Run("buckets", func(t *testing.T) { isNotStarved(t, throttler.LeakyBucket) })
}

func isNotStarved(t *testing.T, algorithm throttler.Algorithm) {
	inHall(t, memstore.New(), func(h *hall) {
		a, b := h.fullInTurns(algorithm)
		both := h.come(h.Context(), either(a, b))
		var others []*post
		for range 50 {
			others = append(others, h.come(h.Context(), either(a)), h.come(h.Context(), either(b)))
		}
		h.all.Wait()
		require.LessOrEqual(t, both.at, time.Minute)
		last := max(others[98].at, others[99].at)
		require.LessOrEqual(t, last, 530*time.Second, "the others lose no more than it takes to let it go")
	})
}

// As above, and when it holds places at last one of its conditions is banned. It
// lets others pass again, even when somebody comes before it there.
func TestPlacesAreNotHeldForLongerThanAHitCounts(t *testing.T) {
	store := memstore.New()
	inHall(t, store, func(h *hall) {
		a, b, d := named("a", "", 1, 10*time.Second), named("b", "", 1, 10*time.Second), named("d", "", 1, time.Minute)
		h.come(h.Context(), either(a))
		h.come(h.Context(), either(d))
		early := h.come(h.Context(), either(b, d))
		time.Sleep(5 * time.Second)
		h.come(h.Context(), either(b))
		both := h.come(h.Context(), either(a, b))
		var others []*post
		for i := range 100 {
			others = append(others, h.come(h.Context(), either(a)))
			if i < 2 {
				h.come(h.Context(), either(b))
			}
		}
		time.Sleep(21 * time.Second)
		ban := either(b)
		ban.Lockout = time.Hour
		other := throttler.New(store)
		authorize(h.T, other, ban)
		require.True(t, authorize(h.T, other, ban).Outcomes[0].Banned)
		h.all.Wait()
		for i, p := range others {
			require.Equal(t, time.Duration(i+1)*10*time.Second, p.at)
		}
		require.Equal(t, 26*time.Second+time.Hour, early.at)
		require.Equal(t, 36*time.Second+time.Hour, both.at)
	})
}

func TestThoseWhoCannotMakeItLeaveAtOnce(t *testing.T) {
	for name, c := range map[string]throttler.Condition{"window": window(1, time.Second), "bucket": leaky(1, time.Second)} {
		t.Run(name, func(t *testing.T) {
			client := newFaulty()
			inHall(t, client, func(h *hall) {
				ctx, cancel := context.WithTimeout(h.Context(), 3*time.Second)
				defer cancel()
				var posts []*post
				for range 1000 {
					posts = append(posts, h.come(ctx, either(c)))
				}
				for i, p := range posts {
					require.Equal(t, i == 0 || i > 2, p.came(), "%d", i)
				}
				require.LessOrEqual(t, len(client.took()), 4, "operations: those of the first, and a look of the second")
				h.all.Wait()
				for i, p := range posts {
					if i < 3 {
						require.NoError(t, p.err)
						require.Equal(t, time.Duration(i)*time.Second, p.at)
						continue
					}
					require.ErrorIs(t, p.err, context.DeadlineExceeded)
					require.Zero(t, p.at)
					require.Equal(t, throttler.Blocked, p.decision.Status)
					require.Equal(t, 3*time.Second, p.decision.RetryAfter)
					require.Equal(t, []string{c.Name}, p.decision.Messages)
					require.Equal(t, []throttler.Outcome{{Name: c.Name, Blocked: true, Limit: 1, RetryAfter: 3 * time.Second, ResetAfter: 3 * time.Second}}, p.decision.Outcomes)
				}
			})
		})
	}
}

func TestPlaceInLineCountsWhatThoseBeforeTake(t *testing.T) {
	for name, tt := range map[string]struct {
		c     throttler.Condition
		early map[int]time.Duration // by the cost of a call: too early for it
		turn  time.Duration         // of a call of one hit
	}{
		// The first takes 4 hits, the second 3 at 10 s, and the third 4 at 20 s, as does a call of 2 or more behind the first.
		"window": {window(4, 10*time.Second), map[int]time.Duration{1: 10 * time.Second, 2: 20 * time.Second}, 30 * time.Second},
		// They come at 0, 6 and 14 s.
		"bucket": {leaky(4, 8*time.Second), map[int]time.Duration{1: 16*time.Second - 1, 2: 18*time.Second - 1}, 16 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			inHall(t, memstore.New(), func(h *hall) {
				for _, cost := range []int{4, 3, 4} {
					h.come(h.Context(), either(costing(tt.c, cost)))
				}
				for cost, patience := range tt.early {
					ctx, cancel := context.WithTimeout(h.Context(), patience)
					defer cancel()
					p := h.come(ctx, either(costing(tt.c, cost)))
					require.ErrorIs(t, p.err, context.DeadlineExceeded, "%d", cost)
					require.Zero(t, p.at, "at once")
				}
				ctx, cancel := context.WithTimeout(h.Context(), tt.turn+1)
				defer cancel()
				p := h.come(ctx, either(tt.c))
				h.all.Wait()
				require.NoError(t, p.err)
				require.Equal(t, tt.turn, p.at)
			})
		})
	}
}

func TestLineIsBounded(t *testing.T) {
	inHall(t, memstore.New(), func(h *hall) {
		ctx, leave := context.WithCancel(h.Context())
		rule := either(window(1, time.Hour))
		require.True(t, h.come(ctx, rule).came())
		posts := make([]post, waitqueue.MaxWaiting)
		for i := range posts {
			h.all.Go(func() { posts[i].decision, posts[i].err = h.Wait(ctx, rule) })
		}
		synctest.Wait()
		p := h.come(h.Context(), rule)
		require.ErrorIs(t, p.err, throttler.ErrOverloaded)
		require.Equal(t, throttler.Blocked, p.decision.Status)
		require.Equal(t, []string{"c"}, p.decision.Messages)
		leave()
		h.all.Wait()
		for _, p := range posts {
			require.ErrorIs(t, p.err, context.Canceled)
		}
	})
}

// The deletions go on by themselves.
func TestResetWhoseContextEndsWakesCallsWhenARecordIsDeleted(t *testing.T) {
	quick, slow := named("quick", "", 1, time.Hour), named("slow", "", 1, time.Hour)
	client := newFaulty()
	client.before = func(op string, keys ...string) error {
		if op == "delete" && keys[0] == throttler.RecordKey("test", "slow", "") {
			time.Sleep(2 * time.Second)
		}
		return nil
	}
	inHall(t, client, func(h *hall) {
		rule := either(quick, slow)
		require.Equal(h, throttler.Authorized, authorize(h.T, h.Throttler, rule).Status)
		first, second := h.come(h.Context(), either(quick)), h.come(h.Context(), either(slow))
		ctx, cancel := context.WithTimeout(h.Context(), time.Second)
		defer cancel()
		err := h.Reset(ctx, rule)
		require.ErrorIs(h, err, context.DeadlineExceeded)
		require.NotErrorIs(h, err, throttler.ErrUnavailable, "it was not the server that was late")
		h.all.Wait()
		require.Zero(h, first.at)
		require.Equal(h, 2*time.Second, second.at)
	})
}

func TestBanTellsThoseWhoWaitAtOnceThatTheyCannotMakeIt(t *testing.T) {
	inHall(t, memstore.New(), func(h *hall) {
		rule := either(window(1, 40*time.Second))
		_, err := h.Wait(h.Context(), rule)
		require.NoError(t, err)
		ctx, cancel := context.WithTimeout(h.Context(), 50*time.Second)
		defer cancel()
		p := h.come(ctx, rule)
		time.Sleep(time.Second)
		require.NoError(t, h.Ban(h.Context(), rule, time.Hour))
		h.all.Wait()
		require.ErrorIs(t, p.err, context.DeadlineExceeded)
		require.Equal(t, time.Hour, p.decision.RetryAfter)
		require.Equal(t, time.Second, p.at)
	})
}

// A quietContext ends without telling those who wait for it, as any does for one
// who has not looked yet.
type quietContext struct {
	context.Context
	ended atomic.Bool
}

func (*quietContext) Done() <-chan struct{} { return nil }

func (c *quietContext) Err() error {
	if c.ended.Load() {
		return context.Canceled
	}
	return nil
}

func TestDecisionThatCountedStandsThoughItsContextHasEnded(t *testing.T) {
	ctx := &quietContext{Context: t.Context()}
	client := newFaulty()
	client.before = func(op string, _ ...string) error {
		ctx.ended.Store(op == "add")
		return nil
	}
	th := throttler.New(client)
	d, err := th.Wait(ctx, either(window(1, time.Minute)))
	require.NoError(t, err)
	require.Equal(t, throttler.Authorized, d.Status)
	require.Equal(t, context.Canceled, ctx.Err())
}

// A guest is one of those who wait in a random crowd.
type guest struct {
	*post
	rule     throttler.Rule
	needs    map[string]bool // the conditions of Either
	leaves   bool            // its ctx may end before its turn
	patience time.Duration   // if it has a deadline
}

// drawGuest draws a rule of some of the conditions, each with a cost of its own,
// and how long the guest is prepared to wait.
func drawGuest(t *rapid.T, conditions []throttler.Condition) guest {
	g := guest{post: new(post), needs: make(map[string]bool)}
	var some []throttler.Condition
	first := rapid.IntRange(0, len(conditions)-1).Draw(t, "first condition")
	for i, c := range conditions {
		if i == first || rapid.IntRange(0, 2).Draw(t, "also") == 0 {
			some = append(some, costing(c, rapid.IntRange(1, c.Max).Draw(t, "Cost")))
			g.needs[c.Name] = true
		}
	}
	g.rule = either(some...)
	if rapid.IntRange(0, 4).Draw(t, "all?") == 0 {
		g.rule, g.needs = all(some...), nil
	}
	if g.leaves = rapid.IntRange(0, 3).Draw(t, "leaves?") == 0; g.leaves {
		g.patience = time.Duration(rapid.IntRange(1, 20_000).Draw(t, "patience")) * time.Millisecond
	}
	return g
}

// wait has g wait, with a deadline or a ctx that is cancelled without one.
func (g *guest) wait(t *rapid.T, th *throttler.Throttler, start time.Time, deadline bool) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	switch {
	case g.leaves && deadline:
		ctx, cancel = context.WithTimeout(ctx, g.patience)
		defer cancel()
	case g.leaves:
		time.AfterFunc(g.patience, cancel)
	}
	g.decision, g.err = th.Wait(ctx, g.rule)
	g.at = time.Since(start)
	if g.err == nil {
		assert.Equal(t, throttler.Authorized, g.decision.Status)
		return
	}
	assert.Equal(t, throttler.Blocked, g.decision.Status)
	assert.True(t, g.leaves, "%v", g.err)
	want := context.Canceled
	if deadline {
		want = context.DeadlineExceeded
	}
	assert.ErrorIs(t, g.err, want)
	assert.NoError(t, th.Cancel(context.Background(), g.decision))
}

// overtakes reports whether g needs all that other needs, and came later.
func (g *guest) overtakes(other *guest) bool {
	if g.needs == nil || other.needs == nil || g.err != nil || other.err != nil || g.at >= other.at {
		return false
	}
	for name := range other.needs {
		if !g.needs[name] {
			return false
		}
	}
	return true
}

func TestCrowdWithManyConditionsGetsThroughAndNobodyOvertakes(t *testing.T) {
	check(t, func(t *rapid.T) {
		conditions := make([]throttler.Condition, rapid.IntRange(1, 4).Draw(t, "conditions"))
		for i := range conditions {
			conditions[i] = drawLimiter(t, throttler.Algorithm(rapid.IntRange(0, 1).Draw(t, "algorithm")))
			conditions[i].Name = fmt.Sprint(i)
			conditions[i].TTL = max(time.Millisecond, conditions[i].TTL/60)
		}
		client := newFaulty()
		th := throttler.New(client)
		start := time.Now()
		guests := make([]guest, rapid.IntRange(1, 40).Draw(t, "guests"))
		var all sync.WaitGroup
		for i := range guests {
			g := &guests[i]
			*g = drawGuest(t, conditions)
			deadline := rapid.Bool().Draw(t, "deadline")
			all.Go(func() { g.wait(t, th, start, deadline) })
			synctest.Wait()
			switch rapid.IntRange(0, 9).Draw(t, "meanwhile") {
			case 0:
				require.NoError(t, th.Reset(context.Background(), guests[rapid.IntRange(0, i).Draw(t, "whose")].rule))
			case 1, 2, 3:
				time.Sleep(time.Duration(rapid.IntRange(1, 5000).Draw(t, "pause")) * time.Millisecond)
			}
			synctest.Wait()
		}
		all.Wait()
		require.Zero(t, th.Stats().Waiting)
		for i := range guests {
			for j := range i {
				require.False(t, guests[i].overtakes(&guests[j]), "%d overtakes %d", i, j)
			}
		}
	})
}

// How calls wait while the backend is gone.

func TestCallsThatWaitInAnOutageKeepThePaceOfTheirRule(t *testing.T) {
	const second, minute = time.Second, time.Minute
	five := either(window(5, second))
	every := func(d time.Duration) func(int) time.Duration {
		return func(i int) time.Duration { return time.Duration(i) * d }
	}
	down := newOutlet()
	down.off.Store(true)
	for name, row := range map[string]struct {
		rule     throttler.Rule
		part     string        // of the keys whose server goes
		off, on  time.Duration // when it goes, and when it is back; 0: never
		fallback throttler.Client
		apart    time.Duration // pause of one caller between two calls; 0: all call at once
		want     func(i int) time.Duration
	}{
		"a window": {rule: five, off: 2500 * time.Millisecond, want: func(i int) time.Duration {
			if i < 15 {
				return time.Duration(i/5) * second
			}
			return time.Duration(i) * second / 5
		}},
		"a bucket": {rule: either(leaky(5, second)), off: 2500 * time.Millisecond, want: func(i int) time.Duration {
			return time.Duration(max(0, i-4)) * second / 5
		}},
		"one after the other":       {rule: either(window(1, 3*second)), apart: 1, want: every(3 * second)},
		"after the first":           {rule: either(window(1, 3*second)), off: second, apart: 1, want: every(3 * second)},
		"after the fourth":          {rule: either(window(1, 3*second)), off: 10 * second, apart: 1, want: every(3 * second)},
		"the fallback decides":      {rule: five, fallback: memstore.New(), want: func(i int) time.Duration { return time.Duration(i/5) * second }},
		"the fallback fails too":    {rule: five, fallback: down, want: every(second / 5)},
		"the slowest of conditions": {rule: either(condition("a", 1, second), condition("b", 1, minute), condition("c", 1, 3*second)), want: every(minute)},
		"three hits":                {rule: either(costing(window(6, 6*second), 3)), want: every(3 * second)},
		"three hits of a bucket":    {rule: either(costing(leaky(6, 6*second), 3)), want: every(3 * second)},
		"bytes a day":               {rule: either(costing(calendar(math.MaxInt, throttler.Period{}), math.MaxInt)), want: every(25 * time.Hour)}, // the longest one
		// When the second comes the pace of one of its conditions would let it through.
		"each condition of a newcomer": {rule: either(condition("a", 1, second), condition("b", 1, minute)), apart: 2 * second, want: every(minute)},
		// b takes 3, and then a goes at its pace.
		"all, of which one answers": {rule: all(condition("a", 1, minute), condition("b", 3, time.Hour)), part: "#a#", apart: 1,
			want: func(i int) time.Duration { return time.Duration(max(0, i-3)) * minute }},
		// Then the window of the server is empty.
		"the server is back": {rule: either(window(10, second)), on: 450 * time.Millisecond, want: func(i int) time.Duration {
			return []time.Duration{time.Duration(i) * second / 10, second / 2, 3 * second / 2}[min(2, (i+5)/10)]
		}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				client := newOutlet()
				client.part = row.part
				client.off.Store(row.off == 0)
				time.AfterFunc(row.off, func() { client.off.Store(true) })
				if row.on > 0 {
					time.AfterFunc(row.on, func() { client.off.Store(false) })
				}
				th := throttler.New(client)
				th.Fallback = row.fallback
				start := time.Now()
				var mu sync.Mutex
				i := 0 // how many were let through
				wait := func() {
					d, err := th.Wait(t.Context(), row.rule)
					mu.Lock()
					defer mu.Unlock()
					assert.NoError(t, err)
					at := time.Since(start).Truncate(10) // without the pauses
					assert.Equal(t, row.want(i), at, "%d", i)
					i++
					if at < row.off || row.on > 0 && at > row.on {
						assert.NoError(t, d.Err)
					} else {
						assert.ErrorIs(t, d.Err, errDown)
					}
				}
				var calls sync.WaitGroup
				for range 25 {
					if row.apart > 0 {
						wait()
						time.Sleep(row.apart)
						continue
					}
					calls.Go(wait)
				}
				calls.Wait()
				require.Zero(t, th.Stats().Waiting)
			})
		})
	}
}

// The server of condition a is gone, that of b answers.
func TestCallThatIsPacedCountsNothingWhereTheBackendAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := newOutlet()
		client.part = "#a#"
		client.off.Store(true)
		th := throttler.New(client)
		rule := either(condition("a", 1, time.Minute), condition("b", 10, time.Hour))
		var all sync.WaitGroup
		for range 5 {
			all.Go(func() {
				_, err := th.Wait(t.Context(), rule)
				assert.NoError(t, err)
			})
		}
		for i := range 5 {
			synctest.Wait()
			d, err := th.Peek(t.Context(), either(condition("b", 10, time.Hour)))
			require.NoError(t, err)
			require.Equal(t, 10-(i+1)-1, d.Outcomes[0].Remaining, "those that are let through, and the one that Peek asks for")
			time.Sleep(time.Minute)
		}
		all.Wait()
	})
}

func TestOutageDoesNotOpenALimitThatIsKnownToBeClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := newOutlet()
		th := throttler.New(client)
		rule := either(window(1, time.Second))
		rule.Lockout = time.Hour
		authorize(t, th, rule)
		require.True(t, authorize(t, th, rule).Outcomes[0].Banned)
		start := time.Now()
		time.AfterFunc(time.Minute/2, func() { client.off.Store(true) })
		d, err := th.Wait(t.Context(), rule)
		require.NoError(t, err)
		require.ErrorIs(t, d.Err, errDown)
		require.Equal(t, time.Hour, time.Since(start))
	})
}

func TestResetBeforeAnOutageIsRemembered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := newOutlet()
		th := throttler.New(client)
		rule := either(window(1, time.Hour))
		start := time.Now()
		_, err := th.Wait(t.Context(), rule)
		require.NoError(t, err)
		require.NoError(t, th.Reset(t.Context(), rule))
		client.off.Store(true)
		_, err = th.Wait(t.Context(), rule)
		require.NoError(t, err)
		require.Zero(t, time.Since(start))
	})
}

func TestDeadlineIsHeldAgainstThePaceInAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := newOutlet()
		client.off.Store(true)
		th := throttler.New(client)
		rule := either(window(1, time.Minute))
		_, err := th.Wait(t.Context(), rule)
		require.NoError(t, err)
		ctx, cancel := context.WithTimeout(t.Context(), 59*time.Second)
		defer cancel()
		start := time.Now()
		d, err := th.Wait(ctx, rule)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.ErrorIs(t, d.Err, errDown)
		require.Equal(t, throttler.Blocked, d.Status)
		require.Equal(t, time.Minute, d.RetryAfter)
		require.Zero(t, time.Since(start), "at once")
	})
}

func TestShadowRuleIsNeverWaitedFor(t *testing.T) {
	for name, off := range map[string]bool{"backend answers": false, "backend is gone": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				client := newOutlet()
				client.off.Store(off)
				th := throttler.New(client)
				rule := either(window(1, time.Minute))
				rule.Shadow = true
				start := time.Now()
				for i := range 3 {
					d, err := th.Wait(t.Context(), rule)
					require.NoError(t, err)
					require.Equal(t, throttler.Authorized, d.Status)
					require.Equal(t, i > 0 && !off, d.WouldBlock)
				}
				require.Zero(t, time.Since(start))
			})
		})
	}
}

// A call that was found to have room everywhere counts in one condition, and is refused by
// another one, which others have filled meanwhile.
func TestHitsOfARefusedCallWakeACallThatWaits(t *testing.T) {
	everyAlgorithm(t, 1, func(t *testing.T, wide throttler.Condition) {
		store := memstore.New()
		narrow := condition("narrow", 1, time.Hour)
		th := throttler.New(overtaken(store, func() {
			time.Sleep(time.Second)
			authorize(t, throttler.New(store), either(narrow))
		}))
		start := time.Now()
		waited := make(chan error)
		go func() {
			time.Sleep(time.Second / 2)
			_, err := th.Wait(context.Background(), either(wide))
			waited <- err
		}()
		rule := either(wide, narrow)
		rule.CountAuthorizedOnly = true
		require.Equal(t, throttler.Blocked, authorize(t, th, rule).Status)
		require.NoError(t, <-waited)
		require.Equal(t, time.Second, time.Since(start))
	})
}

// The call is refused while it counts in two records, the first of which somebody waits for.
// It gives both hits back when the second one is written.
func TestAHitThatIsGivenBackLateWakesACallThatWaits(t *testing.T) {
	everyAlgorithm(t, 1, func(t *testing.T, wide throttler.Condition) {
		store := memstore.New()
		slow, narrow := condition("slow", 1, time.Hour), condition("narrow", 1, time.Hour)
		client := over(store)
		client.before = func(op string, keys ...string) error {
			_, name, _, _ := throttler.SplitRecordKey(keys[0])
			switch {
			case op != "add":
			case name == narrow.Name:
				authorize(t, throttler.New(store), either(narrow))
			case name == slow.Name:
				time.Sleep(2 * time.Second)
			default:
				time.Sleep(time.Second)
			}
			return nil
		}
		th := throttler.New(client)
		start := time.Now()
		waited := make(chan error)
		go func() {
			time.Sleep(3 * time.Second / 2)
			_, err := th.Wait(context.Background(), either(wide))
			waited <- err
		}()
		rule := either(wide, slow, narrow)
		rule.CountAuthorizedOnly = true
		ctx, cancel := context.WithTimeout(context.Background(), time.Second/2)
		defer cancel()
		d, err := th.Authorize(ctx, rule)
		require.NoError(t, err)
		require.Equal(t, throttler.Blocked, d.Status)
		require.Equal(t, time.Second/2, time.Since(start))
		require.NoError(t, <-waited)
		require.Equal(t, 2*time.Second, time.Since(start))
	})
}

func TestDecisionOfAWaitThatGaveUpInLineIsOneLikeAnyOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		th := throttler.New(memstore.New())
		rule := either(condition("a", 5, time.Minute), inFlight(1, time.Minute))
		authorize(t, th, rule)
		line, leave := context.WithCancel(t.Context())
		defer leave()
		go th.Wait(line, rule)
		synctest.Wait()
		short, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		d, err := th.Wait(short, rule) // the call before it leaves no time
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Nil(t, d.Receipt())
		require.NoError(t, th.Cancel(t.Context(), d))
		require.NoError(t, th.Renew(t.Context(), d))
		require.NoError(t, th.Hold(t.Context(), d).Release(t.Context()))
		settled, err := th.Settle(t.Context(), d, map[string]int{"a": 3})
		require.NoError(t, err)
		require.NoError(t, settled.Err)
		require.Equal(t, 1, settled.Outcomes[0].Remaining)
	})
}
