package throttler

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// keeping is how a rule with CountAuthorizedOnly and several conditions bans.
var keeping = lockout{length: time.Minute, growth: 2, longest: time.Hour, keepHits: true}

func eachAlgorithm(t *testing.T, max int, ttl time.Duration, test func(t *testing.T, c *Condition)) {
	for _, a := range []Algorithm{SlidingWindow, LeakyBucket} {
		t.Run(a.String(), func(t *testing.T) {
			test(t, &Condition{Name: "c", Max: max, TTL: ttl, Algorithm: a})
		})
	}
}

func TestBanSetOnAHitThatIsWithdrawnIsLifted(t *testing.T) {
	for _, ttl := range []time.Duration{time.Second, time.Hour} { // shorter and longer than the ban
		eachAlgorithm(t, 2, ttl, func(t *testing.T, c *Condition) {
			firm := decide(start, c, keeping, record{}, true)
			tentative := decide(start+1, c, keeping, firm.next, true)
			banned := decide(start+2, c, keeping, tentative.next, true)
			require.True(t, banned.outcome.Banned)
			lifted, store := reread(t, banned.next).withdrawn(tentative.hit, start+3, c)
			require.True(t, store)
			v := decide(start+3, c, keeping, reread(t, lifted), true)
			require.False(t, v.outcome.Blocked)
			require.Equal(t, 0, v.outcome.Remaining, "the firm hit counts again")
			require.Equal(t, time.Minute, decide(start+3, c, keeping, v.next, true).outcome.RetryAfter, "a first ban")
		})
	}
}

// A clock that is behind the one that has set the ban sets its end right.
func TestBanMetByAClockThatIsBehindIsLiftedAsWell(t *testing.T) {
	for _, behind := range []time.Duration{time.Nanosecond, time.Millisecond, 10 * time.Second} {
		eachAlgorithm(t, 2, time.Hour, func(t *testing.T, c *Condition) {
			firm := decide(start, c, keeping, record{}, true)
			tentative := decide(start+1, c, keeping, firm.next, true)
			banned := decide(start+1, c, keeping, tentative.next, true)
			met := decide(start+1-instant(behind), c, keeping, reread(t, banned.next), true)
			require.True(t, met.outcome.Banned)
			require.True(t, met.store)
			require.Equal(t, time.Minute, met.outcome.RetryAfter)
			lifted, store := reread(t, met.next).withdrawn(tentative.hit, start+2, c)
			require.True(t, store)
			v := decide(start+2, c, keeping, reread(t, lifted), true)
			require.False(t, v.outcome.Blocked)
			require.Equal(t, 0, v.outcome.Remaining, "the firm hit counts again")
		})
	}
}

// By so much that the hits it was set on would count after it.
func TestCountingStartsAnewAfterABanThatAClockFarBehindHasMet(t *testing.T) {
	eachAlgorithm(t, 2, time.Hour, func(t *testing.T, c *Condition) {
		all := *c
		all.Cost = 2
		full := decide(start, &all, keeping, record{}, true)
		banned := decide(start+1, c, keeping, full.next, true)
		far := start - instant(2*time.Minute)
		met := decide(far, c, keeping, reread(t, banned.next), true)
		require.True(t, met.outcome.Banned)
		r := reread(t, met.next)
		require.True(t, r.unlimited())
		require.Equal(t, 1, decide(far+instant(time.Minute), c, keeping, r, true).outcome.Remaining)
	})
}

func TestBanThatWouldHaveBeenSetWithoutTheHitStays(t *testing.T) {
	c, smaller := window(3), window(2)
	var r record
	var counted []hit
	for i := range instant(3) {
		v := decide(start+i, c, keeping, r, true)
		r, counted = v.next, append(counted, v.hit)
	}
	r = decide(start+3, smaller, keeping, r, true).next
	r, store := r.withdrawn(counted[0], start+4, smaller)
	require.True(t, store)
	require.True(t, decide(start+5, c, keeping, reread(t, r), true).outcome.Banned, "two hits fill it as well")
	_, store = r.withdrawn(counted[0], start+5, smaller)
	require.False(t, store, "each hit is withdrawn once")
	r, store = r.withdrawn(counted[2], start+6, smaller)
	require.True(t, store)
	require.False(t, decide(start+7, c, keeping, r, true).outcome.Banned)
}

func window(max int) *Condition {
	return &Condition{Name: "c", Max: max, TTL: time.Hour}
}

func TestCountingStartsAnewWhenABanThatKeptItsHitsEnds(t *testing.T) {
	eachAlgorithm(t, 3, time.Hour, func(t *testing.T, c *Condition) {
		all := *c
		all.Cost = 3
		full := decide(start, &all, keeping, record{}, true)
		banned := decide(start+1, c, keeping, full.next, true).next
		end := start + 1 + instant(time.Minute)
		require.True(t, decide(end-1, c, keeping, banned, true).outcome.Banned)
		require.Equal(t, 2, decide(end, c, keeping, banned, true).outcome.Remaining)
	})
}

// The hits of a clock that is ahead are later than those of their own TTL may be.
func TestCountingStartsAnewThoughTheHitsAreOfAClockAhead(t *testing.T) {
	short := &Condition{Name: "c", Max: 2, TTL: time.Second, Cost: 2}
	ahead := decide(start+instant(30*time.Minute), short, keeping, record{}, true).next
	banned := decide(start, window(2), keeping, ahead, true)
	require.True(t, banned.outcome.Banned)
	end := start + instant(time.Minute)
	require.Equal(t, 1, decide(end, window(2), keeping, reread(t, banned.next), true).outcome.Remaining)
}

func TestCountingStartsAnewAfterABanUnderTheLongestTTL(t *testing.T) {
	for _, c := range []*Condition{{Name: "c", Max: 1, TTL: 1<<63 - 1}, bucketOf(1, MaxBucketTTL)} {
		counted := decide(start, c, keeping, record{}, true)
		banned := decide(start, c, keeping, counted.next, true)
		require.True(t, banned.outcome.Banned)
		require.False(t, decide(start+instant(time.Minute), c, keeping, reread(t, banned.next), true).outcome.Blocked)
	}
}

// What hits that were given back have left behind is no reason for a ban.
func TestBucketThatOpensInAMomentBansNobody(t *testing.T) {
	c := &Condition{Name: "c", Max: 2, TTL: time.Hour, Algorithm: LeakyBucket}
	full := record{bucket: bucket{score: start + instant(time.Hour)}}
	opens := start + instant(30*time.Minute)
	require.True(t, decide(opens-instant(time.Second)-1, c, keeping, full, true).outcome.Banned)
	v := decide(opens-instant(time.Second), c, keeping, full, true)
	require.True(t, v.outcome.Blocked)
	require.False(t, v.outcome.Banned)
	both := *c
	both.Cost = 2
	require.False(t, decide(opens-1, &both, keeping, full, true).outcome.Banned)
	alone := lockout{length: time.Minute}
	require.True(t, decide(opens-1, c, alone, full, true).outcome.Banned, "where none is given back")
}

func TestBanByHandIsNotLiftedByAHitThatIsWithdrawn(t *testing.T) {
	eachAlgorithm(t, 1, time.Hour, func(t *testing.T, c *Condition) {
		tentative := decide(start, c, keeping, record{}, true)
		banned := decide(start+1, c, keeping, tentative.next, true).next
		for _, d := range []time.Duration{time.Second, time.Hour} {
			byHand, store := banned.banned(start+2, d)
			require.True(t, store)
			_, store = reread(t, byHand).withdrawn(tentative.hit, start+3, c)
			require.False(t, store)
			want := max(instant(time.Minute)+1, instant(d)+2) - 3
			require.Equal(t, time.Duration(want), decide(start+3, c, keeping, byHand, true).outcome.RetryAfter)
		}
	})
}

func TestBanByHand(t *testing.T) {
	c := &Condition{Name: "c", Max: 5, TTL: time.Hour}
	counted := decide(start, c, keeping, record{}, true)
	r, store := counted.next.banned(start+1, time.Minute)
	require.True(t, store)
	require.Equal(t, time.Minute, decide(start+1, c, lockout{}, reread(t, r), true).outcome.RetryAfter)
	r, store = r.banned(start+2, time.Second)
	require.False(t, store, "a longer ban stays")
	r, store = r.banned(start+2, time.Hour)
	require.True(t, store)
	require.Equal(t, time.Hour, decide(start+2, c, lockout{}, r, true).outcome.RetryAfter)
	require.Equal(t, 4, decide(start+2+instant(time.Hour), c, lockout{}, r, true).outcome.Remaining, "counting starts anew")

	grown := record{ban: ban{end: start - 1, length: 1, repeats: 2}}
	r, _ = grown.banned(start, time.Second)
	require.Equal(t, 2, r.ban.repeats, "a ban by hand is none in a row")
}

// Whatever was counted for good and whatever is withdrawn in whatever order: when
// all is withdrawn that is to be, a ban holds only if it was set on hits that
// stay, and the record holds the hits that stay and no others.
func TestBansAreSetOnHitsThatStay(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := &Condition{Name: "c", Max: rapid.IntRange(1, 6).Draw(t, "max"), TTL: time.Minute}
		if rapid.Bool().Draw(t, "coarse") {
			c.Max += maxFine
		}
		c.Cost = 1 + (c.Max-1)/6
		l := keeping
		l.length = time.Duration(rapid.Int64Range(1, int64(2*time.Minute)).Draw(t, "lockout"))
		var r record
		var firm, tentative []hit
		now, set := start, instant(0)
		for range rapid.IntRange(1, 20).Draw(t, "calls") {
			now += instant(rapid.Int64Range(0, int64(10*time.Second)).Draw(t, "pause"))
			v := decide(now, c, l, r, true)
			switch {
			case v.outcome.Banned:
				r, set = v.next, now
			case v.hit.cost == 0:
			case rapid.Bool().Draw(t, "tentative"):
				r, tentative = v.next, append(tentative, v.hit)
			default:
				r, firm = v.next, append(firm, v.hit)
			}
			if set != 0 {
				break
			}
		}
		for len(tentative) > 0 {
			i := rapid.IntRange(0, len(tentative)-1).Draw(t, "which")
			if next, store := reread(t, r).withdrawn(tentative[i], now, c); store {
				r = next
			}
			tentative = append(tentative[:i:i], tentative[i+1:]...)
		}
		staying, at := 0, max(set, now)
		for _, h := range firm {
			if h.expiry > at {
				staying += h.cost
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
