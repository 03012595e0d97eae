package counts

import (
	"sort"
	"strings"
)

// A Summary counts the most frequent values of a stream with k counters, by the
// Space-Saving algorithm of Metwally, Agrawal and El Abbadi, "Efficient
// Computation of Frequent and Top-k Elements in Data Streams" (ICDT 2005).
//
// A value with a counter increments it. A value without one, when all k are
// taken, takes over the smallest counter and increments that. The value then
// occurred at least once, and at most as often as the counter says: if it had a
// counter before and lost it, that was no greater. The count that it took over
// is the counter's overcount.
//
// With N values counted, and min the smallest of k counters, or 0 if one is
// free:
//
//   - The counters add up to N, and min is at most N/k.
//   - A value with a counter occurred at most count times and at least
//     count-overcount times. Its overcount is at most min.
//   - A value without a counter occurred at most min times. So every value that
//     makes up more than 1/k of the stream has a counter.
//
// This holds for every stream, also for one made by an attacker: only the keys
// of a Go map are hashed, with a seed of its own.
//
// The zero Summary is empty. It must be guarded by a lock.
type Summary struct {
	byValue map[string]*Counter
	order   []*Counter // by count, descending
}

// A Counter counts one value.
type Counter struct {
	Count     uint64
	Overcount uint64 // the part of Count that may belong to other values
	value     string
	at        int // its index in the Summary's order
}

// Count counts value with k counters, or with those there are if they are more.
func (s *Summary) Count(value string, k int) {
	c := s.byValue[value]
	if c == nil {
		c = s.take(strings.Clone(value), k)
	}
	// Swap it with the first counter of the same count. So its increment keeps
	// the order.
	first := sort.Search(c.at, func(i int) bool { return s.order[i].Count <= c.Count })
	other := s.order[first]
	s.order[first], s.order[c.at] = c, other
	c.at, other.at = first, c.at
	c.Count++
}

// take gives value a counter: a new one, or the smallest.
func (s *Summary) take(value string, k int) *Counter {
	var c *Counter
	if len(s.order) < k {
		c = &Counter{at: len(s.order)}
		s.order = append(s.order, c)
	} else {
		c = s.order[len(s.order)-1]
		delete(s.byValue, c.value)
		c.Overcount = c.Count
	}
	if s.byValue == nil {
		s.byValue = make(map[string]*Counter)
	}
	c.value = value
	s.byValue[value] = c
	return c
}

// Min returns how often a value without a counter may have been counted.
func (s *Summary) Min(k int) uint64 {
	if len(s.order) < k || k == 0 {
		return 0
	}
	return s.order[len(s.order)-1].Count
}

// All yields the values with a counter, most first.
func (s *Summary) All(yield func(value string, c *Counter) bool) {
	for _, c := range s.order {
		if !yield(c.value, c) {
			return
		}
	}
}

// Len returns the number of values with a counter.
func (s *Summary) Len() int { return len(s.order) }
