package throttler_test

import (
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/internal/skiptest"
	"github.com/adaptivethrottler/throttler/memstore"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// Rules that hold hits in flight, beside a window and a calendar, compared with a model
// that has one number for each hit.

// exchanger hides that a memstore is in process memory, so that calls are gathered as they
// are for a server.
type exchanger struct{ throttler.Exchanger }

// storesInMemory are the kinds of client, without the time that a network takes.
var storesInMemory = map[string]func() throttler.Client{
	"memstore":  func() throttler.Client { return memstore.New() },
	"exchanger": func() throttler.Client { return exchanger{memstore.New()} },
	"plain":     func() throttler.Client { return newFaulty() },
}

// A holder is a call that was authorized, and what it holds by the model.
type holder struct {
	throttler *throttler.Throttler
	decision  throttler.Decision
	lease     *throttler.Lease // nil: it is not held
	released  bool             // by Release or Cancel
	lost      bool             // the lease was lost as Hold was called, or by a Cancel

	cost  []int       // in each condition, 0 if it was given back or forgotten
	until []time.Time // when these hits expire, unless they are held

	forgotten time.Time // when a Reset took the lease away; zero: it did not
}

// holders is the model of a rule whose first condition is in flight.
type holders struct {
	rule       throttler.Rule
	conditions []throttler.Condition
	processes  []*throttler.Throttler
	all        []*holder
}

func newHolders(t *rapid.T, store throttler.Client) *holders {
	up := func(label string, most int) int { return rapid.IntRange(1, most).Draw(t, label) }
	m := &holders{conditions: []throttler.Condition{
		{Name: "flight", Max: up("in flight", 4), TTL: time.Duration(rapid.Int64Range(int64(100*time.Millisecond), int64(time.Hour)).Draw(t, "lease")), Algorithm: throttler.InFlight},
		{Name: "window", Max: up("window", 12), TTL: time.Duration(rapid.Int64Range(int64(time.Second), int64(3*time.Hour)).Draw(t, "TTL"))},
		{Name: "calendar", Max: up("calendar", 30), Algorithm: throttler.Calendar},
	}}
	m.rule = throttler.Rule{Identifier: "holders", CountAuthorizedOnly: rapid.Bool().Draw(t, "CountAuthorizedOnly")}
	for range 2 {
		m.processes = append(m.processes, throttler.New(store))
	}
	return m
}

// process returns one of the processes.
func (m *holders) process(t *rapid.T) *throttler.Throttler {
	return m.processes[rapid.IntRange(0, len(m.processes)-1).Draw(t, "process")]
}

// counts reports whether the hits of h in condition i count now.
func (h *holder) counts(i int) bool {
	return h.cost[i] > 0 && (i == 0 && h.held() || h.until[i].After(time.Now()))
}

// held reports whether the lease of h is renewed.
func (h *holder) held() bool { return h.lease != nil && !h.lost && !h.released }

// room returns how many hits fit into condition i.
func (m *holders) room(i int) int {
	n := m.conditions[i].Max
	for _, h := range m.all {
		if h.counts(i) {
			n -= h.cost[i]
		}
	}
	return n
}

// authorize makes a call of random costs, which must take what the model says.
func (m *holders) authorize(t *rapid.T) {
	rule, h := m.rule, &holder{throttler: m.process(t)}
	refused := false
	for i, c := range m.conditions {
		c.Cost = rapid.IntRange(1, c.Max).Draw(t, "Cost")
		c.Least = rapid.IntRange(0, c.Cost).Draw(t, "Least")
		rule.Either = append(rule.Either, c)
		cost := min(c.Cost, m.room(i))
		if cost < c.Least || c.Least == 0 && cost < c.Cost {
			cost = 0
		}
		refused = refused || cost == 0
		h.cost = append(h.cost, cost)
		h.until = append(h.until, time.Now().Add(c.TTL))
	}
	h.until[2] = time.Now().Truncate(24*time.Hour).AddDate(0, 0, 1)
	if refused && rule.CountAuthorizedOnly {
		clear(h.cost)
	}
	d, err := h.throttler.Authorize(context.Background(), rule)
	require.NoError(t, err)
	require.NoError(t, d.Err)
	require.Equal(t, refused, d.Status == throttler.Blocked)
	require.Equal(t, h.cost, costs(d))
	h.decision = d
	m.all = append(m.all, h)
}

// hold holds h, whose lease is lost at once in the last tenth of its TTL.
func (m *holders) hold(h *holder) {
	if h.lease != nil || h.released {
		return
	}
	h.lease = h.throttler.Hold(context.Background(), h.decision)
	if h.decision.Outcomes[0].Cost > 0 && h.cost[0] == 0 {
		h.forgotten = time.Now() // or before
	}
	ttl := m.conditions[0].TTL
	h.lost = h.cost[0] > 0 && time.Until(h.until[0]) <= ttl/10
	if h.cost[0] > 0 && !h.lost && !h.until[0].Add(-(ttl - ttl/3)).After(time.Now()) {
		h.until[0] = time.Now().Add(ttl) // it is renewed at once
	}
}

// renew renews h once, which must tell whether its lease is there.
func (m *holders) renew(t *rapid.T, h *holder, there bool) {
	err := h.throttler.Renew(context.Background(), h.decision)
	if !there {
		require.ErrorIs(t, err, throttler.ErrLeaseLost)
		return
	}
	require.NoError(t, err)
	h.until[0] = time.Now().Add(m.conditions[0].TTL)
}

// reset forgets what condition i holds.
func (m *holders) reset(t *rapid.T, i int) {
	rule := m.rule
	rule.Either = m.conditions[i : i+1]
	require.NoError(t, m.process(t).Reset(context.Background(), rule))
	for _, h := range m.all {
		if i == 0 && h.held() && h.cost[0] > 0 {
			h.forgotten = time.Now()
		}
		h.cost[i] = 0
	}
	time.Sleep(time.Nanosecond) // a hit of the same instant would have the same expiry
}

// check compares all that can be seen with the model.
func (m *holders) check(t *rapid.T) {
	for i, c := range m.conditions {
		rule := m.rule
		rule.Either = []throttler.Condition{c}
		d, err := m.process(t).Peek(context.Background(), rule)
		require.NoError(t, err)
		require.Equal(t, m.room(i) < 1, d.Status == throttler.Blocked, c.Name)
		require.Equal(t, max(m.room(i)-1, 0), d.Outcomes[0].Remaining, c.Name)
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
	ctx := context.Background()
	what := rapid.IntRange(0, 19).Draw(t, "step")
	switch {
	case what < 4:
		longest := rapid.SampledFrom([]time.Duration{m.conditions[0].TTL, m.conditions[1].TTL, 5 * time.Hour}).Draw(t, "longest")
		if slices.ContainsFunc(m.all, (*holder).held) {
			longest = min(longest, 20*m.conditions[0].TTL) // each third of it is a renewal
		}
		time.Sleep(time.Duration(rapid.Int64Range(0, int64(longest)).Draw(t, "sleep")))
		synctest.Wait()
		return
	case what < 10 || len(m.all) == 0:
		m.authorize(t)
		return
	case what == 19:
		m.reset(t, rapid.IntRange(0, len(m.conditions)-1).Draw(t, "reset"))
		return
	}
	h := m.all[rapid.IntRange(0, len(m.all)-1).Draw(t, "which")]
	switch {
	case what < 13:
		m.hold(h)
		synctest.Wait()
	case what < 15:
		if h.decision.Outcomes[0].Cost > 0 && !h.released {
			m.renew(t, h, h.counts(0))
		}
	case what < 17:
		if h.lease != nil {
			for range 2 { // twice is once
				require.NoError(t, h.lease.Release(ctx))
			}
			require.Error(t, h.lease.Context().Err())
			h.cost[0], h.released = 0, true
		}
	default:
		for range 2 {
			require.NoError(t, h.throttler.Cancel(ctx, h.decision))
		}
		if h.held() && h.decision.Outcomes[0].Cost > 0 {
			require.ErrorIs(t, context.Cause(h.lease.Context()), throttler.ErrLeaseLost)
		}
		clear(h.cost)
		h.released = true
	}
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
				for _, h := range m.all {
					if h.lease != nil {
						require.NoError(t, h.lease.Release(context.Background()))
					}
					require.NoError(t, h.throttler.Cancel(context.Background(), h.decision))
				}
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
					var held []throttler.Decision
					giveBack := func(i int, release bool) {
						d := held[i]
						held = slices.Delete(held, i, i+1)
						for j, o := range d.Outcomes {
							counted[j].Add(-int64(o.Cost))
						}
						if release {
							assert.NoError(t, th.Hold(t.Context(), d).Release(t.Context()))
						}
						assert.NoError(t, th.Cancel(t.Context(), d))
					}
					for range operations / callers {
						if len(held) > 0 && rand.IntN(2) == 0 {
							i := rand.IntN(len(held))
							if rand.IntN(4) == 0 {
								assert.NoError(t, th.Renew(t.Context(), held[i]))
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
						held = append(held, d)
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
