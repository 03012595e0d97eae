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
	return newCrowd(simple(func(context.Context, string) (bool, error) {
		n++
		time.Sleep(took(n))
		return true, answer
	}, func() {}), system{}, anything, 1)
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
		w, err := arriving(100)(c, context.Background(), time.Second)
		require.NoError(t, err)
		require.Equal(t, 100, w.decisions)
		assert.Equal(t, []time.Duration{0, 490 * time.Millisecond, 500 * time.Millisecond}, []time.Duration{w.half, w.p99, w.p999})
	})
}

func TestWhoCannotKeepTheRateIsNotWaitedForForEver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		w, err := arriving(100)(lagging(func(int) time.Duration { return 100 * time.Millisecond }, nil), context.Background(), time.Second)
		require.NoError(t, err)
		assert.Equal(t, 2100*time.Millisecond, time.Since(begin))
		assert.Greater(t, w.p99, time.Second)
	})
}

func TestAWrongAnswerEndsAnOpenLoop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		wrong := errors.New("down")
		begin := time.Now()
		_, err := arriving(100)(lagging(func(int) time.Duration { return 0 }, wrong), context.Background(), time.Second)
		require.ErrorIs(t, err, wrong)
		assert.Zero(t, time.Since(begin))
	})
}
