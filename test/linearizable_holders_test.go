package throttler_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/internal/servertest"
	"github.com/adaptivethrottler/throttler/memstore"
	"github.com/anishathalye/porcupine"
	"github.com/stretchr/testify/require"
)

// Histories of calls that take several hits, or as many as there are, and hold, renew and
// give them back. The model knows what each call holds, so a hit that is given back twice,
// or in the stead of another one, is found. Nothing expires meanwhile.

// A holding is an operation on the record of a condition, of the call with that number.
type holding struct {
	op          operation
	call        int
	cost, least int
}

const (
	opRelease operation = 100 + iota // Hold and Release
	opRenew
)

func (h holding) String() string {
	names := map[operation]string{opRelease: "Release", opRenew: "Renew"}
	if name, ok := names[h.op]; ok {
		return fmt.Sprintf("%s of call %d", name, h.call)
	}
	return fmt.Sprintf("%v %d: %d, at least %d", h.op, h.call, h.cost, h.least)
}

// A held is what the calls hold, by their numbers.
type held [sessionClients * sessionCalls]uint8

func (h held) sum() (n int) {
	for _, hits := range h {
		n += int(hits)
	}
	return n
}

// A holdingReply is what a holding returned.
type holdingReply struct {
	Cost      int
	Remaining int // of calls
	Lost      bool
	Failed    bool
}

// on returns what h answers where calls hold that much, and what they hold then.
func (h holding) on(now held) (holdingReply, held) {
	switch h.op {
	case opReset:
		return holdingReply{}, held{}
	case opRenew:
		return holdingReply{Lost: now[h.call] == 0}, now
	case opRelease, opCancel:
		now[h.call] = 0
		return holdingReply{}, now
	}
	left := holdingMax - now.sum()
	cost := min(h.cost, left)
	if cost < h.least || h.least == 0 && cost < h.cost {
		cost = 0
	}
	reply := holdingReply{Cost: cost, Remaining: left - cost}
	if h.op == opAuthorize {
		now[h.call] = uint8(cost)
	}
	return reply, now
}

const holdingMax = 7

// holdingMixes are conditions, and how often they are called how. Leases and the count of a
// calendar are known by more than their time, so Cancel and Reset go together, unlike in a
// window.
var holdingMixes = map[string]struct {
	condition throttler.Condition
	weights   map[operation]int
}{
	"in flight": {
		throttler.Condition{TTL: 1000 * time.Hour, Algorithm: throttler.InFlight},
		map[operation]int{opAuthorize: 12, opPeek: 2, opRelease: 6, opRenew: 3, opCancel: 3, opReset: 1},
	},
	"calendar": {
		// A period that does not end: nothing is to expire meanwhile.
		throttler.Condition{Algorithm: throttler.Calendar, Period: throttler.Period{Unit: throttler.Month, Anchor: time.Now().UTC().AddDate(0, 0, -10).Day()}},
		map[operation]int{opAuthorize: 12, opPeek: 3, opCancel: 8, opReset: 1},
	},
	"window": {
		throttler.Condition{TTL: 1000 * time.Hour},
		map[operation]int{opAuthorize: 12, opPeek: 3, opCancel: 8},
	},
}

var holdingModel = porcupine.Model{
	Init: func() any { return held{} },
	Step: func(state, input, output any) (bool, any) {
		want, next := input.(holding).on(state.(held))
		return output.(holdingReply) == want, next
	},
	DescribeOperation: func(input, output any) string { return fmt.Sprintf("%v: %+v", input, output) },
}

// A holdingCaller makes the calls of one client.
type holdingCaller struct {
	throttler *throttler.Throttler
	rule      throttler.Rule
	next      int // the number of its next call
	decisions map[int]throttler.Decision
	random    *rand.Rand
}

// do carries out op. It calls Peek where there is nothing to give back.
func (c *holdingCaller) do(op operation) (holding, holdingReply) {
	ctx := context.Background()
	h := holding{op: op}
	switch op {
	case opReset:
		return h, holdingReply{Failed: c.throttler.Reset(ctx, c.rule) != nil}
	case opRelease, opCancel, opRenew:
		for call, d := range c.decisions {
			h.call = call
			var err error
			switch op {
			case opRelease:
				delete(c.decisions, call)
				err = c.throttler.Hold(ctx, d).Release(ctx)
			case opCancel:
				delete(c.decisions, call)
				err = c.throttler.Cancel(ctx, d)
			default:
				err = c.throttler.Renew(ctx, d)
			}
			lost := errors.Is(err, throttler.ErrLeaseLost)
			return h, holdingReply{Lost: lost, Failed: err != nil && !lost}
		}
		h.op = opPeek
	}
	h.call, h.cost = c.next, 1+c.random.IntN(4)
	h.least = c.random.IntN(h.cost + 1)
	rule := c.rule
	rule.Either = slices.Clone(rule.Either)
	rule.Either[0].Cost, rule.Either[0].Least = h.cost, h.least
	call := c.throttler.Peek
	if h.op == opAuthorize {
		call, c.next = c.throttler.Authorize, c.next+1
	}
	d, err := call(ctx, rule)
	if err != nil || d.Err != nil {
		return h, holdingReply{Failed: true}
	}
	if h.op == opAuthorize && d.Status == throttler.Authorized {
		c.decisions[h.call] = d
	}
	return h, holdingReply{Cost: d.Outcomes[0].Cost, Remaining: d.Outcomes[0].Remaining}
}

// holdingSession has several callers, in as many processes as there are clients, make calls
// on a record of their own, and returns what they did. In the end they give back all, and
// one looks at what is left.
func holdingSession(t *testing.T, condition throttler.Condition, weights map[operation]int, calls int, clients []throttler.Client) []porcupine.Operation {
	condition.Name, condition.Value, condition.Max = "c", "v", holdingMax
	rule := throttler.Rule{Identifier: uniqueID(), Either: []throttler.Condition{condition}}
	processes := make([]*throttler.Throttler, len(clients))
	for i, client := range clients {
		processes[i] = throttler.New(client)
	}
	each, begin := make([][]porcupine.Operation, sessionClients), time.Now()
	var do [sessionClients]func(operation)
	var wg sync.WaitGroup
	for id := range each {
		c := &holdingCaller{
			throttler: processes[id%len(clients)], rule: rule, next: id * sessionCalls,
			decisions: map[int]throttler.Decision{}, random: rand.New(rand.NewPCG(rand.Uint64(), uint64(id))),
		}
		do[id] = func(op operation) {
			call := time.Since(begin)
			h, reply := c.do(op)
			each[id] = append(each[id], porcupine.Operation{
				ClientId: id, Input: h, Call: int64(call), Output: reply, Return: int64(time.Since(begin)),
			})
		}
		wg.Go(func() {
			for range calls {
				do[id](mix{weights: weights}.pick(c.random))
			}
			for len(c.decisions) > 0 {
				do[id](opCancel)
			}
		})
	}
	wg.Wait()
	do[0](opPeek)
	history := slices.Concat(each...)
	for _, h := range history {
		require.False(t, h.Output.(holdingReply).Failed, "%v", h.Input)
	}
	return history
}

// checkHoldings judges up to n sessions, until one does not come to Ok.
func checkHoldings(t *testing.T, condition throttler.Condition, weights map[operation]int, n int, clients ...throttler.Client) porcupine.CheckResult {
	for range n {
		result, info := judge(t, holdingModel, sessionCalls, decidedWithin, func(calls int) []porcupine.Operation {
			return holdingSession(t, condition, weights, calls, clients)
		})
		if result != porcupine.Ok {
			t.Logf("%v", info.PartialLinearizations())
			return result
		}
	}
	return porcupine.Ok
}

func TestHoldingsAreLinearizable(t *testing.T) {
	t.Parallel()
	server := servertest.AnyMemcached(t)
	store := memstore.New()
	for kind, clients := range map[string]func() []throttler.Client{
		"memstore": func() []throttler.Client { return []throttler.Client{store, store} },
		"plain": func() []throttler.Client {
			return []throttler.Client{clientOf(t, server.Addr), clientOf(t, server.Addr)}
		},
		"pool":  func() []throttler.Client { return []throttler.Client{poolOf(t, server), poolOf(t, server)} },
		"mixed": func() []throttler.Client { return []throttler.Client{poolOf(t, server), clientOf(t, server.Addr)} },
	} {
		for name, m := range holdingMixes {
			t.Run(kind+"/"+name, func(t *testing.T) {
				require.Equal(t, porcupine.Ok, checkHoldings(t, m.condition, m.weights, 40, clients()...))
			})
		}
	}
}

// The check must find what it is there for.
func TestLostUpdatesOfHoldingsAreNotLinearizable(t *testing.T) {
	t.Parallel()
	server := servertest.AnyMemcached(t)
	for name, m := range holdingMixes {
		t.Run(name, func(t *testing.T) {
			clients := []throttler.Client{racyClient{clientOf(t, server.Addr)}, racyClient{clientOf(t, server.Addr)}}
			require.Equal(t, porcupine.Illegal, checkHoldings(t, m.condition, m.weights, 1000, clients...))
		})
	}
}
