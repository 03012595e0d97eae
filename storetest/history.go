package storetest

import (
	"context"
	"math/rand/v2"
	"strconv"
	"sync"
	"time"

	"github.com/adaptivethrottler/throttler"
	"github.com/anishathalye/porcupine"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

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
