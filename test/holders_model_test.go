package throttler_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/exchange"
	"github.com/adaptivethrottler/throttler/internal/skiptest"
	"github.com/adaptivethrottler/throttler/memstore"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// All that becomes of a Decision after it was made, compared with a model that has one number
// for each hit. Its rules hold hits in flight, beside a window and a calendar. Of buckets, whose
// hits leak, see TestSettledBucketIsThatOfSmallerCalls.

// exchanger hides that a memstore is in process memory, so that calls are gathered as they
// are for a server.
type exchanger struct {
	throttler.Client
	exchange.Exchanger
}

func newExchanger() exchanger {
	s := memstore.New()
	return exchanger{s, s}
}

// storesInMemory are the kinds of client, without the time that a network takes.
var storesInMemory = map[string]func() throttler.Client{
	"memstore":  func() throttler.Client { return memstore.New() },
	"exchanger": func() throttler.Client { return newExchanger() },
	"plain":     func() throttler.Client { return newFaulty() },
}

// A holder is a call, and what it holds by the model.
type holder struct {
	throttler *throttler.Throttler
	decision  throttler.Decision
	lease     *throttler.Lease // nil: Hold was not called
	released  bool             // by Release or Cancel
	lost      bool             // the lease was lost as Hold was called, or by a Cancel or Settle
	flew      bool             // it has had hits in flight

	total     [3]int     // in each condition
	pieces    [3][]piece // of which these are left, oldest first
	uncounted [3]int     // of total, settled while a ban held

	forgotten time.Time // when a Reset took the lease away; zero: it did not
}

// A piece is hits that were counted at one time. Of those in flight, all are in the newest
// one, unless that is gone.
type piece struct {
	hits     int
	refunded int       // of these, by a Refund, which does not know whose they are
	until    time.Time // when they expire, unless they are held
	held     bool      // by the lease of the holder
	missing  bool      // a Reset has forgotten them
}

// counts reports whether p counts now.
func (p piece) counts() bool { return !p.missing && (p.held || p.until.After(time.Now())) }

// holders is the model of a rule whose first condition is in flight.
type holders struct {
	rule       throttler.Rule
	conditions []throttler.Condition
	processes  []*throttler.Throttler
	plain      *faulty // the client, if it is one that can fail
	refunds    bool    // no two hits are of the same instant, so that it is known which are the newest
	all        []*holder
	rest       piece        // of the calendar, of nobody
	banned     [3]time.Time // until when
}

func newHolders(t *rapid.T, store throttler.Client) *holders {
	up := func(label string, most int) int { return rapid.IntRange(1, most).Draw(t, label) }
	m := &holders{conditions: []throttler.Condition{
		{Name: "flight", Max: up("in flight", 4), TTL: time.Duration(rapid.Int64Range(int64(100*time.Millisecond), int64(time.Hour)).Draw(t, "lease")), Algorithm: throttler.InFlight},
		{Name: "window", Value: strings.Repeat("x\n", 200), Max: up("window", 40), TTL: time.Duration(rapid.Int64Range(int64(time.Second), int64(3*time.Hour)).Draw(t, "TTL"))},
		{Name: "calendar", Max: up("calendar", 30), Algorithm: throttler.Calendar},
	}}
	m.rule = throttler.Rule{Identifier: "holders", CountAuthorizedOnly: rapid.Bool().Draw(t, "CountAuthorizedOnly")}
	for range 2 {
		m.processes = append(m.processes, throttler.New(store))
	}
	m.plain, _ = store.(*faulty)
	m.refunds = rapid.Bool().Draw(t, "refunds")
	return m
}

// process returns one of the processes.
func (m *holders) process(t *rapid.T) *throttler.Throttler {
	return m.processes[rapid.IntRange(0, len(m.processes)-1).Draw(t, "process")]
}

// flying returns the hits of h that are in flight, as far as its Decision knows. It returns nil
// if there are none.
func (h *holder) flying() *piece {
	if n := len(h.pieces[0]); n > 0 && !h.pieces[0][n-1].until.IsZero() {
		return &h.pieces[0][n-1]
	}
	return nil
}

// held reports whether a lease of h is renewed.
func (h *holder) held() bool { p := h.flying(); return p != nil && p.held && !p.missing }

// settle sets what h has cost in condition i. What is more expires at until; a time of zero: a ban
// holds, and it does not count.
func (h *holder) settle(i, total int, until time.Time) {
	p, more := &h.pieces[i], total-h.total[i]
	h.total[i] = total
	if more > 0 && until.IsZero() {
		h.uncounted[i] += more
		return
	}
	if more < 0 {
		less := min(-more, h.uncounted[i])
		h.uncounted[i] -= less
		more += less
	}
	h.flew = h.flew || i == 0 && more > 0
	if more > 0 {
		if last := h.flying(); i == 0 && last != nil {
			if last.counts() {
				last.hits += more
				last.until = until
				return
			}
			*last = piece{hits: last.hits} // gone
		}
		*p = append(*p, piece{hits: more, until: until})
	}
	for more < 0 {
		last := &(*p)[len(*p)-1]
		less := min(-more, last.hits)
		more += less
		stored := max(last.hits-last.refunded-less, 0)
		last.hits -= less
		if last.refunded = last.hits - stored; last.hits == 0 {
			h.lost = h.lost || last.held
			*p = (*p)[:len(*p)-1]
		}
	}
}

// holdsBan reports whether condition i is banned.
func (m *holders) holdsBan(i int) bool { return m.banned[i].After(time.Now()) }

// until returns when hits of condition i expire that are counted now, or zero if a ban holds,
// beside which leases alone are counted.
func (m *holders) until(i int) time.Time {
	if i > 0 && m.holdsBan(i) {
		return time.Time{}
	}
	if m.conditions[i].Algorithm == throttler.Calendar {
		return time.Now().Truncate(24*time.Hour).AddDate(0, 0, 1)
	}
	return time.Now().Add(m.conditions[i].TTL)
}

// room returns how many hits fit into condition i. It is less than 0 if more than Max were
// settled.
func (m *holders) room(i int) int {
	n := m.conditions[i].Max
	for _, p := range m.stored(i) {
		n -= p.hits - p.refunded
	}
	return n
}

// stored returns the pieces that count in condition i, the last to expire first.
func (m *holders) stored(i int) (pieces []*piece) {
	for _, h := range m.all {
		for j := range h.pieces[i] {
			pieces = append(pieces, &h.pieces[i][j])
		}
	}
	if m.conditions[i].Algorithm == throttler.Calendar {
		pieces = append(pieces, &m.rest)
	}
	pieces = slices.DeleteFunc(pieces, func(p *piece) bool { return !p.counts() })
	slices.SortStableFunc(pieces, func(a, b *piece) int { return b.until.Compare(a.until) })
	return pieces
}

// only returns the rule with condition i alone.
func (m *holders) only(i int) throttler.Rule {
	rule := m.rule
	rule.Either = m.conditions[i : i+1]
	return rule
}

// fails has act meet a backend that is down, and returns whether it did.
func (m *holders) fails(t *rapid.T, act func()) bool {
	if m.plain == nil || rapid.IntRange(0, 9).Draw(t, "down") > 0 {
		return false
	}
	m.plain.before = failing(errDown, "", "get", "multi", "add", "cas")
	act()
	m.plain.before = failing(nil, "")
	return true
}

// authorize makes a call of random costs, which must take what the model says.
func (m *holders) authorize(t *rapid.T) {
	rule, h := m.rule, &holder{throttler: m.process(t)}
	refused, cost := false, make([]int, len(m.conditions))
	for i, c := range m.conditions {
		c.Cost = rapid.IntRange(1, c.Max).Draw(t, "Cost")
		c.Least = rapid.IntRange(0, c.Cost).Draw(t, "Least")
		rule.Either = append(rule.Either, c)
		cost[i] = min(c.Cost, m.room(i))
		if cost[i] < c.Least || c.Least == 0 && cost[i] < c.Cost || m.holdsBan(i) {
			cost[i] = 0
		}
		refused = refused || cost[i] == 0
	}
	if refused && rule.CountAuthorizedOnly {
		clear(cost)
	}
	m.all = append(m.all, h)
	if m.fails(t, func() { h.decision, _ = h.throttler.Authorize(context.Background(), rule) }) {
		require.ErrorIs(t, h.decision.Err, errDown)
		require.Equal(t, throttler.Authorized, h.decision.Status)
		require.Equal(t, []int{0, 0, 0}, costs(h.decision))
		return
	}
	for i, n := range cost {
		h.settle(i, n, m.until(i))
	}
	d, err := h.throttler.Authorize(context.Background(), rule)
	require.NoError(t, err)
	require.NoError(t, d.Err)
	require.Equal(t, refused, d.Status == throttler.Blocked)
	require.Equal(t, cost, costs(d))
	h.decision = d
}

// hold holds h, whose lease is lost at once in the last tenth of its TTL.
func (m *holders) hold(h *holder) {
	if h.lease != nil || h.released {
		return
	}
	h.lease = h.throttler.Hold(context.Background(), h.decision)
	p, ttl := h.flying(), m.conditions[0].TTL
	switch {
	case p == nil:
	case time.Until(p.until) <= ttl/10:
		h.lost = true
	case p.missing:
		h.forgotten = time.Now() // or before
	default:
		p.held = true
		if !p.until.Add(-(ttl - ttl/3)).After(time.Now()) {
			p.until = time.Now().Add(ttl) // it is renewed at once
		}
	}
}

// settleOne sets the total of h in condition i, which must find what the model says.
func (m *holders) settleOne(t *rapid.T, h *holder, i int) {
	c := m.conditions[i]
	n := rapid.IntRange(0, 2*c.Max).Draw(t, "total")
	settle := func() throttler.Decision {
		d, err := m.process(t).Settle(context.Background(), h.decision, map[string]int{c.Name: n})
		require.NoError(t, err)
		return d
	}
	if h.lease == nil && m.fails(t, func() {
		d := settle()
		require.ErrorIs(t, d.Err, errDown)
		require.Equal(t, []int{h.total[i]}, costs(d))
	}) {
		return
	}
	h.settle(i, n, m.until(i))
	for range 2 { // twice is once
		d := settle()
		require.NoError(t, d.Err)
		require.Equal(t, []int{n}, costs(d))
		m.tells(t, i, d, m.room(i) < 0)
	}
}

// tells requires of what a settlement or a Refund tells of condition i that it is full or not.
func (m *holders) tells(t *rapid.T, i int, d throttler.Decision, full bool) {
	left := max(m.room(i), 0)
	if m.holdsBan(i) {
		full, left = true, 0
	}
	require.Equal(t, full, d.Status == throttler.Blocked)
	require.Equal(t, m.holdsBan(i), d.Outcomes[0].Banned)
	require.Equal(t, left, d.Outcomes[0].Remaining)
}

// refund takes the newest hits of condition i back, whoever has counted them. After that it is not
// known whose hits are left of a calendar.
func (m *holders) refund(t *rapid.T, i int) {
	n := rapid.IntRange(1, m.conditions[i].Max).Draw(t, "newest")
	pieces, held := m.stored(i), m.conditions[i].Max-m.room(i)
	if m.conditions[i].Algorithm == throttler.Calendar {
		if held > 0 {
			rest := piece{hits: max(held-n, 0), until: pieces[0].until}
			for _, p := range pieces {
				p.missing = true
			}
			m.rest = rest
		}
	} else {
		left := n
		for _, p := range pieces {
			part := min(left, p.hits-p.refunded)
			p.refunded += part
			left -= part
		}
	}
	rule := m.rule
	rule.Either = []throttler.Condition{costing(m.conditions[i], n)}
	d, err := m.process(t).Refund(context.Background(), rule)
	require.NoError(t, err)
	require.NoError(t, d.Err)
	m.tells(t, i, d, m.room(i) < 1)
}

// ban bans condition i by hand, which forgets its hits, but keeps leases.
func (m *holders) ban(t *rapid.T, i int) {
	d := rapid.SampledFrom([]time.Duration{1, time.Second, time.Hour, 30 * time.Hour}).Draw(t, "ban")
	require.NoError(t, m.process(t).Ban(context.Background(), m.only(i), d))
	if end := time.Now().Add(d); end.After(m.banned[i]) {
		m.banned[i] = end
	}
	if i > 0 {
		m.forget(i)
	}
}

// forget has condition i forget its hits.
func (m *holders) forget(i int) {
	for _, h := range m.all {
		if i == 0 && h.held() {
			h.forgotten = time.Now()
		}
		for j := range h.pieces[i] {
			h.pieces[i][j].missing = true
		}
	}
	if m.conditions[i].Algorithm == throttler.Calendar {
		m.rest.missing = true
	}
	time.Sleep(time.Nanosecond) // a hit of the same instant would have the same expiry
}

// handOver hands h over to another process.
func (m *holders) handOver(t *rapid.T, h *holder) {
	receipt := h.decision.Receipt()
	if h.lease != nil || receipt == nil {
		return
	}
	h.throttler = m.process(t)
	d, err := h.throttler.Redeem(receipt)
	require.NoError(t, err)
	require.Equal(t, receipt, d.Receipt(), "it is written as it was read")
	h.decision, h.flew = d, h.flying() != nil
}

// cancel cancels h, twice, in all conditions or in condition i alone.
func (m *holders) cancel(t *rapid.T, h *holder, i int) {
	cancel := func() error {
		if i < 0 {
			return m.process(t).Cancel(context.Background(), h.decision)
		}
		return m.process(t).CancelOnly(context.Background(), h.decision, m.only(i))
	}
	if h.lease == nil && m.fails(t, func() { _ = cancel() }) {
		return // with an error, unless there was nothing to give back
	}
	for range 2 {
		require.NoError(t, cancel())
	}
	if i < 0 && h.lease != nil {
		if h.held() && !h.released {
			require.ErrorIs(t, context.Cause(h.lease.Context()), throttler.ErrLeaseLost)
		}
		h.released = true
	}
	for j := range h.total {
		if i < 0 || i == j {
			h.settle(j, 0, time.Time{})
		}
	}
}

// renew renews h once, which must tell whether its lease is there.
func (m *holders) renew(t *rapid.T, h *holder) {
	err := h.throttler.Renew(context.Background(), h.decision)
	switch p := h.flying(); {
	case p == nil && !h.flew:
		require.NoError(t, err)
	case p == nil || !p.counts():
		require.ErrorIs(t, err, throttler.ErrLeaseLost)
	default:
		require.NoError(t, err)
		p.until = m.until(0)
	}
}

// reset forgets what condition i holds, and lifts its ban.
func (m *holders) reset(t *rapid.T, i int) {
	require.NoError(t, m.process(t).Reset(context.Background(), m.only(i)))
	m.banned[i] = time.Time{}
	m.forget(i)
}

// check compares all that can be seen with the model.
func (m *holders) check(t *rapid.T) {
	for i, c := range m.conditions {
		d, err := m.process(t).Peek(context.Background(), m.only(i))
		require.NoError(t, err)
		left := m.room(i)
		if m.holdsBan(i) {
			left = 0
		}
		require.Equal(t, left < 1, d.Status == throttler.Blocked, c.Name)
		require.Equal(t, m.holdsBan(i), d.Outcomes[0].Banned, c.Name)
		require.Equal(t, max(left-1, 0), d.Outcomes[0].Remaining, c.Name)
	}
	for _, h := range m.all {
		if h.lease == nil || h.released {
			continue
		}
		ctx := h.lease.Context()
		switch {
		case h.lost:
			require.ErrorIs(t, context.Cause(ctx), throttler.ErrLeaseLost)
		case h.forgotten.IsZero():
			require.NoError(t, ctx.Err())
		case time.Since(h.forgotten) >= m.conditions[0].TTL/3:
			require.ErrorIs(t, context.Cause(ctx), throttler.ErrLeaseLost, "a renewal finds it missing")
		}
	}
}

// step does one thing at random.
func (m *holders) step(t *rapid.T) {
	if m.refunds {
		time.Sleep(time.Nanosecond)
	}
	what := rapid.SampledFrom([]string{
		"sleep", "sleep", "sleep", "sleep", "authorize", "authorize", "authorize", "authorize", "authorize", "authorize", "reset", "ban", "refund",
		"hold", "hold", "renew", "settle", "settle", "settle", "settle", "hand over", "release", "cancel", "cancel only",
	}).Draw(t, "step")
	i := rapid.IntRange(0, len(m.conditions)-1).Draw(t, "condition")
	switch {
	case what == "sleep":
		longest := rapid.SampledFrom([]time.Duration{m.conditions[0].TTL, m.conditions[1].TTL, 5 * time.Hour}).Draw(t, "longest")
		if slices.ContainsFunc(m.all, (*holder).held) {
			longest = min(longest, 20*m.conditions[0].TTL) // each third of it is a renewal
		}
		time.Sleep(time.Duration(rapid.Int64Range(0, int64(longest)).Draw(t, "sleep")))
		synctest.Wait()
		return
	case what == "reset":
		m.reset(t, i)
		return
	case what == "ban":
		m.ban(t, i)
		return
	case what == "refund":
		if m.refunds && i > 0 { // a lease is given back by its holder
			m.refund(t, i)
		}
		return
	case what == "authorize" || len(m.all) == 0:
		m.authorize(t)
		return
	}
	h := m.all[rapid.IntRange(0, len(m.all)-1).Draw(t, "which")]
	switch what {
	case "hold":
		m.hold(h)
		synctest.Wait()
	case "renew":
		m.renew(t, h)
	case "settle":
		if !h.released {
			m.settleOne(t, h, i)
		}
	case "hand over":
		m.handOver(t, h)
	case "cancel":
		m.cancel(t, h, -1)
	case "cancel only":
		if !h.released {
			m.cancel(t, h, i)
		}
	case "release":
		m.release(t, h)
	}
}

// release releases the lease of h, twice.
func (m *holders) release(t *rapid.T, h *holder) {
	if h.lease == nil {
		return
	}
	for range 2 { // twice is once
		require.NoError(t, h.lease.Release(context.Background()))
	}
	if cause := context.Cause(h.lease.Context()); cause != context.Canceled {
		require.ErrorIs(t, cause, throttler.ErrLeaseLost)
		require.True(t, h.lost || !h.forgotten.IsZero())
	}
	h.settle(0, 0, time.Time{})
	h.released = true
}

func TestHoldersAreCountedAsTheModelCountsThem(t *testing.T) {
	for name, store := range storesInMemory {
		t.Run(name, func(t *testing.T) {
			check(t, func(t *rapid.T) {
				m := newHolders(t, store())
				for range rapid.IntRange(1, 60).Draw(t, "steps") {
					m.step(t)
					m.check(t)
				}
				m.plain = nil // which fails no more
				for _, h := range m.all {
					m.release(t, h)
					m.cancel(t, h, -1)
				}
				m.check(t) // nothing drifts
			})
		})
	}
}

// A million random operations leave no drift: when all is given back, nothing is left in any
// record. Meanwhile no more than Max is ever held. Without THROTTLER_SLOW it is 20,000.
func TestAMillionOperationsLeaveNoDrift(t *testing.T) {
	const callers = 8
	operations := 20_000
	if skiptest.InFull() {
		operations = 1_000_000
	}
	conditions := []throttler.Condition{
		{Name: "flight", Max: 20, TTL: time.Hour, Algorithm: throttler.InFlight},
		{Name: "window", Max: 50, TTL: 1000 * time.Hour},
		{Name: "calendar", Max: 1000, Algorithm: throttler.Calendar, Period: throttler.Period{Unit: throttler.Month, Anchor: time.Now().UTC().AddDate(0, 0, -10).Day()}},
	}
	for name, client := range storesInMemory {
		t.Run(name, func(t *testing.T) {
			store := client()
			counted := make([]atomic.Int64, len(conditions)) // at least, as it is known outside
			var wg sync.WaitGroup
			for range callers {
				th := throttler.New(store)
				wg.Go(func() {
					type call struct {
						throttler.Decision
						counted []int // at most what the call has counted, and is not given back yet
					}
					var held []call
					atMost := func(c call, j, total int) {
						if less := c.counted[j] - total; less > 0 {
							counted[j].Add(-int64(less))
							c.counted[j] = total
						}
					}
					settle := func(c call) {
						totals := make(map[string]int)
						for j, of := range conditions {
							if rand.IntN(2) == 0 {
								totals[of.Name] = rand.IntN(2 * of.Max)
								atMost(c, j, totals[of.Name])
							}
						}
						d, err := th.Settle(t.Context(), c.Decision, totals)
						assert.NoError(t, err)
						assert.NoError(t, d.Err)
					}
					giveBack := func(i int, release bool) {
						d := held[i].Decision
						for j := range conditions {
							atMost(held[i], j, 0)
						}
						held[i] = held[len(held)-1]
						held = held[:len(held)-1]
						if release {
							assert.NoError(t, th.Hold(t.Context(), d).Release(t.Context()))
						}
						assert.NoError(t, th.Cancel(t.Context(), d))
					}
					for range operations / callers {
						if len(held) > 0 && (len(held) > 50 || rand.IntN(2) == 0) {
							i := rand.IntN(len(held))
							switch rand.IntN(8) {
							case 0, 1:
								err := th.Renew(t.Context(), held[i].Decision)
								if given := held[i].counted[0] == 0; !given || err != nil && !errors.Is(err, throttler.ErrLeaseLost) {
									assert.NoError(t, err)
								}
								continue
							case 2:
								settle(held[i])
								continue
							}
							giveBack(i, rand.IntN(2) == 0)
							continue
						}
						rule := throttler.Rule{Identifier: "drift", Either: slices.Clone(conditions), CountAuthorizedOnly: rand.IntN(2) == 0}
						for i := range rule.Either {
							c := &rule.Either[i]
							c.Cost = 1 + rand.IntN(6)
							c.Least = rand.IntN(c.Cost + 1)
						}
						d, err := th.Authorize(t.Context(), rule)
						assert.NoError(t, err)
						assert.NoError(t, d.Err)
						for i, o := range d.Outcomes {
							assert.LessOrEqual(t, counted[i].Add(int64(o.Cost)), int64(o.Limit))
						}
						held = append(held, call{d, costs(d)})
					}
					for len(held) > 0 {
						giveBack(len(held)-1, false)
					}
				})
			}
			wg.Wait()
			for _, c := range conditions {
				item, err := store.Get(throttler.RecordKey("drift", c.Name, c.Value))
				if !assert.NoError(t, err) {
					continue
				}
				seen, err := throttler.Inspect(item.Value)
				require.NoError(t, err)
				require.Empty(t, seen.Leases, c.Name)
				require.Empty(t, seen.Expiries, c.Name)
				require.Zero(t, seen.Counted, c.Name)
			}
		})
	}
}
