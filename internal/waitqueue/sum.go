package waitqueue

import (
	"math"
	"math/bits"
)

// A sum is that of the hits that many calls need, each of which may need up to
// [math.MaxInt].
type sum struct{ high, low uint64 }

func (s sum) plus(n int) sum {
	low, carry := bits.Add64(s.low, uint64(n), 0)
	return sum{s.high + carry, low}
}

func (s sum) minus(n int) sum {
	low, borrow := bits.Sub64(s.low, uint64(n), 0)
	return sum{s.high - borrow, low}
}

// over returns by how much s is more than n, at most [math.MaxInt].
func (s sum) over(n int) int {
	switch {
	case s.high == 0 && s.low <= uint64(n):
		return 0
	case s.high > 0 || s.low-uint64(n) > math.MaxInt:
		return math.MaxInt
	}
	return int(s.low - uint64(n))
}

// times returns how many times max fits into s, at most [math.MaxInt].
func (s sum) times(max int) int {
	if s.high >= uint64(max) {
		return math.MaxInt
	}
	n, _ := bits.Div64(s.high, s.low, uint64(max))
	return int(min(n, math.MaxInt))
}
