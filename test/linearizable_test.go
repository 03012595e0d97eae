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
//
// The model knows what each call holds, so a hit that is given back twice, or in the
// stead of another one, is found.

// An operation is what is done to the record of a condition.
type operation int

const (
	opAuthorize operation = iota
	opPeek
	opReset
	opCancel  // of a call of the same client, as are those below
	opRelease // by Hold and Release
	opRenew
	opMore // settles the call at 2 hits more
	opLess // settles it at a hit less
	opLook // reads the record as it is stored
)

func (op operation) String() string {
	return []string{"Authorize", "Peek", "Reset", "Cancel", "Release", "Renew", "more", "less", "look"}[op]
}

// A numbered is an operation of the call with that number. What is given back has that cost.
type numbered struct {
	operation
	number      int
	cost, least int
}

// A reply is what an operation returned.
type reply struct {
	Blocked   bool
	Banned    bool
	Cost      int
	Remaining int
	Lost      bool // a lease
	Failed    bool
}

// A content is what a record holds: hits of calls, by their numbers, or a ban.
type content struct {
	Held   [sessionClients * sessionCalls]uint8
	Banned bool
}

func (c content) hits() (n int) {
	for _, hits := range c.Held {
		n += int(hits)
	}
	return n
}

// on returns what n answers on a record that holds c, and what it leaves.
func (n numbered) on(c content, bans bool) (reply, content) {
	mine, left := &c.Held[n.number], sessionMax-c.hits()
	switch n.operation {
	case opReset:
		return reply{}, content{}
	case opCancel, opRelease:
		*mine -= min(*mine, uint8(n.cost))
		return reply{}, c
	case opRenew:
		return reply{Lost: *mine == 0}, c
	case opMore, opLess:
		more := map[operation]int{opMore: 2, opLess: -1}[n.operation]
		*mine += uint8(more)
		return reply{Blocked: left < more, Cost: int(*mine), Remaining: max(left-more, 0)}, c
	case opLook:
		return reply{Banned: c.Banned, Remaining: left}, c
	}
	cost := min(n.cost, left)
	if cost < n.least || n.least == 0 && cost < n.cost {
		cost = 0
	}
	switch {
	case c.Banned:
		return reply{Blocked: true, Banned: true}, c
	case cost == 0 && bans && n.operation == opAuthorize:
		return reply{Blocked: true, Banned: true}, content{Banned: true}
	case cost == 0:
		return reply{Blocked: true, Banned: bans, Remaining: max(left, 0)}, c
	case n.operation == opAuthorize:
		*mine += uint8(cost)
	}
	return reply{Cost: cost, Remaining: left - cost}, c
}

// A mix is a condition, and how often it is called how.
type mix struct {
	throttler.Condition
	bans    bool
	costs   bool // calls take several hits, or as many as there are
	weights map[operation]int
}

// In a window, Cancel and Reset do not go together: a hit that came after a Reset may have
// the time of one that came before, and be taken back in its stead. Leases and the count of a
// calendar are known by more. Where there are bans, a look at the record shows whether one is
// set already. A bucket does not leak while it is called here, and a period does not end.
var mixes = map[string]mix{
	"window":              {weights: map[operation]int{opAuthorize: 12, opPeek: 3, opLook: 3, opReset: 2}},
	"window with bans":    {weights: map[operation]int{opAuthorize: 12, opPeek: 3, opLook: 3, opReset: 2}, bans: true},
	"window with Cancel":  {weights: map[operation]int{opAuthorize: 12, opPeek: 2, opLook: 2, opCancel: 8}},
	"window with costs":   {weights: map[operation]int{opAuthorize: 12, opPeek: 3, opCancel: 8}, costs: true},
	"window with Settle":  {weights: map[operation]int{opAuthorize: 8, opPeek: 2, opLook: 2, opMore: 3, opLess: 10}},
	"bans despite Cancel": {weights: map[operation]int{opAuthorize: 6, opPeek: 2, opLook: 2, opCancel: 8}, bans: true},
	"bucket": {
		Condition: throttler.Condition{Algorithm: throttler.LeakyBucket},
		weights:   map[operation]int{opAuthorize: 15, opPeek: 3, opReset: 2},
	},
	"in flight": {
		Condition: throttler.Condition{Algorithm: throttler.InFlight}, costs: true,
		weights: map[operation]int{opAuthorize: 12, opPeek: 2, opRelease: 6, opRenew: 3, opCancel: 3, opReset: 1},
	},
	"calendar": {
		Condition: throttler.Condition{Algorithm: throttler.Calendar, Period: longMonth()}, costs: true,
		weights: map[operation]int{opAuthorize: 12, opPeek: 3, opCancel: 8, opReset: 1},
	},
}

const (
	sessionMax     = 6
	sessionClients = 6
	sessionCalls   = 20 // of each client

	decidedWithin = 20 * time.Second
)

func (m mix) rule() throttler.Rule {
	c := m.Condition
	c.Name, c.Value, c.Max = "c", "v", sessionMax
	if c.Algorithm != throttler.Calendar {
		c.TTL = 1000 * time.Hour
	}
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
			want, next := input.(numbered).on(state.(content), m.bans)
			return output.(reply) == want, next
		},
		DescribeOperation: func(input, output any) string { return fmt.Sprintf("%+v: %+v", input, output) },
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
	mix
	rule      throttler.Rule
	client    throttler.Client
	throttler *throttler.Throttler
	random    *rand.Rand
	next      int       // the number of the next call
	counted   []*number // those that have hits
}

// A number is a call that was authorized.
type number struct {
	numbered int
	decision throttler.Decision
	total    int
}

// newCaller returns the caller with that ID.
func (m mix) newCaller(id int, rule throttler.Rule, client throttler.Client, th *throttler.Throttler) *caller {
	return &caller{mix: m, rule: rule, client: client, throttler: th, random: rand.New(rand.NewPCG(rand.Uint64(), uint64(id))), next: id * sessionCalls}
}

// do carries out op. It calls Peek where there is nothing to give back.
func (c *caller) do(op operation) (numbered, reply) {
	ctx := context.Background()
	switch op {
	case opReset:
		return numbered{operation: op}, reply{Failed: c.throttler.Reset(ctx, c.rule) != nil}
	case opLook:
		return numbered{operation: op}, c.look()
	case opAuthorize, opPeek:
	default:
		if len(c.counted) > 0 {
			return c.giveBack(ctx, op)
		}
		op = opPeek
	}
	n, rule := c.call(op)
	if op == opPeek {
		return n, c.reply(c.throttler.Peek(ctx, rule))
	}
	d, err := c.throttler.Authorize(ctx, rule)
	if err == nil && d.Status == throttler.Authorized {
		c.counted = append(c.counted, &number{n.number, d, d.Outcomes[0].Cost})
	}
	return n, c.reply(d, err)
}

// call returns the next call, and its rule.
func (c *caller) call(op operation) (numbered, throttler.Rule) {
	n := numbered{operation: op, number: c.next, cost: 1}
	if op == opAuthorize {
		c.next++
	}
	if c.costs {
		n.cost = 1 + c.random.IntN(4)
		n.least = c.random.IntN(n.cost + 1)
	}
	rule := c.rule
	rule.Either = slices.Clone(rule.Either)
	rule.Either[0].Cost, rule.Either[0].Least = n.cost, n.least
	return n, rule
}

// giveBack carries out an op on a call that was counted.
func (c *caller) giveBack(ctx context.Context, op operation) (numbered, reply) {
	i := c.random.IntN(len(c.counted))
	of := c.counted[i]
	n := numbered{operation: op, number: of.numbered, cost: of.total}
	var r reply
	switch op {
	case opCancel:
		of.total = 0
		r.Failed = c.throttler.Cancel(ctx, of.decision) != nil
	case opRelease:
		of.total = 0
		r.Failed = c.throttler.Hold(ctx, of.decision).Release(ctx) != nil
	case opRenew:
		err := c.throttler.Renew(ctx, of.decision)
		r.Lost = errors.Is(err, throttler.ErrLeaseLost)
		r.Failed = err != nil && !r.Lost
	default:
		of.total += map[operation]int{opMore: 2, opLess: -1}[op]
		r = c.reply(c.throttler.Settle(ctx, of.decision, map[string]int{"c": of.total}))
	}
	if of.total == 0 {
		c.counted = slices.Delete(c.counted, i, i+1)
	}
	return n, r
}

func (c *caller) reply(d throttler.Decision, err error) reply {
	if err != nil || d.Err != nil {
		return reply{Failed: true}
	}
	o := d.Outcomes[0]
	return reply{Blocked: o.Blocked, Banned: o.Banned, Cost: o.Cost, Remaining: o.Remaining}
}

func (c *caller) look() reply {
	of := c.rule.Either[0]
	item, err := c.client.Get(throttler.RecordKey(c.rule.Identifier, of.Name, of.Value))
	if errors.Is(err, memcache.ErrCacheMiss) {
		return reply{Remaining: sessionMax}
	}
	if err != nil {
		return reply{Failed: true}
	}
	r, err := throttler.Inspect(item.Value)
	return reply{Failed: err != nil, Banned: !r.BannedUntil.IsZero(), Remaining: sessionMax - len(r.Expiries)}
}

// session has several callers, in as many processes as there are clients, make calls
// on a record of their own, and returns what they did. Callers of one process are
// decided together. In the end they cancel what they can, and one looks at what is left.
func (m mix) session(t *testing.T, calls int, clients []throttler.Client) []porcupine.Operation {
	processes := make([]*throttler.Throttler, len(clients))
	for i, client := range clients {
		processes[i] = throttler.New(client)
	}
	each, rule, begin := make([][]porcupine.Operation, sessionClients), m.rule(), time.Now()
	var do [sessionClients]func(operation)
	var wg sync.WaitGroup
	for id := range each {
		process := id % len(clients)
		c := m.newCaller(id, rule, clients[process], processes[process])
		do[id] = func(op operation) {
			call := time.Since(begin)
			n, reply := c.do(op)
			each[id] = append(each[id], porcupine.Operation{
				ClientId: id, Input: n, Call: int64(call), Output: reply, Return: int64(time.Since(begin)),
			})
		}
		wg.Go(func() {
			for range calls {
				do[id](m.pick(c.random))
			}
			for m.weights[opCancel] > 0 && len(c.counted) > 0 {
				do[id](opCancel)
			}
		})
	}
	wg.Wait()
	do[0](opPeek)
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

func TestCallsAreLinearizable(t *testing.T) {
	t.Parallel()
	server, store := servertest.AnyMemcached(t), memstore.New()
	plain := func(t *testing.T) throttler.Client { return clientOf(t, server.Addr) }
	over := func(t *testing.T) throttler.Client { return poolOf(t, server) }
	embedded := func(*testing.T) throttler.Client { return store }
	for kind, processes := range map[string][]func(*testing.T) throttler.Client{
		"memstore": {embedded, embedded}, "plain": {plain, plain, plain}, "pool": {over, over, over}, "mixed": {over, plain, plain},
	} {
		for name, m := range mixes {
			t.Run(kind+"/"+name, func(t *testing.T) {
				var clients []throttler.Client
				for _, process := range processes {
					clients = append(clients, process(t))
				}
				require.Equal(t, porcupine.Ok, m.check(t, 30, porcupine.Ok, clients...))
			})
		}
	}
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
