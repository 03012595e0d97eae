package main

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

func TestTheTableOfSeveralConditionsComparesOursWithTheScript(t *testing.T) {
	p := pairOf(8)
	took := func(s system, each time.Duration) result {
		return result{system: s, rounds: []round{{decisions: 10, wall: 10 * each, allocs: 250}}}
	}
	scenes := [][]result{
		{took(p.ours, 80*time.Microsecond), took(p.script, 100*time.Microsecond)},
		{took(p.ours, 10*time.Microsecond), took(p.script, 40*time.Microsecond)},
	}
	table := severalTable([][][]result{scenes})
	assert.Equal(t, []string{"limiter", "algorithm", "µs a call", "allocations", "ratio, 1 caller", "ratio, 64 callers"}, table.head)
	assert.Equal(t, [][]string{
		{"throttler, pool", "8 sliding windows", "80 / 10", "25 / 25", "0.80 (0.80–0.80)", "0.25 (0.25–0.25)"},
		{"rueidis, Lua", "GCRA of 8 keys", "100 / 40", "25 / 25", "", ""},
	}, table.rows)
}
