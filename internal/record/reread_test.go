package record

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// drawn is what a test draws for one call on a record.
type drawn struct {
	condition Limit
	lockout   Lockout
}

// surplus is what a call turns out to have cost, beyond what it has counted.
func (d *drawn) surplus(t *rapid.T) Settlement {
	return Settlement{Limit: d.condition, Actual: rapid.IntRange(1, 3*d.condition.Max).Draw(t, "surplus"), ID: d.condition.ID}
}

// drawCalls returns a generator of calls on one Record, of rules that agree on
// little: they differ in Max, TTL, Algorithm, Cost and lockout.
func drawCalls(t *rapid.T) func() drawn {
	max := rapid.OneOf(rapid.IntRange(1, 12), rapid.IntRange(30, 40)).Draw(t, "max")
	ttl := rapid.Int64Range(int64(time.Millisecond), int64(time.Minute)).Draw(t, "ttl")
	mixed := rapid.Bool().Draw(t, "mixed")
	return func() drawn {
		d := drawn{condition: Limit{Max: max, TTL: time.Duration(ttl)}}
		if mixed {
			d.condition.Max = rapid.IntRange(1, 2*max).Draw(t, "other max")
			d.condition.TTL = time.Duration(rapid.Int64Range(int64(time.Millisecond), 300*ttl).Draw(t, "other ttl"))
		}
		d.condition.Algorithm = rapid.SampledFrom([]Algorithm{Window, Window, Window, Bucket, Bucket, Leases, Calendar}).Draw(t, "algorithm")
		d.condition.Cost = rapid.SampledFrom([]int{0, 0, 0, 1, d.condition.Max/2 + 1, d.condition.Max}).Draw(t, "cost")
		if d.condition.Algorithm == Leases {
			d.condition.ID = rapid.Uint64Range(1, 20).Draw(t, "ID")
		} else if rapid.IntRange(0, 5).Draw(t, "bans") == 0 {
			d.lockout = Lockout{Length: time.Duration(ttl) / 2, Growth: float64(rapid.IntRange(0, 2).Draw(t, "growth")), Longest: time.Hour}
			d.lockout.KeepHits = rapid.Bool().Draw(t, "keep hits")
		}
		return d
	}
}

// reread returns r as another process would find it.
func reread(t require.TestingT, r Record) Record {
	b := r.Encode()
	require.LessOrEqual(t, len(b), r.Size())
	r, err := Decode(b)
	require.NoError(t, err)
	require.Equal(t, b, r.Encode())
	return r
}

// Callers of one value are decided one after the other on one read of its Record,
// and stored by one write.
func TestDecisionsOnARecordInMemoryAreThoseOnTheStoredOne(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var stored, threaded Record
		var counted []Hit
		now := InstantOf(time.Unix(1_800_000_000, 0))
		draw := drawCalls(t)
		for range rapid.IntRange(1, 60).Draw(t, "calls") {
			now += Instant(rapid.Int64Range(0, int64(time.Second)).Draw(t, "pause")) * Instant(rapid.IntRange(0, 1).Draw(t, "later"))
			skewed := now + Instant(rapid.SampledFrom([]time.Duration{0, 0, 0, 0, -time.Millisecond, time.Millisecond, time.Hour}).Draw(t, "skew"))
			d := draw()
			if len(counted) > 0 && rapid.IntRange(0, 3).Draw(t, "take back") == 0 {
				h := rapid.SampledFrom(counted).Draw(t, "hit")
				take := Record.Without
				if rapid.Bool().Draw(t, "withdraw") {
					take = func(r Record, h Hit, now Instant) (Record, bool) { return r.Withdrawn(h, now, &d.condition) }
				}
				a, foundA := take(stored, h, skewed)
				b, foundB := take(threaded, h, skewed)
				require.Equal(t, foundA, foundB)
				if foundA {
					stored, threaded = reread(t, a), b
				}
				require.Equal(t, stored.Encode(), threaded.Encode())
				continue
			}
			if rapid.IntRange(0, 9).Draw(t, "settle") == 0 {
				s := d.surplus(t)
				other, a, b := s, stored, threaded
				store := s.Apply(skewed, &a)
				require.Equal(t, store, other.Apply(skewed, &b))
				require.Equal(t, []any{s.Outcome, s.Counted}, []any{other.Outcome, other.Counted})
				if store {
					counted = append(counted, s.Counted...)
					stored, threaded = reread(t, a), b
				}
				require.Equal(t, stored.Encode(), threaded.Encode())
				continue
			}
			a := decide(skewed, &d.condition, d.lockout, stored, true)
			b := decide(skewed, &d.condition, d.lockout, threaded, true)
			require.Equal(t, a.Outcome, b.Outcome)
			require.Equal(t, []any{a.Again, a.Store, a.Hit}, []any{b.Again, b.Store, b.Hit})
			if a.Hit.Cost > 0 {
				counted = append(counted, a.Hit)
			}
			if a.Store {
				stored, threaded = reread(t, a.Next), b.Next
			}
			require.Equal(t, stored.Encode(), threaded.Encode())
		}
	})
}

// A burst of one Instant does not copy a large list for each of its calls.
func TestManyDecisionsOnALargeWindowCopyItOnce(t *testing.T) {
	c := Limit{Max: MaxHits, TTL: time.Hour}
	now := InstantOf(time.Unix(1_800_000_000, 0))
	full := Record{}
	for i := range Instant(1000) {
		full = decide(now+i, &Limit{Max: MaxHits, TTL: time.Hour, Cost: 90}, Lockout{}, full, true).Next
	}
	full = reread(t, full)
	require.Equal(t, 90_000, full.hits.len())
	require.Zero(t, testing.AllocsPerRun(10, func() {
		r := full
		for range 256 {
			r = decide(now+2000, &c, Lockout{}, r, true).Next
		}
	}))
}

// Copies of a record share its bytes, so a change of one must not be seen
// in the other.
func TestWhatIsDoneToACopyLeavesTheRecord(t *testing.T) {
	now := InstantOf(epoch)
	lease := Limit{Algorithm: Leases, Max: 2, TTL: time.Hour, ID: 1}
	calendar := Limit{Algorithm: Calendar, Max: 2}
	held := decide(now, &lease, Lockout{}, Record{}, true)
	counted := decide(now, &calendar, Lockout{}, held.Next, true)
	r := counted.Next
	before := r.Facts()
	for name, change := range map[string]func(*Record){
		"leases": func(c *Record) {
			new(Verdict).Decide(now+1, &Limit{Algorithm: Leases, Max: 2, TTL: time.Hour, ID: 2}, Lockout{}, c, true)
		},
		"calendar": func(c *Record) { new(Verdict).Decide(now+1, &calendar, Lockout{}, c, true) },
		"window": func(c *Record) {
			new(Verdict).Decide(now.Add(time.Hour), &Limit{Max: 1, TTL: time.Hour}, Lockout{}, c, true)
		},
		"renewal": func(c *Record) { c.Renew(now+1, map[uint64]Instant{1: 0}) },
		"refund":  func(c *Record) { *c, _ = c.Without(counted.Hit, now+1) },
		"release": func(c *Record) { *c, _ = c.Without(held.Hit, now+1) },
		"ban":     func(c *Record) { *c, _ = c.Banned(now+1, time.Hour) },
	} {
		c := r
		change(&c)
		require.NotEqual(t, before, c.Facts(), name)
		require.Equal(t, before, r.Facts(), name)
	}
}
