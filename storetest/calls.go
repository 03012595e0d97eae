package storetest

import (
	"context"
	"errors"
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/adaptivethrottler/throttler"
	"github.com/anishathalye/porcupine"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// exactness checks that many callers are admitted exactly Max.
func (s *suite) exactness() {
	for _, algorithm := range []throttler.Algorithm{throttler.SlidingWindow, throttler.LeakyBucket} {
		rule := s.rule("crowd"+strconv.Itoa(int(algorithm)), 40)
		rule.Either[0].Algorithm = algorithm
		rule.Either[0].TTL = 1000 * time.Hour // no hit leaks meanwhile
		require.Equal(s, 40, len(s.crowd(rule, 16, 8)), "admitted of a Max of 40")
	}
	rule := s.rule("canceled", 40)
	hits := s.crowd(rule, 16, 8)
	require.Len(s, hits, 40)
	var wg sync.WaitGroup
	for i, d := range hits {
		if i%2 == 0 {
			wg.Go(func() { assert.NoError(s, s.throttlers()[i/2%2].Cancel(context.Background(), d)) })
		}
	}
	wg.Wait()
	require.Len(s, s.crowd(rule, 16, 8), 20, "admitted after 20 were canceled")

	two := s.rule("one", 30)
	two.All = append(two.Either, throttler.Condition{Name: "other", Value: "two", Max: 30, TTL: time.Hour})
	two.Either = nil
	s.crowd(two, 8, 8)
	for _, c := range two.All {
		d, err := s.throttlers()[1].Peek(context.Background(), throttler.Rule{Identifier: s.space, Either: []throttler.Condition{c}})
		require.NoError(s, err)
		require.NoError(s, d.Err)
		require.Equal(s, throttler.Blocked, d.Status)
		c.Max++
		d, err = s.throttlers()[0].Peek(context.Background(), throttler.Rule{Identifier: s.space, Either: []throttler.Condition{c}})
		require.NoError(s, err)
		require.Equal(s, throttler.Authorized, d.Status, "a hit too many is stored")
	}
}

// crowd has goroutines call rule at once, over both clients, and returns the decisions
// of those that were admitted. None may fail.
func (s *suite) crowd(rule throttler.Rule, goroutines, calls int) (admitted []throttler.Decision) {
	var mu sync.Mutex
	var wg sync.WaitGroup
	for _, th := range s.throttlers() {
		for range goroutines / 2 {
			wg.Go(func() {
				for range calls {
					d, err := th.Authorize(context.Background(), rule)
					if !assert.NoError(s, err) || !assert.NoError(s, d.Err) {
						return
					}
					if d.Status == throttler.Authorized {
						mu.Lock()
						admitted = append(admitted, d)
						mu.Unlock()
					}
				}
			})
		}
	}
	wg.Wait()
	return admitted
}

// A step is one call of a history.
type step int

const (
	authorize step = iota
	peek
	cancel // of a hit of the same caller
)

// A reply is what a step returned.
type reply struct {
	blocked   bool
	remaining int
}

const historyMax = 4

// history is the model of calls of one record: its state is the number of hits.
var history = porcupine.Model{
	Init: func() any { return 0 },
	Step: func(state, input, output any) (bool, any) {
		hits := state.(int)
		switch step := input.(step); {
		case step == cancel:
			return hits > 0, hits - 1
		case hits == historyMax:
			return output == reply{blocked: true}, hits
		case step == peek:
			return output == reply{remaining: historyMax - hits - 1}, hits
		}
		return output == reply{remaining: historyMax - hits - 1}, hits + 1
	},
}

// linearizability checks that concurrent calls answer as if each was made at a moment
// between its begin and its end.
func (s *suite) linearizability() {
	for i := range 20 {
		operations := s.record(s.rule("history"+strconv.Itoa(i), historyMax))
		require.Equal(s, porcupine.Ok, porcupine.CheckOperationsTimeout(history, operations, time.Minute),
			"the answers fit no order of the calls: a write was lost, or a read was stale")
	}
}

// record has callers make calls of rule at random, and returns what they did.
func (s *suite) record(rule throttler.Rule) (operations []porcupine.Operation) {
	begin := time.Now()
	var mu sync.Mutex
	var wg sync.WaitGroup
	for i, th := range append(s.throttlers(), s.throttlers()...) {
		wg.Go(func() {
			var hits []throttler.Decision
			for range 10 {
				o := porcupine.Operation{ClientId: i, Input: step(rand.IntN(3)), Call: int64(time.Since(begin))}
				if o.Input == cancel && len(hits) == 0 {
					o.Input = authorize
				}
				d, err := s.take(th, rule, o.Input.(step), &hits)
				o.Return = int64(time.Since(begin))
				if !assert.NoError(s, err) || !assert.NoError(s, d.Err) {
					return
				}
				o.Output = reply{d.Status == throttler.Blocked, remaining(d)}
				mu.Lock()
				operations = append(operations, o)
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	return operations
}

// take makes one step. hits are those of the caller that are not canceled.
func (s *suite) take(th *throttler.Throttler, rule throttler.Rule, step step, hits *[]throttler.Decision) (throttler.Decision, error) {
	switch step {
	case cancel:
		last := len(*hits) - 1
		d := (*hits)[last]
		*hits = (*hits)[:last]
		return throttler.Decision{Status: throttler.Authorized}, th.Cancel(context.Background(), d)
	case peek:
		return th.Peek(context.Background(), rule)
	}
	d, err := th.Authorize(context.Background(), rule)
	if err == nil && d.Status == throttler.Authorized {
		*hits = append(*hits, d)
	}
	return d, err
}

func remaining(d throttler.Decision) int {
	if len(d.Outcomes) == 0 {
		return 0
	}
	return d.Outcomes[0].Remaining
}

// context checks that calls end with their ctx, whatever becomes of them.
func (s *suite) context() {
	rule := s.rule("context", 50)
	ended, end := context.WithCancel(context.Background())
	end()
	begun := time.Now()
	d, err := throttler.New(s.a).Authorize(ended, rule)
	require.NoError(s, err)
	require.ErrorIs(s, d.Err, context.Canceled)
	require.Less(s, time.Since(begun), time.Second)

	var admitted atomic.Int64
	var wg sync.WaitGroup
	for i, th := range append(s.throttlers(), s.throttlers()...) {
		random := rand.New(rand.NewPCG(uint64(i), 0))
		wg.Go(func() {
			for range 40 {
				ctx, cancel := context.WithTimeout(context.Background(), time.Duration(random.IntN(400))*time.Microsecond)
				d, err := th.Authorize(ctx, rule)
				cancel()
				if assert.NoError(s, err) && d.Err == nil && d.Status == throttler.Authorized {
					admitted.Add(1)
				}
			}
		})
	}
	wg.Wait()
	require.LessOrEqual(s, admitted.Load(), int64(50))
	s.crowd(rule, 16, 8)
	require.Empty(s, s.crowd(rule, 4, 1), "the limit is full")
}

// overload checks that many callers at once all get an answer, and are admitted no more
// than Max.
func (s *suite) overload() {
	rules := make([]throttler.Rule, 20)
	admitted := make([]atomic.Int64, len(rules))
	for i := range rules {
		rules[i] = s.rule("overload"+strconv.Itoa(i), 10)
	}
	var wg sync.WaitGroup
	for range 500 {
		for _, th := range []*throttler.Throttler{throttler.New(s.a), throttler.New(s.b)} {
			wg.Go(func() {
				i := rand.IntN(len(rules))
				d, err := th.Authorize(context.Background(), rules[i])
				switch {
				case !assert.NoError(s, err):
				case d.Err != nil:
					assert.True(s, errors.Is(d.Err, throttler.ErrOverloaded) || errors.Is(d.Err, throttler.ErrUnavailable), "%v", d.Err)
				case d.Status == throttler.Authorized:
					admitted[i].Add(1)
				}
			})
		}
	}
	wg.Wait()
	for i := range admitted {
		require.LessOrEqual(s, admitted[i].Load(), int64(10))
	}
}
