package storetest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/adaptivethrottler/throttler"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

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
