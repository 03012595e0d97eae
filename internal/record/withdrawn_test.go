package record

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// keeping is how a rule with CountAuthorizedOnly and several conditions bans.
var keeping = Lockout{Length: time.Minute, Growth: 2, Longest: time.Hour, KeepHits: true}

func eachAlgorithm(t *testing.T, max int, ttl time.Duration, test func(t *testing.T, c *Limit)) {
	for _, a := range []Algorithm{Window, Bucket} {
		t.Run([]string{"window", "bucket"}[a], func(t *testing.T) {
			test(t, &Limit{Max: max, TTL: ttl, Algorithm: a})
		})
	}
}

// A clock that is behind the one that has set the ban sets its end right.
func TestBanMetByAClockThatIsBehindIsLiftedAsWell(t *testing.T) {
	for _, behind := range []time.Duration{time.Nanosecond, time.Millisecond, 10 * time.Second} {
		eachAlgorithm(t, 2, time.Hour, func(t *testing.T, c *Limit) {
			firm := decide(start, c, keeping, Record{}, true)
			tentative := decide(start+1, c, keeping, firm.Next, true)
			banned := decide(start+1, c, keeping, tentative.Next, true)
			met := decide(start+1-Instant(behind), c, keeping, reread(t, banned.Next), true)
			require.True(t, met.Outcome.Banned)
			require.True(t, met.Store)
			require.Equal(t, time.Minute, met.Outcome.RetryAfter)
			lifted, store := reread(t, met.Next).Withdrawn(tentative.Hit, start+2, c)
			require.True(t, store)
			v := decide(start+2, c, keeping, reread(t, lifted), true)
			require.False(t, v.Outcome.Blocked)
			require.Equal(t, 0, v.Outcome.Remaining, "the firm hit counts again")
		})
	}
}

// By so much that the hits it was set on would count after it.
func TestCountingStartsAnewAfterABanThatAClockFarBehindHasMet(t *testing.T) {
	eachAlgorithm(t, 2, time.Hour, func(t *testing.T, c *Limit) {
		all := *c
		all.Cost = 2
		full := decide(start, &all, keeping, Record{}, true)
		banned := decide(start+1, c, keeping, full.Next, true)
		far := start - Instant(2*time.Minute)
		met := decide(far, c, keeping, reread(t, banned.Next), true)
		require.True(t, met.Outcome.Banned)
		r := reread(t, met.Next)
		require.Equal(t, 1, decide(far+Instant(time.Minute), c, keeping, r, true).Outcome.Remaining)
	})
}

func hourly(max int) *Limit {
	return &Limit{Max: max, TTL: time.Hour}
}

// The hits of a clock that is ahead are later than those of their own TTL may be.
func TestCountingStartsAnewThoughTheHitsAreOfAClockAhead(t *testing.T) {
	short := &Limit{Max: 2, TTL: time.Second, Cost: 2}
	ahead := decide(start+Instant(30*time.Minute), short, keeping, Record{}, true).Next
	banned := decide(start, hourly(2), keeping, ahead, true)
	require.True(t, banned.Outcome.Banned)
	end := start + Instant(time.Minute)
	require.Equal(t, 1, decide(end, hourly(2), keeping, reread(t, banned.Next), true).Outcome.Remaining)
}

func TestCountingStartsAnewAfterABanUnderTheLongestTTL(t *testing.T) {
	for _, c := range []*Limit{{Max: 1, TTL: 1<<63 - 1}, bucketOf(1, longestBucket)} {
		counted := decide(start, c, keeping, Record{}, true)
		banned := decide(start, c, keeping, counted.Next, true)
		require.True(t, banned.Outcome.Banned)
		require.False(t, decide(start+Instant(time.Minute), c, keeping, reread(t, banned.Next), true).Outcome.Blocked)
	}
}

// Of all algorithms, for calls by any other, and with a debt: as if the ban had replaced
// the hits that it has kept.
func TestABanThatKeptItsHitsLeavesNothingOfThemWhenItEnds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		draw := drawCalls(t)
		var r Record
		now := start
		for {
			d := draw()
			now += Instant(rapid.Int64Range(0, int64(d.condition.TTL)/4).Draw(t, "pause"))
			if rapid.IntRange(0, 3).Draw(t, "settle") == 0 {
				s := d.surplus(t)
				if next := r; s.Apply(now, &next) {
					r = next
				}
				continue
			}
			if d.condition.Algorithm != Leases {
				d.lockout.Length, d.lockout.Longest, d.lockout.KeepHits = d.condition.TTL/3, time.Hour, true
			}
			v := decide(now, &d.condition, d.lockout, r, true)
			if r = v.Next; v.Outcome.NewBan {
				break
			}
		}
		kept, replaced := reread(t, r), reread(t, r.replaced(r.ban))
		d := draw()
		now = r.ban.end + Instant(rapid.Int64Range(0, int64(time.Hour)).Draw(t, "later"))
		v, want := decide(now, &d.condition, d.lockout, kept, true), decide(now, &d.condition, d.lockout, replaced, true)
		require.Equal(t, want.Verdict, v.Verdict)
		require.Equal(t, want.Store, v.Store)
		if v.Store {
			require.Equal(t, want.Next.Encode(), v.Next.Encode())
		}
	})
}
