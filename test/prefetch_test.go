package throttler_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/memstore"
	"github.com/stretchr/testify/require"
)

// ahead returns a window or a bucket of max hits in ttl, of which a process takes n ahead.
func ahead(algorithm throttler.Algorithm, max, n int, ttl time.Duration) throttler.Condition {
	return throttler.Condition{Name: "c", Value: "v", Max: max, TTL: ttl, Algorithm: algorithm, Prefetch: n}
}

// eachAhead runs test in a bubble for a window and a bucket.
func eachAhead(t *testing.T, test func(t *testing.T, algorithm throttler.Algorithm)) {
	for _, algorithm := range []throttler.Algorithm{throttler.SlidingWindow, throttler.LeakyBucket} {
		t.Run(algorithm.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { test(t, algorithm) })
		})
	}
}

func TestHitsInHandTakeNoExchange(t *testing.T) {
	eachAhead(t, func(t *testing.T, algorithm throttler.Algorithm) {
		store := newFaulty()
		th, other := throttler.New(store), throttler.New(store)
		c := ahead(algorithm, 1000, 50, time.Minute)
		require.Equal(t, 200, admitted(t, th, c, 200))
		require.Less(t, th.Stats().Exchanges, uint64(20))
		require.Positive(t, th.Stats().InHand)
		require.LessOrEqual(t, th.Stats().InHand, 50)
		require.Equal(t, 1000-200-th.Stats().InHand, left(t, other, c), "they count")
		require.Equal(t, 799, authorize(t, th, either(c)).Outcomes[0].Remaining, "what is left for this process")

		time.Sleep(2 * time.Second)
		require.Zero(t, th.Stats().InHand, "they cannot be spent any more")
		authorize(t, th, either(c))
		require.Positive(t, th.Stats().GivenBack)
		if algorithm == throttler.SlidingWindow {
			require.Equal(t, 1000-202-th.Stats().InHand, left(t, other, c))
		}
	})
}

func TestALoneCallTakesOneHit(t *testing.T) {
	eachAhead(t, func(t *testing.T, algorithm throttler.Algorithm) {
		th := throttler.New(newFaulty())
		for range 5 {
			authorize(t, th, either(ahead(algorithm, 1000, 50, time.Minute)))
			require.Zero(t, th.Stats().InHand)
			time.Sleep(2 * time.Minute)
		}
	})
}

func TestCancelPutsAHitBackInHand(t *testing.T) {
	eachAhead(t, func(t *testing.T, algorithm throttler.Algorithm) {
		store := newFaulty()
		th, other := throttler.New(store), throttler.New(store)
		c := ahead(algorithm, 1000, 50, time.Minute)
		admitted(t, th, c, 20)
		for th.Stats().InHand < 5 {
			admitted(t, th, c, 1)
		}
		before, room := th.Stats(), left(t, other, c)
		for range 100 {
			require.NoError(t, th.Cancel(t.Context(), authorize(t, th, either(c))))
		}
		require.Equal(t, before.Exchanges, th.Stats().Exchanges)
		require.Equal(t, before.InHand, th.Stats().InHand)

		d := authorize(t, th, either(c))
		require.NoError(t, other.Cancel(t.Context(), d), "not in the hand of another process")
		require.Equal(t, before.InHand-1, th.Stats().InHand)
		if algorithm == throttler.SlidingWindow {
			require.Equal(t, room+1, left(t, other, c))
		}

		two := condition("two", 10, time.Hour)
		d = authorize(t, th, either(c, two))
		require.NoError(t, th.Cancel(t.Context(), d))
		require.Equal(t, 10, left(t, th, two), "of all conditions")

		room = left(t, other, c)
		d = authorize(t, th, either(c))
		time.Sleep(2 * time.Second)
		require.NoError(t, th.Cancel(t.Context(), d))
		require.NoError(t, th.Cancel(t.Context(), d), "once")
		require.Less(t, before.Exchanges, th.Stats().Exchanges, "too late: in the record")
		if algorithm == throttler.SlidingWindow {
			require.Equal(t, room+1, left(t, other, c))
		}
	})
}

func TestSettleOfAHitInHandWorksAsEver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newFaulty()
		th, other := throttler.New(store), throttler.New(store)
		c := ahead(throttler.SlidingWindow, 1000, 50, time.Minute)
		admitted(t, th, c, 20)
		d, room := authorize(t, th, either(c)), left(t, other, c)
		settle(t, th, d, total(7))
		require.Equal(t, room-6, left(t, other, c))
		settle(t, th, d, total(0))
		require.Equal(t, room+1, left(t, other, c))
	})
}

func TestResetAndBanEmptyTheHand(t *testing.T) {
	eachAhead(t, func(t *testing.T, algorithm throttler.Algorithm) {
		th := throttler.New(newFaulty())
		c := ahead(algorithm, 1000, 50, time.Minute)
		admitted(t, th, c, 20)
		require.NoError(t, th.Ban(t.Context(), either(c), time.Hour))
		require.Zero(t, th.Stats().InHand)
		require.Zero(t, admitted(t, th, c, 10))
		require.NoError(t, th.Reset(t.Context(), either(c)))
		require.Equal(t, 1000, admitted(t, th, c, 1100))
	})
}

func TestAnOutageDoesNotSpendWhatItDoesNotHave(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newOutlet()
		th := throttler.New(o)
		th.Fallback = memstore.New()
		c := ahead(throttler.SlidingWindow, 100, 50, time.Minute)
		passed := admitted(t, th, c, 30)
		o.off.Store(true)
		passed += admitted(t, th, c, 200)
		require.LessOrEqual(t, passed, 100)
	})
}

// Processes with clocks that agree take hits ahead, spend them, cancel, hang for a while, die
// and come back. No window of TTL ever admits more than Max, and no bucket more than Max and
// what leaks.
func TestPrefetchIsExact(t *testing.T) {
	for seed := range uint64(75) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				random := rand.New(rand.NewPCG(seed, 2))
				store := newFaulty()
				max := 2 + random.IntN(40)
				ttl := []time.Duration{200 * time.Millisecond, 3 * time.Second, 30 * time.Second}[random.IntN(3)]
				c := ahead(throttler.Algorithm(random.IntN(2)), max, 1+random.IntN(max), ttl)
				all := make([]*throttler.Throttler, 1+random.IntN(4))
				for i := range all {
					all[i] = throttler.New(store)
				}
				var at []time.Time
				for range 1500 {
					switch random.IntN(30) {
					case 0:
						time.Sleep(time.Duration(random.Int64N(int64(ttl))))
					case 1: // dies, and comes back
						all[random.IntN(len(all))] = throttler.New(store)
					default:
						time.Sleep(time.Duration(random.Int64N(int64(ttl)/int64(max) + 1)))
					}
					th := all[random.IntN(len(all))]
					d, err := th.Authorize(context.Background(), either(c))
					require.NoError(t, err)
					require.NoError(t, d.Err)
					if d.Status == throttler.Blocked {
						continue
					}
					if random.IntN(5) == 0 {
						require.NoError(t, th.Cancel(context.Background(), d))
						continue
					}
					at = append(at, time.Now())
					if n := len(at); c.Algorithm == throttler.SlidingWindow && n > max {
						require.GreaterOrEqual(t, at[n-1].Sub(at[n-1-max]), ttl, "more than %d in %v", max, ttl)
					}
				}
				if c.Algorithm == throttler.LeakyBucket {
					interval := float64(ttl) / float64(max)
					for i := range at {
						for j := i; j < min(len(at), i+4*max); j++ {
							if float64(j-i+1-max)*interval > float64(at[j].Sub(at[i]))+2 {
								t.Fatalf("%d hits in %v of %d in %v", j-i+1, at[j].Sub(at[i]), max, ttl)
							}
						}
					}
				}
				require.Greater(t, len(at), max)
			})
		})
	}
}

func TestHitsInHandAreOfOneLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		th := throttler.New(newFaulty())
		c := ahead(throttler.SlidingWindow, 1000, 50, time.Second)
		other := ahead(throttler.SlidingWindow, 5, 1, time.Hour)
		admitted(t, th, c, 200)
		require.Positive(t, th.Stats().InHand)
		require.Zero(t, admitted(t, th, other, 100))
	})
}

func TestCallsThatAreNotSentLoseNoHitsInHand(t *testing.T) {
	eachAhead(t, func(t *testing.T, algorithm throttler.Algorithm) {
		store := newFaulty()
		th, other := throttler.New(store), throttler.New(store)
		c := ahead(algorithm, 1000, 50, time.Minute)
		admitted(t, th, c, 20)
		for th.Stats().InHand < 5 {
			admitted(t, th, c, 1)
		}
		inHand, given, room := th.Stats().InHand, th.Stats().GivenBack, left(t, other, c)
		gone, cancel := context.WithCancel(t.Context())
		cancel()
		for range 10 {
			d, err := th.Authorize(gone, either(c))
			require.NoError(t, err)
			require.ErrorIs(t, d.Err, context.Canceled)
		}
		store.before = func(string, ...string) error { return errors.New("down") }
		c.Cost = inHand + 1 // more than there is
		require.Error(t, authorize(t, th, either(c)).Err)
		store.before = func(string, ...string) error { return nil }
		c.Cost = 0
		require.Equal(t, inHand, th.Stats().InHand)
		require.Equal(t, given, th.Stats().GivenBack)
		require.Equal(t, inHand, admitted(t, th, c, inHand))
		require.Zero(t, th.Stats().InHand)
		require.Equal(t, room, left(t, other, c), "no exchange was needed")
	})
}

func TestCallsThatAreLeftTakeFewHitsAhead(t *testing.T) {
	eachAhead(t, func(t *testing.T, algorithm throttler.Algorithm) {
		store := newFaulty()
		th, other := throttler.New(store), throttler.New(store)
		c := ahead(algorithm, 10_000, 50, time.Minute)
		admitted(t, th, c, 200)
		require.Positive(t, th.Stats().InHand)
		room, inHand := left(t, other, c), th.Stats().InHand
		store.before = func(string, ...string) error { time.Sleep(time.Millisecond); return nil }
		c.Cost = 60 // more than there is in hand
		for range 10 {
			ctx, leave := context.WithTimeout(t.Context(), 3*time.Millisecond/2) // its write is under way
			d, err := th.Authorize(ctx, either(c))
			leave()
			require.NoError(t, err)
			require.ErrorIs(t, d.Err, context.DeadlineExceeded)
			time.Sleep(5 * time.Millisecond)
		}
		c.Cost = 0
		require.LessOrEqual(t, room+inHand-10*60-left(t, other, c), 50, "the first one alone takes any")
	})
}

// Remaining and RetryAfter say what comes, though a call is decided by hits in hand or by a
// refusal that is remembered: a call that is blocked, or that has taken the last hit, comes in
// time after RetryAfter, and not before.
func TestPrefetchTellsWhenThereIsRoom(t *testing.T) {
	for _, algorithm := range []throttler.Algorithm{throttler.SlidingWindow, throttler.LeakyBucket} {
		t.Run(algorithm.String(), func(t *testing.T) {
			for seed := range uint64(40) {
				synctest.Test(t, func(t *testing.T) {
					random := rand.New(rand.NewPCG(seed, 3))
					th := throttler.New(newFaulty())
					most := 5 + random.IntN(60)
					c := ahead(algorithm, most, 1+random.IntN(most), time.Duration(1+random.IntN(20))*time.Second)
					largest := 1 + random.IntN(3)
					for range 300 {
						c.Cost = 1 + random.IntN(largest)
						d := authorize(t, th, either(c))
						o := d.Outcomes[0]
						if d.Status == throttler.Authorized {
							require.Equal(t, o.Remaining == 0, o.RetryAfter > 0, "%+v", o)
							c.Cost = 1
						} else {
							require.Positive(t, o.RetryAfter)
							require.Equal(t, o.RetryAfter, d.RetryAfter)
						}
						if random.IntN(3) == 0 && o.RetryAfter > 0 {
							time.Sleep(o.RetryAfter - 1)
							require.Equal(t, throttler.Blocked, peek(t, th, either(c)).Status, "%+v", o)
							time.Sleep(time.Nanosecond)
							require.Equal(t, throttler.Authorized, peek(t, th, either(c)).Status, "%+v", o)
						}
						time.Sleep(time.Duration(random.Int64N(int64(c.TTL) / int64(most))))
					}
				})
			}
		})
	}
}

// A call that finds another condition full, and takes the last hit in hand, comes again when both
// have room.
func TestRetryAfterIsThatOfTheConditionWhoseLastHitWasInHand(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		th := throttler.New(newFaulty())
		c := ahead(throttler.SlidingWindow, 20, 10, time.Minute)
		full := condition("full", 1, 10*time.Second)
		require.Equal(t, 19, admitted(t, th, c, 19))
		require.Equal(t, 1, th.Stats().InHand)
		admitted(t, th, full, 1)
		d := authorize(t, th, either(full, c))
		require.Equal(t, throttler.Blocked, d.Status)
		require.Zero(t, th.Stats().InHand)
		require.Zero(t, d.Outcomes[1].Remaining)
		time.Sleep(d.RetryAfter - 1)
		require.Equal(t, throttler.Blocked, peek(t, th, either(full, c)).Status)
		time.Sleep(time.Nanosecond)
		require.Equal(t, throttler.Authorized, peek(t, th, either(full, c)).Status)
	})
}

// A refusal takes no exchange for as long as hits in hand would be kept, or until the process
// itself gives hits back.
func TestARefusalIsRememberedBesideHitsInHand(t *testing.T) {
	eachAhead(t, func(t *testing.T, algorithm throttler.Algorithm) {
		store := newFaulty()
		th, other := throttler.New(store), throttler.New(store)
		c := ahead(algorithm, 100, 40, 10*time.Second)
		last := authorize(t, th, either(c))
		for d := last; d.Status == throttler.Authorized; d = authorize(t, th, either(c)) {
			last = d
		}
		before := th.Stats().Exchanges
		require.Zero(t, admitted(t, th, c, 1000))
		require.Equal(t, before, th.Stats().Exchanges)
		require.NoError(t, th.Cancel(t.Context(), last))
		require.Equal(t, 1, admitted(t, th, c, 5))

		require.NoError(t, other.Reset(t.Context(), either(c)))
		require.Zero(t, admitted(t, th, c, 1))
		time.Sleep(100 * time.Millisecond)
		require.Equal(t, 1, admitted(t, th, c, 1), "noticed within a hundredth of TTL")
	})
}

// A limit that is asked twice what it admits admits all of it, in few exchanges.
func TestPrefetchTakesFewExchangesUnderOverload(t *testing.T) {
	eachAhead(t, func(t *testing.T, algorithm throttler.Algorithm) {
		store := newFaulty()
		all := []*throttler.Throttler{throttler.New(store), throttler.New(store)}
		c := ahead(algorithm, 10_000, 500, time.Second)
		exchanges := func() uint64 { return all[0].Stats().Exchanges + all[1].Stats().Exchanges }
		second := func() (passed int) {
			for i := range 20_000 {
				passed += admitted(t, all[i%2], c, 1)
				time.Sleep(time.Second / 20_000)
			}
			return passed
		}
		second()
		before := exchanges()
		require.InDelta(t, 10_000, second(), 100)
		require.Less(t, exchanges()-before, uint64(20_000/40))
	})
}

func TestHitsInHandArePutBackWhenAnotherConditionRefuses(t *testing.T) {
	eachAhead(t, func(t *testing.T, algorithm throttler.Algorithm) {
		store := newFaulty()
		th, other := throttler.New(store), throttler.New(store)
		c, narrow := ahead(algorithm, 1000, 50, time.Minute), condition("narrow", 100, time.Hour)
		narrow.Prefetch = 20
		rule := either(c, narrow)
		rule.CountAuthorizedOnly = true
		passed := 0
		for range 200 {
			if authorize(t, th, rule).Status == throttler.Authorized {
				passed++
			}
		}
		require.Equal(t, 100, passed)
		require.Less(t, th.Stats().Exchanges, uint64(60))
		require.Equal(t, 900, left(t, other, c)+th.Stats().InHand)
		require.Positive(t, th.Stats().InHand)

		before := th.Stats()
		d := peek(t, th, rule)
		require.Equal(t, []int{900, 0}, remaining(d))
		require.Equal(t, []int{900, 0}, remaining(authorize(t, th, rule)))
		require.Zero(t, d.Outcomes[0].Cost)
		require.Equal(t, before, th.Stats(), "neither took an exchange, nor a hit")
		require.NoError(t, th.Cancel(t.Context(), d))
		require.Equal(t, before.InHand, th.Stats().InHand)
	})
}

// Between the look at all conditions and the count, the other condition became full.
func TestHitsInHandArePutBackWhenACallIsRefusedLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newFaulty()
		c, narrow := ahead(throttler.SlidingWindow, 1000, 50, time.Minute), condition("narrow", 5, time.Hour)
		others := throttler.New(store)
		th := throttler.New(overtaken(store, func() { authorize(t, others, either(costing(narrow, 5))) }))
		admitted(t, th, c, 20)
		before := th.Stats().InHand
		require.Positive(t, before)
		rule := either(c, narrow)
		rule.CountAuthorizedOnly = true
		d := authorize(t, th, rule)
		require.Equal(t, throttler.Blocked, d.Status)
		require.Equal(t, before, th.Stats().InHand)
		require.Zero(t, d.Outcomes[0].Cost)
		require.Equal(t, 980, d.Outcomes[0].Remaining)
	})
}

// It has taken hits ahead as well, and they lie in hand for too long to be spent.
func TestACallRefusedLateTellsWhatIsLeftWithoutHitsInHand(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newFaulty()
		c, narrow := ahead(throttler.SlidingWindow, 1000, 50, time.Minute), condition("narrow", 5, time.Hour)
		others := throttler.New(store)
		th := throttler.New(overtaken(store, func() {
			authorize(t, others, either(costing(narrow, 5)))
			time.Sleep(2 * time.Second)
		}))
		admitted(t, th, c, 20)
		admitted(t, th, c, th.Stats().InHand)
		require.Zero(t, th.Stats().InHand)
		counted := 1000 - left(t, others, c)
		rule := either(c, narrow)
		rule.CountAuthorizedOnly = true
		d := authorize(t, th, rule)
		require.Equal(t, throttler.Blocked, d.Status)
		require.Less(t, left(t, others, c), 1000-counted, "hits were taken ahead")
		require.Equal(t, 1000-counted, d.Outcomes[0].Remaining)
	})
}

// A look that stores a record, to set hits right, keeps in it what is in hand.
func TestHitsInHandStayCountedThoughAnAssessmentIsStored(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newFaulty()
		th, other := throttler.New(store), throttler.New(store)
		c := ahead(throttler.SlidingWindow, 100, 50, time.Minute)
		admitted(t, th, c, 20)
		require.Positive(t, th.Stats().InHand)
		room := left(t, other, c)
		shorter := c
		shorter.Max, shorter.Prefetch, shorter.TTL = 10, 5, 10*time.Second
		rule := either(shorter, condition("other", 5, time.Hour))
		rule.CountAuthorizedOnly = true
		require.Equal(t, throttler.Blocked, authorize(t, th, rule).Status)
		require.Equal(t, room, left(t, other, c))
		time.Sleep(10 * time.Second)
		require.Equal(t, 100, left(t, other, c), "it was stored")
	})
}

// The BlockCache has the record, since a rule with a lower Max has found it full.
func TestTheBlockCacheTakesNoHitFromTheHand(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		th := throttler.New(newFaulty())
		th.BlockCache = 10
		c := ahead(throttler.SlidingWindow, 1000, 50, time.Minute)
		admitted(t, th, c, 20)
		require.Positive(t, th.Stats().InHand)
		require.Zero(t, admitted(t, th, condition("c", 10, time.Minute), 1))
		require.Equal(t, 1, authorize(t, th, either(c)).Outcomes[0].Cost)
	})
}

// What Peek says is what Authorize then does, whatever this process has in hand, and however
// long it has been there.
func TestPeekSaysWhatAuthorizeDoesBesideHitsInHand(t *testing.T) {
	rules := map[string]func(c, narrow throttler.Condition) throttler.Rule{
		"one": func(c, _ throttler.Condition) throttler.Rule { return either(c) },
		"all or nothing": func(c, narrow throttler.Condition) throttler.Rule {
			rule := either(c, narrow)
			rule.CountAuthorizedOnly = true
			return rule
		},
	}
	for name, ruleOf := range rules {
		for _, cache := range []int{0, 10} {
			t.Run(fmt.Sprintf("%s, BlockCache %d", name, cache), func(t *testing.T) {
				eachAhead(t, func(t *testing.T, algorithm throttler.Algorithm) {
					for seed := range uint64(40) {
						peekBesideAuthorize(t, rand.New(rand.NewPCG(seed, 4)), cache, algorithm, ruleOf)
					}
				})
			})
		}
	}
}

func peekBesideAuthorize(t *testing.T, random *rand.Rand, cache int, algorithm throttler.Algorithm, ruleOf func(c, narrow throttler.Condition) throttler.Rule) {
	th := throttler.New(newFaulty())
	th.BlockCache = cache
	most := 5 + random.IntN(60)
	c := ahead(algorithm, most, 1+random.IntN(most), time.Duration(1+random.IntN(20))*time.Second)
	narrow := ahead(algorithm, 1+random.IntN(2*most), 0, c.TTL)
	narrow.Name, narrow.Prefetch = "narrow", random.IntN(narrow.Max+1)
	largest := 1 + random.IntN(min(4, narrow.Max))
	for range 200 {
		c.Cost, narrow.Cost = 1+random.IntN(largest), 1+random.IntN(largest)
		rule := ruleOf(c, narrow)
		p := peek(t, th, rule)
		if p.Status == throttler.Blocked && random.IntN(4) == 0 {
			time.Sleep(p.RetryAfter - 1)
			require.Equal(t, throttler.Blocked, peek(t, th, rule).Status, "before its time: %+v", p)
			time.Sleep(time.Nanosecond)
			p = peek(t, th, rule)
			require.Equal(t, throttler.Authorized, p.Status, "in time: %+v", p)
		}
		d := authorize(t, th, rule)
		require.Equal(t, p.Status, d.Status, "%+v, then %+v", p, d)
		for i, o := range d.Outcomes {
			require.Equal(t, p.Outcomes[i].Blocked, o.Blocked)
			require.Equal(t, p.Outcomes[i].Cost, o.Cost)
			if algorithm == throttler.SlidingWindow {
				require.Equal(t, p.Outcomes[i].Remaining, o.Remaining, "%+v, then %+v", p, d)
			}
		}
		if random.IntN(10) == 0 {
			require.NoError(t, th.Cancel(t.Context(), d))
		}
		time.Sleep(time.Duration(random.Int64N(int64(c.TTL) / int64(most))))
		if random.IntN(20) == 0 {
			time.Sleep(time.Duration(random.Int64N(int64(c.TTL))))
		}
	}
}
