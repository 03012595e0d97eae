package throttler_test

import (
	"context"
	"fmt"
	"net"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/memstore"
	"github.com/bradfitz/gomemcache/memcache"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// What becomes of calls when this process asks more than its backend can carry.

// valued returns a rule for a value that is not full.
func valued(value string) throttler.Rule {
	c := condition("a", 1000, time.Hour)
	c.Value = value
	return either(c)
}

func TestACallThatHasNoTurnInTimeIsOverloadedWhileOthersAreAnswered(t *testing.T) {
	for name, ctx := range map[string]func(*testing.T) context.Context{
		"a context that cannot end": func(*testing.T) context.Context { return context.Background() },
		"a context that can":        func(t *testing.T) context.Context { return t.Context() },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := &counter{Store: memstore.New(), serves: always(400 * time.Millisecond)}
				th := throttler.New(c.plainly())
				var answered, overloaded atomic.Int64
				var wg sync.WaitGroup
				for i := range 300 {
					wg.Go(func() {
						begin := time.Now()
						d, err := th.Authorize(ctx(t), valued(string(rune('a'+i))))
						assert.NoError(t, err)
						if d.Err == nil {
							answered.Add(1)
							return
						}
						overloaded.Add(1)
						assert.ErrorIs(t, d.Err, throttler.ErrOverloaded)
						assert.NotErrorIs(t, d.Err, throttler.ErrUnavailable)
						assert.Equal(t, throttler.Authorized, d.Status)
						assert.Equal(t, time.Second, time.Since(begin))
					})
				}
				wg.Wait()
				require.EqualValues(t, 2*64, answered.Load(), "two rounds of those who may be under way, a read and a write each")
				require.EqualValues(t, 300-2*64, overloaded.Load())
				require.EqualValues(t, 64, c.most.Load())
			})
		})
	}
}

func TestResetsWaitForTheirTurnToo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &counter{Store: memstore.New(), serves: always(10 * time.Millisecond)}
		th := throttler.New(c.plainly())
		var wg sync.WaitGroup
		for i := range 500 {
			wg.Go(func() { assert.NoError(t, th.Reset(t.Context(), valued(string(rune('a'+i))))) })
		}
		wg.Wait()
		require.EqualValues(t, 500, c.served.Load())
		require.EqualValues(t, 64, c.most.Load())
	})
}

// A call writes as many of its records at once as may be under way, and the calls after
// it too.
func TestTheWritesOfManyConditionsWaitForTheirTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &counter{Store: memstore.New(), serves: always(10 * time.Millisecond)}
		th := throttler.New(c.plainly())
		call := func(id string, n int) {
			d, err := th.Authorize(t.Context(), throttler.Rule{Identifier: id, Either: conditions(n, 5, time.Minute)})
			assert.NoError(t, err)
			assert.NoError(t, d.Err)
			assert.Equal(t, throttler.Authorized, d.Status)
		}
		var wg sync.WaitGroup
		for i := range 20 {
			wg.Go(func() { call(strconv.Itoa(i), 100) })
		}
		wg.Wait()
		require.EqualValues(t, 64, c.most.Load())
		require.EqualValues(t, 20+20*100, c.served.Load())

		begin := time.Now()
		call("alone", 3*64+1)
		require.Equal(t, (1+4)*10*time.Millisecond, time.Since(begin), "a read, and four times as many writes as there are places")
		require.EqualValues(t, 64, c.most.Load())
	})
}

func TestWhoWaitsForAServerThatHangsIsTurnedAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := hungAfter(500 * time.Millisecond)
		th := throttler.New(c.plainly())
		var wg sync.WaitGroup
		for i := range 1000 {
			wg.Go(func() {
				begin := time.Now()
				d, err := th.Authorize(context.Background(), valued(fmt.Sprint(i)))
				assert.NoError(t, err)
				assert.ErrorIs(t, d.Err, throttler.ErrUnavailable)
				assert.NotErrorIs(t, d.Err, throttler.ErrOverloaded)
				assert.Equal(t, 500*time.Millisecond, time.Since(begin), "nobody waits for a second timeout")
			})
		}
		wg.Wait()
		require.EqualValues(t, 64, c.served.Load(), "who was not sent yet is not sent any more")
		synctest.Wait() // callers are told before their coalescer is released
		require.Zero(t, th.Stats().Remembered)
	})
}

// Of those that leave while they wait for their turn nothing stays, and the turns of
// the others come.
func TestWhoLeavesBeforeTheirTurnTakesNone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &counter{Store: memstore.New(), serves: always(100 * time.Millisecond)}
		th := throttler.New(c.plainly())
		var wg sync.WaitGroup
		for i := range 600 {
			wg.Go(func() {
				ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
				defer cancel()
				d, err := th.Authorize(ctx, valued(fmt.Sprint(i)))
				assert.NoError(t, err)
				assert.ErrorIs(t, d.Err, context.DeadlineExceeded)
			})
		}
		wg.Wait()
		d := authorize(t, th, valued("last"))
		require.NoError(t, d.Err)
		time.Sleep(2 * time.Second)
		require.Zero(t, th.Stats().Remembered)
		require.Zero(t, c.underWay.Load())
		for i := range 600 {
			_, err := c.Store.Get(throttler.RecordKey("test", "a", fmt.Sprint(i)))
			require.ErrorIs(t, err, memcache.ErrCacheMiss, "none was about to be written")
		}
	})
}

// However many conditions a rule has, and whatever the server still answers, it costs one timeout.
func TestAServerThatHangsCostsManyConditionsNoMore(t *testing.T) {
	for _, tt := range []struct {
		name    string
		timeout time.Duration
		reads   bool // are answered
		want    time.Duration
	}{
		{"all", 500 * time.Millisecond, false, 50*time.Millisecond + 500*time.Millisecond},
		{"all, a short timeout", 20 * time.Millisecond, false, 2 * 20 * time.Millisecond},
		{"writes", 500 * time.Millisecond, true, time.Millisecond + 500*time.Millisecond},
	} {
		for _, n := range []int{1, 2, 64, 200, 3000} {
			for _, authorizedOnly := range []bool{false, true} {
				for _, fallback := range []throttler.Client{nil, memstore.New()} {
					t.Run(fmt.Sprintf("%s/conditions=%d/authorizedOnly=%t/fallback=%t", tt.name, n, authorizedOnly, fallback != nil), func(t *testing.T) {
						synctest.Test(t, func(t *testing.T) {
							hangs := func(op string) bool { return !tt.reads || op != "get" && op != "multi" }
							c := &counter{Store: memstore.New()}
							c.serves = func(op string, _ ...string) time.Duration {
								if hangs(op) {
									return tt.timeout
								}
								return time.Millisecond
							}
							c.fails = func(op string) error {
								if hangs(op) {
									return os.ErrDeadlineExceeded
								}
								return nil
							}
							th := throttler.New(c.plainly())
							th.Fallback = fallback
							begin := time.Now()
							d := authorize(t, th, throttler.Rule{
								Identifier: "r", Either: conditions(n, 5, time.Minute), CountAuthorizedOnly: authorizedOnly,
							})
							require.LessOrEqual(t, time.Since(begin), tt.want)
							for _, o := range d.Outcomes {
								require.ErrorIs(t, o.Err, throttler.ErrUnavailable)
							}
							require.LessOrEqual(t, c.served.Load(), int64(1+64))
						})
					})
				}
			}
		}
	}
}

// One of several servers hangs, and fewer operations wait for it than there are places.
func TestAServerThatHangsFailsFewConditionsOfOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n = 3000
		rule := throttler.Rule{Identifier: "r", Either: conditions(n, 5, time.Minute)}
		bad := make(map[string]bool)
		for i := 0; i < n; i += 100 {
			c := rule.Either[i]
			bad[throttler.RecordKey(rule.Identifier, c.Name, c.Value)] = true
		}
		f := over(memstore.New())
		f.before = func(op string, keys ...string) error {
			switch {
			case op == "multi":
				return nil
			case bad[keys[0]]:
				time.Sleep(20 * time.Millisecond)
				return os.ErrDeadlineExceeded
			}
			time.Sleep(3 * time.Millisecond)
			return nil
		}
		failed := 0
		for i, o := range authorize(t, throttler.New(f), rule).Outcomes {
			if o.Err != nil {
				require.ErrorIs(t, o.Err, throttler.ErrUnavailable)
				failed++
			} else {
				require.NotZero(t, i%100)
			}
		}
		require.LessOrEqual(t, failed, n/100+64, "and no more than waited for a place when one failed")
	})
}

// One of several servers is down, and says so at once. The client does not say which.
func TestAServerThatRefusesFailsNoConditionsOfOthers(t *testing.T) {
	for _, n := range []int{2, 10, 64, 1000} {
		rule := throttler.Rule{Identifier: "r", Either: conditions(n, 5, time.Minute)}
		bad := func(i int) bool { return i%2 == 0 }
		refused := &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}
		down := make(map[string]bool)
		for i, c := range rule.Either {
			down[throttler.RecordKey(rule.Identifier, c.Name, c.Value)] = bad(i)
		}
		f := over(memstore.New())
		f.before = func(_ string, keys ...string) error {
			for _, key := range keys {
				if down[key] {
					return refused
				}
			}
			return nil
		}
		for i, o := range authorize(t, throttler.New(f), rule).Outcomes {
			if bad(i) {
				require.ErrorIs(t, o.Err, throttler.ErrUnavailable)
			} else {
				require.NoError(t, o.Err)
			}
		}
	}
}

// One connection is stuck, the others are not.
func TestAReadOfAllKeysThatIsStuckIsNotWaitedFor(t *testing.T) {
	for _, n := range []int{2, 64} {
		synctest.Test(t, func(t *testing.T) {
			f := over(memstore.New())
			f.before = func(op string, _ ...string) error {
				if op == "multi" {
					time.Sleep(500 * time.Millisecond)
					return os.ErrDeadlineExceeded
				}
				time.Sleep(time.Millisecond)
				return nil
			}
			th := throttler.New(f)
			rule := throttler.Rule{Identifier: "r", Either: conditions(n, 5, time.Minute)}
			begin := time.Now()
			d, err := th.Authorize(t.Context(), rule)
			require.NoError(t, err)
			require.NoError(t, d.Err)
			require.LessOrEqual(t, time.Since(begin), 60*time.Millisecond)
			time.Sleep(time.Second)

			begin = time.Now()
			require.NoError(t, authorize(t, th, rule).Err) // with a ctx that cannot end
			require.Equal(t, 500*time.Millisecond, time.Since(begin))
			d, err = th.Peek(t.Context(), rule)
			require.NoError(t, err)
			require.Equal(t, 2, d.Outcomes[n-1].Remaining, "each was counted once")
			time.Sleep(time.Second)
		})
	}
}

// A read of all keys that takes longer than the hedge, but arrives.
func TestKeysThatHaveArrivedAreNotReadOneByOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &counter{Store: memstore.New(), serves: always(60 * time.Millisecond)}
		const n = 1000
		d := authorize(t, throttler.New(c.plainly()), throttler.Rule{Identifier: "r", Either: conditions(n, 5, time.Minute)})
		require.NoError(t, d.Err)
		synctest.Wait()
		require.LessOrEqual(t, c.served.Load(), int64(1+64+n), "and as many as were under way")
	})
}

// The record is changed by another process between each read and write.
func TestContentionBetweenProcessesIsBoundedInTime(t *testing.T) {
	for name, client := range map[string]func(*memstore.Store) throttler.Client{
		"plain": func(store *memstore.Store) throttler.Client {
			client := slowReader(store)
			client.before = func(op string, _ ...string) error {
				if op == "add" || op == "cas" {
					hitBy(throttler.New(store))
				}
				return nil
			}
			return client
		},
		"one trip": func(store *memstore.Store) throttler.Client {
			r := remoteOf(store)
			r.faster = func() { hitBy(throttler.New(store)) }
			return r
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				th := throttler.New(client(memstore.New()))
				th.QueueTimeout = 40 * roundTrip
				begin := time.Now()
				d := authorize(t, th, valued("hot"))
				require.ErrorIs(t, d.Err, throttler.ErrOverloaded)
				require.NotErrorIs(t, d.Err, throttler.ErrUnavailable)
				require.Equal(t, throttler.Authorized, d.Status)
				require.InDelta(t, 42*roundTrip, time.Since(begin), float64(2*roundTrip))
			})
		})
	}
}

// hitBy counts a hit of the value that is contended for.
func hitBy(th *throttler.Throttler) { _, _ = th.Authorize(context.Background(), valued("hot")) }

// What a client hands out that nobody asked for is somebody else's: it bans nobody.
func TestStrayAnswersOfAPlainClientAreAnErrorAndBanNobody(t *testing.T) {
	store := memstore.New()
	ban := either(condition("banned", 1, time.Hour))
	require.NoError(t, throttler.New(store).Ban(t.Context(), ban, time.Hour))
	item, err := store.Get("test#banned#v")
	require.NoError(t, err)
	for name, rule := range map[string]throttler.Rule{
		"one condition":  either(condition("a", 5, time.Hour)),
		"two conditions": either(condition("a", 5, time.Hour), condition("b", 5, time.Hour)),
	} {
		for keyed, items := range map[string]map[string]*memcache.Item{
			"under its own key":  {item.Key: item},
			"under another's":    {"test#a#v": item},
			"beside what is due": {item.Key: item, "test#a#v": {Key: "test#a#v", CasID: 1}},
		} {
			t.Run(name+", "+keyed, func(t *testing.T) {
				th := throttler.New(strayClient{newFaulty(), item, items})
				th.BlockCache = 10
				for range 2 {
					d := authorize(t, th, rule)
					require.Error(t, d.Err)
					require.Equal(t, throttler.Authorized, d.Status)
					for _, o := range d.Outcomes {
						require.Error(t, o.Err)
						require.False(t, o.Banned)
					}
				}
			})
		}
	}
}

// An emptyClient has an item of nil for a key that is not stored.
type emptyClient struct{ throttler.Client }

func (c emptyClient) GetMulti(keys []string) (map[string]*memcache.Item, error) {
	items, err := c.Client.GetMulti(keys)
	for _, key := range keys {
		if _, ok := items[key]; !ok {
			items[key] = nil
		}
	}
	return items, err
}

func TestAnItemOfNilIsNone(t *testing.T) {
	th := throttler.New(emptyClient{over(memstore.New())})
	rule := either(condition("a", 1, time.Minute), condition("b", 1, time.Minute))
	d := authorize(t, th, rule)
	require.NoError(t, d.Err)
	require.Equal(t, throttler.Authorized, d.Status)
	require.Equal(t, throttler.Blocked, authorize(t, th, rule).Status)
}
