package throttler_test

import (
	"context"
	"testing"
	"time"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/memstore"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// What the limiters promise, for any rules and arrivals, through the API and in
// time that is held.

// check checks a property under synctest.
func check(t *testing.T, property func(*rapid.T)) {
	t.Helper()
	rapid.Check(t, func(t *rapid.T) { rapid.SyncTest(t, property) })
}

// drawLimiter draws a condition that takes few hits. Its TTL is any number of
// nanoseconds, so that an interval of a bucket need not be a whole one.
func drawLimiter(t *rapid.T, algorithm throttler.Algorithm) throttler.Condition {
	return throttler.Condition{
		Name:      "limiter",
		Max:       rapid.IntRange(1, 12).Draw(t, "Max"),
		TTL:       time.Duration(rapid.Int64Range(int64(time.Millisecond), int64(10*time.Minute)).Draw(t, "TTL")),
		Algorithm: algorithm,
	}
}

// pause sleeps for up to a part of ttl, or not at all.
func pause(t *rapid.T, ttl time.Duration, part int64) {
	if rapid.Bool().Draw(t, "pause?") {
		time.Sleep(time.Duration(rapid.Int64Range(0, int64(ttl)/part).Draw(t, "pause")))
	}
}

// arrival is a call that was authorized.
type arrival struct {
	at        time.Time
	decision  throttler.Decision
	cancelled bool
}

// arrivals makes calls at random times and takes back random ones of them, at
// any time after. It has counted called after each call that is authorized, with
// those so far, in the order of their times.
func arrivals(t *rapid.T, c throttler.Condition, counted func(sofar []arrival)) {
	th := throttler.New(memstore.New())
	rule := throttler.Rule{Identifier: "test", Either: []throttler.Condition{c}}
	var sofar []arrival
	for range rapid.IntRange(1, 80).Draw(t, "steps") {
		pause(t, c.TTL, int64(c.Max))
		if len(sofar) > 0 && rapid.IntRange(0, 2).Draw(t, "cancel?") == 0 {
			a := &sofar[rapid.IntRange(0, len(sofar)-1).Draw(t, "which")]
			require.NoError(t, th.Cancel(context.Background(), a.decision))
			a.cancelled = true
			continue
		}
		d, err := th.Authorize(context.Background(), rule)
		require.NoError(t, err)
		if d.Status == throttler.Authorized {
			sofar = append(sofar, arrival{at: time.Now(), decision: d})
			counted(sofar)
		}
	}
}

func TestWindowNeverHoldsMoreThanMaxThatAreNotTakenBack(t *testing.T) {
	check(t, func(t *rapid.T) {
		c := drawLimiter(t, throttler.SlidingWindow)
		arrivals(t, c, func(sofar []arrival) {
			inside := 0
			for _, a := range sofar {
				if !a.cancelled && time.Since(a.at) < c.TTL {
					inside++
				}
			}
			require.LessOrEqual(t, inside, c.Max)
		})
	})
}

func TestBucketKeepsItsRateOverAnyTimeForHitsThatAreNotTakenBack(t *testing.T) {
	check(t, func(t *rapid.T) {
		c := drawLimiter(t, throttler.LeakyBucket)
		arrivals(t, c, func(sofar []arrival) {
			n := 0
			for i := len(sofar) - 1; i >= 0; i-- {
				if sofar[i].cancelled {
					continue
				}
				n++
				// n <= Max + T*Max/TTL, without a division.
				over := time.Duration(n-c.Max) * c.TTL
				require.LessOrEqual(t, over, time.Since(sofar[i].at)*time.Duration(c.Max), "%d hits in %v", n, time.Since(sofar[i].at))
			}
		})
	})
}
