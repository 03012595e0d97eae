package upstream

import "slices"

// A Queue is first come, first served. The zero value is empty.
type Queue[T any] struct {
	items []T // those before head have been taken
	head  int
}

// Len returns how many wait.
func (q *Queue[T]) Len() int { return len(q.items) - q.head }

// All returns those that wait, valid until the next change.
func (q *Queue[T]) All() []T { return q.items[q.head:] }

// Push puts item behind all others.
func (q *Queue[T]) Push(item T) {
	if q.head > 0 && len(q.items) == cap(q.items) {
		n := copy(q.items, q.items[q.head:])
		clear(q.items[n:])
		q.items, q.head = q.items[:n], 0
	}
	q.items = append(q.items, item)
}

// Drop takes the first n.
func (q *Queue[T]) Drop(n int) {
	clear(q.items[q.head : q.head+n])
	q.head += n
	if q.head == len(q.items) {
		q.items, q.head = q.items[:0], 0
	}
}

// Take takes the first n, and appends them to taken.
func (q *Queue[T]) Take(taken []T, n int) []T {
	taken = append(taken, q.All()[:n]...)
	q.Drop(n)
	return taken
}

// TakeWhile takes those for which late reports true, up to the first for which it does not, and
// appends them to taken.
func (q *Queue[T]) TakeWhile(taken []T, late func(T) bool) []T {
	n := 0
	for n < q.Len() && late(q.All()[n]) {
		n++
	}
	return q.Take(taken, n)
}

// PutBack puts items before all others.
func (q *Queue[T]) PutBack(items []T) {
	q.items = slices.Concat(items, q.All())
	q.head = 0
}
