package main

import (
	"context"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestTheCallersOfAFleetAreSpreadOverItsClients(t *testing.T) {
	opened := make(map[*int]int) // calls of each client
	closed := 0
	s := fleetOf(system{open: func(env, limit) (limiter, error) {
		id := new(int)
		opened[id] = 0
		return simple(func(context.Context, string) (bool, error) { opened[id]++; return true, nil }, func() { closed++ }), nil
	}})
	l, err := s.open(env{}, limit{})
	require.NoError(t, err)
	for range 3 * fleetClients {
		l.caller()(t.Context(), "value")
	}
	assert.Len(t, opened, fleetClients)
	for _, calls := range opened {
		assert.Equal(t, 3, calls)
	}
	l.close()
	assert.Equal(t, fleetClients, closed)
}
