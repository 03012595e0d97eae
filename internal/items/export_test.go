package items

import "time"

// At returns the moment at which the wall clock says so, and so much has passed since
// the Store began.
func At(wall time.Time, since time.Duration) moment { return moment{wall, since} }

// Lately returns by the wall clock when something happens in s that was asked for at read.
func (s *Store) Lately(read moment) time.Time {
	sh := s.lock("k")
	defer s.unlock(sh)
	return s.lately(sh, read).wall
}

// Passed reports whether an item with this Expiration that was stored at one moment
// has expired at another.
func Passed(expiration int32, stored, now moment) bool {
	return deadlineOf(expiration, stored).passed(now)
}

// Expiries are the items of a shard that expire.
type Expiries struct{ x expiries }

// Store stores an item at now.
func (q *Expiries) Store(key string, expiration int32, now moment) {
	if q.x.nodes == nil {
		q.x.nodes = new(slab)
	}
	e := q.x.nodes.take()
	e.key, e.deadline = key, deadlineOf(expiration, now)
	q.x.update(e, now)
}

// Expired returns the key of an expired item, or "".
func (q *Expiries) Expired(now moment) string {
	if e := q.x.expired(now, len(q.x.heap)); e != nil {
		return e.key
	}
	return ""
}

// Remove removes the item that is due first.
func (q *Expiries) Remove() { q.x.remove(q.x.at(0)) }
