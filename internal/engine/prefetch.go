package engine

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/adaptivethrottler/throttler/internal/record"
)

// hands are the hits that this process has taken ahead, by the keys of their records.
//
// The exchange that takes hits ahead counts them until TTL after the last moment at which they
// may be spent. So whoever spends them when, no window of TTL holds more than Max. What is not
// spent is given back with the next exchange that counts. Until then the record counts it, and
// calls of this process that only look leave it out.
type hands struct {
	mu        sync.Mutex // guards what follows, and all in it
	all       map[string]*hand
	givenBack uint64 // hits
	expired   uint64 // hits that were dropped unspent
}

// A hand is what this process holds of one record.
type hand struct {
	key      string
	hits     []record.Hit  // to be spent, all of one take
	max      int           // of the limit that has taken them; another one counts its own
	ttl      time.Duration // of it
	took     record.Hit    // that take
	from     time.Time     // when its exchange began
	life     time.Duration // how long after that the hits may be spent
	spent    int           // hits of calls since from
	asked    int           // how many were to be taken ahead
	room     int           // Remaining, as last seen
	seen     []byte        // the record then; nil: no hits were taken ahead
	fetching bool          // an exchange that takes hits is under way

	full    time.Time      // when the record was last seen full
	refusal record.Outcome // of then
	needed  int            // hits that did not fit
	shut    time.Time      // until then calls that need as many are refused without an exchange
}

// A fetching is what an entry does that takes hits ahead.
type fetching struct {
	hand  *hand
	own   int // hits that the call itself costs
	begun time.Time
	life  time.Duration
}

// maxHands is how many records there are hands for.
const maxHands = 1 << 16

const (
	// fullPart is the part of the longest life that hits have while the record is full: what
	// is kept for long is room that nobody has. A refusal is remembered no longer.
	fullPart = 10

	// batchPart is the part of the longest life for which a full record is left alone, so that
	// there is room for several hits.
	batchPart = 20
)

// holds reports whether the hits of h may be spent at now, by both clocks: one stands still while
// the machine sleeps, and the other may be set.
func (h *hand) holds(now time.Time) bool {
	elapsed, wall := now.Sub(h.from), time.Duration(now.UnixNano()-h.from.UnixNano())
	return min(elapsed, wall) >= 0 && max(elapsed, wall) <= h.life
}

// count returns how many hits h has.
func (h *hand) count() (n int) {
	for _, hit := range h.hits {
		n += hit.Cost
	}
	return n
}

// spend decides e by the hits in hand if there are enough, or by a refusal that is remembered.
// With look set it leaves the hits there. If it does not decide e, the record does, without what
// is in hand: e, or the next call that counts, gives that back.
func (hs *hands) spend(e *entry, now time.Time, look bool) {
	hs.mu.Lock()
	defer hs.mu.Unlock()
	h := hs.all[e.Key]
	if h == nil {
		return
	}
	if e.from = h.answer(&e.limit, &e.verdict, now, look); e.from == nowhere {
		e.unspent = slices.Clone(h.hits)
	}
}

// decideInHand decides a call of one condition as [hands.spend] does, and needs no entry for that.
// It sets out and the parts of a receipt, which are zero. If it returns false, it has done nothing:
// what is in hand does not decide the call.
func (p *Plan) decideInHand(ctx context.Context, demands []Demand, op op, parts []Counted, out []Outcome) (ok bool) {
	if op != opCount || len(demands) > 1 || !p.prefetches(0) || ctx.Err() != nil {
		return false
	}
	var room [record.MaxKey]byte
	key, limit, hs := p.appendKey(room[:0], 0, demands[0].Value), p.limit(0, &demands[0]), &p.engine.hands
	now := time.Now()
	hs.mu.Lock()
	defer hs.mu.Unlock()
	var v record.Verdict
	h := hs.all[string(key)]
	if h == nil || h.answer(&limit, &v, now, false) == nowhere {
		return false
	}
	out[0] = Outcome{Outcome: v.Outcome, Asked: true, Again: v.Again}
	if parts != nil {
		parts[0] = Counted{h.key, v.Hit.Brief()}
	}
	return true
}

// unspent returns what is in hand of the record of key.
func (hs *hands) unspent(key string) []record.Hit {
	hs.mu.Lock()
	defer hs.mu.Unlock()
	if h := hs.all[key]; h != nil {
		return slices.Clone(h.hits)
	}
	return nil
}

// answer is [hands.spend] of one hand, for a call with that limit. It sets v, which is zero, if it
// decides the call.
func (h *hand) answer(limit *record.Limit, v *record.Verdict, now time.Time, look bool) decidedIn {
	if h.max != limit.Max || h.ttl != limit.TTL {
		return nowhere
	}
	cost, o := limit.Hits(), &v.Outcome
	for i := len(h.hits) - 1; i >= 0 && h.holds(now); i-- {
		hit := &h.hits[i]
		if hit.Cost < cost || hit.Kind != limit.Algorithm {
			continue
		}
		o.Cost, o.ResetAfter = cost, limit.TTL
		h.foresee(*limit, v, h.count()-cost, now)
		if look {
			return inHand
		}
		if h.spent += cost; hit.Cost == cost {
			v.Hit = *hit
			h.hits = append(h.hits[:i], h.hits[i+1:]...)
		} else {
			v.Hit, *hit = hit.Split(cost)
		}
		return inHand
	}
	// What lies in hand too long is room, as soon as it is given back.
	if len(h.hits) > 0 || !now.Before(h.shut) || limit.Needed() != h.needed {
		return nowhere
	}
	since := now.Sub(h.full)
	*o = h.refusal
	o.RetryAfter = max(h.refusal.RetryAfter-since, h.shut.Sub(now))
	o.ResetAfter = max(h.refusal.ResetAfter-since, o.RetryAfter)
	v.Again = o.RetryAfter
	return recalled
}

// foresee sets what v, of a call with that limit which has counted, tells of the next calls, with
// that many hits left in hand.
func (h *hand) foresee(limit record.Limit, v *record.Verdict, left int, now time.Time) {
	o, needed := &v.Outcome, limit.Needed()
	o.Remaining, o.RetryAfter, v.Again = left+h.room, 0, 0
	if o.Remaining >= needed || h.seen == nil {
		return
	}
	r, _ := record.Decode(h.seen)
	until := func(needed int) time.Duration {
		var next record.Verdict
		later := r
		limit.Cost, limit.Least = needed-left, 0
		next.Decide(record.InstantOf(now), &limit, record.Lockout{}, &later, false)
		o.Remaining = left + next.Outcome.Remaining
		if !next.Outcome.Blocked {
			return 0
		}
		if needed == h.needed {
			next.Again = max(next.Again, h.shut.Sub(now))
		}
		return next.Again
	}
	v.Again = until(needed)
	if left == 0 {
		o.RetryAfter = until(1)
	}
}

// refuse remembers that there is no room for so many hits, as o says. A process that takes hits
// ahead waits until there may be some.
func (h *hand) refuse(limit *record.Limit, needed int, o record.Outcome, now time.Time) {
	h.full, h.needed, h.refusal = now, needed, o
	h.refusal.Blocked, h.refusal.Cost = true, 0
	shut := o.RetryAfter
	if h.asked > 0 {
		shut = max(shut, limit.MostAhead()/batchPart)
	}
	h.shut = now.Add(min(shut, limit.MostAhead()/fullPart))
	h.max, h.ttl = limit.Max, limit.TTL
}

// reopen forgets the refusal of the record of key: hits were given back.
func (hs *hands) reopen(key string) {
	hs.mu.Lock()
	defer hs.mu.Unlock()
	if h := hs.all[key]; h != nil {
		h.shut = time.Time{}
	}
}

// fetch has e, which is about to be sent, take up to most hits ahead, and give back what is in
// hand, unless another call does so.
func (hs *hands) fetch(e *entry, most int, now time.Time) {
	hs.mu.Lock()
	defer hs.mu.Unlock()
	h := hs.all[e.Key]
	if h == nil {
		h = hs.add(e.Key)
	}
	e.unspent = nil
	if h.fetching {
		return
	}
	h.fetching = true
	t := &fetching{hand: h, own: e.limit.Hits(), begun: now}
	h.asked, t.life = h.ahead(&e.limit, most, now)
	if h.asked > 0 {
		e.limit.Cost, e.limit.Least, e.limit.Ahead = t.own+h.asked, t.own, t.life
	}
	e.fetching, e.unspent = t, h.hits
	h.hits, h.took = nil, record.Hit{}
}

// ahead returns how many hits to take ahead at now, and for how long: as many as calls would
// spend in that time at the present rate, and at most twice as many as the last time.
func (h *hand) ahead(limit *record.Limit, most int, now time.Time) (n int, life time.Duration) {
	longest, since := limit.MostAhead(), max(now.Sub(h.from), 1)
	if h.spent == 0 || since > longest {
		return 0, 0
	}
	if now.Sub(h.full) < limit.TTL {
		longest /= fullPart
	}
	most = min(most, limit.Max-limit.Hits())
	wanted := float64(h.spent) * float64(longest) / float64(since)
	if n = int(min(wanted, float64(2*max(h.asked, 1)), float64(most))); n < min(2, most) {
		return 0, 0
	}
	atRate := 2 * float64(n) * float64(since) / float64(h.spent)
	return n, time.Duration(min(float64(longest), max(atRate, float64(longest)/100)))
}

// add adds the hand of key.
func (hs *hands) add(key string) *hand {
	if hs.all == nil {
		hs.all = make(map[string]*hand)
	}
	for other, h := range hs.all {
		if len(hs.all) < maxHands {
			break
		}
		if !h.fetching {
			hs.expired += uint64(h.count())
			delete(hs.all, other)
		}
	}
	h := &hand{key: key}
	hs.all[key] = h
	return h
}

// stock puts what e, which has ended or was left, has taken ahead into the hand. The call has its
// own hits alone from then on.
func (hs *hands) stock(e *entry, now time.Time) {
	t := e.fetching
	hs.mu.Lock()
	defer hs.mu.Unlock()
	h := t.hand
	h.fetching = false
	if e.Failed() != nil {
		if hs.all[e.Key] == h && (e.Unsent || e.Left == nil && !e.Tried()) {
			h.hits = e.unspent // they were not given back
		} else {
			h.spent = 0 // what it may have taken expires: the next one takes none
		}
		return
	}
	for _, hit := range e.unspent {
		hs.givenBack += uint64(hit.Cost)
	}
	o := &e.verdict.Outcome
	if o.Blocked {
		limit := e.own()
		h.refuse(&limit, limit.Needed(), *o, now)
		o.RetryAfter = max(o.RetryAfter, h.shut.Sub(now))
		e.verdict.Again = o.RetryAfter
		return
	}
	short := e.verdict.Hit.Cost < t.own+h.asked
	var rest record.Hit
	if e.verdict.Hit.Cost > t.own {
		h.took = e.verdict.Hit
		e.verdict.Hit, rest = e.verdict.Hit.Split(t.own)
	}
	o.Cost = e.verdict.Hit.Cost
	if hs.all[e.Key] != h { // a Reset or Ban has come between
		hs.expired += uint64(rest.Cost)
		return
	}
	h.max, h.ttl, h.shut = e.limit.Max, e.limit.TTL, time.Time{}
	h.from, h.life, h.spent, h.room, h.seen = t.begun, t.life, t.own, o.Remaining, e.left
	if short {
		h.full = now
		if o.Remaining == 0 {
			h.refuse(&e.limit, 1, *o, now)
		}
	}
	if rest.Cost > 0 {
		h.hits = []record.Hit{rest}
	}
	if h.seen != nil {
		h.foresee(e.own(), &e.verdict, rest.Cost, now)
	}
}

// putBack takes a hit that is given back into the hand that it was taken with, if it may be
// spent still.
func (hs *hands) putBack(key string, hit record.Hit) bool {
	hs.mu.Lock()
	defer hs.mu.Unlock()
	h := hs.all[key]
	if h == nil || h.took.Cost == 0 || h.fetching || !h.holds(time.Now()) || hit.At != h.took.At || hit.ID != h.took.ID ||
		hit.Kind == record.Window && hit.Expiry != h.took.Expiry {
		return false
	}
	h.hits = append(h.hits, hit)
	h.spent -= min(h.spent, hit.Cost)
	return true
}

// drop empties the hands of keys, whose records are changed by hand.
func (hs *hands) drop(keys []string) {
	hs.mu.Lock()
	defer hs.mu.Unlock()
	for _, key := range keys {
		if h := hs.all[key]; h != nil {
			hs.expired += uint64(h.count())
			delete(hs.all, key)
		}
	}
}

// prefetches reports whether condition i of p takes hits ahead. In process memory there is
// nothing to save.
func (p *Plan) prefetches(i int) bool {
	return p.Conditions[i].Prefetch > 0 && p.engine.main.items == nil
}

// spend decides the conditions of s that hits in hand answer. If s only assesses, they are spent
// all the same, and put back if the call is refused.
func (c *call) spend(s step) {
	for i := s.from; i < s.to; i++ {
		if e := c.entries[i]; c.plan.prefetches(i) && e.from == nowhere {
			e.backend = c.engine.main
			c.engine.hands.spend(e, time.Now(), s.op == opLook)
			c.spent = c.spent || e.from == inHand && s.op != opLook
		}
	}
}

// putBack puts what e, the entry of condition i, has counted for a refused call back in hand, if
// it may be spent still.
func (c *call) putBack(i int, e *entry) bool {
	if !c.plan.prefetches(i) || !c.engine.hands.putBack(e.Key, e.verdict.Hit) {
		return false
	}
	e.uncount()
	return true
}

// uncount sets what e tells to what it would be if e had not counted.
func (e *entry) uncount() {
	o := &e.verdict.Outcome
	o.Remaining, o.Cost, o.RetryAfter = o.Remaining+o.Cost, 0, 0
	e.verdict.Again, e.verdict.Hit = 0, record.Hit{}
}

// fetch has the conditions of s that are still undecided take hits ahead.
func (c *call) fetch(s step) {
	for i := s.from; i < s.to; i++ {
		if e := c.entries[i]; c.plan.prefetches(i) && e.from == nowhere {
			c.engine.hands.fetch(e, c.plan.Conditions[i].Prefetch, time.Now())
		}
	}
}

// stock puts what the conditions of s have taken ahead into the hands.
func (c *call) stock(s step) {
	for i := s.from; i < s.to; i++ {
		if e := c.entries[i]; e.fetching != nil {
			c.engine.hands.stock(e, time.Now())
		}
	}
}

// own returns the limit of e as its call has asked for it.
func (e *entry) own() record.Limit {
	limit := e.limit
	if e.fetching != nil {
		limit.Cost, limit.Least, limit.Ahead = e.fetching.own, 0, 0
	}
	return limit
}

// putBack is Cancel of a call of one condition that has spent a hit which can be spent still.
func (r *Receipt) putBack(by *Engine) bool {
	p := r.plan
	if p == nil || p.engine != by || len(p.Conditions) != 1 || p.Conditions[0].Prefetch == 0 || r.in.Load() != nil {
		return false
	}
	in := r.unfold()
	in.mu.Lock()
	defer in.mu.Unlock()
	if !r.in.CompareAndSwap(nil, in) {
		return false
	}
	of := in.all[0]
	if len(of.hits) != 1 || of.home != by.main || !by.hands.putBack(of.key, of.hits[0]) {
		return false
	}
	of.total, of.hits = 0, nil
	by.freed(of.key)
	return true
}
