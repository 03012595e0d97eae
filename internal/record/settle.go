package record

import (
	"math"
	"slices"
	"time"
)

// A Settlement sets what one call has cost in its record: Actual hits in total, instead of
// Total. What is above Total counts even beyond Max, from now on. What is below is given
// back, the newest hits first.
//
// A window holds MaxHits hits at most, leases are MaxLeases at most, and numbers end
// somewhere: more counts as that.
type Settlement struct {
	Limit  Limit   // with a Max of 0 if it is not known; then Actual must be 0
	Bounds *Bounds // of one period of a calendar whose Period may be off by some hours
	Beside *Beside // of a record of one process; nil: it decides alone
	Hits   []Hit   // what was counted and not given back yet, oldest first
	Total  int     // what it has cost so far
	Actual int     // what it has cost by what is known now
	ID     uint64  // for a lease, if one must be begun

	// What becomes of it, as [Settlement.Apply] has left it.
	Counted []Hit // like Hits. Shares their memory, beyond their length.
	Outcome Outcome
}

// MaxHits is how many hits a window holds at most.
const MaxHits = 1_000_000

// Apply settles s on r at now, in place, and reports whether r must be stored. A ban stays
// as it is. It has replaced the hits, and nothing is counted beside it but leases.
func (s *Settlement) Apply(now Instant, r *Record) (store bool) {
	s.Counted = s.Hits
	switch b, _ := r.ban.at(now); {
	case s.Actual < s.Total:
		store = s.refund(now, r)
	case s.Actual > s.Total && (!b.holds(now) || s.Limit.Algorithm == Leases):
		store = s.exceed(now, r)
	}
	s.forget(now)
	if s.Limit.Max > 0 {
		s.lookAtSettled(now, *r)
	}
	return store
}

// forget makes one of the hits that have expired at now, which are the first ones: it is
// only known how many they were.
func (s *Settlement) forget(now Instant) {
	n, cost := 0, 0
	for ; n < len(s.Counted); n++ {
		h := s.Counted[n]
		if h.IsLease() || h.Expiry > now {
			break // a lease may have been renewed
		}
		cost += h.Cost
	}
	if n > 1 {
		s.Counted = slices.Concat([]Hit{{Cost: cost}}, s.Counted[n:])
	}
}

// refund takes the newest hits back.
func (s *Settlement) refund(now Instant, r *Record) (store bool) {
	over := -s.Actual
	for _, h := range s.Hits {
		over += h.Cost
	}
	for n := len(s.Counted); n > 0 && over > 0; n-- {
		h := s.Counted[n-1]
		part := min(over, h.Cost)
		rest, found := r.refundPart(h, part, now)
		store = store || found
		over -= part
		s.Counted = s.Counted[:n-1]
		if rest.Cost > 0 {
			s.Counted = append(slices.Clone(s.Counted), rest)
		}
	}
	return store
}

// refundPart removes the last part of h from r, and returns what then is left of h, and
// whether r had any of the part.
func (r *Record) refundPart(h Hit, part int, now Instant) (rest Hit, found bool) {
	rest = h
	rest.Cost -= part
	switch {
	case h.Kind == Leases && rest.Cost > 0:
		return rest, r.resize(h.ID, rest.Cost, 0, now)
	case h.Kind == Bucket && r.ban.set == 0:
		r.bucket, rest, found = r.bucket.withoutLast(h, part, now)
		return rest, found
	}
	h.Cost = part
	*r, found = r.Without(h, now)
	return rest, found
}

// exceed counts what s has cost beyond its total, as far as they fit.
func (s *Settlement) exceed(now Instant, r *Record) (store bool) {
	if b, _ := r.ban.at(now); !b.holds(now) {
		r.begin(b)
	}
	more := s.Actual - s.Total
	if s.Limit.Algorithm == Leases {
		return s.exceedLeases(now, r, more) // also beside a ban, which keeps hits that have expired
	}
	r.expire(now)
	var h Hit
	switch s.Limit.Algorithm {
	case Window:
		h = r.exceedWindow(now, &s.Limit, more)
	case Bucket:
		h = r.exceedBucket(now, s.poured(), more)
	case Calendar:
		h = s.exceedCalendar(now, r, more)
	}
	if h.Cost == 0 {
		return false
	}
	if last := len(s.Counted) - 1; last >= 0 && s.Counted[last].same(h) {
		s.Counted = slices.Clone(s.Counted)
		s.Counted[last].Cost += h.Cost
	} else {
		s.Counted = append(s.Counted, h)
	}
	return true
}

// same reports whether nothing tells hits of h from those of other. Those of a bucket differ.
func (h Hit) same(other Hit) bool {
	h.Cost = other.Cost
	return h == other && h.Kind != Bucket
}

// exceedWindow counts up to n hits in a window, beyond its Max. None of r's has expired at now.
func (r *Record) exceedWindow(now Instant, limit *Limit, n int) Hit {
	expiry := now.Add(limit.TTL)
	r.hits.correct(now, expiry.Add(r.hits.ahead(limit)))
	n = min(n, MaxHits-r.hits.len())
	if n <= 0 {
		return Hit{}
	}
	r.hits.add(n, expiry, Instant(limit.TTL+r.hits.ahead(limit)))
	return Hit{Cost: n, Expiry: expiry}
}

// latestDebt is the latest score of a bucket.
const latestDebt = math.MaxInt64 - 1

// poured returns the limit that the hits of a bucket were counted under, which may be a part of
// that of s.
func (s *Settlement) poured() *Limit {
	limit := s.Limit
	if n := len(s.Counted); n > 0 && !s.Counted[n-1].Gone() {
		limit.TTL, limit.Max = time.Duration(s.Counted[n-1].TTL), int(s.Counted[n-1].Max)
		limit.interval = amount{}
	}
	return &limit
}

// exceedBucket pours n hits into a bucket, over its brim. What is over it is a debt.
func (r *Record) exceedBucket(now Instant, limit *Limit, n int) Hit {
	b := &r.bucket
	b.enter(now, limit)
	n = int(min(uint64(n), b.room(latestDebt)))
	if n <= 0 {
		return Hit{}
	}
	b.score = b.rate.plus(b.score, limit.amount(n))
	b.at = max(b.at, now)
	return b.hit(n)
}

// exceedLeases adds n hits to the newest lease, and renews that. If there is none any more,
// it begins one, which is another one: a lease that is gone is never put back.
func (s *Settlement) exceedLeases(now Instant, r *Record, n int) (store bool) {
	end := now.Add(s.Limit.TTL)
	last := len(s.Counted) - 1
	if last >= 0 && !s.Counted[last].Gone() {
		s.Counted = slices.Clone(s.Counted)
		h := &s.Counted[last]
		if r.resize(h.ID, h.Cost+n, end, now) {
			h.Cost, h.Expiry = h.Cost+n, end
			return true
		}
		*h = Hit{Cost: h.Cost, Kind: Leases} // gone
	}
	l := lease{id: s.ID, end: end, ttl: Instant(s.Limit.TTL), hits: uint32(n)}
	r.leases.expire(now)
	r.leases.remove(l.id) // of this very settlement, if an answer was lost
	if r.leases.len() >= MaxLeases {
		return false
	}
	r.leases = r.leases.append(l)
	s.Counted = append(s.Counted, Hit{Cost: int(l.hits), Expiry: end, Kind: Leases, ID: l.id, TTL: l.ttl})
	return true
}

// resize gives the lease of an ID so many hits, and another end unless that is 0. It reports
// whether that is what it has now.
func (r *Record) resize(id uint64, hits int, end, now Instant) (found bool) {
	r.leases.expire(now)
	r.leases.edit(func(l lease) lease {
		if l.id == id {
			found, l.hits = true, uint32(hits)
			if end != 0 {
				l.end = end
			}
		}
		return l
	})
	return found
}

// exceedCalendar counts up to n hits in the period of now, beyond its Max.
func (s *Settlement) exceedCalendar(now Instant, r *Record, n int) Hit {
	s.enter(now, &r.calendar)
	if n = int(min(uint64(n), math.MaxInt64-r.calendar.count)); n <= 0 {
		return Hit{}
	}
	return r.calendar.add(n, now)
}

// enter makes c the count of the period of now.
func (s *Settlement) enter(now Instant, c *calendar) {
	if b := s.Bounds; b == nil || now < b.Start || now >= b.End {
		c.enter(now, &s.Limit)
	} else {
		c.enterBetween(now, *b)
	}
}

// lookAtSettled sets the Outcome to what r holds at now. It is Blocked if that is more than
// Max, or if a ban holds.
func (s *Settlement) lookAtSettled(now Instant, r Record) {
	one := s.Limit
	one.Cost, one.Least, one.ID = 1, 0, 0 // its own lease counts
	if s.Beside != nil {
		s.lookBeside(now, &one, r)
		return
	}
	var v Verdict
	b, _ := r.ban.at(now)
	if b.holds(now) {
		v.block(now, &one, &r, b, nil)
		s.Outcome = v.Outcome
		return
	}
	r.begin(b)
	if one.Algorithm == Calendar {
		s.enter(now, &r.calendar)
		v.lookAtPeriod(now, &one, &r.calendar, false)
		v.Outcome.Blocked = r.calendar.count > uint64(one.Max)
	} else {
		v.look(now, &one, &r, false)
		v.Outcome.Blocked = r.exceeds(now, &one)
	}
	s.Outcome = v.Outcome
}

// exceeds reports whether r holds more than a limit that is no calendar.
func (r *Record) exceeds(now Instant, limit *Limit) bool {
	switch limit.Algorithm {
	case Bucket:
		return r.bucket.score.up() > now.Add(limit.TTL)
	case Leases:
		return r.leases.hits() > int64(limit.Max)
	}
	return r.hits.len() > limit.Max
}

// Most returns the largest total of one call: what is above counts as that.
func (l *Limit) Most() int {
	switch l.Algorithm {
	case Window:
		return MaxHits
	case Leases:
		return math.MaxInt32
	}
	return math.MaxInt
}

// Repeatable reports whether s may be applied to a record again in which it may be
// already: a lease is known by its ID.
func (s *Settlement) Repeatable() bool { return s.Limit.Algorithm == Leases }
