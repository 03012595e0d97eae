package record

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// An oracle is one limit and its record, written the naive way: a list of all that was counted,
// which is read in full for each answer. Its clock never goes back, and its limit stays, but for the
// TTL of leases.
type oracle struct {
	limit Limit
	held  []piece
	score Instant // of a bucket, in place of held; its interval has no parts of a nanosecond
	ban   ban
	kept  *oracle // what the ban was set on, if it keeps that
}

// A piece is what one call, or its settlement, has counted.
type piece struct {
	call int
	n    int
	end  Instant
	id   uint64 // of a lease
	ttl  time.Duration
}

// holding returns how many hits count at now.
func (o *oracle) holding(now Instant) (n int) {
	for _, p := range o.held {
		if p.end > now {
			n += p.n
		}
	}
	return n
}

func (o *oracle) room(now Instant) int {
	if o.limit.Algorithm == Bucket {
		return int(max(now.Add(o.limit.TTL)-max(o.score, now), 0) / o.limit.Interval())
	}
	return max(o.limit.Max-o.holding(now), 0)
}

// fits returns how long it is until n hits fit.
func (o *oracle) fits(n int, now Instant) time.Duration {
	if o.limit.Algorithm == Bucket {
		return (max(o.score, now) + Instant(n)*o.limit.Interval()).Since(now.Add(o.limit.TTL))
	}
	at := now
	for _, p := range slices.SortedFunc(slices.Values(o.held), func(a, b piece) int { return cmp.Compare(a.end, b.end) }) {
		if o.limit.Max-o.holding(at) >= n {
			break
		}
		at = max(at, p.end)
	}
	return at.Since(now)
}

// empty returns how long it is until no hit counts.
func (o *oracle) empty(now Instant) time.Duration {
	last := o.score
	for _, p := range o.held {
		if p.n > 0 {
			last = max(last, p.end)
		}
	}
	return last.Since(now)
}

// count counts n hits of a call, for limit's TTL if they are leases.
func (o *oracle) count(call, n int, limit *Limit, now Instant) {
	end := now.Add(limit.TTL)
	switch o.limit.Algorithm {
	case Bucket:
		o.score = max(o.score, now) + Instant(n)*o.limit.Interval()
		return
	case Calendar:
		end = now - now%Instant(24*time.Hour) + Instant(24*time.Hour)
	}
	o.held = append(slices.Clone(o.held), piece{call, n, end, limit.ID, limit.TTL})
}

// drop takes n hits of a call back, the newest first, and reports whether one of them counted.
func (o *oracle) drop(call, n int, now Instant) (found bool) {
	if o.limit.Algorithm == Bucket {
		found = o.score > now
		o.score = max(o.score-Instant(n)*o.limit.Interval(), min(o.score, now))
		return found
	}
	o.held = slices.Clone(o.held)
	for i := len(o.held) - 1; i >= 0 && n > 0; i-- {
		if p := &o.held[i]; p.call == call {
			part := min(n, p.n)
			found = found || part > 0 && p.end > now
			n, p.n = n-part, p.n-part
		}
	}
	return found
}

// replace forgets all that a ban replaces.
func (o *oracle) replace() {
	o.score, o.kept, o.ban.set, o.ban.before = 0, nil, 0, 0
	if o.limit.Algorithm != Leases {
		o.held = nil
	}
}

// begin forgets what a ban has kept that has ended, and the ban itself in time.
func (o *oracle) begin(now Instant) {
	if o.kept != nil {
		o.replace()
	}
	if o.ban.repeats == 0 || o.ban.end+Instant(LockoutMemory) <= now {
		o.ban = ban{}
	}
}

// banned returns the answer to a call that meets a ban.
func (o *oracle) banned(needed int, now Instant) Outcome {
	after, reset := o.ban.end.Since(now), o.ban.end.Since(now)
	if o.limit.Algorithm == Leases {
		after, reset = max(after, o.fits(needed, now)), max(reset, o.empty(now))
	}
	return Outcome{Blocked: true, Banned: true, RetryAfter: after, ResetAfter: reset}
}

// decide decides a call, and returns the answer, how long it is until as many hits fit again, and
// whether the record is to be stored.
func (o *oracle) decide(call int, limit *Limit, l Lockout, now Instant, count bool) (out Outcome, again time.Duration, store bool) {
	needed := cmp.Or(limit.Least, limit.Cost, 1)
	if o.ban.end > now {
		out = o.banned(needed, now)
		return out, out.RetryAfter, false
	}
	o.begin(now)
	if l.Growth == 0 {
		o.ban = ban{}
	}
	room := o.room(now)
	if room < needed {
		again = o.fits(needed, now)
		full := l.Length > 0 && room == 0
		if full && l.KeepHits && limit.Algorithm == Bucket {
			interval := limit.Interval()
			full = Instant(again) > Instant(needed-1)*interval+min(interval/2, Instant(time.Second))
		}
		if full {
			o.setBan(l, now)
			out = o.banned(needed, now)
			out.NewBan = true
			return out, out.RetryAfter, true
		}
		return Outcome{Blocked: true, Remaining: room, RetryAfter: again, ResetAfter: o.empty(now)}, again, false
	}
	if count {
		out.Cost = min(max(limit.Cost, 1), room)
		o.count(call, out.Cost, limit, now)
	}
	out.Remaining, out.RetryAfter, out.ResetAfter = o.room(now), o.fits(1, now), o.empty(now)
	return out, o.fits(needed, now), count
}

func (o *oracle) setBan(l Lockout, now Instant) {
	b := ban{length: Instant(l.Length)}
	if l.Growth > 0 {
		b.length = Instant(min(float64(l.Length)*math.Pow(l.Growth, float64(o.ban.repeats)), float64(l.Longest)))
		b.repeats = min(o.ban.repeats+1, 255)
	}
	b.end = now + b.length
	before := *o
	o.replace()
	o.ban = b
	if l.KeepHits {
		o.held, o.score, o.kept, o.ban.set = before.held, before.score, &before, now
	}
}

// byHand sets a ban by hand, and reports whether the record is to be stored.
func (o *oracle) byHand(d time.Duration, now Instant) (store bool) {
	if o.ban.end > now && o.ban.end >= now.Add(d) {
		store = o.kept != nil
		o.replace()
		return store
	}
	o.begin(now)
	o.replace()
	o.ban.length, o.ban.end = Instant(d), now.Add(d)
	return true
}

// takeBack takes a call back that was authorized or, if it turned out to be refused, lifts a ban
// that was set on its hits.
func (o *oracle) takeBack(call, n int, refused bool, now Instant) (found bool) {
	switch {
	case o.limit.Algorithm == Leases || o.kept == nil:
		return o.drop(call, n, now)
	case o.ban.end <= now || !refused:
		return false
	}
	set, kept := o.ban.set, *o.kept
	if found = kept.drop(call, n, set); !found {
		return false
	}
	bucket := o.limit.Algorithm == Bucket
	after := kept.fits(1, set)
	if kept.room(set) > 0 || bucket && Instant(after) <= min(o.limit.Interval()/2, Instant(time.Second)) {
		*o = kept
		return true
	}
	o.held, o.score, o.kept = kept.held, kept.score, &kept
	return true
}

// settle sets what a call has cost, and returns the answer and whether the record is to be stored.
func (o *oracle) settle(call, from, to int, limit *Limit, now Instant) (out Outcome, store bool) {
	blocked := o.ban.end > now && o.limit.Algorithm != Leases
	switch {
	case to < from && !blocked && (o.limit.Algorithm == Leases || o.ban.set == 0):
		store = o.drop(call, from-to, now)
	case to > from && !blocked:
		if o.ban.end <= now {
			o.begin(now)
		}
		store = true
		if i := slices.IndexFunc(o.held, func(p piece) bool { return p.call == call && p.n > 0 && p.end > now }); o.limit.Algorithm == Leases && i >= 0 {
			o.held = slices.Clone(o.held)
			o.held[i].n, o.held[i].end = o.held[i].n+to-from, now.Add(limit.TTL)
		} else {
			o.count(call, to-from, limit, now)
		}
	}
	if o.ban.end > now {
		return o.banned(1, now), store
	}
	left := *o
	left.begin(now)
	out = Outcome{Remaining: left.room(now), RetryAfter: left.fits(1, now), ResetAfter: left.empty(now)}
	out.Blocked = left.holding(now) > o.limit.Max || left.score > now.Add(o.limit.TTL)
	return out, store
}

// A counted is a call that has counted hits.
type counted struct {
	hits  []Hit
	total int
	ttl   time.Duration // that its limit has
}

// TestAllIsAsTheOracleSays has one limit of each algorithm decide calls of any cost, ban in each
// way, take back, withdraw, settle, refund, renew and look, in any order, and compares each answer
// with an oracle. Each call is also decided on the stored bytes, and beside another
// record in which nothing is.
func TestAllIsAsTheOracleSays(t *testing.T) {
	for a, name := range []string{Window: "window", Bucket: "bucket", Leases: "leases", Calendar: "calendar"} {
		t.Run(name, func(t *testing.T) { allIsAsTheOracleSays(t, Algorithm(a)) })
	}
}

func allIsAsTheOracleSays(t *testing.T, a Algorithm) {
	rapid.Check(t, func(t *rapid.T) {
		limit := Limit{Algorithm: a, Max: rapid.IntRange(1, 12).Draw(t, "max")}
		interval := rapid.SampledFrom([]time.Duration{time.Millisecond, time.Second, time.Hour}).Draw(t, "interval")
		pause := interval
		if limit.Algorithm == Calendar {
			pause = 24 * time.Hour / time.Duration(limit.Max)
		} else {
			limit.TTL = interval * time.Duration(limit.Max)
		}
		o, r, now := oracle{limit: limit}, Record{}, start
		ops := []string{"call", "call", "call", "call", "look", "cancel", "withdraw", "settle", "ban", "newest"}
		if limit.Algorithm == Leases {
			ops = append(ops, "renew", "renew", "renew")
		}
		var calls []*counted
		latest := -1 // the call that has poured last into a bucket
		for id := range uint64(rapid.IntRange(1, 60).Draw(t, "steps")) {
			now += Instant(rapid.SampledFrom([]time.Duration{0, 1, pause / 3, pause, 3 * pause, 20 * pause, LockoutMemory}).Draw(t, "pause"))
			next, wanted := r, o
			pick := func(i int) int { return rapid.IntRange(0, i-1).Draw(t, "call") }
			switch op := rapid.SampledFrom(ops).Draw(t, "op"); op {
			case "call", "look":
				of := limit
				of.ID = 1<<63 + id
				of.Cost = rapid.IntRange(0, limit.Max).Draw(t, "cost")
				of.Prepare()
				if limit.Algorithm == Leases {
					of.TTL = pause * time.Duration(rapid.IntRange(1, 30).Draw(t, "lease"))
				}
				of.Least = rapid.IntRange(0, of.Cost).Draw(t, "least")
				l := drawLockout(t, &limit)
				out, again, store := wanted.decide(len(calls), &of, l, now, op == "call")
				v := decideEachWay(t, now, &of, l, r, op == "call")
				require.Equal(t, out, v.Outcome)
				require.Equal(t, again, v.Again)
				require.Equal(t, store, v.Store)
				require.Equal(t, out.Cost, v.Hit.Cost)
				if next = v.Next; !store {
					wanted = o
				}
				if v.Hit.Cost > 0 && limit.Algorithm == Leases {
					again := decide(now, &of, l, v.Next, true)
					require.Equal(t, v.Next.Encode(), again.Next.Encode(), "a lost answer counts nothing twice")
				}
				if v.Hit.Cost > 0 {
					calls, latest = append(calls, &counted{[]Hit{v.Hit}, v.Hit.Cost, of.TTL}), len(calls)
				}
			case "ban":
				d := pause * time.Duration(rapid.IntRange(1, 20).Draw(t, "length"))
				store := wanted.byHand(d, now)
				got, stored := r.Banned(now, d)
				require.Equal(t, store, stored)
				next = got
			case "renew":
				if len(calls) == 0 {
					continue
				}
				ends, want := make(map[uint64]Instant), make(map[uint64]Instant)
				for _, h := range calls[pick(len(calls))].hits {
					ends[h.ID] = -1
					want[h.ID] = wanted.renew(h.ID, now)
				}
				renewed := slices.Max(append(slices.Collect(maps.Values(want)), 0)) > 0
				require.Equal(t, renewed, next.Renew(now, ends))
				require.Equal(t, want, ends)
			case "newest":
				n := rapid.IntRange(1, limit.Max).Draw(t, "hits")
				got, found := r.WithoutNewest(n, now, &limit)
				require.Equal(t, wanted.newest(n, now), found)
				next = got
				if found { // those that are left are not known by their hits any more
					calls, latest = nil, -1
					for i := range wanted.held {
						wanted.held[i].call = -1
					}
				}
			default:
				if len(calls) == 0 {
					continue
				}
				i := pick(len(calls))
				c := calls[i]
				if limit.Algorithm == Bucket && i != latest {
					continue // the others may have leaked: see TestSettledBucketIsThatOfSmallerCalls
				}
				if op == "settle" {
					of := limit
					of.TTL, of.ID = c.ttl, id+1
					s := Settlement{Limit: of, Hits: c.hits, Total: c.total, Actual: rapid.IntRange(0, 2*limit.Max).Draw(t, "actual"), ID: id + 1}
					if limit.Algorithm == Bucket {
						s.Actual = max(s.Actual, s.Total) // a part of two hits of a bucket may have leaked
					}
					out, store := wanted.settle(i, s.Total, s.Actual, &of, now)
					require.Equal(t, store, s.Apply(now, &next))
					require.Equal(t, out, s.Outcome)
					if again := next; s.Repeatable() {
						s.Apply(now, &again)
						require.Equal(t, next.Encode(), again.Encode(), "a lost answer counts nothing twice")
					}
					if c.hits, c.total = s.Counted, 0; wanted.kept != nil {
						c.hits = nil // which of them a ban keeps, it does not tell
					}
					for _, h := range c.hits {
						c.total += h.Cost
					}
				} else if len(c.hits) == 1 {
					got, found := r.Without(c.hits[0], now)
					if op == "withdraw" {
						got, found = r.Withdrawn(c.hits[0], now, &limit)
					}
					require.Equal(t, wanted.takeBack(i, c.hits[0].Cost, op == "withdraw", now), found)
					next = got
					c.hits, c.total = nil, 0
					latest = -1
				}
			}
			r, o = next, wanted
			if limit.Algorithm != Calendar { // which keeps its period though it is empty
				require.Equal(t, max(o.ban.forgotten(), now.Add(o.empty(now)), now), max(r.End(), now), "when the item may go")
			}
			if rapid.Bool().Draw(t, "read by another process") {
				r = reread(t, r)
			}
		}
	})
}

// renew renews a lease, and returns when it ends then, or 0 if it has ended.
func (o *oracle) renew(id uint64, now Instant) Instant {
	o.held = slices.Clone(o.held)
	for i := range o.held {
		if p := &o.held[i]; p.id == id && p.n > 0 && p.end > now {
			p.end = now.Add(p.ttl)
			return p.end
		}
	}
	return 0
}

// newest takes the newest n hits back, whoever counted them, and reports whether there was one.
func (o *oracle) newest(n int, now Instant) (found bool) {
	if o.ban.end > now || o.kept != nil || o.limit.Algorithm == Leases || o.empty(now) == 0 {
		return false
	}
	o.score = max(o.score-Instant(n)*o.limit.Interval(), min(o.score, now))
	o.held = slices.Clone(o.held)
	slices.SortStableFunc(o.held, func(a, b piece) int { return cmp.Compare(b.end, a.end) })
	for i := range o.held {
		part := min(n, o.held[i].n)
		n, o.held[i].n = n-part, o.held[i].n-part
	}
	return true
}

func drawLockout(t *rapid.T, limit *Limit) (l Lockout) {
	if limit.Algorithm == Leases || rapid.IntRange(0, 2).Draw(t, "bans") == 0 {
		return l
	}
	l.Length = time.Duration(rapid.SampledFrom([]time.Duration{1, time.Second, time.Hour}).Draw(t, "lockout"))
	l.Growth = rapid.SampledFrom([]float64{0, 1, 1.5, 2}).Draw(t, "growth")
	l.Longest, l.KeepHits = 5*l.Length, rapid.Bool().Draw(t, "keep hits")
	return l
}

// decideEachWay decides a call on r, on its stored form, and beside another record that is empty.
func decideEachWay(t *rapid.T, now Instant, limit *Limit, l Lockout, r Record, count bool) decided {
	d := decide(now, limit, l, r, count)
	if d.Hit.Cost > 0 {
		require.Equal(t, d.Hit, HitOf(d.Hit.Numbers()))
		require.Equal(t, d.Hit, d.Hit.Brief().Hit(limit))
	}
	stored := r.Encode()
	if len(stored) == 2 && rapid.Bool().Draw(t, "no record") {
		stored = nil
	}
	var v Verdict
	value, expiration, ban, err := v.DecideStored(now, limit, &l, stored, nil, count)
	require.NoError(t, err)
	require.Equal(t, d.Verdict, v)
	require.Equal(t, d.Store, value != nil)
	if d.Store {
		require.Equal(t, d.Next.Encode(), value)
		require.Equal(t, Expiration(now, d.Next.End()), expiration)
		require.Equal(t, d.Next.HoldsBan(now), ban)
	}
	beside := r
	require.Equal(t, d.Store, v.DecideBeside(now, limit, l, &beside, count, &Beside{Max: limit.Max}))
	require.Equal(t, d.Verdict, v)
	if d.Store {
		require.Equal(t, d.Next.Encode(), beside.Encode())
	}
	return d
}

// TestADecisionBesideAnotherRecordRespectsBoth has a process decide in a record of its own, of
// which it may fill a share, beside one that others have filled. Of buckets, which join, see
// TestTheFallbackIsExactAndTellsWhenItOpens.
func TestADecisionBesideAnotherRecordRespectsBoth(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		limit := Limit{Algorithm: rapid.SampledFrom([]Algorithm{Window, Leases, Calendar}).Draw(t, "algorithm"), Max: rapid.IntRange(1, 12).Draw(t, "max")}
		if limit.Algorithm != Calendar {
			limit.TTL = time.Hour
		}
		share := rapid.IntRange(1, limit.Max).Draw(t, "share")
		mine, theirs := oracle{limit: limit.WithMax(share)}, oracle{limit: limit}
		var r, seen Record
		now := start
		for id := range uint64(rapid.IntRange(1, 30).Draw(t, "steps")) {
			now += Instant(rapid.SampledFrom([]time.Duration{1, time.Minute, time.Hour / 3, 2 * time.Hour, 9 * time.Hour}).Draw(t, "pause"))
			of := limit
			of.ID = id + 1
			of.Cost = rapid.IntRange(1, limit.Max).Draw(t, "cost")
			of.Least = rapid.IntRange(0, of.Cost).Draw(t, "least")
			switch rapid.IntRange(0, 5).Draw(t, "op") {
			case 0, 1:
				l := drawLockout(t, &limit)
				if d := decide(now, &of, l, seen, true); d.Store {
					theirs.decide(int(id), &of, l, now, true)
					seen = reread(t, d.Next)
				}
				continue
			case 2:
				theirs.byHand(time.Minute, now)
				seen, _ = seen.Banned(now, time.Minute)
				continue
			}
			l := Lockout{}
			if limit.Algorithm != Leases && rapid.Bool().Draw(t, "bans") {
				l.Length = time.Minute
			}
			beside := theirs.held
			if theirs.kept != nil {
				beside = nil // a ban has replaced them
			}
			both := oracle{limit: limit, held: slices.Concat(mine.held, beside)}
			needed := of.Needed()
			fits := func(n int) time.Duration { return max(both.fits(n, now), mine.fits(n, now)) }
			again := func() time.Duration {
				if needed > share { // it comes again when it fits without the share
					return max(both.fits(needed, now), awaited)
				}
				return fits(needed)
			}
			var want Outcome
			if ban := max(mine.ban.end, theirs.ban.end); ban > now {
				after := max(ban.Since(now), again())
				want = Outcome{Blocked: true, Banned: true, RetryAfter: after, ResetAfter: max(ban.Since(now), both.empty(now))}
			} else {
				room := min(mine.room(now), both.room(now))
				if want.Blocked = room < needed; !want.Blocked {
					want.Cost = min(of.Cost, room)
					mine.count(int(id), want.Cost, &of, now)
					both.held = slices.Concat(mine.held, beside)
				}
				want.Remaining, want.ResetAfter = min(mine.room(now), both.room(now)), both.empty(now)
				if want.Blocked && want.Remaining == 0 && l.Length > 0 {
					mine.setBan(l, now)
					want = Outcome{Blocked: true, Banned: true, NewBan: true, RetryAfter: l.Length, ResetAfter: l.Length}
				} else if want.Blocked {
					want.RetryAfter = again()
				} else if want.Remaining == 0 {
					want.RetryAfter = fits(1)
				}
			}
			var v Verdict
			next := r
			store := v.DecideBeside(now, &of, l, &next, true, &Beside{Max: share, Seen: seen.Encode()})
			require.Equal(t, want, v.Outcome)
			require.Equal(t, want.Cost, v.Hit.Cost)
			if want.Blocked {
				require.Equal(t, want.RetryAfter, v.Again)
			} else {
				require.Equal(t, again(), v.Again)
			}
			require.Equal(t, want.Cost > 0 || want.NewBan, store)
			if store {
				r = reread(t, next)
			}
		}
	})
}
