package record

// A Hit identifies what a call has counted in one record, so that it can be taken back.
// The zero Hit is none.
type Hit struct {
	Cost   int       // how many hits it is
	Expiry Instant   // when they expire as stored; not of a bucket
	Share  Share     // in a bucket; zero elsewhere
	Kind   Algorithm // Leases or Calendar; 0 for a window and a bucket
	TTL    Instant   // of the lease
	ID     uint64    // of the lease; of a calendar, when its count was begun
}

// NumbersOfHit is how many numbers a Hit consists of.
const NumbersOfHit = 11

// Numbers returns h as numbers, to be written down. Releases that know windows and buckets
// only refuse the numbers of another Kind, as there is no negative weight.
func (h Hit) Numbers() [NumbersOfHit]int64 {
	s := h.Share
	if h.Kind != 0 {
		return [...]int64{int64(h.Cost), int64(h.Expiry), int64(h.ID), int64(h.TTL), 0, 0, -int64(h.Kind), 0, 0, 0, 0}
	}
	return [...]int64{
		int64(h.Cost), int64(h.Expiry), int64(s.at), int64(s.until), int64(s.amount.Instant),
		int64(s.grain), int64(s.weight), int64(s.most), int64(s.cancels), int64(s.amount.part), int64(s.parts),
	}
}

// HitOf is the reverse of [Hit.Numbers].
func HitOf(n [NumbersOfHit]int64) Hit {
	if kind := Algorithm(-n[6]); kind == Leases || kind == Calendar {
		return Hit{Cost: int(n[0]), Expiry: Instant(n[1]), ID: uint64(n[2]), TTL: Instant(n[3]), Kind: kind}
	}
	return Hit{Cost: int(n[0]), Expiry: Instant(n[1]), Share: Share{
		at: Instant(n[2]), until: Instant(n[3]), amount: span{Instant(n[4]), uint32(n[9])}, grain: Instant(n[5]),
		parts: parts(n[10]), weight: uint16(n[6]), most: uint16(n[7]), cancels: uint16(n[8]),
	}}
}

// A Brief is a Hit of a window or a bucket in fewer bytes, without what the limit tells.
type Brief struct {
	expiry  Instant // of a window; of a bucket, the score that it made
	at      Instant // when a bucket counted it
	cost    uint32
	cancels uint16
}

// Brief returns h in fewer bytes. A window or a bucket has counted it.
func (h *Hit) Brief() Brief {
	b := Brief{expiry: h.Expiry, cost: uint32(h.Cost)}
	if h.Share.amount != (span{}) {
		b.expiry, b.at, b.cancels = h.Share.until, h.Share.at, h.Share.cancels
	}
	return b
}

// Counted reports whether b is of any hits.
func (b *Brief) Counted() bool { return b.cost > 0 }

// Hit returns the Hit that b is of. limit has counted it, for any Cost.
func (b Brief) Hit(limit *Limit) Hit {
	h := Hit{Cost: int(b.cost)}
	switch {
	case h.Cost == 0:
	case limit.Algorithm == Bucket:
		h.Share = bucket{score: b.expiry, cancels: b.cancels}.share(b.at, limit, h.Cost)
	default:
		h.Expiry = b.expiry
	}
	return h
}

// repay lowers the debt of r by what was taken out of its bucket.
func (r *Record) repay(amount Instant) {
	if r.extra != nil && r.extra.debt != 0 {
		r.setDebt(max(r.extra.debt-amount, 0))
	}
}

// Gone reports whether h is known to be in no record any more.
func (h Hit) Gone() bool { return h.Expiry == 0 && h.Share == Share{} }

// IsLease reports whether h is a lease that is not known to be gone.
func (h Hit) IsLease() bool { return h.Kind == Leases && !h.Gone() }

// IsOf reports whether a limit of that algorithm may have counted h.
func (h Hit) IsOf(a Algorithm) bool {
	return h.Gone() || h.Kind == a || h.Kind == Window && a == Bucket
}

// Without returns r at now without the hits of h, and whether it had any of them. If
// they have expired, or a ban or a reset has replaced them, r stays as it is.
func (r Record) Without(h Hit, now Instant) (next Record, found bool) {
	next = r
	switch {
	case h.Cost == 0:
	case h.Kind == Leases:
		x := r.extras()
		x.leases.expire(now)
		found = x.leases.remove(h.ID)
		next.setExtras(x)
	case h.Kind == Calendar:
		x := r.extras()
		x.calendar, found = x.calendar.without(h, now)
		next.setExtras(x)
	case h.Share.amount == span{}:
		next.hits.expire(now)
		found = next.hits.remove(h.Cost, h.Expiry)
	default:
		next.bucket, found = r.bucket.without(h.Share, now)
		next.repay(r.bucket.score - next.bucket.score)
	}
	if !found {
		return r, false
	}
	return next, true
}
