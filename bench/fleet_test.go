package main

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestTheCallersOfAFleetAreSpreadOverItsClients(t *testing.T) {
	opened := make(map[*int]int) // calls of each client
	closed := 0
	s := fleetOf(system{open: func(env, limit) (limiter, error) {
		id := new(int)
		opened[id] = 0
		return &simple{allow: func(context.Context, string) (bool, error) { opened[id]++; return true, nil }, end: func() { closed++ }}, nil
	}})
	l, err := s.open(env{}, limit{})
	require.NoError(t, err)
	for range 3 * fleetClients {
		l.caller()("value")
	}
	assert.Len(t, opened, fleetClients)
	for _, calls := range opened {
		assert.Equal(t, 3, calls)
	}
	l.close()
	assert.Equal(t, fleetClients, closed)
}

func TestTheTableOfAFleetComparesWithTheFasterScript(t *testing.T) {
	took := func(s system, each, p99 time.Duration, trips float64) result {
		return result{system: s, rounds: []round{{decisions: 10, wall: 10 * each, p99: p99}}, trips: trips}
	}
	results := []result{
		took(poolWindow, 6*time.Microsecond, time.Millisecond, 1.4),
		took(rueidisBucket, 12*time.Microsecond, 2*time.Millisecond, 1),
		took(rueidisLog, 10*time.Microsecond, 3*time.Millisecond, 1),
	}
	table := fleetTable([]work{spread}, map[string][]result{spread.name: results})
	assert.Equal(t, []string{"limiter", "algorithm", "spread: µs", "p99, µs", "client's CPU, µs", "round trips", "ratio"}, table.head)
	assert.Equal(t, [][]string{
		{"throttler, pool", "sliding window", "6.0", "1000", "0.00", "1.4", "0.60 (0.60–0.60)"},
		{"rueidis, Lua", "GCRA", "12", "2000", "0.00", "1.0", "1.2 (1.2–1.2)"},
		{"rueidis, Lua", "sorted-set log", "10", "3000", "0.00", "1.0", "1.0 (1.0–1.0)"},
	}, table.rows)
}
