package memstore

// A recency orders items of a shard by their last use. It is a ring through the
// items themselves, so that a use touches no further memory.
type recency struct {
	root node // between the latest and the oldest
	n    int  // how many there are
}

func (r *recency) init() { r.root.newer, r.root.older = &r.root, &r.root }

// oldest returns the item that was used longest ago, of at least one.
func (r *recency) oldest() *node { return r.root.newer }

// add adds e as the latest.
func (r *recency) add(e *node) {
	e.newer, e.older = &r.root, r.root.older
	e.newer.older, e.older.newer = e, e
	r.n++
}

// remove removes e.
func (r *recency) remove(e *node) {
	e.newer.older, e.older.newer = e.older, e.newer
	e.newer, e.older = nil, nil
	r.n--
}

// use makes e the latest.
func (r *recency) use(e *node) {
	if r.root.older != e {
		r.remove(e)
		r.add(e)
	}
}
