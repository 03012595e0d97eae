package throttler_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/adaptivethrottler/throttler"
	"github.com/bradfitz/gomemcache/memcache"
	"github.com/stretchr/testify/require"
)

// The fault matrix: each operation, by each algorithm, meets each fault of its write. What comes of
// it is said by three numbers of hits. storetest.RunFaults has the same operations meet the faults
// of real connections.

// A faultOp is an operation on a record that holds 4 hits of another process and, unless it is
// fresh, 3 of its own, all of one instant.
type faultOp struct {
	name  string
	call  func(m *faultMatrix) error
	fresh bool
	total int  // own hits once it is carried out
	bans  bool // there is a ban once it is carried out
	twice int  // own hits if it is carried out twice, which it may be if nobody knows; 0: it never is
	sure  bool // it is known by what it leaves, so nothing is ever unknown
	back  bool // it takes hits back: the record may tell that they are gone
	last  bool // there is room for it, and no more; who finds it full is banned
	full  bool // there is no room for it; who finds it full is banned
	alone bool // the record does not exist yet
}

var faultOps = []faultOp{
	{name: "the first hits", call: callFor(3), fresh: true, alone: true, total: 3, twice: 6},
	{name: "more hits", call: callFor(3), fresh: true, total: 3, twice: 6},
	{name: "the last hits", call: callFor(3), fresh: true, last: true, total: 3},
	{name: "a call of a full value", call: callFor(3), fresh: true, full: true, bans: true},
	{name: "cancel", back: true, call: func(m *faultMatrix) error { return m.th.Cancel(m.ctx, m.d) }},
	{name: "settle at more", call: settleAt(7), total: 7},
	{name: "settle at less", call: settleAt(1), back: true, total: 1},
	{name: "refund", back: true, total: 1, call: func(m *faultMatrix) error {
		d, err := m.th.Refund(m.ctx, m.rule(2))
		require.NoError(m, err)
		return d.Err
	}},
	{name: "ban", bans: true, sure: true, call: func(m *faultMatrix) error { return m.th.Ban(m.ctx, m.rule(1), time.Hour) }},
	{name: "renew", total: 3, sure: true, call: func(m *faultMatrix) error { return m.th.Renew(m.ctx, m.d) }},
	{name: "release", sure: true, call: func(m *faultMatrix) error { return m.th.Hold(m.Context(), m.d).Release(m.Context()) }},
}

func callFor(cost int) func(m *faultMatrix) error {
	return func(m *faultMatrix) error {
		var err error
		m.d, err = m.th.Authorize(m.ctx, m.rule(cost))
		require.NoError(m, err)
		return m.d.Err
	}
}

func waitFor(cost int) func(m *faultMatrix) (err error) {
	return func(m *faultMatrix) (err error) {
		m.d, err = m.th.Wait(m.ctx, m.rule(cost))
		return err
	}
}

func settleAt(total int) func(m *faultMatrix) error {
	return func(m *faultMatrix) error {
		d, err := m.th.Settle(m.ctx, m.d, map[string]int{"c": total})
		require.NoError(m, err)
		return d.Err
	}
}

// has reports whether there is op for an algorithm.
func (op *faultOp) has(a throttler.Algorithm) bool {
	switch op.name {
	case "renew", "release":
		return a == throttler.InFlight
	case "refund", "a call of a full value":
		return a != throttler.InFlight
	}
	return true
}

// A writeFault is what becomes of the next write.
type writeFault struct {
	name    string
	err     error // is reported; nil: the throttler finds out by itself, or does not know
	done    bool  // the write is carried out
	unknown bool  // nobody can tell whether it was
	meet    func(m *faultMatrix)
}

// Faults of an Exchanger, whose connection breaks.
var exchangeFaults = []writeFault{
	{name: "the answer is lost", done: true, meet: loses(answerLost, nothingLost)},
	{name: "the request is lost", meet: loses(requestLost, nothingLost)},
	{name: "the answer is lost, and the connection after it", done: true, meet: loses(answerLost, requestLost)},
	{name: "it is not sent", meet: loses(notSent, nothingLost)},
	{name: "it is covered by another write", done: true, unknown: true, meet: loses(covered, nothingLost)},
	{name: "it arrives late", done: true, unknown: true, meet: loses(arrivesLate, nothingLost)},
	{name: "the server is down", err: errDown, meet: func(m *faultMatrix) { m.r.err = errDown }},
	{name: "the server is full", err: errDown, meet: func(m *faultMatrix) { m.r.full = errDown }},
}

func loses(first, then loss) func(m *faultMatrix) {
	return func(m *faultMatrix) {
		m.r.mu.Lock()
		defer m.r.mu.Unlock()
		m.r.lose, m.r.then = first, then
	}
}

// Faults of a plain client, which returns err, though the write may be carried out.
var plainFaults = []writeFault{
	{name: "the answer is lost", done: true, meet: answers(true, io.EOF)},
	{name: "the request is lost", meet: answers(false, io.EOF)},
	{name: "the client repeats what was done", done: true, meet: answers(true, maybeDone{memcache.ErrCASConflict})},
	{name: "the client gives up what was done", err: errDown, done: true, meet: answers(true, errDown)},
	{name: "the client gives up", err: errDown, meet: answers(false, errDown)},
}

func answers(done bool, err error) func(m *faultMatrix) {
	return func(m *faultMatrix) {
		var met atomic.Bool
		write := func(op string) bool { return (op == "add" || op == "cas") && !met.Swap(true) }
		if done {
			m.plain.after = func(op string, failed error) error {
				if write(op) {
					return errors.Join(failed, err)
				}
				return failed
			}
			return
		}
		m.plain.before = func(op string, _ ...string) error {
			if write(op) {
				return err
			}
			return nil
		}
	}
}

// A faultMatrix is one cell of it.
type faultMatrix struct {
	*testing.T
	r         *remote
	plain     *faulty // nil: th is over r
	th, other *throttler.Throttler
	c         throttler.Condition
	d         throttler.Decision // of the hits of its own
	ctx       context.Context    // of op
}

func (m *faultMatrix) rule(cost int) throttler.Rule { return either(costing(m.c, cost)) }

// look returns how many hits the record holds, and whether it has a ban.
func (m *faultMatrix) look() (held int, banned bool) {
	c := m.c
	c.Lockout = 0
	d := peek(m.T, m.other, either(c))
	require.NoError(m, d.Err)
	if d.Outcomes[0].Banned {
		return 0, true
	}
	return c.Max - left(m, m.other, c), false
}

// heal ends all faults.
func (m *faultMatrix) heal() {
	if m.plain != nil {
		m.plain.before, m.plain.after = failing(nil, ""), nil
		return
	}
	m.r.mu.Lock()
	defer m.r.mu.Unlock()
	m.r.err, m.r.full, m.r.lose, m.r.then = nil, nil, nothingLost, nothingLost
}

// prepare makes the record that op is to meet, and has m.th know it.
func (m *faultMatrix) prepare(op faultOp) (before int) {
	switch {
	case op.last:
		m.c.Max, m.c.Lockout = 7, time.Hour
	case op.full:
		m.c.Max, m.c.Lockout = 4, time.Hour
	}
	if !op.alone {
		before = 4
		require.NoError(m, authorize(m.T, m.other, m.rule(4)).Err)
	}
	peek(m.T, m.th, m.rule(1))
	if !op.fresh {
		before += 3
		m.d = authorize(m.T, m.th, m.rule(3))
		require.NoError(m, m.d.Err)
	}
	return before
}

// meet has op meet f.
func (m *faultMatrix) meet(f writeFault, op faultOp) {
	before := m.prepare(op)
	others := before
	if !op.fresh {
		others -= 3
	}
	once := others + op.total
	f.meet(m)
	err := op.call(m)
	time.Sleep(2 * roundTrip) // until what is late has come
	m.heal()
	held, banned := m.look()

	unknown := f.unknown && !op.sure && m.c.Algorithm != throttler.InFlight
	switch {
	case f.err != nil:
		require.ErrorIs(m, err, f.err)
	case unknown && !op.back:
		require.Error(m, err)
	case unknown:
	default:
		require.NoError(m, err)
	}
	switch {
	case f.err != nil && !f.done:
		require.False(m, banned)
		require.Equal(m, before, held, "nothing was done")
	case op.bans:
		require.True(m, banned)
	case unknown && op.twice > 0:
		require.False(m, banned)
		require.Contains(m, []int{once, others + op.twice}, held)
	default:
		require.False(m, banned, "nobody is banned for what may be a hit of its own")
		require.Equal(m, once, held)
	}
	if op.last {
		require.Equal(m, unknown, m.d.Status == throttler.Blocked, "it may be full of what was counted already")
	}
	if op.name == "cancel" {
		require.NoError(m, m.th.Cancel(m.Context(), m.d))
		if again, _ := m.look(); err != nil && strings.Contains(err.Error(), "unknown") {
			require.Equal(m, held, again, "it is taken to be done")
		} else {
			require.Equal(m, others, again, "what was not done is done now")
		}
	}
}

// eachCell runs test for each of ops, by each algorithm, over a client of that name.
func eachCell(t *testing.T, client, name string, ops []faultOp, test func(m *faultMatrix, op faultOp)) {
	for _, c := range ofEveryAlgorithm(30) {
		if c.TTL > 0 {
			c.TTL = 1000 * time.Hour // no hit leaks meanwhile
		}
		for _, op := range ops {
			if !op.has(c.Algorithm) {
				continue
			}
			t.Run(fmt.Sprint(c.Algorithm, "/", client, "/", name, "/", op.name), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					m := &faultMatrix{T: t, r: newRemote(), c: c, ctx: t.Context()}
					m.other, m.th = throttler.New(m.r.store), throttler.New(m.r)
					if client == "plain" {
						m.plain = over(m.r.store)
						m.th = throttler.New(m.plain)
					}
					test(m, op)
				})
			})
		}
	}
}

func TestEachOperationMeetsEachFault(t *testing.T) {
	for client, faults := range map[string][]writeFault{"exchange": exchangeFaults, "plain": plainFaults} {
		for _, f := range faults {
			eachCell(t, client, f.name, faultOps, func(m *faultMatrix, op faultOp) {
				if !op.alone || f.name != "it is not sent" { // nobody else changes what is not there
					m.meet(f, op)
				}
			})
		}
	}
}

// An end is when the ctx of an operation ends, while its request or its answer is under way, and
// what becomes of that.
type end struct {
	name   string
	cut    time.Duration // after the operation has begun
	lose   loss          // of an Exchanger
	unsent bool          // a plain client is still reading: nothing is written
	fail   bool          // the write of a plain client fails, and is not carried out
}

var ends = map[string][]end{
	"exchange": {
		{name: "before the request arrives", cut: roundTrip / 4},
		{name: "before the answer arrives", cut: roundTrip * 3 / 4},
		{name: "before the request is lost", cut: roundTrip / 4, lose: requestLost},
		{name: "before the answer is lost", cut: roundTrip / 4, lose: answerLost},
		{name: "after the answer was lost", cut: roundTrip * 3 / 4, lose: answerLost},
	},
	"plain": {
		{name: "during the read", cut: roundTrip / 2, unsent: true},
		{name: "during the write", cut: roundTrip * 3 / 2},
		{name: "during a write that fails", cut: roundTrip * 3 / 2, fail: true},
	},
}

// leave has op left at e. Then it is made again, or cancelled if it may have counted, which waits
// for what is under way: so it comes to the same as if it had not been left.
func (m *faultMatrix) leave(e end, op faultOp) {
	before := m.prepare(op)
	m.r.lose = e.lose
	if m.plain != nil {
		m.plain.before = func(name string, _ ...string) error {
			time.Sleep(roundTrip)
			if e.fail && (name == "add" || name == "cas") {
				return errDown
			}
			return nil
		}
	}
	begun := time.Now()
	var leave context.CancelFunc
	m.ctx, leave = context.WithTimeout(m.Context(), e.cut)
	defer leave()
	require.ErrorIs(m, op.call(m), context.DeadlineExceeded)
	require.Equal(m, e.cut, time.Since(begun), "at once")
	m.ctx = m.Context()
	want, banned := before-3+op.total, op.bans
	switch {
	case op.fresh:
		want, banned = before, op.bans && !e.unsent && !e.fail
		if op.alone && !e.fail {
			require.NoError(m, settleAt(1)(m), "it waits as well")
			held, _ := m.look()
			require.Equal(m, before+1, held)
		}
		if err := m.th.Cancel(m.ctx, m.d); e.fail {
			require.ErrorIs(m, err, errDown, "it may have been counted")
		} else {
			require.NoError(m, err)
		}
		require.NoError(m, m.th.Cancel(m.ctx, m.d), "it is told once")
	case op.name != "refund": // a second one would take other hits back
		require.NoError(m, op.call(m))
	case e.unsent:
		want = before
	}
	time.Sleep(4 * roundTrip) // until all is done
	synctest.Wait()
	m.heal()
	held, found := m.look()
	require.Equal(m, banned, found)
	if !banned {
		require.Equal(m, want, held)
	}
}

func TestEachOperationIsLeftAtAnyMoment(t *testing.T) {
	ops := append(slices.Clone(faultOps), faultOp{name: "wait", fresh: true, call: waitFor(3)})
	for client, all := range ends {
		for _, e := range all {
			eachCell(t, client, e.name, ops, func(m *faultMatrix, op faultOp) {
				// A Release has a bound of its own. What fails to set a total is not tried again.
				if op.name != "release" && (op.fresh || !e.fail) {
					m.leave(e, op)
				}
			})
		}
	}
}
