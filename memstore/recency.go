package memstore

// A recency orders the items of a shard by their last use. It is a ring through the
// entries themselves, so that a use touches no further memory.
type recency struct {
	root entry // between the latest and the oldest
}

func (r *recency) init() { r.root.newer, r.root.older = &r.root, &r.root }

// oldest returns the entry that was used longest ago, of at least one.
func (r *recency) oldest() *entry { return r.root.newer }

// add adds e as the latest.
func (r *recency) add(e *entry) {
	e.newer, e.older = &r.root, r.root.older
	e.newer.older, e.older.newer = e, e
}

// remove removes e.
func (r *recency) remove(e *entry) {
	e.newer.older, e.older.newer = e.older, e.newer
	e.newer, e.older = nil, nil
}

// use makes e the latest.
func (r *recency) use(e *entry) {
	if r.root.older != e {
		r.remove(e)
		r.add(e)
	}
}
