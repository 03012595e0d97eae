package upstream_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/adaptivethrottler/throttler/internal/upstream"
	"github.com/stretchr/testify/require"
)

// Each step is a reading, a minute after the one before, and what the server has forgotten
// by it.
func TestWhatAServerCountsTellsWhatItHasForgotten(t *testing.T) {
	type step struct {
		reading upstream.Reading
		loss    upstream.Loss
	}
	counts := func(run string, flushAll, flushDB, evictions int64) upstream.Reading {
		return upstream.Reading{Run: run, Flushes: [2]int64{flushAll, flushDB}, Evictions: evictions}
	}
	since := func(r upstream.Reading, uptime time.Duration) upstream.Reading {
		r.Uptime = uptime
		return r
	}
	for name, steps := range map[string][]step{
		"the first reading is what others are compared with": {
			{counts("a", 5, 4, 3), upstream.Loss{}},
			{counts("a", 5, 4, 3), upstream.Loss{}},
			{counts("a", 6, 6, 13), upstream.Loss{Flushes: 3, Evictions: 10}},
		},
		"a new run counts from 0": {
			{counts("a", 5, 4, 3), upstream.Loss{}},
			{counts("b", 0, 0, 0), upstream.Loss{Restarts: 1}},
			{counts("c", 6, 0, 5), upstream.Loss{Restarts: 1, Flushes: 6, Evictions: 5}},
		},
		"so do counts that are reset": {
			{counts("a", 1, 0, 1000), upstream.Loss{}},
			{counts("a", 0, 0, 900), upstream.Loss{Evictions: 900}},
			{counts("a", 1, 0, 900), upstream.Loss{Flushes: 1}},
		},
		"one that has fallen tells that all are": {
			{counts("a", 2, 3, 1000), upstream.Loss{}},
			{counts("a", 2, 4, 10), upstream.Loss{Flushes: 6, Evictions: 10}},
			{counts("a", 1, 4, 20), upstream.Loss{Flushes: 5, Evictions: 20}},
		},
		"a replica that takes over has counted what was told": {
			{since(counts("a", 1, 0, 0), time.Hour), upstream.Loss{}},
			{since(counts("a", 2, 0, 0), time.Hour+time.Minute), upstream.Loss{Flushes: 1}},
			{since(counts("b", 2, 0, 0), 3*time.Hour), upstream.Loss{Restarts: 1}},
			{since(counts("b", 3, 0, 0), 3*time.Hour+time.Minute), upstream.Loss{Flushes: 1}},
			{since(counts("c", 1, 0, 7), 59*time.Second), upstream.Loss{Restarts: 1, Flushes: 1, Evictions: 7}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var m upstream.Memory
				var sum upstream.Loss
				for i, s := range steps {
					loss, err := m.Ask(context.Background(), func() (upstream.Reading, error) { return s.reading, nil })
					require.NoError(t, err)
					require.Equal(t, s.loss, loss, "step %d", i)
					sum.Restarts += loss.Restarts
					sum.Flushes += loss.Flushes
					sum.Evictions += loss.Evictions
					all, _, _ := m.Known()
					require.Equal(t, sum, all)
					time.Sleep(time.Minute)
				}
			})
		})
	}
}

func TestTheMemoryOfAServerThatDoesNotAnswerIsNotKnown(t *testing.T) {
	var m upstream.Memory
	ask := func(err error) {
		_, got := m.Ask(context.Background(), func() (upstream.Reading, error) { return upstream.Reading{Bytes: 1, MaxBytes: 2}, err })
		require.ErrorIs(t, got, err)
	}
	ask(nil)
	_, bytes, most := m.Known()
	require.EqualValues(t, 1, bytes)
	require.EqualValues(t, 2, most)
	ask(errors.New("away"))
	_, bytes, most = m.Known()
	require.Zero(t, bytes)
	require.Zero(t, most)
}
