package throttler_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/internal/servertest"
	"github.com/adaptivethrottler/throttler/memstore"
	"github.com/adaptivethrottler/throttler/pool"
	"github.com/anishathalye/porcupine"
	"github.com/bradfitz/gomemcache/memcache"
	"github.com/stretchr/testify/require"
)

// Linearizable means that the answers of all calls, however they overlapped, are
// those that they would have got one after the other, in an order in which each
// comes somewhere between its begin and its end. Several clients call the same
// record at random, and porcupine looks for such an order of their calls.
// Nothing expires meanwhile, so what is to be expected does not depend on time.

// An operation is one call on the record of a condition.
type operation int

const (
	opAuthorize operation = iota
	opPeek
	opReset
	opCancel // of an authorized call of the same client
	opLook   // reads the record as it is stored
	opMore   // settles an authorized call of the same client at 2 hits more
	opLess   // settles one at a hit less
)

func (op operation) String() string {
	return []string{"Authorize", "Peek", "Reset", "Cancel", "look", "more", "less"}[op]
}

// A reply is what an operation returned.
type reply struct {
	Blocked   bool
	Banned    bool
	Remaining int
	Failed    bool
}

// A content is what a record holds: hits, or a ban.
type content struct {
	Hits   int
	Banned bool
}

// on returns what op answers on a record that holds c, and what it leaves.
func (op operation) on(c content, limit int, bans bool) (reply, content) {
	switch {
	case op == opReset:
		return reply{}, content{}
	case op == opCancel && c.Banned:
		return reply{}, c
	case op == opCancel:
		return reply{}, content{Hits: c.Hits - 1}
	case op == opMore || op == opLess:
		hits := c.Hits + map[operation]int{opMore: 2, opLess: -1}[op]
		return reply{Blocked: hits > limit, Remaining: max(limit-hits, 0)}, content{Hits: hits}
	case op == opLook && c.Banned:
		return reply{Banned: true}, c
	case op == opLook:
		return reply{Remaining: limit - c.Hits}, c
	case c.Banned:
		return reply{Blocked: true, Banned: true}, c
	case c.Hits < limit && op == opPeek:
		return reply{Remaining: limit - c.Hits - 1}, c
	case c.Hits < limit:
		return reply{Remaining: limit - c.Hits - 1}, content{Hits: c.Hits + 1}
	case op == opAuthorize && bans:
		return reply{Blocked: true, Banned: true}, content{Banned: true}
	}
	return reply{Blocked: true, Banned: bans}, c
}

// A mix is a rule of one condition, and how often it is called how.
type mix struct {
	algorithm throttler.Algorithm
	bans      bool
	weights   map[operation]int
}

// Cancel and Reset do not go together: a hit that came after a Reset may have
// the time of one that came before, and be taken back in its stead. Where there
// are bans, a look at the record shows whether one is set already. A bucket does
// not leak while it is called here.
var mixes = map[string]mix{
	"window":              {weights: map[operation]int{opAuthorize: 12, opPeek: 3, opLook: 3, opReset: 2}},
	"window with bans":    {weights: map[operation]int{opAuthorize: 12, opPeek: 3, opLook: 3, opReset: 2}, bans: true},
	"window with Cancel":  {weights: map[operation]int{opAuthorize: 12, opPeek: 2, opLook: 2, opCancel: 8}},
	"window with Settle":  {weights: map[operation]int{opAuthorize: 8, opPeek: 2, opLook: 2, opMore: 3, opLess: 10}},
	"bans despite Cancel": {weights: map[operation]int{opAuthorize: 6, opPeek: 2, opLook: 2, opCancel: 8}, bans: true},
	"bucket":              {weights: map[operation]int{opAuthorize: 15, opPeek: 3, opReset: 2}, algorithm: throttler.LeakyBucket},
}

const (
	sessionMax     = 5
	sessionClients = 6
	sessionCalls   = 20 // of each client

	decidedWithin = 20 * time.Second
)

func (m mix) rule() throttler.Rule {
	c := limit("c", sessionMax, 1000*time.Hour)
	c.Algorithm = m.algorithm
	rule := throttler.Rule{Identifier: uniqueID(), Either: []throttler.Condition{c}}
	if m.bans {
		rule.Lockout = time.Hour
	}
	return rule
}

// model is what the answers are judged by.
func (m mix) model() porcupine.Model {
	return porcupine.Model{
		Init: func() any { return content{} },
		Step: func(state, input, output any) (bool, any) {
			want, next := input.(operation).on(state.(content), sessionMax, m.bans)
			return output.(reply) == want, next
		},
		DescribeOperation: func(input, output any) string {
			return fmt.Sprintf("%v: %+v", input, output)
		},
	}
}

// pick returns an operation at random.
func (m mix) pick(random *rand.Rand) operation {
	for {
		for op, weight := range m.weights {
			if random.IntN(20) < weight {
				return op
			}
		}
	}
}

// A caller makes the calls of one client.
type caller struct {
	rule      throttler.Rule
	client    throttler.Client
	throttler *throttler.Throttler
	counted   []throttler.Decision // those that it may cancel
	totals    []int                // what they have cost
}

// do carries out op. It looks instead where there is nothing to cancel.
func (c *caller) do(op operation) (operation, reply) {
	switch {
	case op == opReset:
		return op, reply{Failed: c.throttler.Reset(context.Background(), c.rule) != nil}
	case op == opCancel && len(c.counted) > 0:
		d := c.counted[0]
		c.counted, c.totals = c.counted[1:], c.totals[1:]
		return op, reply{Failed: c.throttler.Cancel(context.Background(), d) != nil}
	case (op == opMore || op == opLess) && len(c.counted) > 0:
		return op, c.settle(op)
	case op == opCancel || op == opLook || op == opMore || op == opLess:
		return opLook, c.look()
	case op == opPeek:
		return op, c.reply(c.throttler.Peek(context.Background(), c.rule))
	}
	d, err := c.throttler.Authorize(context.Background(), c.rule)
	if err == nil && d.Status == throttler.Authorized {
		c.counted, c.totals = append(c.counted, d), append(c.totals, 1)
	}
	return op, c.reply(d, err)
}

// settle carries out opMore or opLess on the call that was counted first.
func (c *caller) settle(op operation) reply {
	d := c.counted[0]
	if op == opMore {
		c.totals[0] += 2
	} else if c.totals[0]--; c.totals[0] == 0 {
		defer func() { c.counted, c.totals = c.counted[1:], c.totals[1:] }()
	}
	return c.reply(c.throttler.Settle(context.Background(), d, map[string]int{"c": c.totals[0]}))
}

func (c *caller) reply(d throttler.Decision, err error) reply {
	if err != nil || d.Err != nil {
		return reply{Failed: true}
	}
	o := d.Outcomes[0]
	return reply{Blocked: o.Blocked, Banned: o.Banned, Remaining: o.Remaining}
}

func (c *caller) look() reply {
	condition := c.rule.Either[0]
	item, err := c.client.Get(c.rule.Identifier + "#" + condition.Name + "#" + condition.Value)
	if errors.Is(err, memcache.ErrCacheMiss) {
		return reply{Remaining: sessionMax}
	}
	if err != nil {
		return reply{Failed: true}
	}
	r, err := throttler.Inspect(item.Value)
	switch {
	case err != nil:
		return reply{Failed: true}
	case !r.BannedUntil.IsZero():
		return reply{Banned: true}
	}
	return reply{Remaining: sessionMax - len(r.Expiries)}
}

// session has several callers, in as many processes as there are clients, make calls
// on a record of their own, and returns what they did. Callers of one process are
// decided together.
func (m mix) session(t *testing.T, calls int, clients []throttler.Client) []porcupine.Operation {
	var (
		wg    sync.WaitGroup
		each  = make([][]porcupine.Operation, sessionClients)
		rule  = m.rule()
		begin = time.Now()
	)
	processes := make([]*throttler.Throttler, len(clients))
	for i, client := range clients {
		processes[i] = throttler.New(client)
	}
	for id := range each {
		process := id % len(clients)
		c := &caller{rule: rule, client: clients[process], throttler: processes[process]}
		random := rand.New(rand.NewPCG(rand.Uint64(), uint64(id)))
		wg.Go(func() {
			for range calls {
				op := m.pick(random)
				call := time.Since(begin)
				op, reply := c.do(op)
				each[id] = append(each[id], porcupine.Operation{
					ClientId: id, Input: op, Call: int64(call), Output: reply, Return: int64(time.Since(begin)),
				})
			}
		})
	}
	wg.Wait()
	history := slices.Concat(each...)
	for _, h := range history {
		require.False(t, h.Output.(reply).Failed, "%v", h.Input)
	}
	return history
}

// judge makes a session of so many calls by each client, and returns what it comes to,
// which is Ok or Illegal. One that porcupine cannot decide within that time is followed
// by one of half as many calls.
func judge(t *testing.T, model porcupine.Model, calls int, within time.Duration, session func(calls int) []porcupine.Operation) (porcupine.CheckResult, porcupine.LinearizationInfo) {
	t.Helper()
	for ; calls > 2; calls /= 2 {
		history := session(calls)
		result, info := porcupine.CheckOperationsVerbose(model, history, within)
		if result != porcupine.Unknown {
			return result, info
		}
		t.Logf("%d operations are too many to be decided within %v", len(history), within)
	}
	require.FailNow(t, "no session is small enough to be decided")
	return porcupine.Unknown, porcupine.LinearizationInfo{}
}

func TestASessionThatCannotBeDecidedIsFollowedByASmallerOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var sessions []int
		for input, want := range map[int]porcupine.CheckResult{3: porcupine.Ok, 4: porcupine.Illegal} {
			sessions = nil
			result, _ := judge(t, porcupine.Model{
				Init: func() any { return nil },
				Step: func(_, input, _ any) (bool, any) {
					time.Sleep(time.Duration(input.(int)) * time.Second)
					return want == porcupine.Ok, nil
				},
			}, 4*input, 5*time.Second, func(calls int) []porcupine.Operation {
				sessions = append(sessions, calls)
				return []porcupine.Operation{{Input: calls, Return: 1}}
			})
			require.Equal(t, want, result)
			require.Equal(t, []int{4 * input, 2 * input, input}, sessions)
		}
	})
}

// check judges up to n sessions, until one does not come to Ok. It returns what
// that came to, and shows it if it is not what is wanted.
func (m mix) check(t *testing.T, n int, want porcupine.CheckResult, clients ...throttler.Client) porcupine.CheckResult {
	for range n {
		result, info := judge(t, m.model(), sessionCalls, decidedWithin, func(calls int) []porcupine.Operation {
			return m.session(t, calls, clients)
		})
		if result == porcupine.Ok {
			continue
		}
		if result != want {
			m.show(t, info)
		}
		return result
	}
	return porcupine.Ok
}

// show writes a page about a history that outlives the test.
func (m mix) show(t *testing.T, info porcupine.LinearizationInfo) {
	file, err := os.CreateTemp("", "history-*.html")
	require.NoError(t, err)
	defer file.Close()
	require.NoError(t, porcupine.Visualize(m.model(), info, file))
	t.Logf("see %s", file.Name())
}

// requireLinearizable judges n sessions of each mix over clients.
func requireLinearizable(t *testing.T, n int, clients func(*testing.T) []throttler.Client) {
	for name, m := range mixes {
		t.Run(name, func(t *testing.T) {
			require.Equal(t, porcupine.Ok, m.check(t, n, porcupine.Ok, clients(t)...))
		})
	}
}

func TestCallsOverMemcachedAreLinearizable(t *testing.T) {
	t.Parallel()
	addr := servertest.AnyMemcached(t).Addr
	requireLinearizable(t, 60, func(t *testing.T) []throttler.Client {
		return []throttler.Client{clientOf(t, addr), clientOf(t, addr), clientOf(t, addr)}
	})
}

func TestCallsOverMemstoreAreLinearizable(t *testing.T) {
	t.Parallel()
	store := memstore.New()
	requireLinearizable(t, 60, func(*testing.T) []throttler.Client { return []throttler.Client{store, store} })
}

func TestCallsOverPoolsAreLinearizable(t *testing.T) {
	t.Parallel()
	server := servertest.AnyMemcached(t)
	requireLinearizable(t, 60, func(t *testing.T) []throttler.Client {
		return []throttler.Client{poolOf(t, server), poolOf(t, server), poolOf(t, server)}
	})
}

func TestCallsOverPoolsAndPlainClientsAreLinearizable(t *testing.T) {
	t.Parallel()
	server := servertest.AnyMemcached(t)
	requireLinearizable(t, 30, func(t *testing.T) []throttler.Client {
		return []throttler.Client{poolOf(t, server), clientOf(t, server.Addr), clientOf(t, server.Addr)}
	})
}

func poolOf(t *testing.T, server *servertest.Memcached) *pool.Pool {
	t.Helper()
	p, _ := onWire(t, server)
	p.QueueTimeout = 20 * time.Second
	return p
}

// The check must find what it is there for: the same throttler over clients that
// set what should be compared and swapped, as others do.
func TestLostUpdatesAreNotLinearizable(t *testing.T) {
	t.Parallel()
	server := servertest.AnyMemcached(t)
	for name, m := range mixes {
		t.Run(name, func(t *testing.T) {
			clients := []throttler.Client{racyClient{clientOf(t, server.Addr)}, racyClient{clientOf(t, server.Addr)}}
			require.Equal(t, porcupine.Illegal, m.check(t, 1000, porcupine.Illegal, clients...))
		})
	}
}
