package record

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// A fleet is processes whose clocks differ by up to apart, on one record. now is the true time.
type fleet struct {
	clocks []Instant // ahead of now
	apart  Instant
	now    Instant
	r      Record
}

func drawFleet(t *rapid.T, most time.Duration) *fleet {
	f := &fleet{now: start, apart: Instant(rapid.Int64Range(0, int64(most)).Draw(t, "apart")) >> rapid.IntRange(0, 12).Draw(t, "closer")}
	f.clocks = []Instant{0, f.apart}
	for range rapid.IntRange(0, 2).Draw(t, "more clocks") {
		f.clocks = append(f.clocks, Instant(rapid.Int64Range(0, int64(f.apart)).Draw(t, "ahead")))
	}
	return f
}

func (f *fleet) passes(t *rapid.T, most Instant) {
	f.now += Instant(rapid.Int64Range(0, int64(most)).Draw(t, "pause"))
}

// clock draws one, and returns its time.
func (f *fleet) clock(t *rapid.T) Instant {
	return f.now + rapid.SampledFrom(f.clocks).Draw(t, "clock")
}

// keep makes next the record, as another process finds it, if it was stored.
func (f *fleet) keep(t require.TestingT, next Record, store bool) {
	if store {
		f.r = reread(t, next)
	}
}

// A hand is what one call has counted: hits that it may spend until, by its own clock.
type hand struct {
	ahead Instant // its clock
	until Instant
	hits  Hit
}

// TestLimitsHoldWhateverClocksDiffer has windows and buckets that clocks of a fleet count in:
// they take hits at once and ahead, spend those late, give some back, settle calls and are
// refused in any order. A window admits as one of TTL-d would, and a bucket no more in any time
// T than Max + (T+d)/I, as long as d is less than each promises.
func TestLimitsHoldWhateverClocksDiffer(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		limit := Limit{Algorithm: rapid.SampledFrom([]Algorithm{Window, Bucket}).Draw(t, "algorithm")}
		limit.Max = rapid.SampledFrom([]int{1, 2, 5, 30, 700}).Draw(t, "max")
		limit.TTL = time.Duration(rapid.SampledFrom([]int64{10, 1000, 5000, 300_000}).Draw(t, "ttl")) * time.Millisecond
		most := limit.TTL - 1
		if limit.Algorithm == Bucket && rapid.Bool().Draw(t, "far apart") {
			most = farthest(limit.TTL)
		}
		f := drawFleet(t, most)
		prefetch := rapid.Bool().Draw(t, "prefetch")
		var spent []Instant
		var hands []hand
		for range rapid.IntRange(10, 250).Draw(t, "steps") {
			f.passes(t, Instant(limit.TTL)/Instant(min(limit.Max, 40)))
			switch rapid.IntRange(0, 9).Draw(t, "op") {
			case 0: // what was taken ahead is given back, as far as it was not spent
				if n := len(hands); n > 0 {
					next, found := f.r.Without(hands[n-1].hits, f.clock(t))
					f.keep(t, next, found)
					hands = hands[:n-1]
				}
			case 1, 2:
				for i := range hands {
					h := &hands[i]
					if n := rapid.IntRange(0, h.hits.Cost).Draw(t, "spent"); f.now+h.ahead <= h.until {
						_, h.hits = h.hits.Split(n)
						spent = append(spent, slices.Repeat([]Instant{f.now}, n)...)
					}
				}
				hands = slices.DeleteFunc(hands, func(h hand) bool { return h.hits.Cost == 0 })
			case 3: // a call of its own turns out to cost more, or less
				v := decide(f.clock(t), &limit, Lockout{}, f.r, true)
				if f.keep(t, v.Next, v.Store); v.Hit.Cost > 0 {
					s := Settlement{Limit: limit, Hits: []Hit{v.Hit}, Total: 1, Actual: rapid.IntRange(0, limit.Max+1).Draw(t, "actual")}
					next := f.r
					f.keep(t, next, s.Apply(f.clock(t), &next))
					f.r = reread(t, next)
					if s.Actual > 0 {
						spent = append(spent, f.now)
					}
				}
			default:
				call := limit
				call.Cost = rapid.IntRange(1, limit.Max).Draw(t, "cost")
				if rapid.Bool().Draw(t, "one") {
					call.Cost = 1
				}
				if prefetch {
					call.Least, call.Ahead = 1, time.Duration(rapid.Int64Range(1, int64(limit.MostAhead())).Draw(t, "ahead"))
				}
				at := f.clock(t)
				v := decide(at, &call, Lockout{}, f.r, rapid.IntRange(0, 9).Draw(t, "peek") > 0)
				if f.keep(t, v.Next, v.Store); v.Hit.Cost > 0 {
					now, rest := v.Hit.Split(call.Needed())
					spent = append(spent, slices.Repeat([]Instant{f.now}, now.Cost)...)
					if rest.Cost > 0 {
						hands = append(hands, hand{at - f.now, at.Add(call.Ahead), rest})
					}
				}
			}
		}
		for i := range spent {
			j := i + limit.Max
			if limit.Algorithm == Window {
				require.False(t, j < len(spent) && spent[j]-spent[i] < Instant(limit.TTL)-f.apart, "%d hits in %v", limit.Max+1, time.Duration(spent[min(j, len(spent)-1)]-spent[i]))
				continue
			}
			for ; j < len(spent); j++ {
				beyond := limit.rate().amount(uint64(j - i + 1 - limit.Max)).whole
				require.LessOrEqual(t, beyond, spent[j]-spent[i]+f.apart, "%d hits in %v", j-i+1, time.Duration(spent[j]-spent[i]))
			}
		}
	})
}

// A ban holds for every clock of a fleet until d before its length has passed, however often it
// is met.
func TestBansHoldWhateverClocksDiffer(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		limit := Limit{Max: 2, TTL: time.Hour, Algorithm: rapid.SampledFrom([]Algorithm{Window, Bucket}).Draw(t, "algorithm")}
		l := Lockout{Length: time.Duration(rapid.Int64Range(int64(time.Millisecond), int64(10*time.Minute)).Draw(t, "length"))}
		most := l.Length
		if l.Length < time.Minute {
			most = time.Minute - l.Length
		}
		f := drawFleet(t, most)
		until := Instant(0) // by no clock does it end before
		for range rapid.IntRange(1, 60).Draw(t, "calls") {
			f.passes(t, Instant(l.Length)/4)
			v := decide(f.clock(t), &limit, l, f.r, true)
			f.keep(t, v.Next, v.Store)
			if f.now < until {
				require.True(t, v.Outcome.Banned)
				require.False(t, v.Outcome.NewBan)
			}
			if v.Outcome.NewBan {
				until = f.now + Instant(l.Length) - f.apart
			}
		}
	})
}

// No more than Max hold a lease at once of those that stop a tenth of TTL before it ends by
// their own clock, if clocks differ by less than that.
func TestLeasesHoldWhateverClocksDiffer(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		limit := Limit{Algorithm: Leases, Max: rapid.IntRange(1, 4).Draw(t, "max"), TTL: time.Duration(rapid.SampledFrom([]int64{100, 1000, 120_000}).Draw(t, "ttl")) * time.Millisecond}
		f := drawFleet(t, limit.TTL/10)
		type holder struct {
			hit   Hit
			ahead Instant // its clock
		}
		var holders []holder
		for range rapid.IntRange(10, 100).Draw(t, "steps") {
			f.passes(t, Instant(limit.TTL)/4)
			holders = slices.DeleteFunc(holders, func(h holder) bool {
				return f.now+h.ahead >= h.hit.Expiry-Instant(limit.TTL/10)
			})
			n := len(holders)
			switch op := rapid.IntRange(0, 4).Draw(t, "op"); {
			case op == 0 && n > 0:
				next, found := f.r.Without(holders[0].hit, f.now+holders[0].ahead)
				f.keep(t, next, found)
				holders = holders[1:]
			case op == 1 && n > 0:
				h := &holders[rapid.IntRange(0, n-1).Draw(t, "which")]
				ends, next := map[uint64]Instant{h.hit.ID: 0}, f.r
				store := next.Renew(f.now+h.ahead, ends)
				require.True(t, store, "a lease that its holder keeps to is never lost")
				f.keep(t, next, store)
				h.hit.Expiry = ends[h.hit.ID]
			default:
				limit.ID++
				at := f.clock(t)
				v := decide(at, &limit, Lockout{}, f.r, true)
				if f.keep(t, v.Next, v.Store); v.Hit.Cost > 0 {
					holders = append(holders, holder{v.Hit, at - f.now})
				}
			}
			require.LessOrEqual(t, len(holders), limit.Max)
		}
	})
}

// A clock that was far ahead locks nobody out for longer than TTL or a minute, or its Lockout,
// from the next call on; of hits taken ahead, for as long more as they might be spent.
func TestAClockThatWasAheadLocksNobodyOutForLong(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		limit := Limit{Max: rapid.IntRange(1, 5).Draw(t, "max"), TTL: time.Duration(rapid.Int64Range(int64(time.Millisecond), int64(time.Hour)).Draw(t, "ttl"))}
		limit.Algorithm = rapid.SampledFrom([]Algorithm{Window, Bucket, Leases}).Draw(t, "algorithm")
		var l Lockout
		if limit.Algorithm != Leases && rapid.Bool().Draw(t, "bans") {
			l.Length = time.Duration(rapid.Int64Range(int64(time.Millisecond), int64(time.Hour)).Draw(t, "lockout"))
		}
		ahead := time.Duration(rapid.Int64Range(0, int64(1000*time.Hour)).Draw(t, "ahead")) >> rapid.IntRange(0, 30).Draw(t, "less")
		longest := max(limit.TTL, time.Minute, l.Length)
		if limit.Algorithm == Window && rapid.Bool().Draw(t, "prefetch") {
			limit.Cost, limit.Least, limit.Ahead = limit.Max, 1, limit.MostAhead()
			longest += limit.Ahead
		}
		var r Record
		for range 2 * limit.Max {
			limit.ID++
			if v := decide(start.Add(ahead), &limit, l, r, true); v.Store {
				r = reread(t, v.Next)
			}
		}
		limit.ID++
		v := decide(start, &limit, l, r, true)
		if v.Store {
			r = reread(t, v.Next)
		}
		limit.ID++
		end := start.Add(longest)
		if limit.Algorithm == Bucket {
			end += limit.Interval() // until one of TTL fits
		}
		require.False(t, decide(end, &limit, Lockout{}, r, true).Outcome.Blocked, "%v", v.Outcome)
	})
}
