package throttler_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/adaptivethrottler/throttler"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// A modelPiece is hits that a model has counted at one time.
type modelPiece struct {
	hits     int
	refunded int // of these, by a Refund that did not know whose they are
	expiry   time.Time
	resets   int  // how many there were before
	lost     bool // is no longer told from what others hold, and cannot be given back
}

// A modelCall is one Decision, and what the model has of it.
type modelCall struct {
	d      throttler.Decision
	total  int
	pieces []modelPiece
}

// A settleModel is a record of a window, of leases that nobody renews, or of a calendar, as a
// list of calls.
type settleModel struct {
	expiry   func(now time.Time) time.Time
	leases   bool // what is more is added to the last piece, and renews it
	calendar bool // after a Refund it is not known whose hits are left
	calls    []*modelCall
	rest     []modelPiece // of nobody
	resets   int
}

// holds returns how many hits m holds.
func (m *settleModel) holds() (n int) {
	for _, p := range m.stored() {
		n += p.hits - p.refunded
	}
	return n
}

// stored returns the pieces that count, the last to expire first.
func (m *settleModel) stored() (pieces []*modelPiece) {
	add := func(all []modelPiece) {
		for i := range all {
			if m.counts(all[i]) {
				pieces = append(pieces, &all[i])
			}
		}
	}
	for _, c := range m.calls {
		add(c.pieces)
	}
	add(m.rest)
	slices.SortStableFunc(pieces, func(a, b *modelPiece) int { return b.expiry.Compare(a.expiry) })
	return pieces
}

// refund takes the newest n hits back, whoever has counted them.
func (m *settleModel) refund(n int) {
	pieces := m.stored()
	if m.calendar && m.holds() > 0 {
		rest := modelPiece{hits: max(m.holds()-n, 0), expiry: pieces[0].expiry, resets: m.resets}
		for _, p := range pieces {
			p.lost = true
		}
		m.rest = []modelPiece{rest}
		return
	}
	for _, p := range pieces {
		part := min(n, p.hits-p.refunded)
		p.refunded += part
		n -= part
	}
}

// counts reports whether p counts.
func (m *settleModel) counts(p modelPiece) bool {
	return !p.lost && p.resets == m.resets && p.expiry.After(time.Now())
}

// settle sets the total of c: what is more is counted now, what is less is taken from the
// newest pieces.
func (m *settleModel) settle(c *modelCall, total int) {
	if more := total - c.total; more > 0 {
		p := modelPiece{hits: more, expiry: m.expiry(time.Now()), resets: m.resets}
		if n := len(c.pieces) - 1; m.leases && n >= 0 && m.counts(c.pieces[n]) {
			p.hits += c.pieces[n].hits
			c.pieces = c.pieces[:n]
		}
		c.pieces = append(c.pieces, p)
	}
	for less := c.total - total; less > 0; {
		last := &c.pieces[len(c.pieces)-1]
		taken := min(less, last.hits)
		less -= taken
		stored := max(last.hits-last.refunded-taken, 0)
		last.hits -= taken
		last.refunded = last.hits - stored
		if last.hits == 0 {
			c.pieces = c.pieces[:len(c.pieces)-1]
		}
	}
	c.total = total
}

// TestSettleMixedWithAllElseIsAsInAModel makes random calls, and settles and cancels them in
// any order, some in another process by their receipts, while time passes, records are reset
// and the newest hits are refunded, debts among them. Nothing drifts.
func TestSettleMixedWithAllElseIsAsInAModel(t *testing.T) {
	for _, max := range []int{10, 40} { // to the nanosecond, and not
		for _, c := range ofEveryAlgorithm(max) {
			if c.Algorithm == throttler.LeakyBucket {
				continue // see TestSettledBucketIsThatOfSmallerCalls
			}
			t.Run(fmt.Sprint(c.Algorithm, " of ", max), func(t *testing.T) {
				check(t, func(t *rapid.T) { mixSettles(t, c) })
			})
		}
	}
}

func mixSettles(t *rapid.T, c throttler.Condition) {
	ctx := context.Background()
	store := storesInMemory[rapid.SampledFrom(slices.Sorted(maps.Keys(storesInMemory))).Draw(t, "store")]()
	processes := []*throttler.Throttler{throttler.New(store), throttler.New(store)}
	m := &settleModel{leases: c.Algorithm == throttler.InFlight, calendar: c.Algorithm == throttler.Calendar, expiry: func(now time.Time) time.Time {
		if c.Algorithm == throttler.Calendar {
			return now.UTC().Truncate(24 * time.Hour).Add(24 * time.Hour)
		}
		return now.Add(c.TTL) // all pauses are whole milliseconds, so nothing is rounded
	}}
	for range rapid.IntRange(1, 40).Draw(t, "steps") {
		pause := rapid.SampledFrom([]time.Duration{1, 1, 10, 1000, 15_000, 60_000, 20_000_000}).Draw(t, "pause in ms")
		time.Sleep(pause * time.Millisecond)
		th := rapid.SampledFrom(processes).Draw(t, "process")
		var which *modelCall
		if len(m.calls) > 0 {
			which = rapid.SampledFrom(m.calls).Draw(t, "which")
		}
		switch op := rapid.SampledFrom([]string{"authorize", "settle", "settle", "settle", "cancel", "hand over", "refund", "reset"}).Draw(t, "op"); {
		case op == "authorize" || which == nil:
			cost := rapid.IntRange(1, c.Max/2).Draw(t, "cost")
			d, err := th.Authorize(ctx, either(costing(c, cost)))
			require.NoError(t, err)
			call := &modelCall{d: d}
			if fits := m.holds()+cost <= c.Max; fits {
				m.settle(call, cost)
			}
			require.Equal(t, call.total, d.Outcomes[0].Cost)
			m.calls = append(m.calls, call)
		case op == "settle":
			n := rapid.IntRange(0, 2*c.Max).Draw(t, "total")
			m.settle(which, n)
			for range 2 { // twice is once
				d, err := th.Settle(ctx, which.d, total(n))
				require.NoError(t, err)
				require.NoError(t, d.Err)
				require.Equal(t, n, d.Outcomes[0].Cost)
				require.Equal(t, m.holds() > c.Max, d.Status == throttler.Blocked, "it holds %d", m.holds())
				require.Equal(t, max(c.Max-m.holds(), 0), d.Outcomes[0].Remaining)
			}
		case op == "cancel":
			m.settle(which, 0)
			require.NoError(t, th.Cancel(ctx, which.d))
		case op == "hand over":
			if receipt := which.d.Receipt(); receipt != nil {
				d, err := th.Redeem(receipt)
				require.NoError(t, err)
				require.Equal(t, receipt, d.Receipt(), "it is written as it was read")
				which.d = d
			}
		case op == "refund":
			n := rapid.IntRange(1, c.Max).Draw(t, "newest")
			if m.leases {
				break // each is given back by its holder
			}
			m.refund(n)
			d, err := th.Refund(ctx, either(costing(c, n)))
			require.NoError(t, err)
			require.NoError(t, d.Err)
			require.Equal(t, m.holds() >= c.Max, d.Status == throttler.Blocked)
			require.Equal(t, max(c.Max-m.holds(), 0), d.Outcomes[0].Remaining)
		default:
			require.NoError(t, th.Reset(ctx, either(c)))
			m.resets++
		}
		require.Equal(t, max(c.Max-m.holds(), 0), left(t, th, c))
	}
	for _, call := range m.calls {
		m.settle(call, 0)
		require.NoError(t, processes[0].Cancel(ctx, call.d))
	}
	require.Equal(t, max(c.Max-m.holds(), 0), left(t, processes[1], c))
	for range m.holds() {
		_, err := processes[0].Refund(ctx, either(c))
		require.NoError(t, err)
	}
	require.Equal(t, c.Max, left(t, processes[1], c), "nothing drifts")
}
