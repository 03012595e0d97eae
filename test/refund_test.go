package throttler_test

import (
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/internal/servertest"
	"github.com/adaptivethrottler/throttler/memstore"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// countings is a rule with a condition of each algorithm that counts hits: 5 a minute, or a day.
func countings(cost int) throttler.Rule {
	calendar := condition("calendar", 5, 0)
	calendar.Algorithm = throttler.Calendar
	r := both()
	r.Either = append(r.Either, calendar)
	for i := range r.Either {
		r.Either[i].Cost = cost
	}
	return r
}

func refunded(t *testing.T, th *throttler.Throttler, rule throttler.Rule) throttler.Decision {
	t.Helper()
	d, err := th.Refund(t.Context(), rule)
	require.NoError(t, err)
	return d
}

func TestRefundIsOneExchange(t *testing.T) {
	server := servertest.NewMemcached(t)
	th := throttler.New(patientPool(t, server.Addr))
	rule := either(condition("window", 5, time.Minute))
	authorize(t, th, rule)
	before := th.Stats()
	refunded(t, th, rule)
	assert.EqualValues(t, 1, th.Stats().Exchanges-before.Exchanges)
	assert.EqualValues(t, 1, th.Stats().RightGuesses-before.RightGuesses)
}

func TestRefundInAnOutageIsTheFallbacks(t *testing.T) {
	client := newFaulty()
	th := throttler.New(client)
	th.Fallback = memstore.New()
	client.before = failing(errDown, "", "get", "multi", "add", "cas")
	for range 3 {
		authorize(t, th, countings(1))
	}
	d := refunded(t, th, countings(2))
	assert.ErrorIs(t, d.Err, errDown)
	assert.Equal(t, []int{4, 4, 4}, remaining(d))
}

func TestRefundOfWhatIsInFlightIsAMistake(t *testing.T) {
	c := condition("jobs", 5, time.Minute)
	c.Algorithm = throttler.InFlight
	_, err := throttler.New(memstore.New()).Refund(t.Context(), either(c))
	assert.ErrorIs(t, err, throttler.ErrInvalidRule)
	assert.ErrorContains(t, err, "Either[0].Algorithm")
	_, err = throttler.New(memstore.New()).Refund(t.Context(), throttler.Rule{})
	assert.ErrorIs(t, err, throttler.ErrInvalidRule)
}

// Two processes count and refund the same values at once: nothing is lost or gained.
func TestRefundsAndHitsOfSeveralProcessesAddUp(t *testing.T) {
	server := servertest.NewMemcached(t)
	rule := countings(1)
	for i := range rule.Either {
		rule.Either[i].Max = 1000
		if rule.Either[i].TTL > 0 {
			rule.Either[i].TTL = 24 * time.Hour
		} else {
			rule.Either[i].Period = longMonth()
		}
	}
	before := authorize(t, throttler.New(patientPool(t, server.Addr)), rule)
	for range 99 { // so that no refund finds none
		require.NoError(t, authorize(t, throttler.New(patientPool(t, server.Addr)), rule).Err)
	}
	var all sync.WaitGroup
	var mu sync.Mutex
	sum := 0
	for range 2 {
		th := throttler.New(patientPool(t, server.Addr))
		for range 8 {
			all.Go(func() {
				counted := 0
				for range 50 {
					if rand.IntN(2) == 0 || counted == 0 {
						d := authorize(t, th, rule)
						assert.Equal(t, throttler.Authorized, d.Status)
						assert.NoError(t, d.Err, "it is counted")
						counted++
					} else {
						d, err := th.Refund(t.Context(), rule)
						assert.NoError(t, err)
						assert.NoError(t, d.Err)
						counted--
					}
				}
				mu.Lock()
				defer mu.Unlock()
				sum += counted
			})
		}
	}
	all.Wait()
	left := remaining(peek(t, throttler.New(patientPool(t, server.Addr)), rule))
	want := before.Outcomes[0].Remaining - 99 - sum - 1 // the one of this look
	assert.Equal(t, want, left[0])
	assert.InDelta(t, want, left[1], 2, "some leaks meanwhile")
	assert.Equal(t, want, left[2])
}
