package tally

import (
	"sort"
	"strings"
)

// A summary counts the most frequent values of a stream with k counters, by the
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
// The zero summary is empty. It must be guarded by a lock.
type summary struct {
	byValue map[string]*counter
	order   []*counter // by count, descending
}

type counter struct {
	value     string
	count     uint64
	overcount uint64 // the part of count that may belong to other values
	at        int    // its index in the summary's order
}

// count counts value with k counters, or with those there are if they are more.
func (s *summary) count(value string, k int) {
	c := s.byValue[value]
	if c == nil {
		c = s.take(strings.Clone(value), k)
	}
	// Swap it with the first counter of the same count. So its increment keeps
	// the order.
	first := sort.Search(c.at, func(i int) bool { return s.order[i].count <= c.count })
	other := s.order[first]
	s.order[first], s.order[c.at] = c, other
	c.at, other.at = first, c.at
	c.count++
}

// take gives value a counter: a new one, or the smallest.
func (s *summary) take(value string, k int) *counter {
	var c *counter
	if len(s.order) < k {
		c = &counter{at: len(s.order)}
		s.order = append(s.order, c)
	} else {
		c = s.order[len(s.order)-1]
		delete(s.byValue, c.value)
		c.overcount = c.count
	}
	if s.byValue == nil {
		s.byValue = make(map[string]*counter)
	}
	c.value = value
	s.byValue[value] = c
	return c
}

// min returns how often a value without a counter may have been counted.
func (s *summary) min(k int) uint64 {
	if len(s.order) < k || k == 0 {
		return 0
	}
	return s.order[len(s.order)-1].count
}
