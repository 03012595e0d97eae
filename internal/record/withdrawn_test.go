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

func TestBanSetOnAHitThatIsWithdrawnIsLifted(t *testing.T) {
	for _, ttl := range []time.Duration{time.Second, time.Hour} { // shorter and longer than the ban
		eachAlgorithm(t, 2, ttl, func(t *testing.T, c *Limit) {
			firm := decide(start, c, keeping, Record{}, true)
			tentative := decide(start+1, c, keeping, firm.Next, true)
			banned := decide(start+2, c, keeping, tentative.Next, true)
			require.True(t, banned.Outcome.Banned)
			lifted, store := reread(t, banned.Next).Withdrawn(tentative.Hit, start+3, c)
			require.True(t, store)
			v := decide(start+3, c, keeping, reread(t, lifted), true)
			require.False(t, v.Outcome.Blocked)
			require.Equal(t, 0, v.Outcome.Remaining, "the firm hit counts again")
			require.Equal(t, time.Minute, decide(start+3, c, keeping, v.Next, true).Outcome.RetryAfter, "a first ban")
		})
	}
}

// A ban that is lifted leaves the memory of the one before it as it was: its number in
// the row, and its end.
func TestALiftedBanLeavesTheMemoryOfTheOneBeforeIt(t *testing.T) {
	eachAlgorithm(t, 2, time.Hour, func(t *testing.T, c *Limit) {
		for _, pause := range []time.Duration{time.Hour, 20 * time.Hour} {
			r := Record{ban: ban{end: start, length: Instant(time.Minute), repeats: 1}}
			at := start.Add(pause)
			firm := decide(at, c, keeping, r, true)
			tentative := decide(at+1, c, keeping, reread(t, firm.Next), true)
			banned := decide(at+2, c, keeping, reread(t, tentative.Next), true)
			require.Equal(t, 2*time.Minute, banned.Outcome.RetryAfter)
			lifted, store := reread(t, banned.Next).Withdrawn(tentative.Hit, at+3, c)
			require.True(t, store)

			again := decide(at+4, c, keeping, reread(t, lifted), true)
			require.Equal(t, 2*time.Minute, decide(at+4, c, keeping, again.Next, true).Outcome.RetryAfter, "the second in a row")

			forgotten := start.Add(LockoutMemory)
			for when, want := range map[Instant]time.Duration{forgotten - 1: 2 * time.Minute, forgotten: time.Minute} {
				all := *c
				all.Cost = 2
				empty, _ := reread(t, lifted).Without(firm.Hit, at+3)
				full := decide(when, &all, keeping, reread(t, empty), true)
				require.Equal(t, want, decide(when, c, keeping, full.Next, true).Outcome.RetryAfter)
			}
		}
	})
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

func TestBanThatWouldHaveBeenSetWithoutTheHitStays(t *testing.T) {
	c, smaller := hourly(3), hourly(2)
	var r Record
	var counted []Hit
	for i := range Instant(3) {
		v := decide(start+i, c, keeping, r, true)
		r, counted = v.Next, append(counted, v.Hit)
	}
	r = decide(start+3, smaller, keeping, r, true).Next
	r, store := r.Withdrawn(counted[0], start+4, smaller)
	require.True(t, store)
	require.True(t, decide(start+5, c, keeping, reread(t, r), true).Outcome.Banned, "two hits fill it as well")
	_, store = r.Withdrawn(counted[0], start+5, smaller)
	require.False(t, store, "each hit is withdrawn once")
	r, store = r.Withdrawn(counted[2], start+6, smaller)
	require.True(t, store)
	require.False(t, decide(start+7, c, keeping, r, true).Outcome.Banned)
}

func hourly(max int) *Limit {
	return &Limit{Max: max, TTL: time.Hour}
}

func TestCountingStartsAnewWhenABanThatKeptItsHitsEnds(t *testing.T) {
	eachAlgorithm(t, 3, time.Hour, func(t *testing.T, c *Limit) {
		all := *c
		all.Cost = 3
		full := decide(start, &all, keeping, Record{}, true)
		banned := decide(start+1, c, keeping, full.Next, true).Next
		end := start + 1 + Instant(time.Minute)
		require.True(t, decide(end-1, c, keeping, banned, true).Outcome.Banned)
		require.Equal(t, 2, decide(end, c, keeping, banned, true).Outcome.Remaining)
	})
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

// What hits that were given back have left behind is no reason for a ban.
func TestBucketThatOpensInAMomentBansNobody(t *testing.T) {
	c := &Limit{Max: 2, TTL: time.Hour, Algorithm: Bucket}
	full := Record{bucket: bucket{score: amount{whole: start + Instant(time.Hour)}, at: start, rate: c.rate()}}
	opens := start + Instant(30*time.Minute)
	require.True(t, decide(opens-Instant(time.Second)-1, c, keeping, full, true).Outcome.Banned)
	v := decide(opens-Instant(time.Second), c, keeping, full, true)
	require.True(t, v.Outcome.Blocked)
	require.False(t, v.Outcome.Banned)
	both := *c
	both.Cost = 2
	require.False(t, decide(opens-1, &both, keeping, full, true).Outcome.Banned)
	alone := Lockout{Length: time.Minute}
	require.True(t, decide(opens-1, c, alone, full, true).Outcome.Banned, "where none is given back")
}

func TestBanByHandIsNotLiftedByAHitThatIsWithdrawn(t *testing.T) {
	eachAlgorithm(t, 1, time.Hour, func(t *testing.T, c *Limit) {
		tentative := decide(start, c, keeping, Record{}, true)
		banned := decide(start+1, c, keeping, tentative.Next, true).Next
		for _, d := range []time.Duration{time.Second, time.Hour} {
			byHand, store := banned.Banned(start+2, d)
			require.True(t, store)
			_, store = reread(t, byHand).Withdrawn(tentative.Hit, start+3, c)
			require.False(t, store)
			want := max(Instant(time.Minute)+1, Instant(d)+2) - 3
			require.Equal(t, time.Duration(want), decide(start+3, c, keeping, byHand, true).Outcome.RetryAfter)
		}
	})
}

func TestBanByHand(t *testing.T) {
	c := &Limit{Max: 5, TTL: time.Hour}
	counted := decide(start, c, keeping, Record{}, true)
	r, store := counted.Next.Banned(start+1, time.Minute)
	require.True(t, store)
	require.Equal(t, time.Minute, decide(start+1, c, Lockout{}, reread(t, r), true).Outcome.RetryAfter)
	r, store = r.Banned(start+2, time.Second)
	require.False(t, store, "a longer ban stays")
	r, store = r.Banned(start+2, time.Hour)
	require.True(t, store)
	require.Equal(t, time.Hour, decide(start+2, c, Lockout{}, r, true).Outcome.RetryAfter)
	require.Equal(t, 4, decide(start+2+Instant(time.Hour), c, Lockout{}, r, true).Outcome.Remaining, "counting starts anew")

	grown := Record{ban: ban{end: start - 1, length: 1, repeats: 2}}
	r, _ = grown.Banned(start, time.Second)
	require.Equal(t, 2, r.ban.repeats, "a ban by hand is none in a row")
}

// Whatever was counted for good and whatever is withdrawn in whatever order: when
// all is withdrawn that is to be, a ban holds only if it was set on hits that
// stay, and the record holds the hits that stay and no others.
func TestBansAreSetOnHitsThatStay(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := &Limit{Max: rapid.IntRange(1, 6).Draw(t, "max"), TTL: time.Minute}
		c.Cost = 1 + (c.Max-1)/6
		l := keeping
		l.Length = time.Duration(rapid.Int64Range(1, int64(2*time.Minute)).Draw(t, "lockout"))
		var r Record
		var firm, tentative []Hit
		now, set := start, Instant(0)
		for range rapid.IntRange(1, 20).Draw(t, "calls") {
			now += Instant(rapid.Int64Range(0, int64(10*time.Second)).Draw(t, "pause"))
			v := decide(now, c, l, r, true)
			switch {
			case v.Outcome.Banned:
				r, set = v.Next, now
			case v.Hit.Cost == 0:
			case rapid.Bool().Draw(t, "tentative"):
				r, tentative = v.Next, append(tentative, v.Hit)
			default:
				r, firm = v.Next, append(firm, v.Hit)
			}
			if set != 0 {
				break
			}
		}
		for len(tentative) > 0 {
			i := rapid.IntRange(0, len(tentative)-1).Draw(t, "which")
			if next, store := reread(t, r).Withdrawn(tentative[i], now, c); store {
				r = next
			}
			tentative = append(tentative[:i:i], tentative[i+1:]...)
		}
		staying, at := 0, max(set, now)
		for _, h := range firm {
			if h.Expiry > at {
				staying += h.Cost
			}
		}
		if r.ban.holds(now) {
			require.GreaterOrEqual(t, staying, c.Max)
			return
		}
		r.hits.expire(now)
		require.Equal(t, staying, r.hits.len())
		if set != 0 {
			require.Less(t, staying, c.Max, "a ban on hits that stay is not lifted")
		}
	})
}
