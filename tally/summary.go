package tally

import (
	"sort"
	"strings"
)

// A summary counts the most frequent values of a stream with k counters, by the
// Space-Saving algorithm of Metwally, Agrawal and El Abbadi, "Efficient
// Computation of Frequent and Top-k Elements in Data Streams" (ICDT 2005).
//
// A value that has a counter adds to it. One that has none, once k others do,
// takes over the smallest counter, count and all, and adds to that: it has come
// at least once, and at most as often as that count says, since a value that was
// seen before and lost its counter lost one that was no greater. What it took
// over is its counter's overcount.
//
// So with N values counted, and min the smallest of k counters, or 0 if one is
// free:
//
//   - the counters add up to N, and min is at most N/k;
//   - a value with a counter came count times at most, and count-overcount times
//     at least, and its overcount is at most min;
//   - a value without a counter came min times at most. In other words, every
//     value that makes up more than 1/k of the stream has a counter.
//
// That holds for every stream, also one made by somebody who knows the algorithm
// and what was counted before: nothing here is hashed but the keys of a Go map,
// and those with a seed of their own.
//
// The zero summary is empty. It takes a lock around every use.
type summary struct {
	byValue map[string]*counter
	order   []*counter // by count, descending
}

type counter struct {
	value     string
	count     uint64
	overcount uint64 // how much of count may be other values'
	at        int    // where it stands in the summary's order
}

// count counts value, with k counters or as many as there are already.
func (s *summary) count(value string, k int) {
	c := s.byValue[value]
	if c == nil {
		c = s.take(strings.Clone(value), k)
	}
	// Of the counters with the same count it becomes the first, which it may
	// leave behind without a change to the order.
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
