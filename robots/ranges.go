package robots

import (
	"cmp"
	"container/heap"
	"encoding/binary"
	"net/netip"
	"slices"
)

// A position is an address as a number. One of IPv4 is below 1<<32.
type position struct{ hi, lo uint64 }

func positionOf(addr netip.Addr) position {
	if addr.Is4() {
		bytes := addr.As4()
		return position{lo: uint64(binary.BigEndian.Uint32(bytes[:]))}
	}
	bytes := addr.As16()
	return position{binary.BigEndian.Uint64(bytes[:8]), binary.BigEndian.Uint64(bytes[8:])}
}

func (p position) compare(q position) int {
	return cmp.Or(cmp.Compare(p.hi, q.hi), cmp.Compare(p.lo, q.lo))
}

func (p position) next() position {
	p.lo++
	if p.lo == 0 {
		p.hi++
	}
	return p
}

// minus returns p - q, which is not negative.
func (p position) minus(q position) position {
	d := position{p.hi - q.hi, p.lo - q.lo}
	if p.lo < q.lo {
		d.hi--
	}
	return d
}

// A span is a range of addresses of one family, and what it stands for.
type span struct {
	first, last position
	value       uint32
	six         bool // IPv6
}

// spanOf returns the addresses of a prefix that is masked.
func spanOf(p netip.Prefix) span {
	s := span{first: positionOf(p.Addr()), six: p.Addr().Is6()}
	s.last = s.first
	switch free := p.Addr().BitLen() - p.Bits(); { // the number of bits behind the prefix
	case free > 64:
		s.last.hi |= 1<<(free-64) - 1
		s.last.lo = ^uint64(0)
	case free == 64:
		s.last.lo = ^uint64(0)
	default:
		s.last.lo |= 1<<free - 1
	}
	return s
}

// A table gives each address the value of the narrowest span that holds it. Each start
// begins a range that ends before the next start; value 0 means that no span holds it.
type table struct {
	starts4 []uint32
	values4 []uint32
	starts6 []position
	values6 []uint32
}

// newTable returns the table of spans. Of spans of equal size, the first wins.
func newTable(spans []span) *table {
	var t table
	var four, six []layer
	for i, s := range spans {
		if s.six {
			six = append(six, layer{s, i})
		} else {
			four = append(four, layer{s, i})
		}
	}
	flatten(four, func(start position, value uint32) {
		if start.lo < 1<<32 { // else the end of the last address
			t.starts4 = append(t.starts4, uint32(start.lo))
			t.values4 = append(t.values4, value)
		}
	})
	flatten(six, func(start position, value uint32) {
		t.starts6 = append(t.starts6, start)
		t.values6 = append(t.values6, value)
	})
	// A table lives long: leave no room behind.
	t.starts4, t.values4 = exactly(t.starts4), exactly(t.values4)
	t.starts6, t.values6 = exactly(t.starts6), exactly(t.values6)
	return &t
}

// exactly returns a copy of s without spare capacity.
func exactly[T any](s []T) []T { return append(make([]T, 0, len(s)), s...) }

// spans returns the ranges of t that have a value.
func (t *table) spans(yield func(span) bool) {
	for i, value := range t.values4 {
		s := span{position{lo: uint64(t.starts4[i])}, position{lo: 1<<32 - 1}, value, false}
		if i+1 < len(t.starts4) {
			s.last.lo = uint64(t.starts4[i+1]) - 1
		}
		if value != 0 && !yield(s) {
			return
		}
	}
	for i, value := range t.values6 {
		s := span{t.starts6[i], position{^uint64(0), ^uint64(0)}, value, true}
		if i+1 < len(t.starts6) {
			s.last = t.starts6[i+1].minus(position{lo: 1})
		}
		if value != 0 && !yield(s) {
			return
		}
	}
}

// covers reports whether t holds an address of addr's family.
func (t *table) covers(addr netip.Addr) bool {
	if addr.Is4() {
		return len(t.starts4) > 0
	}
	return len(t.starts6) > 0
}

// find returns the value of addr, or 0.
func (t *table) find(addr netip.Addr) uint32 {
	p := positionOf(addr)
	if addr.Is4() {
		start := uint32(p.lo)
		low, high := 0, len(t.starts4) // the starts before low are at most start, those from high on above it
		for low < high {
			if middle := int(uint(low+high) >> 1); t.starts4[middle] <= start {
				low = middle + 1
			} else {
				high = middle
			}
		}
		if low == 0 {
			return 0
		}
		return t.values4[low-1]
	}
	low, high := 0, len(t.starts6)
	for low < high {
		if middle := int(uint(low+high) >> 1); t.starts6[middle].compare(p) <= 0 {
			low = middle + 1
		} else {
			high = middle
		}
	}
	if low == 0 {
		return 0
	}
	return t.values6[low-1]
}

// A layer is a span to be flattened, and its place among them.
type layer struct {
	span
	order int
}

// flatten calls emit for each start of a range, in order, with the value of the narrowest
// layer there, or 0 where there is none. Layers may overlap in any way.
func flatten(layers []layer, emit func(start position, value uint32)) {
	slices.SortFunc(layers, func(a, b layer) int { return a.first.compare(b.first) })
	var open narrowest // the layers that begin at or before the current start
	var value uint32   // of the range that was emitted last
	for i := 0; i < len(layers) || len(open) > 0; {
		var at position
		if len(open) > 0 {
			// The narrowest has ended: the next range begins behind it, if not before.
			ended := open[0].last
			if at = ended.next(); at == (position{}) {
				return // behind the last address
			}
			if i < len(layers) && layers[i].first.compare(at) < 0 {
				at = layers[i].first
			}
		} else {
			at = layers[i].first
		}
		for ; i < len(layers) && layers[i].first == at; i++ {
			heap.Push(&open, layers[i])
		}
		for len(open) > 0 && open[0].last.compare(at) < 0 {
			heap.Pop(&open)
		}
		var now uint32
		if len(open) > 0 {
			now = open[0].value
		}
		if now != value {
			emit(at, now)
			value = now
		}
	}
}

// narrowest is a heap of layers: the narrowest on top, of equal ones the first.
type narrowest []layer

func (n narrowest) Len() int { return len(n) }
func (n narrowest) Less(i, j int) bool {
	a, b := &n[i], &n[j]
	return cmp.Or(a.last.minus(a.first).compare(b.last.minus(b.first)), cmp.Compare(a.order, b.order)) < 0
}
func (n narrowest) Swap(i, j int) { n[i], n[j] = n[j], n[i] }
func (n *narrowest) Push(x any)   { *n = append(*n, x.(layer)) }
func (n *narrowest) Pop() any {
	last := (*n)[len(*n)-1]
	*n = (*n)[:len(*n)-1]
	return last
}
