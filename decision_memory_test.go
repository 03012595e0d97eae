package throttler

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// drawn is what a test draws for one call on a record.
type drawn struct {
	condition Condition
	lockout   lockout
}

// drawCalls returns a generator of calls on one record, of rules that agree on
// little: they differ in Max, TTL, Algorithm, Cost and lockout.
func drawCalls(t *rapid.T) func() drawn {
	max := rapid.OneOf(rapid.IntRange(1, 12), rapid.IntRange(30, 40)).Draw(t, "max")
	ttl := rapid.Int64Range(int64(time.Millisecond), int64(time.Minute)).Draw(t, "ttl")
	mixed := rapid.Bool().Draw(t, "mixed")
	return func() drawn {
		d := drawn{condition: Condition{Name: "c", Max: max, TTL: time.Duration(ttl)}}
		if mixed {
			d.condition.Max = rapid.IntRange(1, 2*max).Draw(t, "other max")
			d.condition.TTL = time.Duration(rapid.Int64Range(int64(time.Millisecond), 300*ttl).Draw(t, "other ttl"))
		}
		d.condition.Algorithm = Algorithm(rapid.IntRange(0, 4).Draw(t, "algorithm") / 4)
		d.condition.Cost = rapid.SampledFrom([]int{0, 0, 0, 1, d.condition.Max/2 + 1, d.condition.Max}).Draw(t, "cost")
		if rapid.IntRange(0, 5).Draw(t, "bans") == 0 {
			d.lockout = lockout{length: time.Duration(ttl) / 2, growth: float64(rapid.IntRange(0, 2).Draw(t, "growth")), longest: time.Hour}
			d.lockout.keepHits = rapid.Bool().Draw(t, "keep hits")
		}
		return d
	}
}

// reread returns r as another process would find it.
func reread(t require.TestingT, r record) record {
	b := r.encode()
	require.LessOrEqual(t, len(b), r.size())
	r, err := decode(b)
	require.NoError(t, err)
	require.Equal(t, b, r.encode())
	return r
}

// Callers of one value are decided one after the other on one read of its record,
// and stored by one write.
func TestDecisionsOnARecordInMemoryAreThoseOnTheStoredOne(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var stored, threaded record
		var counted []hit
		now := instantOf(time.Unix(1_800_000_000, 0))
		draw := drawCalls(t)
		for range rapid.IntRange(1, 60).Draw(t, "calls") {
			now += instant(rapid.Int64Range(0, int64(time.Second)).Draw(t, "pause")) * instant(rapid.IntRange(0, 1).Draw(t, "later"))
			skewed := now + instant(rapid.SampledFrom([]time.Duration{0, 0, 0, 0, -time.Millisecond, time.Millisecond, time.Hour}).Draw(t, "skew"))
			d := draw()
			if len(counted) > 0 && rapid.IntRange(0, 3).Draw(t, "take back") == 0 {
				h := rapid.SampledFrom(counted).Draw(t, "hit")
				take := record.without
				if rapid.Bool().Draw(t, "withdraw") {
					take = func(r record, h hit, now instant) (record, bool) { return r.withdrawn(h, now, &d.condition) }
				}
				a, foundA := take(stored, h, skewed)
				b, foundB := take(threaded, h, skewed)
				require.Equal(t, foundA, foundB)
				if foundA {
					stored, threaded = reread(t, a), b
				}
				require.Equal(t, stored.encode(), threaded.encode())
				continue
			}
			a := decide(skewed, &d.condition, d.lockout, stored, true)
			b := decide(skewed, &d.condition, d.lockout, threaded, true)
			require.Equal(t, a.outcome, b.outcome)
			require.Equal(t, []any{a.again, a.store, a.hit}, []any{b.again, b.store, b.hit})
			if a.hit.cost > 0 {
				counted = append(counted, a.hit)
			}
			if a.store {
				stored, threaded = reread(t, a.next), b.next
			}
			require.Equal(t, stored.encode(), threaded.encode())
		}
	})
}

// A burst of one instant does not copy a large list for each of its calls.
func TestManyDecisionsOnALargeWindowCopyItOnce(t *testing.T) {
	c := Condition{Name: "c", Max: MaxHits, TTL: time.Hour}
	now := instantOf(time.Unix(1_800_000_000, 0))
	full := record{}
	for i := range instant(1000) {
		full = decide(now+i, &Condition{Max: MaxHits, TTL: time.Hour, Cost: 90}, lockout{}, full, true).next
	}
	full = reread(t, full)
	require.Equal(t, 90_000, full.hits.len())
	require.Zero(t, testing.AllocsPerRun(10, func() {
		r := full
		for range 256 {
			r = decide(now+2000, &c, lockout{}, r, true).next
		}
	}))
}
