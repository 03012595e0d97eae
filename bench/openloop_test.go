package main

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// lagging is a crowd of one caller, whose calls take what took says of their number.
func lagging(took func(n int) time.Duration, answer error) *crowd {
	n := 0
	allow := func(string) (bool, error) {
		n++
		time.Sleep(took(n))
		return true, answer
	}
	return newCrowd(&simple{allow: func(_ context.Context, value string) (bool, error) { return allow(value) }, end: func() {}}, spread, 1)
}

func TestCallsOfAnOpenLoopCountFromWhenTheyAreDue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		// Every 10 ms one, and the first takes as long as 50: all that come meanwhile are
		// late by what is left of it.
		c := lagging(func(n int) time.Duration {
			if n == 1 {
				return 500 * time.Millisecond
			}
			return 0
		}, nil)
		w, err := c.arrive(context.Background(), 100, time.Second)
		require.NoError(t, err)
		require.Len(t, c.callers[0].counts, 100)
		assert.Equal(t, wait{half: 0, p99: 490 * time.Millisecond, p999: 500 * time.Millisecond}, w)
	})
}

func TestWhoCannotKeepTheRateIsNotWaitedForForEver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		w, err := lagging(func(int) time.Duration { return 100 * time.Millisecond }, nil).arrive(context.Background(), 100, time.Second)
		require.NoError(t, err)
		assert.Equal(t, 2100*time.Millisecond, time.Since(begin))
		assert.Greater(t, w.p99, time.Second)
	})
}

func TestAWrongAnswerEndsAnOpenLoop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		wrong := errors.New("down")
		begin := time.Now()
		_, err := lagging(func(int) time.Duration { return 0 }, wrong).arrive(context.Background(), 100, time.Second)
		require.ErrorIs(t, err, wrong)
		assert.Zero(t, time.Since(begin))
	})
}

func TestTheTableOfTheOpenLoopHasMediansOfTheRounds(t *testing.T) {
	of := func(ms ...time.Duration) (r openResult) {
		r.system = poolWindow
		for _, n := range ms {
			r.waits = append(r.waits, wait{n * time.Millisecond, 10 * n * time.Millisecond, 100 * n * time.Millisecond})
		}
		return r
	}
	table := openTable([][]openResult{{of(3, 1, 2)}, {of(5)}})
	assert.Equal(t, []string{"limiter", "algorithm", "10,000 a second", "20,000 a second"}, table.head)
	assert.Equal(t, [][]string{{poolWindow.name, poolWindow.how, "2.0 / 20 / 200", "5.0 / 50 / 500"}}, table.rows)
}
