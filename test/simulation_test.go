package throttler_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/memstore"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestASimulationDecidesAsAThrottlerWould makes the same calls of both, at the
// same times, for every way that a rule can be.
func TestASimulationDecidesAsAThrottlerWould(t *testing.T) {
	for kinds := range 64 {
		t.Run(fmt.Sprint(kinds), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				random := rand.New(rand.NewPCG(uint64(kinds), 1))
				th := throttler.New(memstore.New())
				var simulation throttler.Simulation
				blocked := 0
				for range 500 {
					rule := simulated(kinds, random)
					want, err := th.Authorize(t.Context(), rule)
					require.NoError(t, err)
					got, err := simulation.Authorize(time.Now(), rule)
					require.NoError(t, err)
					require.Equal(t, want.Outcomes, got.Outcomes)
					require.Equal(t, want.Status, got.Status)
					require.Equal(t, want.Messages, got.Messages)
					require.Equal(t, want.RetryAfter, got.RetryAfter)
					if got.Status == throttler.Blocked {
						blocked++
					}
					time.Sleep(time.Duration(random.IntN(2000)) * time.Millisecond)
				}
				assert.Positive(t, blocked)
				assert.Less(t, blocked, 500)
			})
		})
	}
}

// simulated returns a rule of one of 64 kinds, for one of a few values.
func simulated(kinds int, random *rand.Rand) throttler.Rule {
	conditions := []throttler.Condition{
		{Name: "ip", Value: fmt.Sprint(random.IntN(3)), Max: 3, TTL: 10 * time.Second},
		{Name: "name", Value: fmt.Sprint(random.IntN(3)), Max: 4, TTL: 15 * time.Second},
	}
	rule := throttler.Rule{Identifier: "r", Either: conditions}
	if kinds&1 != 0 {
		rule.Either, rule.All = nil, conditions
	}
	if kinds&2 != 0 {
		rule.Lockout, rule.LockoutGrowth, rule.MaxLockout = 5*time.Second, 2, time.Minute
	}
	if kinds&32 != 0 {
		rule.Either, rule.All, rule.First = nil, nil, conditions
	}
	rule.CountAuthorizedOnly = kinds&4 != 0
	if kinds&8 != 0 {
		conditions[0].Algorithm = throttler.LeakyBucket
	}
	if kinds&16 != 0 {
		c := &conditions[1]
		c.Algorithm, c.TTL, c.Max = throttler.Calendar, 0, 50
		if kinds&32 != 0 {
			c.Max = 10 // it takes only what the first has no room for
		}
	}
	return rule
}

func TestASimulationRefusesAnInvalidRule(t *testing.T) {
	var simulation throttler.Simulation
	_, err := simulation.Authorize(time.Now(), throttler.Rule{})
	assert.ErrorIs(t, err, throttler.ErrInvalidRule)
}

// A log may have times without a year.
func TestASimulationRefusesTimesThatNoRecordCanHold(t *testing.T) {
	for year, fits := range map[int]bool{0: false, 1969: false, 1970: true, 2261: true, 2262: false} {
		for _, c := range ofEveryAlgorithm(1) {
			var simulation throttler.Simulation
			at := time.Date(year, time.January, 2, 15, 4, 5, 0, time.UTC)
			for i, want := range []throttler.Status{throttler.Authorized, throttler.Blocked} {
				d, err := simulation.Authorize(at.Add(time.Duration(i)*time.Second), either(c))
				if !fits {
					require.ErrorContains(t, err, "1970 to 2261")
					continue
				}
				require.NoError(t, err)
				require.Equal(t, want, d.Status, "%v in %d", c.Algorithm, year)
			}
		}
	}
}
