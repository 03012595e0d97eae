package record

import (
	"encoding/binary"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// tooLong is how much too long a hit of a long window may count.
func tooLong(ttl time.Duration) Instant { return max(Instant(ttl)/cellsInTTL, smallestCell) }

func TestCellsAreAThousandthOfTTL(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ttl := Instant(rapid.Int64Range(1, math.MaxInt64).Draw(t, "ttl") >> rapid.IntRange(0, 62).Draw(t, "shift"))
		unit := cellFor(ttl)
		k := unit / smallestCell
		require.Equal(t, []Instant{unit, 0}, []Instant{k * smallestCell, k & (k - 1)}, "times a power of two")
		require.LessOrEqual(t, unit, tooLong(time.Duration(ttl)))
		require.Less(t, ttl/unit, Instant(2*cellsInTTL))
	})
}

func TestAWindowCountsInCellsWhileItIsLong(t *testing.T) {
	limit := &Limit{Max: 5000, TTL: time.Minute}
	var r Record
	now := start
	for i := range maxTimes {
		now += Instant(time.Millisecond)
		r = reread(t, decide(now, limit, Lockout{}, r, true).Next)
		require.False(t, r.hits.inCells(), "%d hits", i+1)
	}
	now += Instant(time.Millisecond)
	r = reread(t, decide(now, limit, Lockout{}, r, true).Next)
	require.True(t, r.hits.inCells())
	require.Equal(t, maxTimes+1, r.hits.len())

	r, found := r.WithoutNewest(maxTimes, now, limit)
	require.True(t, found)
	r = reread(t, decide(now, limit, Lockout{}, reread(t, r), true).Next)
	require.True(t, r.hits.inCells(), "until it is empty")
	v := decide(now+Instant(2*time.Minute), limit, Lockout{}, r, true)
	require.False(t, v.Next.hits.inCells())
}

func TestALongWindowHasAFewKilobytesWhateverItHolds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ttl := time.Duration(rapid.Int64Range(int64(time.Millisecond), int64(1000*time.Hour)).Draw(t, "ttl"))
		limit := &Limit{Max: MaxHits, TTL: ttl}
		steps := rapid.IntRange(1, 300).Draw(t, "steps")
		most := rapid.SampledFrom([]int{10_000, 100_000, MaxHits}).Draw(t, "most")
		var r Record
		now := start
		for range steps {
			now += Instant(ttl) / Instant(steps)
			limit.Cost = rapid.IntRange(1, most/steps).Draw(t, "cost")
			r = reread(t, decide(now, limit, Lockout{}, r, true).Next)
		}
		size := len(r.Encode())
		require.LessOrEqual(t, size, 6500)
		if r.hits.inCells() && r.hits.cells.width == 1 {
			require.LessOrEqual(t, size, 2100)
		}
	})
}

// The sizes that documents tell.
func TestSizesOfLongWindowsWithHitsEvenlySpread(t *testing.T) {
	for _, c := range []struct {
		ttl  time.Duration
		hits int
		size int
	}{
		{time.Minute, 10_000, 1203}, {time.Hour, 10_000, 1130}, {24 * time.Hour, 10_000, 1680},
		{time.Hour, 100_000, 1130}, {time.Hour, 1_000_000, 2229}, {24 * time.Hour, 1_000_000, 3329},
	} {
		require.Equal(t, c.size, len(evenly(c.hits, c.ttl).Encode()), "%d in %v", c.hits, c.ttl)
	}
}

// evenly returns a record with so many hits, evenly spread over a TTL that ends at start.
func evenly(n int, ttl time.Duration) (r Record) {
	batches := min(n, 5000)
	for i := range batches {
		now := start - Instant(ttl)/Instant(batches)*Instant(batches-1-i)
		r.hits.add(n/batches, now.Add(ttl), Instant(ttl))
	}
	return r
}

// An exactHit is what one call has counted, in a model that knows each hit by itself.
type exactHit struct {
	n      int
	expiry Instant
	hit    Hit
	resets int
}

// An exactWindow is that model.
type exactWindow struct {
	hits   []exactHit
	resets int
}

// holding returns how many hits m holds that expire after t.
func (m *exactWindow) holding(t Instant) (n int) {
	for _, h := range m.hits {
		if h.resets == m.resets && h.expiry > t {
			n += h.n
		}
	}
	return n
}

// removeNewest removes the n hits that expire last. They can no longer be taken back.
func (m *exactWindow) removeNewest(n int, now Instant) {
	slices.SortStableFunc(m.hits, func(a, b exactHit) int { return int(a.expiry - b.expiry) })
	for i := len(m.hits) - 1; i >= 0 && n > 0; i-- {
		h := &m.hits[i]
		if h.resets != m.resets {
			continue
		}
		part := min(n, h.n)
		n -= part
		h.n -= part
		h.hit = Hit{}
	}
}

// requireClose checks that r holds no fewer hits than m at now, and no more than those that
// have expired a thousandth of TTL ago at most.
func (m *exactWindow) requireClose(t require.TestingT, now Instant, r Record, ttl time.Duration) {
	r.hits.expire(now)
	require.GreaterOrEqual(t, r.hits.len(), m.holding(now))
	require.LessOrEqual(t, r.hits.len(), m.holding(now-tooLong(ttl)))
}

// TestALongWindowIsAnExactOneToAThousandth tries calls of any cost, settlements, hits that are
// taken back, refunds and resets in any order: no TTL holds more than Max that are not taken
// back, no hit counts for more than a thousandth of TTL too long, RetryAfter is true, and
// what is taken back is a call's own.
func TestALongWindowIsAnExactOneToAThousandth(t *testing.T) {
	longest := 0
	check := func(t *rapid.T) {
		limit := &Limit{
			Max: rapid.SampledFrom([]int{10, 40, 1100, 3000, 70_000, MaxHits}).Draw(t, "max"),
			TTL: time.Duration(rapid.Int64Range(1, int64(48*time.Hour/time.Millisecond)).Draw(t, "ttl")>>rapid.IntRange(0, 20).Draw(t, "shift")+10) * time.Millisecond,
		}
		m, now, r := &exactWindow{}, start, Record{}
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			now += Instant(time.Millisecond)
			now += Instant(rapid.Int64Range(0, int64(limit.TTL)).Draw(t, "pause")) / Instant(rapid.SampledFrom([]int{2, 30, 1000}).Draw(t, "part"))
			op := rapid.SampledFrom([]string{"call", "call", "call", "cancel", "cancel", "part", "exceed", "newest", "reset"}).Draw(t, "op")
			if (op == "cancel" || op == "part") && len(m.hits) == 0 {
				op = "call"
			}
			switch op {
			case "call":
				limit.Cost = rapid.IntRange(1, limit.Max/rapid.IntRange(1, 10).Draw(t, "share")).Draw(t, "cost")
				r = m.call(t, now, r, limit)
			case "exceed":
				n := rapid.IntRange(1, 3000).Draw(t, "more")
				r.expire(now) // as exceed does
				if h := r.exceedWindow(now, limit, n); h.Cost > 0 {
					m.hits = append(m.hits, exactHit{h.Cost, now.Add(limit.TTL), h, m.resets})
				}
			case "cancel", "part":
				h := &m.hits[rapid.IntRange(0, len(m.hits)-1).Draw(t, "which")]
				part := h.hit.Cost
				if op == "part" && part > 1 {
					part = rapid.IntRange(1, part-1).Draw(t, "hits")
				}
				before := r
				before.hits.expire(now)
				rest, found := r.refundPart(h.hit, part, now)
				gone := 0
				if after := r; found {
					after.hits.expire(now)
					gone = before.hits.len() - after.hits.len()
				}
				if h.resets != m.resets || part == 0 || h.expiry+tooLong(limit.TTL) <= now {
					require.Zero(t, gone, "none of its own is there")
				} else if h.expiry > now {
					require.Equal(t, part, gone)
				}
				h.n, h.hit = h.n-part, rest
			case "newest":
				n := rapid.IntRange(1, limit.Max).Draw(t, "hits")
				r, _ = r.WithoutNewest(n, now, limit)
				// Some may be those that should have expired.
				late := m.holding(now-tooLong(limit.TTL)) - m.holding(now)
				if late > 0 {
					r, m = Record{}, &exactWindow{}
				}
				m.removeNewest(n, now)
			default:
				r = Record{}
				m.resets++
			}
			again := reread(t, r)
			require.Equal(t, again.hits.len(), r.hits.len())
			if rapid.Bool().Draw(t, "read by another process") {
				r = again
			}
			m.requireClose(t, now, r, limit.TTL)
			if r.hits.inCells() {
				longest = max(longest, r.hits.len())
			}
		}
	}
	rapid.Check(t, check)
	if testing.Short() { // a fifth of the usual tries: at random, few windows may be long
		for range 4 {
			rapid.Check(t, check)
		}
	}
	require.Greater(t, longest, 10_000, "cells were tried")
}

// call makes a call on r and returns what is left.
func (m *exactWindow) call(t require.TestingT, now Instant, r Record, limit *Limit) Record {
	v := decide(now, limit, Lockout{}, r, true)
	if v.Outcome.Blocked {
		require.Greater(t, m.holding(now-tooLong(limit.TTL))+limit.Cost, limit.Max, "blocked")
		retry := now.Add(v.Outcome.RetryAfter)
		require.LessOrEqual(t, v.Outcome.RetryAfter, limit.TTL+time.Duration(tooLong(limit.TTL)))
		require.True(t, decide(retry-1, limit, Lockout{}, r, true).Outcome.Blocked)
		require.False(t, decide(retry, limit, Lockout{}, r, true).Outcome.Blocked)
		return v.Next
	}
	require.LessOrEqual(t, m.holding(now)+limit.Cost, limit.Max, "authorized")
	m.hits = append(m.hits, exactHit{limit.Cost, now.Add(limit.TTL), v.Hit, m.resets})
	if after := v.Outcome.RetryAfter; after > 0 {
		one := *limit
		one.Cost = 1
		require.True(t, decide(now.Add(after)-1, &one, Lockout{}, v.Next, true).Outcome.Blocked)
		require.False(t, decide(now.Add(after), &one, Lockout{}, v.Next, true).Outcome.Blocked)
	}
	return v.Next
}

// However often rules of other TTLs count in one record, no hit moves by more than the
// resolution of the longest TTL.
func TestAHitStaysInItsCellThoughTheTTLChanges(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ttls := rapid.SliceOfN(rapid.Int64Range(int64(100*time.Millisecond), int64(1000*time.Hour)), 1, 4).Draw(t, "ttls")
		longest := time.Duration(slices.Max(ttls))
		m, now, r := &exactWindow{}, start, Record{}
		for range rapid.IntRange(1, 60).Draw(t, "calls") {
			now += Instant(rapid.Int64Range(0, int64(longest)).Draw(t, "pause")) / Instant(rapid.SampledFrom([]int{2, 30, 1000, 1_000_000}).Draw(t, "part"))
			limit := &Limit{Max: MaxHits, TTL: time.Duration(rapid.SampledFrom(ttls).Draw(t, "ttl"))}
			limit.Cost = rapid.IntRange(1, 2000).Draw(t, "cost")
			v := decide(now, limit, Lockout{}, r, true)
			r = reread(t, v.Next)
			m.hits = append(m.hits, exactHit{limit.Cost, now.Add(limit.TTL), v.Hit, 0})
			m.requireClose(t, now, r, longest)
		}
	})
}

// A rule whose TTL was shortened counts hits for its own TTL, and as exactly, from the first
// call on that they block.
func TestAShorterTTLHoldsForALongWindowThatBlocks(t *testing.T) {
	long, short := &Limit{Max: 3000, TTL: 24 * time.Hour, Cost: 500}, &Limit{Max: 3000, TTL: time.Minute}
	var r Record
	for i := range Instant(6) {
		r = reread(t, decide(start+i*Instant(time.Second), long, Lockout{}, r, true).Next)
	}
	now := start + Instant(10*time.Second)
	v := decide(now, short, Lockout{}, r, true)
	require.True(t, v.Store)
	require.LessOrEqual(t, v.Outcome.RetryAfter, time.Minute+time.Minute/1000)
	require.Equal(t, v.Outcome.RetryAfter, v.Outcome.ResetAfter)
	r = reread(t, v.Next)
	require.Equal(t, 3000, r.hits.len())
	v = decide(now.Add(v.Outcome.RetryAfter), short, Lockout{}, r, true)
	require.False(t, v.Outcome.Blocked)
	require.Equal(t, 2999, v.Outcome.Remaining)
}

// Cells of another length are the same hits.
func TestHitsAreTakenBackThoughTheTTLHasGrown(t *testing.T) {
	hour, week := &Limit{Max: 5000, TTL: time.Hour, Cost: 300}, &Limit{Max: 5000, TTL: 7 * 24 * time.Hour}
	first := decide(start, hour, Lockout{}, Record{}, true)
	second := decide(start+1, hour, Lockout{}, reread(t, first.Next), true)
	require.True(t, second.Next.hits.inCells())
	r := reread(t, decide(start+2, week, Lockout{}, reread(t, second.Next), true).Next)
	for i, h := range []Hit{first.Hit, second.Hit} {
		next, found := r.Without(h, start+3)
		require.True(t, found)
		require.Equal(t, 301-300*i, next.hits.len())
		r = reread(t, next)
	}
}

// A list that spans a whole TTL, from one cell's end to another's beginning, needs a cell more.
func TestAListThatSpansAWholeTTLKeepsItsTimesInCells(t *testing.T) {
	limit := &Limit{Max: 5000, TTL: time.Minute}
	unit := cellFor(Instant(limit.TTL))
	now := start/unit*unit + unit*9/10
	var r Record
	r.hits.add(1, now+1, Instant(limit.TTL))
	r.hits.add(maxTimes-1, now.Add(limit.TTL), Instant(limit.TTL))
	require.False(t, r.hits.inCells())
	r.hits.add(1, now.Add(limit.TTL), Instant(limit.TTL))
	r = reread(t, r)
	require.Equal(t, int(r.hits.reach()), r.hits.row())
	require.Equal(t, now/unit*unit+unit, r.hits.time(0))
	r.hits.expire(now/unit*unit + unit)
	require.Equal(t, maxTimes, r.hits.len())
}

func TestListsThatNobodyWritesBecomeCells(t *testing.T) {
	mixed := slices.Repeat([]time.Time{at(time.Hour / 6)}, 600)
	mixed[0], mixed[599] = at(time.Hour/3), at(time.Hour/2)
	for name, c := range map[string]struct {
		stored []byte
		now    time.Time
	}{
		"out of order": {windowRecord(time.Hour, mixed...), epoch},
		"in 1970":      {windowRecord(time.Hour, slices.Repeat([]time.Time{time.Unix(0, 5)}, 600)...), time.Unix(0, 0)},
	} {
		o, next := decideBytes(c.now, window(5000, time.Hour), 0, c.stored)
		require.Equal(t, 5000-601, o.Remaining, name)
		r, err := Decode(next)
		require.NoError(t, err, name)
		require.Equal(t, []any{601, true}, []any{r.hits.len(), r.hits.inCells()}, name)
	}
}

// What cannot be stored counts as no record: its limit would be there once more.
func TestWhatBecomesOfListsThatNobodyWritesCanBeStored(t *testing.T) {
	disordered := hits{cells: cells{list: list{ttl: 255, last: 11, entries: append(slices.Repeat([]byte{11, 0}, 300), 11)}}}
	full := hits{cells: cells{list: list{ttl: 1}}}
	full.pack(50, []uint32{maxCount})
	full.cells.total = 1
	for now, h := range map[Instant]hits{0: disordered, full.end() - Instant(time.Millisecond): full} {
		v := decide(now, &Limit{Max: 5000, TTL: time.Millisecond}, Lockout{}, Record{hits: h}, true)
		_, err := Decode(v.Next.Encode())
		require.NoError(t, err, "at %d", now)
	}
}

// What this package has not written may be anything.
func TestLongWindowsOfOtherProgramsDoNoHarm(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var h hits
		h.ttl = Instant(rapid.Int64Range(1, 1<<56).Draw(t, "ttl"))
		h.last = rapid.Uint64Range(1, math.MaxInt64).Draw(t, "last") >> rapid.IntRange(0, 50).Draw(t, "shift")
		h.last = max(h.last, 1)
		some := rapid.SliceOfN(rapid.Uint64(), 1, 20).Draw(t, "times")
		for i := range rapid.IntRange(1, 2*maxTimes).Draw(t, "hits") {
			h.entries = appendLow(h.entries, some[i%len(some)], h.expiries().width())
		}
		h.entries = appendLow(h.entries, h.last, h.expiries().width())
		requireSoundInEveryWay(t, h)
	})
	rapid.Check(t, func(t *rapid.T) {
		var h hits
		h.ttl = Instant(rapid.Int64Range(1, 1<<56).Draw(t, "ttl"))
		h.unit = cellFor(h.ttl)
		counts := rapid.SliceOfN(rapid.Uint32Range(0, maxCount), 1, 20).Draw(t, "counts")
		counts = append(counts, maxCount)
		h.pack(rapid.Uint64Range(1, uint64(math.MaxInt64/h.unit)-100).Draw(t, "first")>>rapid.IntRange(0, 30).Draw(t, "shift")+1, counts)
		h.cells.total = rapid.Uint32Range(1, math.MaxInt32).Draw(t, "total") >> rapid.IntRange(0, 30).Draw(t, "less")
		h.cells.total = max(h.cells.total, 1)
		requireSoundInEveryWay(t, h)
	})
}

// endOfTime is the last time of a call, see [InstantOf].
var endOfTime = InstantOf(time.Date(2261, time.December, 31, 0, 0, 0, 0, time.UTC))

func requireSoundInEveryWay(t *rapid.T, h hits) {
	stored := Record{hits: h}.Encode()
	recoded, ok := recode(stored)
	require.True(t, ok)
	require.Equal(t, stored, recoded)
	end := min(h.end(), endOfTime)
	now := time.Unix(0, max(int64(end)-rapid.Int64Range(-1, int64(48*time.Hour)).Draw(t, "before the end")>>rapid.IntRange(0, 47).Draw(t, "nearer"), 0))
	limit := Limit{
		Algorithm: rapid.SampledFrom([]Algorithm{Window, Window, Bucket, Leases}).Draw(t, "algorithm"),
		Max:       rapid.SampledFrom([]int{1, 40, 5000, MaxHits}).Draw(t, "max"),
		TTL:       time.Duration(rapid.Int64Range(int64(time.Millisecond), int64(100*time.Hour)).Draw(t, "limit's ttl")),
		ID:        1,
	}
	limit.Cost = rapid.IntRange(1, limit.Max).Draw(t, "cost")
	if limit.Algorithm == Leases {
		limit.Cost = 1
	}
	requireSound(t, now, limit, stored)
	r, _ := Decode(stored)
	r.WithoutNewest(limit.Cost, InstantOf(now), &limit)
}

func TestHitsOfAClockAheadAreSetRightInCells(t *testing.T) {
	limit := &Limit{Max: 4000, TTL: time.Hour, Cost: 2000}
	ahead := reread(t, decide(start.Add(5*time.Hour), limit, Lockout{}, Record{}, true).Next)
	v := decide(start, limit, Lockout{}, ahead, true)
	require.False(t, v.Outcome.Blocked)
	r := reread(t, v.Next)
	require.Equal(t, 1, r.hits.row(), "both expire together")
	v = decide(start+1, limit, Lockout{}, r, true)
	require.True(t, v.Outcome.Blocked)
	require.LessOrEqual(t, v.Outcome.RetryAfter, time.Hour+time.Hour/1000)
	v = decide(start.Add(v.Outcome.RetryAfter)+1, limit, Lockout{}, r, true)
	require.False(t, v.Outcome.Blocked)
}

// A ban keeps the cells that it is set on, and they count again if it is lifted.
func TestABanKeepsCells(t *testing.T) {
	for _, ttl := range []time.Duration{time.Second, time.Hour} {
		limit := &Limit{Max: 3000, TTL: ttl, Cost: 1500}
		firm := decide(start, limit, keeping, Record{}, true)
		tentative := decide(start+1, limit, keeping, reread(t, firm.Next), true)
		full := reread(t, tentative.Next)
		banned := decide(start+2, limit, keeping, full, true)
		require.True(t, banned.Outcome.NewBan)
		r := reread(t, banned.Next)
		require.True(t, r.hits.inCells())

		lifted, found := r.Withdrawn(tentative.Hit, start+3, limit)
		require.True(t, found)
		lifted = reread(t, lifted)
		require.Equal(t, 1500, lifted.hits.len())
		without, _ := full.Without(tentative.Hit, start+3)
		require.Equal(t, without.hits.end(), lifted.hits.end())
		require.Equal(t, without.hits.len(), lifted.hits.len())

		end := start.Add(time.Minute) + 2
		after := decide(end, limit, keeping, r, true)
		require.False(t, after.Outcome.Blocked)
		require.Equal(t, 1500, after.Outcome.Remaining, "counting starts anew")
	}
}

// Leases and a bucket stand beside cells.
func TestCellsBesideAllElse(t *testing.T) {
	limit := &Limit{Max: 3000, TTL: time.Hour, Cost: 1500}
	r := decide(start, limit, Lockout{}, Record{}, true).Next
	r = reread(t, decide(start, bucketOf(10, time.Hour), Lockout{}, r, true).Next)
	r = reread(t, decide(start, &Limit{Max: 5, TTL: time.Hour, Algorithm: Leases, ID: 1}, Lockout{}, r, true).Next)
	require.Equal(t, 1500, r.hits.len())
	require.Equal(t, []any{1500, time.Hour}, []any{len(r.Facts().Expiries), r.Facts().WindowTTL})
}

func TestCountsHaveTheBytesThatTheLargestNeeds(t *testing.T) {
	limit := &Limit{Max: MaxHits, TTL: time.Hour}
	var r Record
	now := start
	for i, c := range []struct{ cost, width int }{{2000, 2}, {255, 2}, {63_000, 2}, {70_000, 3}} {
		limit.Cost = c.cost
		r = reread(t, decide(now, limit, Lockout{}, r, true).Next)
		require.EqualValues(t, c.width, r.hits.cells.width, i)
		now += Instant(time.Minute)
	}
	limit.Cost = 1
	now = start.Add(time.Hour) + 3*Instant(time.Minute) // the last one is left
	r = reread(t, decide(now, limit, Lockout{}, r, true).Next)
	require.EqualValues(t, 3, r.hits.cells.width)
	now += Instant(time.Minute) // and now it is gone
	r = reread(t, decide(now, limit, Lockout{}, r, true).Next)
	require.Equal(t, []any{2, uint8(1)}, []any{r.hits.len(), r.hits.cells.width})
}

// cellOf returns the bytes of a cell of 1<<24 - 1 hits, which is said to hold total.
func cellOf(total uint32) []byte {
	b := []byte{version, byte(cellsSection)}
	b = appendInstant(appendInstant(appendInstant(b, 1), 0), 1) // ttl, since, last
	return append(binary.BigEndian.AppendUint32(b, total), 3, 255, 255, 255)
}

// Bytes of another program may claim any number of hits.
func TestFactsAreOfNoMoreHitsThanAWindowHolds(t *testing.T) {
	for _, total := range []uint32{7, MaxHits, 1 << 27} {
		r, err := Decode(cellOf(total))
		require.NoError(t, err)
		expiries := r.Facts().Expiries
		require.Equal(t, min(int(total), MaxHits), len(expiries)) // or its message has them all
		require.Equal(t, len(expiries), cap(expiries))
	}
}
