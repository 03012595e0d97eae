package items

// A place is the number of a node in its shard's slab. 0 is none.
type place uint32

// A slab holds the nodes of a shard, which refer to each other by their places. So the garbage
// collector has nothing of a node to follow but its key and value, and a reference takes 4 bytes.
// What is given back is used again: a slab does not shrink.
type slab struct {
	pieces []*[slabPiece]node
	n      place // nodes in use or free
	free   place // those that were given back, through their next
}

// slabPiece is how many nodes are allocated at once: they fill a size class of the allocator.
const slabPiece = 69

// at returns the node at a place.
func (s *slab) at(i place) *node { return &s.pieces[i/slabPiece][i%slabPiece] }

// take returns a node that is not in use, and zero but for its place.
func (s *slab) take() *node {
	if s.free != 0 {
		e := s.at(s.free)
		s.free, e.next = e.next, 0
		return e
	}
	s.n++
	if int(s.n/slabPiece) == len(s.pieces) {
		s.pieces = append(s.pieces, new([slabPiece]node))
	}
	e := s.at(s.n)
	e.place = s.n
	return e
}

// giveBack ends the use of e.
func (s *slab) giveBack(e *node) {
	*e = node{place: e.place, next: s.free}
	s.free = e.place
}
