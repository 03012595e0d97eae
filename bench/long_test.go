package main

import (
	"bytes"
	"testing"
	"time"

	"github.com/adaptivethrottler/throttler"
	"github.com/stretchr/testify/require"
)

func TestLongWindowsHoldTheirHits(t *testing.T) {
	now := time.Now()
	for _, hits := range longHits {
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

func TestTableOfLongWindowsSetsEachBesideGCRA(t *testing.T) {
	var scenes [][][]result
	for range longHits {
		scenes = append(scenes, [][]result{{took(poolWindow, 10), took(rueidisBucket, 20)}, {took(poolWindow, 40), took(rueidisBucket, 20)}})
	}
	var out bytes.Buffer
	longTable(longHits, scenes).write(&out)
	require.Contains(t, out.String(), "| 10000 | throttler, pool | sliding window | 10 / 40 | 30 / 120 | 0.50 (0.50–0.50) | 2.0 (2.0–2.0) |\n")

	out.Reset()
	longTable(longHits, [][][]result{{{took(poolWindow, 10)}, {took(poolWindow, 10)}}}).write(&out)
	require.Contains(t, out.String(), "| 50 | throttler, pool | sliding window | 10 / 10 | 30 / 30 | - | - |\n", "Redis is not installed")
}
