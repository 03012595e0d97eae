package tally_test

import (
	"math/rand/v2"
	"strconv"
	"testing"

	"github.com/adaptivethrottler/throttler/tally"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// checkGuarantees compares what counts says of the values blocked by block with
// exact, which has the right number for each.
func checkGuarantees(t require.TestingT, counts *tally.Tally, exact map[string]uint64) {
	s := snapshotOf(counts)
	require.Len(t, s.Rules, 1)
	c := s.Rules[0].Conditions[0]
	k, n := counts.MaxValues, c.Blocked
	require.Len(t, c.Values, min(k, len(exact)), "as many values as there is room for")
	require.LessOrEqual(t, c.Unlisted, n/uint64(k), "N/k")
	listed := make(map[string]bool)
	var sum uint64
	for i, v := range c.Values {
		require.False(t, listed[v.Value], "%q twice", v.Value)
		listed[v.Value] = true
		sum += v.Count
		require.LessOrEqual(t, exact[v.Value], v.Count, "%q at most", v.Value)
		require.GreaterOrEqual(t, exact[v.Value], v.Count-v.Error, "%q at least", v.Value)
		require.Less(t, v.Error, v.Count, "%q was blocked", v.Value)
		require.LessOrEqual(t, v.Error, c.Unlisted, "error of %q", v.Value)
		if i > 0 {
			require.GreaterOrEqual(t, c.Values[i-1].Count, v.Count, "order")
		}
	}
	require.Equal(t, n, sum, "the counts add up to N")
	for value, times := range exact {
		if !listed[value] {
			require.LessOrEqual(t, times, c.Unlisted, "%q is missing", value)
		}
	}
}

func TestPropertyNoErrorIsAboveTheCallsPerCounter(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		counts := tally.New()
		counts.MaxValues = rapid.IntRange(1, 12).Draw(t, "k")
		exact := make(map[string]uint64)
		runs := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) [2]int {
			return [2]int{rapid.IntRange(0, 30).Draw(t, "value"), rapid.IntRange(1, 9).Draw(t, "times")}
		}), 1, 200).Draw(t, "runs")
		for _, run := range runs {
			value := strconv.Itoa(run[0])
			for range run[1] {
				block(counts, value)
				exact[value]++
			}
		}
		checkGuarantees(t, counts, exact)
	})
}

// Heavy values among a million others, which never come twice: the heavy ones
// are found, and no more is kept than was asked for.
func TestAMillionValues(t *testing.T) {
	const k, others, heavy = 500, 1_000_000, 100
	counts := tally.New()
	counts.MaxValues = k
	exact := make(map[string]uint64)
	random := rand.New(rand.NewPCG(1, 2))
	for i := range others {
		value := "other" + strconv.Itoa(i)
		if random.IntN(2) == 0 {
			value = "heavy" + strconv.Itoa(random.IntN(heavy))
		}
		block(counts, value)
		exact[value]++
	}
	checkGuarantees(t, counts, exact)
	assert.Len(t, values(t, counts), k)
	for _, v := range values(t, counts)[:heavy] {
		assert.Contains(t, v.Value, "heavy")
	}
}

// One who knows the algorithm pushes a heavy value out by sending as many values
// as there are counters, again and again. It is still bounded by Unlisted.
func TestAHeavyValuePushedOut(t *testing.T) {
	const k = 10
	counts := tally.New()
	counts.MaxValues = k
	exact := make(map[string]uint64)
	for range 50 {
		block(counts, "heavy")
		exact["heavy"]++
	}
	for i := range 60 * k {
		value := strconv.Itoa(i)
		block(counts, value)
		exact[value]++
	}
	checkGuarantees(t, counts, exact)
	for _, v := range values(t, counts) {
		assert.NotEqual(t, "heavy", v.Value, "the attack works")
	}
}
