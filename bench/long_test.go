package main

import (
	"testing"
	"time"

	"github.com/adaptivethrottler/throttler"
	"github.com/stretchr/testify/require"
)

func TestLongWindowsHoldTheirHits(t *testing.T) {
	now := time.Now()
	for _, hits := range []int{50, 1000, 10_000, 100_000} {
		r, err := throttler.Inspect(longWindow(now, hits, time.Hour))
		require.NoError(t, err)
		require.Len(t, r.Expiries, hits)
		first, last := r.Expiries[0], r.Expiries[hits-1]
		require.True(t, first.After(now))
		require.WithinDuration(t, now.Add(time.Hour), last, 2*time.Hour/50)
		middle := r.Expiries[hits/2]
		require.WithinDuration(t, now.Add(time.Hour/2), middle, 2*time.Hour/50, "they are spread")
	}
}
