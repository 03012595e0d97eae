package storetest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/adaptivethrottler/throttler"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// RunFaults checks that a store over a network carries out once what is sent twice: each
// operation of a throttler, by each algorithm, meets each fault of the connection. addr is that
// of a real server. open returns a client of the server at another address, which leads there,
// and which waits for its answers for timeout.
//
// A request is lost before or after the server has carried it out. It may then be covered: another
// process changes the record before it is sent again. Or it comes late: the caller has left, or
// the client has given it up.
func RunFaults(t *testing.T, addr string, open func(t *testing.T, addr string, timeout time.Duration) throttler.Client) {
	for _, c := range []throttler.Condition{
		{TTL: time.Hour},
		{TTL: 20 * time.Hour, Algorithm: throttler.LeakyBucket},
		{TTL: time.Hour, Algorithm: throttler.InFlight},
		{Algorithm: throttler.Calendar, Period: throttler.Period{Unit: throttler.Month, Anchor: min(time.Now().UTC().AddDate(0, 0, 10).Day(), 28)}},
	} {
		t.Run(c.Algorithm.String(), func(t *testing.T) {
			t.Parallel()
			w := newWire(t, addr)
			patient, hasty := throttler.New(open(t, w.addr, 10*time.Second)), throttler.New(open(t, w.addr, hasty))
			m := &matrix{wire: w, other: throttler.New(open(t, addr, 10*time.Second)), c: c}
			for _, f := range faults {
				for _, op := range ops {
					if op.only == nil || slices.Contains(op.only, c.Algorithm) {
						m.th = patient
						if f.late && !f.leaves {
							m.th = hasty
						}
						t.Run(f.name+"/"+op.name, func(t *testing.T) { m.meet(t, f, op) })
					}
				}
			}
		})
	}
}

// A fault is what happens to a request.
type fault struct {
	name    string
	done    bool // the server carries it out before the connection is lost
	covered bool // another process counts a hit then
	late    bool // it is held up until its caller has its answer, which is an error
	leaves  bool // since the caller has left; else the client has given up
}

var faults = []fault{
	{name: "lost before"},
	{name: "lost after", done: true},
	{name: "covered, lost before", covered: true},
	{name: "covered, lost after", covered: true, done: true},
	{name: "late for its caller", late: true, leaves: true},
	{name: "late for the client", late: true},
}

// hasty is how long a client waits that is to give up: no longer than a test may take, and longer
// than a busy machine keeps it waiting.
const hasty = 500 * time.Millisecond

// An op is an operation on a record that holds 1 hit of another process and, unless the operation
// counts them, 3 of its own.
type op struct {
	name  string
	only  []throttler.Algorithm // nil: all
	call  func(ctx context.Context, m *matrix, d throttler.Decision) error
	total int  // own hits when it has been carried out once
	twice int  // the same if it may be carried out twice; 0: it may not
	fresh bool // it begins without own hits
	bans  bool
}

var ops = []op{
	{name: "authorize", fresh: true, total: 3, twice: 6, call: func(ctx context.Context, m *matrix, _ throttler.Decision) error {
		return m.authorize(ctx, m.th, 3).Err
	}},
	{name: "cancel", total: 0, call: func(ctx context.Context, m *matrix, d throttler.Decision) error { return m.th.Cancel(ctx, d) }},
	{name: "settle at more", total: 7, call: settle(7)},
	{name: "settle at less", total: 1, call: settle(1)},
	{name: "ban", total: 3, bans: true, call: func(ctx context.Context, m *matrix, _ throttler.Decision) error {
		return m.th.Ban(ctx, m.rule(1), time.Hour)
	}},
	{name: "renew", total: 3, only: []throttler.Algorithm{throttler.InFlight}, call: func(ctx context.Context, m *matrix, d throttler.Decision) error {
		return m.th.Renew(ctx, d)
	}},
}

func settle(total int) func(context.Context, *matrix, throttler.Decision) error {
	return func(ctx context.Context, m *matrix, d throttler.Decision) error {
		d, err := m.th.Settle(ctx, d, map[string]int{"c": total})
		if err == nil {
			err = d.Err
		}
		return err
	}
}

// A matrix is what the operations of one algorithm need.
type matrix struct {
	*testing.T
	wire      *wire
	th, other *throttler.Throttler // over the wire, and beside it
	c         throttler.Condition
}

const matrixMax = 30

func (m *matrix) rule(cost int) throttler.Rule {
	c := m.c
	c.Name, c.Max, c.Cost = "c", matrixMax, cost
	return throttler.Rule{Identifier: "faults", Either: []throttler.Condition{c}}
}

func (m *matrix) authorize(ctx context.Context, th *throttler.Throttler, cost int) throttler.Decision {
	d, err := th.Authorize(ctx, m.rule(cost))
	assert.NoError(m, err)
	return d
}

// look returns how many hits the record holds, and whether it has a ban.
func (m *matrix) look() (held int, banned bool) {
	d, err := m.other.Peek(context.Background(), m.rule(1))
	require.NoError(m, err)
	require.NoError(m, d.Err)
	if o := d.Outcomes[0]; !o.Banned {
		return matrixMax - o.Remaining - 1, false
	}
	return 0, true
}

// meet has op meet f.
func (m *matrix) meet(t *testing.T, f fault, op op) {
	m.T = t
	m.c.Value = fmt.Sprintf("%x", rand.Uint64())
	ctx := context.Background()
	require.NoError(t, m.authorize(ctx, m.other, 1).Err)
	var d throttler.Decision
	before := 1
	if op.fresh { // the record is known, so that it is written first
		_, err := m.th.Peek(ctx, m.rule(1))
		require.NoError(t, err)
	} else {
		d = m.authorize(ctx, m.th, 3)
		require.NoError(t, d.Err)
		before += 3
	}
	once := 1 + op.total
	met := m.wire.arm(m.c.Value, f, func() {
		if f.covered {
			assert.NoError(t, m.authorize(ctx, m.other, 1).Err)
		}
	})
	if f.leaves {
		var leave context.CancelFunc
		ctx, leave = context.WithCancel(ctx)
		go func() { <-met; leave() }()
		defer leave()
	}
	err := op.call(ctx, m, d)
	<-met // else the fault has met nothing
	m.wire.resume()
	switch {
	case f.late:
		if f.leaves {
			require.ErrorIs(t, err, context.Canceled)
		} else {
			require.ErrorIs(t, err, throttler.ErrUnavailable)
		}
		require.Eventually(t, func() bool {
			held, banned := m.look()
			return banned == op.bans && (banned || held == once)
		}, 20*time.Second, time.Millisecond, "it is carried out after all")
		if err := op.call(context.Background(), m, d); !op.fresh { // once more
			held, _ := m.look()
			require.True(t, op.bans || held == once, "%d hits: %v", held, err)
		}
		return
	case f.covered:
		before, once = before+1, once+1
	default:
		require.NoError(t, err)
	}
	held, banned := m.look()
	require.True(t, err != nil || banned == op.bans, "a ban that is set holds")
	switch {
	case banned:
		require.True(t, op.bans)
	case err == nil:
		require.Equal(t, once, held)
	case op.twice > 0:
		require.Contains(t, []int{once, once + op.twice - op.total}, held, "%v", err)
	default:
		require.Contains(t, []int{before, once}, held, "%v", err)
		require.Error(t, err)
	}
}
