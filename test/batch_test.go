package throttler_test

import (
	"context"
	"errors"
	"github.com/adaptivethrottler/throttler/internal/coalesce"
	"io"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/memstore"
	"github.com/bradfitz/gomemcache/memcache"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// What becomes of calls that were decided together when their write fails: each
// must be answered by what is stored, and not by the hits of the others that are
// not.

// together has two calls of a window of 2 decided together, after one hit was
// counted, and returns their decisions.
func together(t *testing.T, c *counter, th *throttler.Throttler) (decisions [2]throttler.Decision) {
	t.Helper()
	rule := either(condition("a", 2, time.Hour))
	var wg sync.WaitGroup
	wg.Go(func() { authorize(t, th, rule) })
	time.Sleep(roundTrip * 3 / 2) // it has been read, and is being written
	for i := range decisions {
		wg.Go(func() {
			d, err := th.Authorize(context.Background(), rule)
			assert.NoError(t, err)
			decisions[i] = d
		})
		synctest.Wait() // so that they come in order
	}
	wg.Wait()
	require.EqualValues(t, 1, c.most.Load(), "of each record one exchange is under way")
	return decisions
}

func TestNobodyIsBlockedByHitsThatWereNotStored(t *testing.T) {
	refused := errors.New("SERVER_ERROR out of memory storing object")
	for name, client := range map[string]func(c *counter) throttler.Client{
		"the write fails": func(c *counter) throttler.Client {
			c.fails = func(op string) error {
				if op == "cas" {
					return refused
				}
				return nil
			}
			return c.plainly()
		},
		"there are no tokens": func(c *counter) throttler.Client { return tokenless{c.plainly()} },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := &counter{Store: memstore.New(), serves: always(roundTrip)}
				th := throttler.New(client(c))
				for _, d := range together(t, c, th) {
					o := d.Outcomes[0]
					require.Error(t, o.Err)
					require.False(t, o.Blocked)
					require.Equal(t, o.Limit, o.Remaining, "nothing is known to be counted")
					require.NoError(t, th.Cancel(t.Context(), d))
				}
				require.Equal(t, []int{0}, remaining(peek(t, th, either(condition("a", 2, time.Hour)))), "the first hit stays")
			})
		})
	}
}

// The connection breaks before the write arrives, and the record is gone by then.
func TestCallsDecidedTogetherAreDecidedAnewAfterALostWrite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &counter{Store: memstore.New(), serves: always(roundTrip)}
		c.fails = func(op string) error {
			if op != "cas" {
				return nil
			}
			_ = c.Store.Delete("test#a#v")
			return io.EOF
		}
		for _, d := range together(t, c, throttler.New(c.plainly())) {
			require.NoError(t, d.Err)
			require.Equal(t, throttler.Authorized, d.Status)
		}
	})
}

// A call is not answered by what was read before it came.
func TestACallIsNotDecidedOnARecordThatWasReadBeforeIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New()
		th := throttler.New(slowReader(store))
		rule := either(condition("a", 1, time.Hour))
		authorize(t, throttler.New(store), rule)
		var wg sync.WaitGroup
		wg.Go(func() { assert.Equal(t, throttler.Blocked, authorize(t, th, rule).Status, "as it was read") })
		time.Sleep(roundTrip / 2)
		require.NoError(t, store.Delete("test#a#v"))
		require.Equal(t, throttler.Authorized, authorize(t, th, rule).Status)
		wg.Wait()
	})
}

func TestALostWriteOfAPlainClientThatArrivesLateBansNobody(t *testing.T) {
	th := throttler.New(&breaking{Client: memstore.New()})
	rule := either(condition("a", 1, time.Hour))
	rule.Lockout = time.Hour
	d := authorize(t, th, rule)
	require.Error(t, d.Err)
	require.Equal(t, throttler.Blocked, d.Status)
	require.False(t, d.Outcomes[0].Banned)
}

// A record that changes now and then is not one that the backend refuses to store.
func TestRefusalsThatAreNotInARowAreNoReasonToGiveUp(t *testing.T) {
	store := memstore.New()
	others := throttler.New(store)
	hitBy(others)
	writes := 0
	client := over(store)
	client.before = func(op string, _ ...string) error {
		if op != "cas" {
			return nil
		}
		writes++
		switch {
		case writes > 4*coalesce.MaxStalls:
			return nil
		case writes%2 == 0:
			hitBy(others)
		}
		return memcache.ErrCASConflict
	}
	d := authorize(t, throttler.New(client), valued("hot"))
	require.NoError(t, d.Err)
	require.Equal(t, 4*coalesce.MaxStalls, d.Outcomes[0].LostRaces)
}

// A call that has lost a race is decided before those that came after it.
func TestACallThatLostARaceKeepsItsPlace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := newDistant()
		th, others := throttler.New(client), throttler.New(client.Client)
		rule := either(condition("a", 2, time.Minute))
		var wg sync.WaitGroup
		wg.Go(func() { assert.Equal(t, throttler.Authorized, authorize(t, th, rule).Status) })
		time.Sleep(roundTrip * 3 / 2) // it has been read, and is being written
		authorize(t, others, rule)
		wg.Go(func() { assert.Equal(t, throttler.Blocked, authorize(t, th, rule).Status) })
		wg.Wait()
	})
}

// What was refused before a write that was carried out counts for nothing after it.
func TestAWriteThatIsCarriedOutEndsARowOfRefusals(t *testing.T) {
	exchanging(t, func(t *testing.T, th *throttler.Throttler, r *remote) {
		writes := 0
		r.faster = func() {
			writes++
			r.torn = writes%coalesce.MaxStalls != 0
		}
		var wg sync.WaitGroup
		for i := range 2 {
			wg.Go(func() {
				d := authorize(t, th, either(condition("a", 5, time.Hour)))
				assert.NoError(t, d.Err)
				assert.Equal(t, coalesce.MaxStalls-2+i, d.Outcomes[0].LostRaces, "the first refusal is of a guess")
			})
			time.Sleep(coalesce.MaxStalls*roundTrip - roundTrip/4) // the last write is under way
		}
		wg.Wait()
	})
}

// A call that changes nothing needs no token, whoever it is decided with.
func TestAPeekIsAnsweredThoughWhatItIsDecidedWithCannotBeStored(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &counter{Store: memstore.New(), serves: always(roundTrip)}
		th := throttler.New(tokenless{c.plainly()})
		rule := either(condition("a", 3, time.Hour))
		authorize(t, th, rule) // the first hit is added
		var decisions [3]throttler.Decision
		var wg sync.WaitGroup
		for i, call := range []func(context.Context, throttler.Rule) (throttler.Decision, error){th.Peek, th.Authorize, th.Peek} {
			wg.Go(func() {
				var err error
				decisions[i], err = call(context.Background(), rule)
				assert.NoError(t, err)
			})
			synctest.Wait() // the first is under way, the others wait for it together
		}
		wg.Wait()
		require.EqualValues(t, 4, c.served.Load(), "a read and a write, and a read for each batch")
		require.ErrorIs(t, decisions[1].Err, throttler.ErrNoCAS)
		require.NoError(t, decisions[2].Err)
		require.Equal(t, []int{1}, remaining(decisions[2]))
	})
}
