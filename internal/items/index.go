package items

import (
	"hash/maphash"
	"math/bits"
)

// An index finds the items of a shard by their keys. It is a hash table with chains through
// the items themselves, about as many as there are items, so that it takes 4 bytes an item. It
// grows by a chain at a time (linear hashing): no caller waits while all items are moved.
type index struct {
	nodes  *slab
	seed   maphash.Seed
	chains []place // the first node of each
	n      int     // items
}

// find returns the item at a key with that hash, or nil.
func (x *index) find(hash uint64, key string) *node { return x.findParts(hash, "", key) }

// findParts is find for a key in two parts.
func (x *index) findParts(hash uint64, head, tail string) *node {
	if x.n == 0 {
		return nil
	}
	for i := *x.chain(hash); i != 0; {
		e := x.nodes.at(i)
		if n := len(head); len(e.key) == n+len(tail) && e.key[n:] == tail && e.key[:n] == head {
			return e
		}
		i = e.next
	}
	return nil
}

// chain returns where the chain for a hash begins: that of its low bits, as many as are needed
// to number the chains, or one less where there is no such chain yet.
func (x *index) chain(hash uint64) *place {
	last := uint64(len(x.chains) - 1)
	width := bits.Len64(last)
	i := hash & (1<<width - 1)
	if i > last {
		i &= 1<<(width-1) - 1
	}
	return &x.chains[i]
}

// add adds e, whose key has that hash and is not there.
func (x *index) add(e *node, hash uint64) {
	if x.n++; x.n > len(x.chains) {
		x.split()
	}
	chain := x.chain(hash)
	e.next, *chain = *chain, e.place
}

// split adds a chain, and moves to it what belongs there.
func (x *index) split() {
	n := uint64(len(x.chains))
	x.chains = append(x.chains, 0)
	if n == 0 {
		return
	}
	added, at := &x.chains[n], &x.chains[n&^(1<<(bits.Len64(n)-1))]
	for *at != 0 {
		e := x.nodes.at(*at)
		if x.chain(hashOf(x.seed, e.key)) != added {
			at = &e.next
			continue
		}
		*at = e.next
		e.next, *added = *added, e.place
	}
}

// remove removes e, which is there.
func (x *index) remove(e *node) {
	at := x.chain(hashOf(x.seed, e.key))
	for *at != e.place {
		at = &x.nodes.at(*at).next
	}
	*at, e.next = e.next, 0
	x.n--
}
