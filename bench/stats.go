package main

import (
	"cmp"
	"slices"
)

// percentile returns the p-th percentile of sorted, or 0 if sorted is empty:
// the least value that at least p percent are not above.
func percentile[T cmp.Ordered](sorted []T, p int) T {
	if len(sorted) == 0 {
		var zero T
		return zero
	}
	return sorted[max(0, (len(sorted)*p+99)/100-1)]
}

// quartiles returns the first, second and third quartile of values.
func quartiles[T cmp.Ordered](values []T) (low, median, high T) {
	sorted := slices.Sorted(slices.Values(values))
	return percentile(sorted, 25), percentile(sorted, 50), percentile(sorted, 75)
}
