package main

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestPercentileIsTheLeastValueThatSoManyAreNotAbove(t *testing.T) {
	hundred := make([]int, 100)
	for i := range hundred {
		hundred[i] = i + 1
	}
	for _, c := range []struct {
		sorted  []int
		p, want int
	}{
		{nil, 99, 0},
		{[]int{7}, 0, 7},
		{[]int{7}, 99, 7},
		{[]int{1, 2}, 50, 1},
		{[]int{1, 2, 3}, 50, 2},
		{[]int{1, 2, 3}, 99, 3},
		{hundred, 0, 1},
		{hundred, 1, 1},
		{hundred, 50, 50},
		{hundred, 99, 99},
		{hundred, 100, 100},
	} {
		require.Equal(t, c.want, percentile(c.sorted, c.p), "%d %% of %v", c.p, c.sorted)
	}
}

func TestQuartilesLeaveTheirValuesInOrder(t *testing.T) {
	values := []int{9, 1, 5, 3, 7}
	low, median, high := quartiles(values)
	require.Equal(t, [3]int{3, 5, 7}, [3]int{low, median, high})
	require.Equal(t, []int{9, 1, 5, 3, 7}, values)
}
