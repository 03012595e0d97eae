package record

import (
	"cmp"
	"encoding/binary"
	"slices"
	"time"
)

// MaxLeases is how many leases a record holds at most, and so the largest Max of hits in
// flight. A full record has 280 kB then.
const MaxLeases = 10_000

// Leases are the hits in flight: each counts until it is given back, or until it ends
// because nobody has renewed it. A call is refused if its Cost and the hits of all leases
// exceed Max together. The count is derived from the leases, so it cannot drift.
//
// A lease is known by the ID of the call that took it. So it is given back once, and a
// call that finds its own lease, because an answer was lost, counts nothing twice. A lease
// that has ended, or is missing, is never put back.
//
// A lease that ends later than its own TTL and a minute from now is that of a clock that is
// ahead, and counts as if its TTL began now. It is stored so when it blocks.
//
// Each change makes a list of its own, since records share what they were decoded from.
// The zero leases are none.
type leases struct {
	entries []byte // leaseSize each, in the order in which they were counted
}

// A lease is one entry of leases.
type lease struct {
	id   uint64
	end  Instant // the first one at which it does not count
	ttl  Instant // from its renewal to its end
	hits uint32
}

const leaseSize = 3*instantSize + 4

// len returns the number of leases.
func (ls leases) len() int { return len(ls.entries) / leaseSize }

// at returns lease i.
func (ls leases) at(i int) lease {
	b := ls.entries[i*leaseSize:]
	return lease{
		id: binary.BigEndian.Uint64(b), end: getInstant(b[instantSize:]), ttl: getInstant(b[2*instantSize:]),
		hits: binary.BigEndian.Uint32(b[3*instantSize:]),
	}
}

// append returns ls and l.
func (ls leases) append(l lease) leases {
	b := make([]byte, 0, len(ls.entries)+leaseSize)
	return leases{l.encode(append(b, ls.entries...))}
}

// encode appends the stored form of l to b.
func (l lease) encode(b []byte) []byte {
	b = binary.BigEndian.AppendUint64(b, l.id)
	b = appendInstant(appendInstant(b, l.end), l.ttl)
	return binary.BigEndian.AppendUint32(b, l.hits)
}

// edit makes each lease what change returns for it, and removes those for which it returns the zero
// lease. It reports whether that changes ls.
func (ls *leases) edit(change func(lease) lease) (changed bool) {
	var b []byte
	for i := range ls.len() {
		before := ls.at(i)
		l := change(before)
		if !changed && l == before {
			continue
		}
		if !changed {
			changed = true
			b = append(make([]byte, 0, len(ls.entries)), ls.entries[:i*leaseSize]...)
		}
		if l != (lease{}) {
			b = l.encode(b)
		}
	}
	if changed {
		ls.entries = b
	}
	return changed
}

// expire removes the leases that have ended at now.
func (ls *leases) expire(now Instant) {
	ls.edit(func(l lease) lease {
		if l.until(now) <= now || l.hits == 0 {
			return lease{}
		}
		return l
	})
}

// until returns when l ends, as seen at now.
func (l lease) until(now Instant) Instant {
	if ttl := time.Duration(l.ttl); l.end > now.Add(farthest(ttl)) {
		return now.Add(ttl)
	}
	return l.end
}

// end returns when the last lease ends.
func (ls leases) end() (last Instant) {
	for i := range ls.len() {
		last = max(last, ls.at(i).end)
	}
	return last
}

// hits returns how many hits ls hold. An int may have 32 bits, which a debt exceeds.
func (ls leases) hits() (n int64) {
	for i := range ls.len() {
		n += int64(ls.at(i).hits)
	}
	return n
}

// lookAtLeases decides a call at now on ls, of which none has ended, and reports whether
// ls must be stored.
func (v *Verdict) lookAtLeases(now Instant, limit *Limit, ls *leases, count bool) (store bool) {
	own := ls.remove(limit.ID) // of this very call, if an answer was lost
	left := int(max(int64(limit.Max)-ls.hits(), 0))
	needed := limit.Needed()
	switch {
	case needed > left:
		v.Outcome.Blocked = true
		corrected := ls.edit(func(l lease) lease {
			l.end = l.until(now)
			return l
		})
		store = own || corrected
	case count:
		cost := min(limit.Hits(), left)
		left -= cost
		l := lease{id: limit.ID, end: now.Add(limit.TTL), ttl: Instant(limit.TTL), hits: uint32(cost)}
		*ls = ls.append(l)
		v.Outcome.Cost = cost
		v.Hit = Hit{Cost: cost, Expiry: l.end, Kind: Leases, ID: l.id, TTL: l.ttl}
		store = true
	}
	v.Outcome.Remaining = left
	held := ls.load(now)
	v.Again = untilFits(needed, limit.Max, now, held, nil)
	v.Outcome.RetryAfter = v.Again
	if !v.Outcome.Blocked {
		v.Outcome.RetryAfter = untilFits(1, limit.Max, now, held, nil)
	}
	v.Outcome.ResetAfter = held.end().Since(now)
	return store
}

// load returns the hits of ls at now, and until when they count if none is given back or renewed.
func (ls leases) load(now Instant) load {
	held := make(load, 0, ls.len())
	for i := range ls.len() {
		l := ls.at(i)
		held = held.with(now, l.until(now), int64(l.hits))
	}
	slices.SortFunc(held, func(a, b share) int { return cmp.Compare(a.until, b.until) })
	return held
}

// remove removes the lease of that ID, and reports whether there was one.
func (ls *leases) remove(id uint64) (found bool) {
	return ls.edit(func(l lease) lease {
		if l.id == id {
			return lease{}
		}
		return l
	})
}

// Renew renews leases of r at now, and reports whether r must be stored. It sets ends, by
// ID, to when they end then, or to 0 for those that are missing or have ended.
func (r *Record) Renew(now Instant, ends map[uint64]Instant) (store bool) {
	for id := range ends {
		ends[id] = 0
	}
	r.leases.expire(now)
	r.leases.edit(func(l lease) lease {
		if _, ours := ends[l.id]; ours {
			l.end = now.Add(time.Duration(l.ttl))
			ends[l.id], store = l.end, true
		}
		return l
	})
	return store
}
