package record

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// A settled is one call in a record, as its reservation has it.
type settled struct {
	limit *Limit
	hits  []Hit
	total int
}

// settleAt sets the total of s on r at now, and returns the record as another process finds
// it.
func (s *settled) settleAt(t require.TestingT, now Instant, r Record, total int) (next Record, o Outcome) {
	c := Settlement{Limit: *s.limit, Hits: s.hits, Total: s.total, Actual: total, ID: uint64(now)}
	next = r
	if !c.Apply(now, &next) {
		next = r
	}
	s.hits, s.total = c.Counted, total
	return reread(t, next), c.Outcome
}

func reserve(t require.TestingT, now Instant, r Record, limit *Limit) (Record, *settled) {
	d := decide(now, limit, Lockout{}, r, true)
	s := &settled{limit: limit, total: d.Hit.Cost}
	if d.Hit.Cost > 0 {
		s.hits = []Hit{d.Hit}
	}
	return reread(t, d.Next), s
}

// A rule that was changed from a bucket to another algorithm finds a debt beside its own.
func TestADebtGoesWithItsBucket(t *testing.T) {
	for _, other := range []*Limit{{Max: 5, TTL: time.Hour}, {Max: 5, TTL: time.Hour, Algorithm: Leases, ID: 1}, {Max: 5, Algorithm: Calendar}} {
		r, s := reserve(t, start, Record{}, bucketOf(10, time.Minute))
		r, _ = s.settleAt(t, start, r, 30)
		v := decide(start.Add(time.Hour), other, Lockout{}, r, true)
		require.True(t, v.Store)
		again := decide(start.Add(time.Hour), other, Lockout{}, reread(t, v.Next), true)
		require.Equal(t, v.Outcome.Remaining-map[Algorithm]int{Window: 1, Calendar: 1}[other.Algorithm], again.Outcome.Remaining)
	}
}

// A debt is no clock that is ahead: it blocks for as long as it is.
func TestADebtStands(t *testing.T) {
	limit := bucketOf(10, time.Second)
	for _, ahead := range []time.Duration{0, time.Minute, time.Hour} { // the clock that settles
		r, s := reserve(t, start, Record{}, limit)
		r, o := s.settleAt(t, start.Add(ahead), r, 10)
		require.False(t, o.Blocked, "full, and no more")
		r, o = s.settleAt(t, start.Add(ahead), r, 10_000)
		require.True(t, o.Blocked)
		owed := r.bucket.score.whole - start.Add(ahead)
		require.Greater(t, owed, Instant(990*time.Second))
		v := decide(start, limit, Lockout{}, r, true)
		require.Equal(t, ahead > time.Minute, v.Store, "only a clock that is wrong is set right")
		r = reread(t, v.Next)
		opens := start.Add(v.Outcome.RetryAfter)
		require.LessOrEqual(t, opens, start.Add(time.Minute)+owed)
		require.GreaterOrEqual(t, opens, start+owed-Instant(time.Second))
		require.True(t, decide(opens-1, limit, Lockout{}, r, true).Outcome.Blocked)
		require.False(t, decide(opens, limit, Lockout{}, r, true).Outcome.Blocked)
	}
}

// A ban that keeps its hits is lifted when one of them is withdrawn. A debt then counts
// again, and never after the ban has ended by itself.
func TestABanThatKeepsADebt(t *testing.T) {
	limit := bucketOf(10, time.Minute)
	for _, c := range []struct {
		limit  *Limit
		repeat float64
	}{{limit, 0}, {limit, 2}} {
		r, withdrawn := reserve(t, start, Record{}, c.limit)
		r, s := reserve(t, start, r, c.limit)
		r, _ = s.settleAt(t, start, r, 8)
		r, _ = s.settleAt(t, start, r, 10) // 11, one of which is withdrawn
		l := Lockout{Length: 10 * time.Second, Growth: c.repeat, Longest: time.Hour, KeepHits: true}
		v := decide(start+1, c.limit, l, r, true)
		require.True(t, v.Outcome.NewBan)
		banned := reread(t, v.Next)

		still, found := banned.Withdrawn(withdrawn.hits[0], start+2, c.limit)
		require.True(t, found)
		still = reread(t, still)
		require.True(t, still.HoldsBan(start+2), "it is full without that hit too")
		o := decide(start.Add(10*time.Second)+1, c.limit, Lockout{}, still, true).Outcome
		require.False(t, o.Blocked)
		require.Equal(t, 9, o.Remaining, "counting starts anew")

		more, _ := s.settleAt(t, start, r, 25)
		v = decide(start+1, c.limit, l, more, true)
		require.True(t, v.Outcome.NewBan)
		banned = reread(t, v.Next)
		require.Equal(t, more.bucket, banned.unkept().bucket)
		o = decide(start.Add(10*time.Second)+1, c.limit, Lockout{}, banned, true).Outcome
		require.Equal(t, 9, o.Remaining, "counting starts anew")
	}
}

// More was refunded than there ever is in a bucket, below shares that are still there. None
// of those is found then, rather than too much be taken back.
func TestARefundOfMoreThanABucketHoldsMovesAllOthers(t *testing.T) {
	for _, max := range []int{5, 100, 5000} {
		limit := bucketOf(max, time.Minute)
		grain := (max-1)/maxMoved + 1
		for _, less := range []int{1000 * max, 1 << 28, 1 << 16 * grain, 1 << 17 * grain} { // two of them are no grains in 16 bits
			for _, kept := range []int{1, 2} { // nothing of the surplus, or a part
				r, s := reserve(t, start, Record{}, limit)
				r, other := reserve(t, start, r, limit)
				r, above := reserve(t, start, r, limit)
				r, _ = s.settleAt(t, start, r, less+kept)
				r, _ = above.settleAt(t, start, r, 2)
				before := r.bucket
				r, _ = s.settleAt(t, start, r, kept)
				require.Equal(t, before.rate.minus(before.score, limit.amount(less)), r.bucket.score)
				after, _ := other.settleAt(t, start, r, 0)
				require.Equal(t, r.bucket.score, after.bucket.score, "Max %d, %d less, %d kept", max, less, kept)
			}
		}
	}
}

// A share that is given back piece by piece, with others around it, is given back in full:
// what was taken of it has not moved the rest.
func TestAShareThatIsGivenBackInPiecesIsGivenBackInFull(t *testing.T) {
	for _, max := range []int{100, 5000} {
		limit := bucketOf(max, time.Minute)
		unit := max / 100
		cost := func(n int) *Limit {
			costing := *limit
			costing.Cost = n * unit
			return &costing
		}
		r, _ := reserve(t, start, Record{}, cost(30))
		r, s := reserve(t, start, r, cost(50))
		r, above := reserve(t, start, r, cost(10))
		now := start + limit.Interval()*Instant(40*unit) // of what was there first nothing is left, and 10 of s have leaked
		for n := 49; n >= 0; n-- {
			r, _ = s.settleAt(t, now, r, n*unit)
		}
		require.Equal(t, now+limit.Interval()*Instant(10*unit), r.bucket.score.whole, "Max %d", max)
		r, _ = above.settleAt(t, now, r, 0)
		require.LessOrEqual(t, r.bucket.score.up(), now, "Max %d", max)
	}
}

// A window holds MaxHits hits of all calls together. Those of others are among them.
func TestASurplusFillsAWindowBesideOthersHits(t *testing.T) {
	limit := &Limit{Max: 10, TTL: time.Hour}
	r, others := reserve(t, start, Record{}, &Limit{Max: 10, TTL: time.Hour, Cost: 7})
	r, s := reserve(t, start+1, r, limit)
	r, o := s.settleAt(t, start+2, r, MaxHits)
	require.Equal(t, MaxHits, r.hits.len())
	require.True(t, o.Blocked)
	r, _ = s.settleAt(t, start+3, r, MaxHits-7)
	require.Equal(t, MaxHits, r.hits.len(), "no more was counted")
	r, _ = s.settleAt(t, start+3, r, MaxHits-8)
	require.Equal(t, MaxHits-1, r.hits.len())
	r, _ = others.settleAt(t, start+3, r, 0)
	r, _ = s.settleAt(t, start+3, r, 0)
	require.Zero(t, r.hits.len())
	r, _ = s.settleAt(t, start+4, r, MaxHits)
	r, _ = s.settleAt(t, start.Add(2*time.Hour), r, MaxHits+5)
	require.Equal(t, 5, r.hits.len(), "what has expired takes no room")
}

// TestSettledBucketIsThatOfSmallerCalls settles calls of a bucket at random, and refunds its
// newest hits. The bucket is always the one that the same calls would have made if each had
// been smaller by what was taken back of it, and never holds less than those make that are
// not given back. So nothing drifts.
func TestSettledBucketIsThatOfSmallerCalls(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		limit := *wholeBucket(t)
		r, now := Record{}, start
		var poured []*struct{ at, amount, kept Instant } // in order
		var calls []*settled
		pieces := make(map[*settled][]int) // of poured
		pour := func(s *settled, cost int) {
			amount := limit.Interval() * Instant(cost)
			poured = append(poured, &struct{ at, amount, kept Instant }{now, amount, amount})
			pieces[s] = append(pieces[s], len(poured)-1)
		}
		refund := func(n int) {
			before := max(r.bucket.score.whole, now)
			next, found := r.WithoutNewest(n, now, &limit)
			require.Equal(t, before > now, found)
			r = reread(t, next)
			taken := before - max(r.bucket.score.whole, now)
			require.Equal(t, min(limit.Interval()*Instant(n), before-now), taken)
			for i := len(poured) - 1; i >= 0 && taken > 0; i-- {
				p := poured[i]
				part := min(max(p.amount, 0), taken)
				p.amount -= part
				p.kept = min(p.kept, p.amount)
				taken -= part
			}
			if r.bucket.score.whole <= now {
				calls, pieces = nil, make(map[*settled][]int) // in another one their hits are found by chance
			}
		}
		refunds := 5 // by many more than that a share might be found again
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			now += Instant(rapid.SampledFrom([]int64{1, 1, int64(limit.TTL) / 1000, int64(limit.Interval()) / 3, int64(limit.TTL) / 3, 2 * int64(limit.TTL)}).Draw(t, "pause"))
			what := rapid.IntRange(0, 9).Draw(t, "what")
			if what == 0 && refunds > 0 {
				refunds--
				refund(rapid.IntRange(1, 2*limit.Max).Draw(t, "newest"))
			} else if len(calls) == 0 || what < 4 {
				costing := limit
				costing.Cost = rapid.IntRange(1, max(1, limit.Max/3)).Draw(t, "cost")
				var s *settled
				r, s = reserve(t, now, r, &costing)
				if s.total > 0 {
					pour(s, s.total)
				}
				calls = append(calls, s)
			} else {
				s := rapid.SampledFrom(calls).Draw(t, "which")
				if rapid.Bool().Draw(t, "more") {
					more := rapid.IntRange(1, 2*limit.Max).Draw(t, "surplus")
					r, _ = s.settleAt(t, now, r, s.total+more)
					pour(s, more)
				} else if n := len(s.hits); n > 0 && len(pieces[s]) > 0 && !s.hits[n-1].Gone() {
					// One piece at a time, so that what is taken back is known to be of it.
					last := s.hits[n-1]
					less := rapid.IntRange(1, last.Cost).Draw(t, "less")
					before := max(r.bucket.score.whole, now)
					r, _ = s.settleAt(t, now, r, s.total-less)
					p := poured[pieces[s][len(pieces[s])-1]]
					taken := before - max(r.bucket.score.whole, now)
					require.GreaterOrEqual(t, taken, Instant(0))
					require.LessOrEqual(t, taken, limit.Interval()*Instant(less), "no more than is given back")
					p.amount -= taken
					p.kept -= limit.Interval() * Instant(less)
					if less == last.Cost {
						pieces[s] = pieces[s][:len(pieces[s])-1]
					}
				}
			}
			var score, least Instant
			for _, p := range poured {
				if p.amount > 0 {
					score = max(score, p.at) + p.amount
				}
				if p.kept > 0 {
					least = max(least, p.at) + p.kept
				}
			}
			require.Equal(t, max(score, now), max(r.bucket.score.whole, now), "smaller calls make the same bucket")
			require.GreaterOrEqual(t, max(r.bucket.score.whole, now), least, "others keep what they hold")
		}
	})
}

func TestASettlementOnOnesOwnCopyLeavesTheRecord(t *testing.T) {
	now := start
	for _, limit := range []*Limit{{Max: 10, TTL: time.Hour}, bucketOf(10, time.Hour), {Algorithm: Leases, Max: 10, TTL: time.Hour, ID: 1}, {Algorithm: Calendar, Max: 10}} {
		r, s := reserve(t, now, Record{}, limit)
		r, _ = s.settleAt(t, now, r, 30)
		before := r.Encode()
		for _, total := range []int{40, 20, 1, 0} {
			again := *s
			again.settleAt(t, now+1, r, total)
			require.Equal(t, before, r.Encode())
		}
		// What it makes of a record again is what it made of it first: see coalesce.Change.
		c := Settlement{Limit: *limit, Hits: s.hits, Total: s.total, Actual: 35, ID: 9}
		var made [][]byte
		for range 3 {
			next := r
			require.True(t, c.Apply(now+1, &next))
			made = append(made, next.Encode())
		}
		require.Equal(t, made[0], made[1])
		require.Equal(t, made[0], made[2])
	}
}

func TestTheHitsOfAnEndlessStreamDoNotPileUp(t *testing.T) {
	for _, limit := range []*Limit{{Max: 10, TTL: time.Minute}, bucketOf(10, time.Minute), {Algorithm: Leases, Max: 10, TTL: time.Minute}, {Algorithm: Calendar, Max: 10}} {
		r, s := reserve(t, start, Record{}, limit)
		for i := range 5000 {
			r, _ = s.settleAt(t, start.Add(time.Duration(i)*20*time.Second), r, 2+i)
		}
		require.LessOrEqual(t, len(s.hits), 5, "algorithm %d", limit.Algorithm)
		_, o := s.settleAt(t, start.Add(5000*20*time.Second), r, 0)
		require.Empty(t, s.hits)
		require.Equal(t, 10, o.Remaining)
	}
}

// A receipt may say of any hit that it is gone.
func TestASettlementTakesNothingBackForHitsThatAreGone(t *testing.T) {
	for _, limit := range []*Limit{{Max: 10, TTL: time.Hour}, bucketOf(10, time.Hour), {Algorithm: Calendar, Max: 10}, {Algorithm: Leases, Max: 10, TTL: time.Hour, ID: 1}} {
		for _, actual := range []int{2, 0} {
			r, _ := reserve(t, start, Record{}, limit)
			before := r.Encode()
			c := Settlement{Limit: *limit, Hits: []Hit{{Cost: 5, Kind: limit.Algorithm}}, Total: 5, Actual: actual}
			require.False(t, c.Apply(start+1, &r), "algorithm %d", limit.Algorithm)
			require.Equal(t, before, r.Encode())
			require.Equal(t, 9, c.Outcome.Remaining, "the hits of others")
			left := 0
			for _, h := range c.Counted {
				require.True(t, h.Gone())
				left += h.Cost
			}
			require.Equal(t, actual, left)
		}
	}
}
