package throttler_test

import (
	"context"
	"errors"
	"fmt"
	"github.com/adaptivethrottler/throttler/internal/coalesce"
	"github.com/adaptivethrottler/throttler/internal/record"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/adaptivethrottler/throttler"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// What calls cost, and come to, over a client that writes and reads back in one
// round trip.

// exchanging runs test in a bubble, with a server that is roundTrip away.
func exchanging(t *testing.T, test func(t *testing.T, th *throttler.Throttler, r *remote)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		r := newRemote()
		test(t, throttler.New(r), r)
	})
}

// trips returns how many round trips call takes one after the other.
func trips(call func()) int {
	begin := time.Now()
	call()
	return int(time.Since(begin) / roundTrip)
}

func TestOneRoundTripForARecordThatIsNewKnownFullOrBanned(t *testing.T) {
	exchanging(t, func(t *testing.T, th *throttler.Throttler, r *remote) {
		rule := either(condition("a", 2, time.Minute))
		rule.Lockout = time.Hour
		for i, want := range []throttler.Status{throttler.Authorized, throttler.Authorized, throttler.Blocked, throttler.Blocked} {
			require.Equal(t, 1, trips(func() { require.Equal(t, want, authorize(t, th, rule).Status) }), "call %d", i)
		}
		require.Equal(t, 1, trips(func() { peek(t, th, rule) }))
		require.Equal(t, throttler.Stats{Exchanges: 5, Guesses: 4, RightGuesses: 2, Remembered: 1}, th.Stats(), "all but the first were guessed, and two of them changed the record")
	})
}

func TestWithoutRecordCacheNothingIsGuessed(t *testing.T) {
	exchanging(t, func(t *testing.T, th *throttler.Throttler, r *remote) {
		th.RecordCache = -1
		rule := either(condition("a", 5, time.Minute))
		require.Equal(t, 1, trips(func() { authorize(t, th, rule) }))
		require.Equal(t, 2, trips(func() { authorize(t, th, rule) }))
		require.Zero(t, th.Stats().Guesses)
	})
}

func TestLargeRecordsAreNotRemembered(t *testing.T) {
	exchanging(t, func(t *testing.T, th *throttler.Throttler, r *remote) {
		rule := either(condition("a", record.MaxLeases, 1000*time.Hour))
		rule.Either[0].Algorithm = throttler.InFlight // each hit has 28 bytes
		other := throttler.New(r.store)
		for range 2300 {
			authorize(t, other, rule)
		}
		authorize(t, th, rule)
		for trips(func() { authorize(t, th, rule) }) == 1 {
			require.Positive(t, peek(t, th, rule).Outcomes[0].Remaining)
		}
		item, err := r.Get("test#a#v")
		require.NoError(t, err)
		require.InDelta(t, 64<<10, len(item.Value), 1000)
	})
}

func TestWhatIsAssessedIsNotReadAgainToBeCounted(t *testing.T) {
	exchanging(t, func(t *testing.T, th *throttler.Throttler, r *remote) {
		th.RecordCache = -1
		rule := throttler.Rule{Identifier: "r", Either: conditions(2, 5, time.Minute), CountAuthorizedOnly: true}
		for range 2 {
			require.Equal(t, 2, trips(func() { require.Equal(t, throttler.Authorized, authorize(t, th, rule).Status) }))
		}
	})
}

// The server restarts after the call was assessed, and its token comes again.
func TestATokenThatWasAssessedNeverMeetsTheRecordOfAnotherConnection(t *testing.T) {
	exchanging(t, func(t *testing.T, th *throttler.Throttler, r *remote) {
		rule := either(condition("a", 5, time.Minute), condition("b", 5, time.Minute))
		authorize(t, throttler.New(r.store), rule)
		var d throttler.Decision
		var wg sync.WaitGroup
		wg.Go(func() {
			rule := rule
			rule.CountAuthorizedOnly = true
			d = authorize(t, th, rule)
		})
		time.Sleep(roundTrip * 3 / 4) // it has been read, and the answer is on its way
		synctest.Wait()
		r.restart()
		rule.Either[0].Cost, rule.Either[1].Cost = 3, 3
		authorize(t, throttler.New(r.store), rule)
		wg.Wait()
		require.Equal(t, []int{1, 1}, remaining(d), "the hits of the others are not overwritten")
	})
}

func TestARaceThatIsLostOverAProxyIsDecidedAnew(t *testing.T) {
	exchanging(t, func(t *testing.T, th *throttler.Throttler, r *remote) {
		r.proxy = true
		rule := either(condition("a", 2, time.Minute))
		var d throttler.Decision
		var wg sync.WaitGroup
		wg.Go(func() { d = authorize(t, th, rule) })
		time.Sleep(roundTrip * 3 / 2) // it has been read, and is about to be written
		authorize(t, throttler.New(r.store), rule)
		wg.Wait()
		require.Equal(t, []int{0}, remaining(d))
		require.Equal(t, 1, d.Outcomes[0].LostRaces)
		require.Equal(t, throttler.Blocked, authorize(t, th, rule).Status)
	})
}

func TestAWriteThatFailsOverAProxyIsNotCounted(t *testing.T) {
	exchanging(t, func(t *testing.T, th *throttler.Throttler, r *remote) {
		r.proxy, r.full = true, errDown
		d := authorize(t, th, either(condition("a", 2, time.Minute)))
		require.ErrorIs(t, d.Err, errDown)
		require.Equal(t, []int{2}, remaining(d))
		require.Nil(t, d.Receipt())
	})
}

func TestNothingIsRememberedOverAProxy(t *testing.T) {
	exchanging(t, func(t *testing.T, th *throttler.Throttler, r *remote) {
		r.proxy = true
		rule := either(condition("a", 5, time.Minute))
		for range 2 {
			require.Equal(t, 2, trips(func() { authorize(t, th, rule) }))
		}
		require.Zero(t, th.Stats().Remembered)
	})
}

// Calls that come before the record is read are answered by it.
func TestCallsThatCameBeforeTheTurnAreAnsweredTogether(t *testing.T) {
	exchanging(t, func(t *testing.T, th *throttler.Throttler, r *remote) {
		rule := either(condition("a", 1, time.Minute))
		authorize(t, throttler.New(r.store), rule)
		r.busy = roundTrip
		var wg sync.WaitGroup
		for range 2 {
			wg.Go(func() { assert.Equal(t, throttler.Blocked, authorize(t, th, rule).Status) })
			synctest.Wait()
		}
		wg.Wait()
		require.EqualValues(t, 1, r.trips.Load())
	})
}

// The call that carries out the exchange leaves the next one to the client.
func TestACallIsNotKeptForTheExchangesOfOthers(t *testing.T) {
	exchanging(t, func(t *testing.T, th *throttler.Throttler, r *remote) {
		rule := either(condition("a", 50, time.Minute))
		var wg sync.WaitGroup
		for i := range 5 {
			wg.Go(func() { assert.Equal(t, min(i+1, 2), trips(func() { authorize(t, th, rule) })) })
			synctest.Wait()
		}
		wg.Wait()
	})
}

// A hit counts from the moment it is sent, however long it has waited for that.
func TestTheClockIsReadWhenTheTurnComes(t *testing.T) {
	exchanging(t, func(t *testing.T, th *throttler.Throttler, r *remote) {
		const ttl = 100 * time.Millisecond
		rule := either(condition("a", 1, ttl))
		authorize(t, th, rule)
		r.busy = 3 * ttl
		begin := time.Now()
		require.Equal(t, throttler.Authorized, authorize(t, th, rule).Status, "the first hit has expired meanwhile")
		require.Equal(t, r.busy+roundTrip, time.Since(begin))
		item, err := r.store.Get(throttler.RecordKey("test", "a", "v"))
		require.NoError(t, err)
		expiries := inspect(t, item.Value).Expiries
		require.Len(t, expiries, 1)
		require.Equal(t, r.busy+ttl, expiries[0].Sub(begin))
	})
}

func TestACallWithoutATurnIsNotBlockedByWhatAnEarlierOneFound(t *testing.T) {
	exchanging(t, func(t *testing.T, th *throttler.Throttler, r *remote) {
		rule := either(condition("a", 1, time.Minute))
		var decisions [3]throttler.Decision
		var wg sync.WaitGroup
		for i := range decisions {
			wg.Go(func() { decisions[i] = authorize(t, th, rule) })
			synctest.Wait()
			if i == 1 {
				time.Sleep(roundTrip * 3 / 2) // its exchange is under way
				r.noTurn.Store(1)
			}
		}
		wg.Wait()
		require.Equal(t, throttler.Blocked, decisions[1].Status)
		require.Equal(t, throttler.Authorized, decisions[2].Status)
		require.ErrorIs(t, decisions[2].Err, throttler.ErrOverloaded)
	})
}

// The server restarts, and a token of before comes again.
func TestATokenNeverMeetsTheRecordOfAnotherConnection(t *testing.T) {
	exchanging(t, func(t *testing.T, th *throttler.Throttler, r *remote) {
		rule := either(condition("a", 5, time.Minute))
		authorize(t, th, rule) // token 1
		r.restart()
		authorize(t, throttler.New(r), either(costing(rule.Either[0], 3))) // token 1 again
		require.Equal(t, []int{1}, remaining(authorize(t, th, rule)), "the hits of the other are not overwritten")
	})
}

// manyOfOne is the number of calls that are admitted of those that share makes.
const manyOfOne = 600

// share has 64 callers call th 10 times each, for one value. It returns how many calls
// were admitted, and how long all of them took.
func share(t *testing.T, th *throttler.Throttler) (admitted int64, took time.Duration) {
	t.Helper()
	rule := throttler.Rule{Identifier: uniqueID(), Either: []throttler.Condition{limit("a", manyOfOne, time.Hour)}}
	var authorized atomic.Int64
	var wg sync.WaitGroup
	begin := time.Now()
	for range 64 {
		wg.Go(func() {
			for range 10 {
				d, err := th.Authorize(context.Background(), rule)
				assert.NoError(t, err)
				assert.NoError(t, d.Err)
				authorized.Add(int64(d.Status))
			}
		})
	}
	wg.Wait()
	return authorized.Load(), time.Since(begin)
}

func TestCallersOfOneValueShareRoundTrips(t *testing.T) {
	exchanging(t, func(t *testing.T, th *throttler.Throttler, r *remote) {
		admitted, took := share(t, th)
		require.EqualValues(t, manyOfOne, admitted)
		require.LessOrEqual(t, r.trips.Load(), int64(20))
		require.LessOrEqual(t, took, 20*roundTrip)
	})
	travel(t, func(j *journey) {
		admitted, took := share(j.T, j.throttler)
		require.EqualValues(j, manyOfOne, admitted)
		require.LessOrEqual(j, j.client.ops.Load(), int64(40), "over a client that reads first")
		require.LessOrEqual(j, took, 40*roundTrip)
	})
}

func TestAnExchangeDecides256CallsAtMost(t *testing.T) {
	exchanging(t, func(t *testing.T, th *throttler.Throttler, r *remote) {
		rule := either(condition("a", 1000, time.Minute))
		var wg sync.WaitGroup
		wg.Go(func() { authorize(t, th, rule) })
		synctest.Wait() // it is under way, and the others wait for it together
		for range 2*256 + 1 {
			wg.Go(func() { authorize(t, th, rule) })
		}
		wg.Wait()
		require.EqualValues(t, 1+3, r.trips.Load())
	})
}

// Callers with other rules for the same record are decided together, each by its
// own.
func TestRulesThatShareARecordAreDecidedTogether(t *testing.T) {
	exchanging(t, func(t *testing.T, th *throttler.Throttler, r *remote) {
		var wg sync.WaitGroup
		var authorized [2]atomic.Int64
		for i, limit := range []int{3, 5} {
			for range 10 {
				wg.Go(func() {
					d, err := th.Authorize(t.Context(), either(condition("a", limit, time.Minute)))
					assert.NoError(t, err)
					authorized[i].Add(int64(d.Status))
				})
			}
		}
		wg.Wait()
		require.LessOrEqual(t, authorized[0].Load(), int64(3))
		require.EqualValues(t, 5, authorized[0].Load()+authorized[1].Load())
		require.LessOrEqual(t, r.trips.Load(), int64(4))
	})
}

// Nobody else has told the caller that a hit may stay.
func TestCancelSaysThatAHitMayStayWhoseAnswerWasLostAfterItsContextEnded(t *testing.T) {
	for name, call := range map[string]func(*throttler.Throttler, context.Context, throttler.Rule) (throttler.Decision, error){
		"Authorize": (*throttler.Throttler).Authorize, "Wait": (*throttler.Throttler).Wait,
	} {
		for _, down := range []error{nil, errDown} {
			t.Run(fmt.Sprint(name, " down: ", down), func(t *testing.T) {
				exchanging(t, func(t *testing.T, th *throttler.Throttler, r *remote) {
					rule := either(condition("a", 5, time.Minute))
					if r.err = down; down == nil {
						r.lose = covered
					}
					ctx, cancel := context.WithTimeout(t.Context(), roundTrip/4)
					defer cancel()
					d, err := call(th, ctx, rule)
					require.ErrorIs(t, errors.Join(err, d.Err), context.DeadlineExceeded)
					err = th.Cancel(t.Context(), d)
					require.Error(t, err)
					require.NotErrorIs(t, err, context.DeadlineExceeded)
					r.err = nil
					left := 4 - 1 // a hit, and this look
					if down != nil {
						require.ErrorIs(t, err, errDown)
						left = 4 // this server has not read it
					}
					require.Equal(t, []int{left}, remaining(peek(t, th, rule)))
					require.NoError(t, th.Cancel(t.Context(), d), "it is told once")
					require.Equal(t, []int{left}, remaining(peek(t, th, rule)))
				})
			})
		}
	}
}

func TestCancelOfACallThatTurnsOutBlockedTakesNoRoundTrip(t *testing.T) {
	exchanging(t, func(t *testing.T, th *throttler.Throttler, r *remote) {
		rule := either(condition("a", 1, time.Minute))
		authorize(t, throttler.New(r), rule)
		ctx, cancel := context.WithTimeout(t.Context(), roundTrip/4)
		defer cancel()
		d, err := th.Authorize(ctx, rule)
		require.NoError(t, err)
		require.ErrorIs(t, d.Err, context.DeadlineExceeded)
		before := r.trips.Load()
		require.NoError(t, th.Cancel(t.Context(), d))
		require.Equal(t, before, r.trips.Load())
	})
}

// The read that a Cancel left under way fails, and the next Cancel reads again.
func TestCancelTriesAgainWhatFailedAfterItWasLeft(t *testing.T) {
	exchanging(t, func(t *testing.T, th *throttler.Throttler, r *remote) {
		th.RecordCache = -1 // so that it reads first
		rule := either(condition("a", 5, time.Minute))
		d := authorize(t, th, rule)
		r.err = errDown
		ctx, cancel := context.WithTimeout(t.Context(), roundTrip/4)
		defer cancel()
		require.ErrorIs(t, th.Cancel(ctx, d), context.DeadlineExceeded)
		r.err = nil
		require.NoError(t, th.Cancel(t.Context(), d))
		require.Equal(t, []int{4}, remaining(peek(t, th, rule)))
	})
}

// The call was left while it only looked, so it has counted nothing.
func TestCancelDoesNotWaitForALook(t *testing.T) {
	exchanging(t, func(t *testing.T, th *throttler.Throttler, r *remote) {
		rule := either(condition("a", 5, time.Minute), condition("b", 5, time.Minute))
		rule.CountAuthorizedOnly = true
		ctx, cancel := context.WithTimeout(t.Context(), roundTrip/4)
		defer cancel()
		d, err := th.Authorize(ctx, rule)
		require.NoError(t, err)
		require.ErrorIs(t, d.Err, context.DeadlineExceeded)
		start := time.Now()
		require.NoError(t, th.Cancel(t.Context(), d))
		require.Zero(t, time.Since(start))
		time.Sleep(2 * roundTrip) // what was left behind ends by itself
	})
}

// A call finds a condition full after it was counted in another one.
func TestARefusedCallWhoseLostAnswerIsCoveredTakesBackItsOwnHit(t *testing.T) {
	exchanging(t, func(t *testing.T, th *throttler.Throttler, r *remote) {
		a, b := condition("a", 5, time.Minute), condition("b", 1, time.Minute)
		r.busy = roundTrip / 4
		var wg sync.WaitGroup
		wg.Go(func() {
			rule := either(a, b)
			rule.CountAuthorizedOnly = true
			assert.Equal(t, throttler.Blocked, authorize(t, th, rule).Status)
		})
		time.Sleep(roundTrip) // both were found to have room
		authorize(t, throttler.New(r.store), either(b))
		time.Sleep(roundTrip * 3 / 8) // the hit is about to be sent, with that of another call
		wg.Go(func() { assert.Equal(t, throttler.Authorized, authorize(t, th, either(a)).Status) })
		time.Sleep(roundTrip / 2)
		r.mu.Lock()
		r.lose = covered // what takes it back
		r.mu.Unlock()
		wg.Wait()
		require.Equal(t, nothingLost, r.lose)
		require.Equal(t, []int{3}, remaining(peek(t, th, either(a))), "the hit of the other, and this look")
	})
}

// The hit is given back though nobody waits for that.
func TestARefusedCallThatEndsBeforeItsHitsAreBackHasCost0(t *testing.T) {
	exchanging(t, func(t *testing.T, th *throttler.Throttler, r *remote) {
		wide, narrow := condition("wide", 5, time.Minute), condition("narrow", 1, time.Minute)
		rule := either(wide, narrow)
		rule.CountAuthorizedOnly = true
		time.AfterFunc(roundTrip*3/4, func() { // both are found to have room before
			_, err := throttler.New(r.store).Authorize(context.Background(), either(narrow))
			assert.NoError(t, err)
		})
		ctx, cancel := context.WithTimeout(t.Context(), roundTrip*5/2)
		defer cancel()
		d, err := th.Authorize(ctx, rule)
		require.NoError(t, err)
		require.ErrorIs(t, d.Outcomes[0].Err, context.DeadlineExceeded)
		require.Equal(t, throttler.Blocked, d.Status)
		for _, o := range d.Outcomes {
			require.Zero(t, o.Cost, o.Name)
		}
		time.Sleep(roundTrip)
		require.Equal(t, []int{4}, remaining(peek(t, th, either(wide))), "this look alone")
	})
}

// Of what was asked together only the other call may have been carried out.
func TestACancelThatChangedNothingBeforeTheServerFailedIsTriedAgain(t *testing.T) {
	exchanging(t, func(t *testing.T, th *throttler.Throttler, r *remote) {
		rule := either(condition("a", 5, time.Minute))
		receipt := authorize(t, throttler.New(r.store), rule).Receipt()
		d, err := th.Redeem(receipt)
		require.NoError(t, err)
		r.err, r.busy = errDown, time.Millisecond
		var wg sync.WaitGroup
		wg.Go(func() { assert.ErrorIs(t, th.Cancel(t.Context(), d), errDown) })
		wg.Go(func() { assert.ErrorIs(t, authorize(t, th, rule).Err, errDown) })
		wg.Wait()
		r.err = nil
		require.NoError(t, th.Cancel(t.Context(), d))
		require.Equal(t, []int{4}, remaining(peek(t, th, rule)), "this look alone")
	})
}

// What the guess was wrong about is read by the exchange whose write fails.
func TestAFullRecordBlocksThoughAWriteOnAWrongGuessFails(t *testing.T) {
	exchanging(t, func(t *testing.T, th *throttler.Throttler, r *remote) {
		narrow, wide := either(condition("a", 1, time.Minute)), either(condition("a", 5, time.Minute))
		authorize(t, throttler.New(r.store), narrow)
		r.full = errDown
		d := authorize(t, th, narrow)
		require.Equal(t, throttler.Blocked, d.Status)
		require.NoError(t, d.Err)
		d = authorize(t, th, wide)
		require.Equal(t, throttler.Authorized, d.Status)
		require.ErrorIs(t, d.Err, errDown)
		require.Nil(t, d.Receipt())
	})
}

// The server is asked, does not answer, and what was seen last is no answer.
func TestARememberedRecordBlocksNobodyWhileTheBackendFails(t *testing.T) {
	exchanging(t, func(t *testing.T, th *throttler.Throttler, r *remote) {
		rule := either(condition("a", 1, time.Minute))
		authorize(t, th, rule)
		r.err = errDown
		d := authorize(t, th, rule)
		require.Equal(t, throttler.Authorized, d.Status)
		require.ErrorIs(t, d.Err, errDown)
		require.Equal(t, []int{1}, remaining(d))
	})
}

func TestAnExchangerThatRefusesEveryWriteIsGivenUp(t *testing.T) {
	exchanging(t, func(t *testing.T, th *throttler.Throttler, r *remote) {
		rule := either(condition("a", 5, time.Minute))
		for range 2 {
			r.torn = true
			for range 2 { // each by itself
				before := r.trips.Load()
				require.ErrorIs(t, authorize(t, th, rule).Err, coalesce.ErrStalled)
				require.EqualValues(t, coalesce.MaxStalls+1, r.trips.Load()-before, "the first on a guess")
			}
			r.torn = false
			authorize(t, th, rule) // now there is a record
		}
	})
}

// Nothing was to be written, so no write was refused.
func TestARecordThatIsFoundToHaveRoomAfterAllIsNoLostRace(t *testing.T) {
	exchanging(t, func(t *testing.T, th *throttler.Throttler, r *remote) {
		rule := either(condition("a", 1, time.Minute))
		var d throttler.Decision
		var wg sync.WaitGroup
		wg.Go(func() { authorize(t, th, rule) })
		synctest.Wait() // it is under way, and the next call is decided on what it leaves
		wg.Go(func() { d = authorize(t, th, rule) })
		time.Sleep(roundTrip * 5 / 4)
		require.NoError(t, r.store.Delete("test#a#v"))
		wg.Wait()
		require.Equal(t, throttler.Authorized, d.Status)
		require.Zero(t, d.Outcomes[0].LostRaces)
		require.Zero(t, th.Stats().LostRaces)
	})
}

// The second of them is decided on what the first has just written.
func TestCallsInARowAreNoGuesses(t *testing.T) {
	exchanging(t, func(t *testing.T, th *throttler.Throttler, r *remote) {
		rule := either(condition("a", 5, time.Minute))
		var wg sync.WaitGroup
		for range 2 {
			wg.Go(func() { authorize(t, th, rule) })
			synctest.Wait()
		}
		wg.Wait()
		require.Equal(t, throttler.Stats{Exchanges: 2, Remembered: 1}, th.Stats())
	})
}
