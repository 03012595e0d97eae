package record

import "math"

// A Hit identifies what a call has counted in one record, so that it can be taken back.
// The zero Hit is none.
type Hit struct {
	Cost   int       // how many hits it is
	Kind   Algorithm // that counted it
	Expiry Instant   // when they expire; of a bucket, the score that they made. 0: they are gone
	At     Instant   // of the bucket, when it counted them
	TTL    Instant   // of the lease or the bucket
	Max    uint64    // of the bucket
	ID     uint64    // of the lease; of a calendar, when its count was begun; of a bucket, its cancels
}

// NumbersOfHit is how many numbers a Hit consists of.
const NumbersOfHit = 7

// Numbers returns h as numbers, to be written down.
func (h Hit) Numbers() [NumbersOfHit]int64 {
	return [...]int64{
		int64(h.Cost), int64(h.Kind), int64(h.Expiry), int64(h.At), int64(h.TTL), int64(h.Max), int64(h.ID),
	}
}

// HitOf is the reverse of [Hit.Numbers]. Of numbers that are those of no hit it makes none.
func HitOf(n [NumbersOfHit]int64) Hit {
	h := Hit{
		Cost: int(n[0]), Kind: Algorithm(n[1]), Expiry: Instant(n[2]), At: Instant(n[3]), TTL: Instant(n[4]),
		Max: uint64(n[5]), ID: uint64(n[6]),
	}
	bucket := h.Kind == Bucket && !h.Gone()
	if h.Cost < 1 || h.Kind < Window || h.Kind > Calendar || min(h.Expiry, h.At, h.TTL) < 0 || bucket && (h.TTL == 0 || h.Max-1 >= math.MaxInt64 || h.ID > math.MaxUint16) {
		return Hit{}
	}
	return h
}

// A Brief is a Hit in fewer bytes, without what the limit tells.
type Brief struct {
	expiry  Instant
	at      Instant // or the ID of a lease or of a calendar's count
	cost    uint32
	cancels uint16
}

// Brief returns h in fewer bytes. It is as it was counted.
func (h *Hit) Brief() Brief {
	b := Brief{expiry: h.Expiry, at: h.At, cost: uint32(h.Cost), cancels: uint16(h.ID)}
	if h.Kind == Leases || h.Kind == Calendar {
		b.at, b.cancels = Instant(h.ID), 0
	}
	return b
}

// Counted reports whether b is of any hits.
func (b *Brief) Counted() bool { return b.cost > 0 }

// Hit returns the Hit that b is of. limit has counted it, for any Cost.
func (b Brief) Hit(limit *Limit) Hit {
	h := Hit{Cost: int(b.cost), Expiry: b.expiry}
	switch {
	case h.Cost == 0:
		return Hit{}
	case limit.Algorithm == Bucket:
		h.Kind, h.TTL, h.Max, h.At, h.ID = Bucket, Instant(limit.TTL), uint64(limit.Max), b.at, uint64(b.cancels)
	case limit.Algorithm == Leases:
		h.Kind, h.TTL, h.ID = Leases, Instant(limit.TTL), uint64(b.at)
	case limit.Algorithm == Calendar:
		h.Kind, h.ID = Calendar, uint64(b.at)
	}
	return h
}

// Gone reports whether h is known to be in no record any more.
func (h Hit) Gone() bool { return h.Expiry == 0 }

// IsLease reports whether h is a lease that is not known to be gone.
func (h Hit) IsLease() bool { return h.Kind == Leases && !h.Gone() }

// IsOf reports whether a limit of that algorithm may have counted h.
func (h Hit) IsOf(a Algorithm) bool { return h.Gone() || h.Kind == a }

// Split returns the first n hits of h, which are of a window or a bucket, and the others.
func (h Hit) Split(n int) (first, rest Hit) {
	first, rest = h, h
	first.Cost, rest.Cost = n, h.Cost-n
	if h.Kind == Bucket && !h.Gone() && h.Max > 0 {
		first.Expiry = max(h.Expiry-rate{h.TTL, h.Max}.amount(uint64(rest.Cost)).up(), 1)
	}
	return first, rest
}

// Without returns r at now without the hits of h, and whether it had any of them. If
// they have expired, or a ban or a reset has replaced them, r stays as it is.
func (r Record) Without(h Hit, now Instant) (next Record, found bool) {
	if h.Cost == 0 || h.Gone() || r.ban.set != 0 && h.Kind != Leases {
		return r, false
	}
	next = r
	switch h.Kind {
	case Leases:
		next.leases.expire(now)
		found = next.leases.remove(h.ID)
	case Calendar:
		next.calendar, found = r.calendar.without(h, now)
	case Bucket:
		next.bucket, found = r.bucket.without(h, now)
	default:
		next.hits.expire(now)
		found = next.hits.remove(h.Cost, h.Expiry)
	}
	if !found {
		return r, false
	}
	return next, true
}
