package engine

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/adaptivethrottler/throttler/internal/record"
)

// A Settled is what one condition comes to when its total was set.
type Settled struct {
	Name, Message string
	Max           int
	Outcome
}

// Settle sets the totals of the conditions that are named, for by, the Engine through which it
// is called. It returns the Outcome of each, in the rule's order, and whether the rule has Shadow.
func (r *Receipt) Settle(ctx context.Context, by *Engine, totals map[string]int) (settled []Settled, shadow bool) {
	in := r.open()
	parts := in.setTotals(ctx, by, true, func(of *reservation) (total int, chosen bool) {
		total, chosen = totals[of.name]
		return total, chosen
	})
	in.mu.Lock()
	defer in.mu.Unlock()
	in.settled = true
	for _, p := range parts {
		of := p.of
		i := slices.IndexFunc(settled, func(s Settled) bool { return s.Name == of.name })
		if i >= 0 { // the fallback has decided it, and the backend may have as well
			settled[i].Err = Join(settled[i].Err, p.err)
			continue
		}
		s := Settled{Name: of.name, Message: of.message, Max: of.limit.Max}
		s.Remaining = s.Max
		if e := p.entry; e != nil && e.Failed() == nil {
			s.Outcome.Outcome, s.LostRaces = e.verdict.Outcome, e.LostRaces
		}
		s.Asked, s.Cost, s.Err = true, of.total, p.err
		settled = append(settled, s)
	}
	return settled, in.shadow
}

// Cancel sets the totals to 0 that are chosen, or all of them if chosen is nil, for by.
//
// Hits that could not be looked up stay in r, to be tried again. A hit whose removal
// failed does not stay: it may be gone, and must not be taken back twice. It expires in its
// time.
func (r *Receipt) Cancel(ctx context.Context, by *Engine, chosen func(name, key string) bool) error {
	if r.unused() || chosen == nil && (r.putBack(by) || r.cancelInMemory(by)) {
		return nil
	}
	return r.cancel(ctx, by, func(of *reservation) bool { return chosen == nil || chosen(of.name, of.key) })
}

// CancelLeases sets the totals of hits in flight to 0.
func (r *Receipt) CancelLeases(ctx context.Context, by *Engine) error {
	if r.unused() {
		return nil
	}
	return r.cancel(ctx, by, func(of *reservation) bool { return of.limit.Algorithm == record.Leases })
}

// cancel sets the totals of the reservations that are chosen to 0.
func (r *Receipt) cancel(ctx context.Context, by *Engine, chosen func(*reservation) bool) (err error) {
	for _, p := range r.open().setTotals(ctx, by, false, func(of *reservation) (int, bool) { return 0, chosen(of) }) {
		err = Join(err, p.err)
	}
	return err
}

// cancelInMemory sets all totals of r, which was not used yet, to 0 where the records are in
// process memory. It reports whether nothing is left to be done. Nobody holds leases of r, for
// then it would have been used.
func (r *Receipt) cancelInMemory(by *Engine) (ok bool) {
	if r.in.Load() != nil || r.plan.engine.main.items == nil {
		return false
	}
	main, in := r.plan.engine.main, r.unfold()
	in.mu.Lock() // others that use r wait for it
	defer in.mu.Unlock()
	if !r.in.CompareAndSwap(nil, in) {
		return false
	}
	ok = true
	at := time.Now()
	for _, of := range in.all {
		if of.total == 0 {
			continue
		}
		c := change{op: opSettle, settlement: of.settlement(0)}
		head, tail := main.items.Head(of.key)
		if _, err := main.apply(&c, head, tail, &at, true); err != nil {
			ok = false
			continue
		}
		of.total, of.hits, of.ended = 0, nil, of.limit.Algorithm == record.Leases
		main.notify(by, of.key)
	}
	return ok
}

// A part is a reservation whose total is set, and what becomes of it.
type part struct {
	of    *reservation
	total int
	entry *entry // nil: it was not asked
	err   error
}

// setTotals sets the totals of the reservations that are chosen, for by. It waits while another
// call changes in. With look set, records are looked at although nothing is to be changed.
func (in *contents) setTotals(ctx context.Context, by *Engine, look bool, choose func(*reservation) (total int, chosen bool)) []part {
	parts := make([]part, 0, len(in.all))
	all := make([]*reservation, 0, len(in.all))
	for _, of := range in.all {
		if total, chosen := choose(of); chosen {
			parts, all = append(parts, part{of: of, total: total}), append(all, of)
		}
	}
	release, err := in.acquire(ctx, all)
	if err == nil {
		defer release()
		err = in.await(ctx, by, parts)
	}
	if err != nil {
		for i := range parts {
			parts[i].err = Join(parts[i].err, err)
		}
		return parts
	}
	entries := in.settlements(parts, look)
	for _, e := range entries {
		e.loseLeases()
	}
	askAll(ctx, entries, false)
	for i := range parts {
		if p := &parts[i]; p.entry != nil {
			p.err = Join(p.err, in.finish(by, p.of, p.entry))
		}
	}
	return parts
}

// settlements returns the entries that set the totals of parts. A Renew may note the ends of
// their leases meanwhile.
func (in *contents) settlements(parts []part, look bool) []*entry {
	in.mu.Lock()
	defer in.mu.Unlock()
	entries := make([]*entry, 0, len(parts))
	for i := range parts {
		p := &parts[i]
		if !look && len(p.of.hits) == 0 {
			p.of.total = p.total // none was counted, or a ban held
			continue
		}
		p.entry = &entry{change: change{settlement: p.of.settlement(p.total)}}
		p.entry.begin(p.of.home, opSettle, p.of.key)
		entries = append(entries, p.entry)
	}
	return entries
}

// loseLeases ends what holds the leases that e, a settlement, does not need for its total. The
// lock of the contents is not held: it comes after that of holds.
func (e *entry) loseLeases() {
	needed := e.settlement.Actual
	for _, h := range e.settlement.Hits {
		if needed <= 0 && h.Kind == record.Leases {
			e.backend.engine.holds.lose(recordID{e.backend, e.Key}, h.ID)
		}
		needed -= h.Cost
	}
}

// settlement returns what sets the total of r.
func (r *reservation) settlement(total int) *record.Settlement {
	limit := r.limit
	if limit.Algorithm == record.Calendar {
		limit.Near = limit.Period.Near(record.InstantOf(time.Now()))
	}
	s := &record.Settlement{
		Limit: limit, Bounds: r.bounds, Hits: r.hits, Total: r.total, Actual: min(total, r.limit.Most()), ID: rand.Uint64(),
	}
	if r.home != r.home.engine.main {
		s.Beside = r.home.beside(r.key, limit.Max)
	}
	return s
}

// await waits for the entries that were left before, and takes their results. It notes the
// errors of those that may have counted another hit, which stays. If ctx ends first, it returns
// ctx's.
func (in *contents) await(ctx context.Context, by *Engine, parts []part) error {
	for i := range parts {
		p := &parts[i]
		for len(p.of.left) > 0 {
			left := p.of.left[0]
			if !left.Wait(ctx) {
				return ctx.Err()
			}
			in.mu.Lock()
			p.of.left = p.of.left[1:]
			in.mu.Unlock()
			if left.op == opSettle {
				_ = in.settle(by, p.of, left) // its error was told when it was left
				continue
			}
			p.err = Join(p.err, in.count(p.of, left))
		}
	}
	return nil
}

// count notes the hit of e, which was left by its call and has been decided since. The
// error says that there may be another one.
func (in *contents) count(of *reservation, e *entry) error {
	in.mu.Lock()
	defer in.mu.Unlock()
	if e.Err == nil && e.verdict.Hit != (record.Hit{}) {
		of.total += e.verdict.Hit.Cost
		of.hits = append(slices.Clip(of.hits), e.verdict.Hit)
	}
	if e.Unsure() {
		return Join(e.Err, e.Note)
	}
	return nil
}

// finish notes the result of e, which sets the total of of, or that it was left.
func (in *contents) finish(by *Engine, of *reservation, e *entry) error {
	switch {
	case e.Unsent:
		return e.Left
	case e.Left != nil:
		in.mu.Lock()
		defer in.mu.Unlock()
		of.left = append(of.left, e)
		go e.notifyLate(by)
		return e.Left
	}
	return in.settle(by, of, e)
}

// notifyLate waits until e has ended, which was left while it was under way, and then notifies
// those who wait for what it has given back. It ends when the client has answered or given up.
func (e *entry) notifyLate(by *Engine) {
	e.Wait(context.Background())
	if e.lowers() && (e.Err == nil || e.Unsure()) {
		e.backend.notify(by, e.Key)
	}
}

// lowers reports whether e, a settlement, gives hits back.
func (e *entry) lowers() bool { return e.settlement.Actual < e.settlement.Total }

// settle notes the result of e, which was to set the total of of, for by.
//
// If it is unknown whether e was carried out, it is taken to be: to try again might count
// or give back the same hits twice. What it may have counted is never given back then, except
// a lease, which is known by its ID.
func (in *contents) settle(by *Engine, of *reservation, e *entry) error {
	s, lowers := e.settlement, e.lowers()
	unsure := e.Unsure() || lowers && s.Limit.Algorithm == record.Calendar && e.Err != nil && e.Tried()
	if e.Err == nil && (lowers || s.Repeatable()) {
		unsure = false // whichever write it was, it is done
	}
	if e.Err != nil && !unsure {
		return e.Err
	}
	in.mu.Lock()
	defer in.mu.Unlock()
	of.total = s.Actual
	if !unsure || lowers || s.Repeatable() {
		if s.Limit.Algorithm == record.Leases {
			s.Counted = withLaterEnds(s.Counted, of.hits)
			of.ended = !slices.ContainsFunc(s.Counted, record.Hit.IsLease) && (of.ended || len(of.hits) > 0)
		}
		of.hits = s.Counted
	}
	if lowers {
		e.backend.notify(by, e.Key)
	}
	if unsure {
		return fmt.Errorf("throttler: it is unknown whether %q has been settled at %d: %w", of.name, s.Actual, Join(e.Err, e.Note))
	}
	return nil
}

// withLaterEnds returns leases with the later ends that a Renew has noted since they were read.
func withLaterEnds(leases, noted []record.Hit) []record.Hit {
	leases = slices.Clone(leases) // the entry has them too
	for i := range leases {
		h := &leases[i]
		for _, n := range noted {
			if n.ID == h.ID && h.IsLease() {
				h.Expiry = max(h.Expiry, n.Expiry)
			}
		}
	}
	return leases
}
