package throttler_test

import (
	"bufio"
	"compress/gzip"
	"context"
	"encoding/json"
	"os"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/memstore"
	"github.com/stretchr/testify/require"
)

// A trace is a recorded session of Schedule::AdaptiveThrottler 0.06, with the
// clock and the store simulated: the rules, and 150 calls with their answers.
type trace struct {
	Rules []struct {
		Identifier string
		Kind       string // "either" or "all"
		Lockout    int    // seconds
		Conditions []struct {
			Name    string
			Max     int
			TTL     int // seconds
			Message string
		}
	}
	Calls []struct {
		T        int // seconds since the trace began
		Rule     int
		Values   map[string]string // by condition
		Status   throttler.Status
		Messages []string // sorted
	}
}

func readTraces(t *testing.T) []trace {
	f, err := os.Open("testdata/perl-original.jsonl.gz")
	require.NoError(t, err)
	defer f.Close()
	unzipped, err := gzip.NewReader(f)
	require.NoError(t, err)
	var traces []trace
	lines := bufio.NewScanner(unzipped)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var tr trace
		require.NoError(t, json.Unmarshal(lines.Bytes(), &tr))
		traces = append(traces, tr)
	}
	require.NoError(t, lines.Err())
	return traces
}

// rule returns the rule of call i, with its values.
func (tr *trace) rule(i int) throttler.Rule {
	call := tr.Calls[i]
	recorded := tr.Rules[call.Rule]
	var conditions []throttler.Condition
	for _, c := range recorded.Conditions {
		conditions = append(conditions, throttler.Condition{
			Name:    c.Name,
			Value:   call.Values[c.Name],
			Max:     c.Max,
			TTL:     time.Duration(c.TTL) * time.Second,
			Message: c.Message,
		})
	}
	rule := throttler.Rule{
		Identifier: recorded.Identifier,
		Lockout:    time.Duration(recorded.Lockout) * time.Second,
	}
	if recorded.Kind == "all" {
		rule.All = conditions
	} else {
		rule.Either = conditions
	}
	return rule
}

func TestEveryRecordedCallOfTheOriginalIsAnsweredAlike(t *testing.T) {
	traces := readTraces(t)
	require.Len(t, traces, 60)
	answers := map[throttler.Status]int{}
	for n, tr := range traces {
		synctest.Test(t, func(t *testing.T) {
			th := throttler.New(memstore.New())
			start := time.Now()
			for i, call := range tr.Calls {
				time.Sleep(time.Until(start.Add(time.Duration(call.T) * time.Second)))
				d, err := th.Authorize(context.Background(), tr.rule(i))
				require.NoError(t, err)
				require.NoError(t, d.Err)
				require.Equal(t, call.Status, d.Status, "trace %d, call %d", n, i)
				require.ElementsMatch(t, call.Messages, d.Messages, "trace %d, call %d", n, i)
				require.True(t, slices.Equal(d.Messages, inOrder(tr.rule(i), d.Messages)), "messages out of order")
				answers[d.Status]++
			}
		})
	}
	// So many calls were recorded, and of both kinds enough to mean something.
	require.Equal(t, 60*150, answers[throttler.Authorized]+answers[throttler.Blocked])
	require.Greater(t, answers[throttler.Blocked], 1000)
	require.Greater(t, answers[throttler.Authorized], 1000)
}

// inOrder returns the messages in the order that the rule's conditions have.
func inOrder(rule throttler.Rule, messages []string) []string {
	var ordered []string
	for _, c := range append(rule.Either, rule.All...) {
		if slices.Contains(messages, c.Message) {
			ordered = append(ordered, c.Message)
		}
	}
	return ordered
}
