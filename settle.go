package throttler

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"

	"github.com/adaptivethrottler/throttler/internal/record"
)

// Settle sets what conditions of d have cost, by their names, when that is known only
// afterwards: that many hits in total, instead of those that the call has counted. Hits
// below that are given back, the newest first. Hits above it count from now on, even beyond
// Max: then the condition takes no other hit until enough of them have expired.
//
// It may be called again, with a larger or a smaller total, from any goroutine. The same
// total twice changes nothing. d and the returned Decision share one reservation, so either
// may be used, also for Cancel, which sets all totals to 0. A condition that blocked the
// call, or failed open, has cost 0. Conditions that are not in actual stay as they are.
// Each call takes one exchange with the server for each record, all at once.
// After the hits have expired, or a Reset, a larger total adds the difference, and a smaller
// one changes nothing.
//
// The Outcomes are those of the conditions in actual, in the rule's order. The Decision is
// Blocked if one of them holds more than its Max now, or is banned. With [Rule.Shadow] only
// WouldBlock says so. Settle sets no ban and lifts none. Beside a ban it counts nothing.
//
// The error matches [ErrInvalidRule] if d has no condition of that name, or if a total is
// negative. It also matches [ErrInvalidReceipt] if the receipt of d was written by an
// earlier release, which has no names. A failure of the backend is not an error: see
// [Decision.Err]. If Err says that it is unknown whether the hits were counted, the total
// stands, since another try might count them twice. After any other failure, call Settle
// again.
//
// A [SlidingWindow] holds at most [MaxHits] hits, and a larger total counts as that. See
// docs/metered.md for an example, and for what a [LeakyBucket] does not give back.
func (t *Throttler) Settle(ctx context.Context, d Decision, actual map[string]int) (Decision, error) {
	t.check(ctx)
	if err := d.receipt.settles(actual); err != nil {
		return Decision{}, err
	}
	settled := Decision{Status: Authorized, receipt: d.receipt}
	if len(actual) == 0 {
		return settled, nil
	}
	in := d.receipt.open()
	parts, end, err := in.begin(ctx, func(r *reservation) bool {
		_, named := actual[r.name]
		return named
	})
	if err == nil {
		defer end()
		in.settle(ctx, t, parts, actual)
	}
	in.conclude(&settled, parts, err)
	return settled, nil
}

// settle sets the totals of parts for by, in the caller's turn. Without totals it takes back all
// hits.
func (in *contents) settle(ctx context.Context, by *Throttler, parts []part, totals map[string]int) {
	if err := in.await(ctx, by, parts); err != nil {
		for i := range parts {
			parts[i].err = join(parts[i].err, err)
		}
		return
	}
	entries := in.settlements(parts, totals)
	for _, e := range entries {
		e.settlement.loseLeases()
	}
	askAll(ctx, entries, false)
	for i := range parts {
		if p := &parts[i]; p.entry != nil {
			p.err = join(p.err, in.ended(by, p.entry))
		}
	}
}

// settlements returns the entries that set the totals of parts. A Renew may note their leases'
// ends meanwhile.
func (in *contents) settlements(parts []part, totals map[string]int) []*entry {
	in.mu.Lock()
	defer in.mu.Unlock()
	entries := make([]*entry, 0, len(parts))
	for i := range parts {
		if p := &parts[i]; totals != nil || len(p.hits) > 0 {
			p.entry = p.settlement(totals[p.name])
			entries = append(entries, p.entry)
		}
	}
	return entries
}

// settles returns why totals cannot be those of r, or nil.
func (r *receipt) settles(totals map[string]int) error {
	names := make([]string, 0, len(totals))
	for name := range totals {
		names = append(names, name)
	}
	slices.Sort(names)
	var known []string
	if r != nil && len(names) > 0 {
		for _, of := range r.open().all {
			if of.limit.Max == 0 {
				return fmt.Errorf("%w: Settle of a receipt of an earlier release, which can be cancelled only (%w)", ErrInvalidRule, ErrInvalidReceipt)
			}
			known = append(known, of.name)
		}
	}
	for _, name := range names {
		switch total := totals[name]; {
		case !slices.Contains(known, name):
			return &RuleError{Index: -1, Field: "Name", Got: fmt.Sprintf("%q in Settle", name), Want: fmt.Sprintf("one of the Decision's, %q", known)}
		case total < 0:
			return &RuleError{Condition: name, Index: -1, Field: "Cost", Got: fmt.Sprintf("%d in Settle", total), Want: "0 or more"}
		}
	}
	return nil
}

// A settlement is that of one reservation, on its way.
type settlement struct {
	record.Settlement
	of *reservation
}

// settlement returns the entry that sets the total of r. The caller has its turn, and holds the
// lock of its contents.
func (r *reservation) settlement(total int) *entry {
	e := &entry{settlement: &settlement{of: r, Settlement: record.Settlement{
		Limit: r.limit, Bounds: r.bounds, Hits: r.hits, Total: r.total, Actual: min(total, r.limit.Most()), ID: rand.Uint64(),
	}}}
	e.begin(r.backend, opSettle, r.key)
	return e
}

// less reports whether s gives hits back.
func (s *settlement) less() bool { return s.Actual < s.Total }

// loseLeases loses what holds the leases that are not needed for the total.
func (s *settlement) loseLeases() {
	total := s.Actual
	for _, h := range s.Hits {
		if total <= 0 && h.Kind == record.Leases {
			s.of.backend.t.holds.lost(recordID{s.of.backend, s.of.key}, h.ID)
		}
		total -= h.Cost
	}
}

// await waits for the entries that were left before they were settled, and takes their
// results. It notes the errors of those that may have counted another hit, which stays. If
// ctx ends first, it returns ctx's.
func (in *contents) await(ctx context.Context, by *Throttler, parts []part) error {
	for i := range parts {
		p := &parts[i]
		for len(p.left) > 0 {
			e := p.left[0]
			if !e.Wait(ctx) {
				return ctx.Err()
			}
			in.mu.Lock()
			p.left = p.left[1:]
			in.mu.Unlock()
			if e.op == opSettle {
				_ = in.take(by, e) // its error was told when it was left
				continue
			}
			p.err = join(p.err, in.takeCounted(p.reservation, e))
		}
	}
	return nil
}

// takeCounted takes the hit of e, which was left by its call and has been decided since. The
// error says that there may be another one.
func (in *contents) takeCounted(r *reservation, e *entry) error {
	in.mu.Lock()
	defer in.mu.Unlock()
	if e.Err == nil && e.Hit != (record.Hit{}) {
		r.total += e.Hit.Cost
		r.hits = append(slices.Clip(r.hits), e.Hit)
	}
	if e.Unsure() {
		return join(e.Err, e.Note)
	}
	return nil
}

// ended takes the result of e for by, or notes that it was left.
func (in *contents) ended(by *Throttler, e *entry) error {
	switch {
	case e.Unsent:
		return e.Left
	case e.Left != nil:
		in.mu.Lock()
		defer in.mu.Unlock()
		r := e.settlement.of
		r.left = append(r.left, e)
		go e.tellLate(by)
		return e.Left
	}
	return in.take(by, e)
}

// tellLate waits until e has ended, which was left while it was under way, and then tells of what
// it has given back. It ends when the client has answered or given up.
func (e *entry) tellLate(by *Throttler) {
	e.Wait(context.Background())
	if e.settlement.less() && (e.Err == nil || e.Unsure()) {
		e.backend.tell(by, e.Key)
	}
}

// take takes the result of e, which is settled, for by.
//
// If it is unknown whether e was carried out, it is taken to be: to try again might count
// or give back the same hits twice. What it may have counted is never given back then, except
// a lease, which is known by its ID.
func (in *contents) take(by *Throttler, e *entry) error {
	s := e.settlement
	less := s.less()
	unsure := e.Unsure() || less && s.Limit.Algorithm == record.Calendar && e.Err != nil && e.Tried()
	if e.Err == nil && (less || s.Repeatable()) {
		unsure = false // whichever write it was, it is done
	}
	if e.Err != nil && !unsure {
		return e.Err
	}
	in.mu.Lock()
	defer in.mu.Unlock()
	s.of.total = s.Actual
	if !unsure || less || s.Repeatable() {
		if s.Limit.Algorithm == record.Leases {
			s.Counted = keepRenewed(s.Counted, s.of.hits)
			s.of.ended = !slices.ContainsFunc(s.Counted, record.Hit.IsLease) && (s.of.ended || len(s.of.hits) > 0)
		}
		s.of.hits = s.Counted
	}
	if less {
		e.backend.tell(by, e.Key)
	}
	if unsure {
		return fmt.Errorf("throttler: it is unknown whether %q has been settled at %d: %w", s.of.name, s.Actual, join(e.Err, e.Note))
	}
	return nil
}

// keepRenewed returns leases with the later ends that a Renew has noted since they were read.
func keepRenewed(leases, noted []record.Hit) []record.Hit {
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

// conclude sets d to what parts come to. err is why it was never the caller's turn, or nil.
func (in *contents) conclude(d *Decision, parts []part, err error) {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.settled = true
	var messages []string // for each Outcome
	for _, p := range parts {
		p.err = join(err, p.err)
		i := slices.IndexFunc(d.Outcomes, func(o Outcome) bool { return o.Name == p.name })
		if i >= 0 { // the fallback has decided it, and the backend may have as well
			d.Outcomes[i].Err = join(d.Outcomes[i].Err, p.err)
			continue
		}
		o := Outcome{Name: p.name, Limit: p.limit.Max, Remaining: p.limit.Max}
		if e := p.entry; e != nil && e.Failed() == nil {
			o.set(p.name, p.limit.Max, &e.Outcome)
			o.LostRaces = e.LostRaces
		}
		o.Cost, o.Err = p.total, p.err
		d.Outcomes, messages = append(d.Outcomes, o), append(messages, p.message)
	}
	for i := range d.Outcomes {
		d.Err = join(d.Err, d.Outcomes[i].Err)
		d.WouldBlock = d.WouldBlock || d.Outcomes[i].Blocked
	}
	if !d.WouldBlock || in.shadow {
		return
	}
	d.Status = Blocked
	for i := range d.Outcomes {
		if o := &d.Outcomes[i]; o.Blocked {
			d.Messages = append(d.Messages, messages[i])
			d.RetryAfter = max(d.RetryAfter, o.RetryAfter)
		}
	}
}
