package throttler_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/internal/servertest"
	"github.com/anishathalye/porcupine"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// What holds of calls that guess, and are decided together, while connections
// break, servers restart and callers leave.

// A happening is one call of a session in which calls may fail.
type happening struct {
	numbered
	maybe bool // it failed: it may have taken effect, then or later
}

// doubtful is the model of calls that may fail: a call without an error answers and
// counts as ever, one with an error may have done so.
func (m mix) doubtful() porcupine.Model {
	model := porcupine.NondeterministicModel{
		Init: func() []any { return []any{content{}} },
		Step: func(state, input, output any) []any {
			h := input.(happening)
			want, next := h.on(state.(content), m.bans)
			switch {
			case h.maybe:
				return []any{state, next}
			case output.(reply) == want:
				return []any{next}
			}
			return nil
		},
		Equal: func(a, b any) bool { return a == b },
	}
	return model.ToModel()
}

// A witness notes what several callers do and are told.
type witness struct {
	begin time.Time

	mu      sync.Mutex
	history []porcupine.Operation
	failed  int
}

// note adds one call. What has failed may be carried out at any time, and a write
// whose answer was lost even twice: once unknown, and once again. So whose hits they are is
// not told.
func (w *witness) note(id int, n numbered, r reply, call time.Duration) {
	n.number = 0
	w.mu.Lock()
	defer w.mu.Unlock()
	o := porcupine.Operation{ClientId: id, Input: happening{numbered: n}, Call: int64(call), Output: r, Return: int64(time.Since(w.begin))}
	if !r.Failed {
		w.history = append(w.history, o)
		return
	}
	w.failed++
	if n.operation == opPeek || n.operation == opLook {
		return
	}
	o.Return = math.MaxInt64
	for range 2 {
		o.ClientId, o.Input = 1000+len(w.history), happening{n, true}
		w.history = append(w.history, o)
	}
}

// Connections are cut in the middle of what several callers have sent together, and
// some of the callers leave in the middle of a batch.
func TestCallsAreLinearizableWhileConnectionsBreakAndCallersLeave(t *testing.T) {
	t.Parallel()
	server := servertest.AnyMemcached(t)
	for _, name := range []string{"window with Cancel", "bans despite Cancel", "bucket"} {
		m := mixes[name]
		t.Run(name, func(t *testing.T) {
			failed, calls := 0, 0
			for range 40 {
				w := m.troubled(t, server, 0.06, false)
				failed, calls = failed+w.failed, calls+len(w.history)
			}
			require.NotZero(t, failed)
			t.Logf("%d calls, %d failed", calls, failed)
		})
	}
}

// A restart forgets all hits and bans, as a Reset does. Hits are not cancelled here:
// those of before are gone.
func TestCallsAreLinearizableWhileTheServerRestarts(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"window", "window with bans", "bucket"} {
		m := mixes[name]
		t.Run(name, func(t *testing.T) {
			server := servertest.NewMemcached(t)
			shown := false
			for range 10 {
				w := m.troubled(t, server, 0, true)
				shown = shown || w.admitted() > sessionMax
			}
			require.True(t, shown, "that there was a restart")
		})
	}
}

// restarter is the client that a restart of the server is noted for.
const restarter = 100

// admitted returns how many calls were told that they were counted. Where nothing is given
// back, more than sessionMax are only after a restart.
func (w *witness) admitted() (n int) {
	for _, o := range w.history {
		if h := o.Input.(happening); h.operation == opAuthorize && !h.maybe && !o.Output.(reply).Blocked {
			n++
		}
	}
	return n
}

// calls returns the number of calls that have ended.
func (w *witness) calls() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.history) + w.failed
}

// troubled returns a linearizable session over two pools, with callers that leave. A share
// of the requests meets a fault. With restart, the server restarts in the middle, and
// those whose calls fail wait for it.
func (m mix) troubled(t *testing.T, server *servertest.Memcached, share float64, restart bool) (w *witness) {
	t.Helper()
	result, info := judge(t, m.doubtful(), 12, decidedWithin, func(calls int) []porcupine.Operation {
		w = m.trouble(t, server, calls, share, restart)
		return w.history
	})
	if result != porcupine.Ok {
		m.show(t, info)
	}
	require.Equal(t, porcupine.Ok, result)
	return w
}

// trouble makes a session of troubled.
func (m mix) trouble(t *testing.T, server *servertest.Memcached, calls int, share float64, restart bool) *witness {
	t.Helper()
	var met atomic.Int64 // faults
	w := &witness{begin: time.Now()}
	rule := m.rule()
	killing, restarted := make(chan struct{}), make(chan struct{})
	var wg sync.WaitGroup
	for process := range 2 {
		p, wire := onWire(t, server)
		wire.Next = brokenAnswers(rand.New(rand.NewPCG(rand.Uint64(), 1)), share, &met)
		th := throttler.New(p)
		for i := range 3 {
			id := 3*process + i
			c := m.newCaller(id, rule, p, th)
			wg.Go(func() {
				for i := range calls {
					if restart && i == calls/2 {
						<-killing // so that there are calls after the restart, however late it is
					}
					op := m.pick(c.random)
					if op == opReset || op == opLook || op == opCancel && len(c.counted) == 0 {
						op = opAuthorize
					}
					call := time.Since(w.begin)
					if op == opAuthorize && c.random.IntN(15) == 0 {
						ctx, cancel := context.WithTimeout(context.Background(), time.Duration(c.random.IntN(300))*time.Microsecond)
						n, _ := c.call(op)
						d, err := th.Authorize(ctx, rule)
						cancel()
						w.note(id, n, c.reply(d, err), call)
						continue
					}
					n, r := c.do(op)
					w.note(id, n, r, call)
					if r.Failed && restart {
						<-restarted
					}
				}
			})
		}
	}
	if restart {
		for w.calls() < 2*calls { // of 6 times as many
			time.Sleep(50 * time.Microsecond)
		}
		call := time.Since(w.begin)
		close(killing)
		server.Kill()
		server.Start()
		w.note(restarter, numbered{operation: opReset}, reply{}, call)
		close(restarted)
	}
	wg.Wait()
	return w
}

// The tokens of a server begin anew when it restarts. A token of before that meets
// a record of after would bring hits of before back.
func TestNoRecordOfBeforeARestartComesBack(t *testing.T) {
	t.Parallel()
	server := servertest.NewMemcached(t)
	th, others := throttler.New(poolOf(t, server)), throttler.New(poolOf(t, server))
	c := limit("c", 100, time.Hour)
	rule := throttler.Rule{Identifier: uniqueID(), Either: []throttler.Condition{c}}
	three := rule
	three.Either = []throttler.Condition{costing(c, 3)}
	elsewhere := throttler.Rule{Identifier: uniqueID(), Either: []throttler.Condition{c}}
	for hits := range 5 {
		server.Kill()
		server.Start()
		peek(t, th, elsewhere)
		for range hits + 1 {
			authorize(t, th, rule)
		}
		before := tokenOf(t, server, rule)
		server.Kill()
		server.Start()
		for range hits + 1 {
			authorize(t, others, three)
		}
		require.Equal(t, before, tokenOf(t, server, rule), "or the test would show nothing")
		peek(t, th, elsewhere) // so that it has a connection to the new server
		d := authorize(t, th, rule)
		require.NoError(t, d.Err)
		require.Equal(t, []int{100 - 3*(hits+1) - 1}, remaining(d))
	}
}

// tokenOf returns the token that server gives for the record of rule's condition.
func tokenOf(t *testing.T, server *servertest.Memcached, rule throttler.Rule) string {
	t.Helper()
	c := rule.Either[0]
	answer := server.Command(t, "gets "+throttler.RecordKey(rule.Identifier, c.Name, c.Value))
	require.Len(t, answer, 2)
	fields := strings.Fields(answer[0])
	return fields[len(fields)-1]
}

// rush has 64 callers over several pools and plain clients ask for values, and
// requires that of each exactly its limit is admitted.
func rush(t *testing.T, server *servertest.Memcached, c throttler.Condition, values, calls int, clients ...throttler.Client) {
	t.Helper()
	id := uniqueID()
	admitted := make([]atomic.Int64, values)
	processes := make([]*throttler.Throttler, len(clients))
	for i, client := range clients {
		processes[i] = throttler.New(client)
	}
	var wg sync.WaitGroup
	for caller := range 64 {
		wg.Go(func() {
			for i := range calls {
				value := (caller*7 + i) % values
				one := c
				one.Value = fmt.Sprint(value)
				d, err := processes[caller%len(processes)].Authorize(context.Background(), throttler.Rule{Identifier: id, Either: []throttler.Condition{one}})
				assert.NoError(t, err)
				assert.NoError(t, d.Err)
				admitted[value].Add(int64(d.Status))
			}
		})
	}
	wg.Wait()
	for i := range admitted {
		require.EqualValues(t, c.Max, admitted[i].Load(), "value %d", i)
	}
	for _, th := range processes {
		require.Eventually(t, func() bool { // callers are told before their coalescer is released
			s := th.Stats()
			return s.Asking == 0 && s.Remembered <= values
		}, 10*time.Second, time.Millisecond, "nobody asks any more")
	}
}

func TestExactlyMaxIsAdmittedOverPoolsAndPlainClients(t *testing.T) {
	t.Parallel()
	server := servertest.AnyMemcached(t)
	eachAlgorithm(t, 20, func(t *testing.T, c throttler.Condition) {
		for values, calls := range map[int]int{1: 20, 30: 60} {
			t.Run(fmt.Sprint("values=", values), func(t *testing.T) {
				three := []throttler.Client{poolOf(t, server), poolOf(t, server), poolOf(t, server)}
				rush(t, server, c, values, calls, three...)
				rush(t, server, c, values, calls, append(three[:2], clientOf(t, server.Addr), clientOf(t, server.Addr))...)
			})
		}
	})
}

// Callers come and go, each with a ctx that ends at some moment: none is left
// hanging, and nothing of them stays.
func TestCallersWhoseContextsEndAtAnyMomentLeaveNothing(t *testing.T) {
	t.Parallel()
	server := servertest.AnyMemcached(t)
	for name, client := range map[string]throttler.Client{"pool": poolOf(t, server), "plain": clientOf(t, server.Addr)} {
		t.Run(name, func(t *testing.T) {
			th := throttler.New(client)
			one, two := limit("one", 100_000, time.Hour), limit("two", 100_000, time.Hour)
			rule := throttler.Rule{Identifier: uniqueID(), Either: []throttler.Condition{one}}
			both := throttler.Rule{Identifier: rule.Identifier, Either: []throttler.Condition{one, two}, CountAuthorizedOnly: true}
			var ended atomic.Int64
			var wg sync.WaitGroup
			for i := range 32 {
				wg.Go(func() {
					for range 100 {
						r := rule
						if i%2 == 0 {
							r = both
						}
						ctx, cancel := context.WithTimeout(context.Background(), time.Duration(rand.IntN(2000))*time.Microsecond)
						d, err := th.Authorize(ctx, r)
						assert.NoError(t, err)
						cancel()
						if errors.Is(d.Err, context.DeadlineExceeded) {
							ended.Add(1)
						} else {
							assert.NoError(t, d.Err)
						}
						assert.NoError(t, th.Cancel(context.Background(), d))
					}
				})
			}
			wg.Wait()
			require.NotZero(t, ended.Load())
			require.Eventually(t, func() bool { return th.Stats().Asking == 0 }, 20*time.Second, time.Millisecond)
			for _, o := range peek(t, th, both).Outcomes {
				require.Equal(t, o.Limit-1, o.Remaining, "all that was counted has been cancelled")
			}
		})
	}
}
