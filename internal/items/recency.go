package items

// A recency orders items of a shard by their last use. It is a ring through the
// items themselves, so that a use touches no further memory.
type recency struct {
	nodes *slab
	root  *node // between the latest and the oldest
	n     int   // how many there are
}

func (r *recency) init(nodes *slab) {
	r.nodes, r.root = nodes, nodes.take()
	r.root.newer, r.root.older = r.root.place, r.root.place
}

// oldest returns the item that was used longest ago, of at least one.
func (r *recency) oldest() *node { return r.nodes.at(r.root.newer) }

// add adds e as the latest.
func (r *recency) add(e *node) {
	e.newer, e.older = r.root.place, r.root.older
	r.nodes.at(e.older).newer = e.place
	r.root.older = e.place
	r.n++
}

// remove removes e.
func (r *recency) remove(e *node) {
	r.nodes.at(e.newer).older, r.nodes.at(e.older).newer = e.older, e.newer
	e.newer, e.older = 0, 0
	r.n--
}

// use makes e the latest.
func (r *recency) use(e *node) {
	if r.root.older != e.place {
		r.remove(e)
		r.add(e)
	}
}
