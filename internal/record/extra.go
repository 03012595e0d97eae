package record

// An extra has the sections that only version 3 of a record has. Most records have none
// of them, and are smaller without.
//
// Copies of a [Record] share its extra. So an extra is never changed, but replaced: see
// [Record.extras] and [Record.setExtras].
type extra struct {
	leases   leases
	calendar calendar

	// debt is the score of the bucket, if a settlement has made it later than a call may.
	// It is no later than that score, except beside a ban that keeps the bucket.
	debt Instant
}

// extras returns a copy of the sections of version 3 that r has.
func (r *Record) extras() extra {
	if r.extra == nil {
		return extra{}
	}
	return *r.extra
}

// setExtras makes x the sections of version 3 that r has.
func (r *Record) setExtras(x extra) {
	r.extra = nil
	if !x.empty() {
		own := x
		r.extra = &own
	}
}

// expire removes from r, on which no ban holds, what has expired at now.
func (r *Record) expire(now Instant) {
	r.hits.expire(now)
	r.bucket.expire(now)
	r.expireExtras(now)
}

// expireExtras removes from the sections of version 3 what has expired at now, when the
// bucket has been expired.
func (r *Record) expireExtras(now Instant) {
	if r.extra != nil {
		r.setExtras(r.unexpired(now))
	}
}

// unexpired returns the sections of version 3 that r has without what has expired at now,
// when the bucket has been expired.
func (r *Record) unexpired(now Instant) extra {
	x := r.extras()
	x.calendar.expire(now)
	x.leases.expire(now)
	if r.bucket.score == 0 {
		x.debt = 0
	}
	return x
}

// setDebt makes debt that of r's bucket, 0 for none.
func (r *Record) setDebt(debt Instant) {
	if r.extra == nil && debt == 0 {
		return
	}
	x := r.extras()
	x.debt = debt
	r.setExtras(x)
}

// empty reports whether x has no section.
func (x *extra) empty() bool { return x.sections() == 0 }

// sections returns the sections that x has.
func (x *extra) sections() (s sections) {
	if len(x.leases.entries) > 0 {
		s |= leasesSection
	}
	if x.calendar.end != 0 {
		s |= calendarSection
	}
	if x.debt != 0 {
		s |= debtSection
	}
	return s
}

// decode reads the sections of version 3 from the head of b, and returns the rest.
func (x *extra) decode(has sections, b []byte) (rest []byte, ok bool) {
	if b, ok = x.leases.decode(has, b); !ok {
		return nil, false
	}
	if b, ok = x.calendar.decode(has, b); !ok || has&debtSection == 0 {
		return b, ok
	}
	if len(b) < instantSize {
		return nil, false
	}
	x.debt = getInstant(b)
	return b[instantSize:], x.debt > 0
}

// append appends the sections of x to b.
func (x *extra) append(b []byte) []byte {
	if len(x.leases.entries) > 0 {
		b = x.leases.encodeAll(b)
	}
	if x.calendar.end != 0 {
		b = x.calendar.append(b)
	}
	if x.debt != 0 {
		b = appendInstant(b, x.debt)
	}
	return b
}

// size returns how many bytes append appends.
func (x *extra) size() (n int) {
	if len(x.leases.entries) > 0 {
		n += leasesHead + len(x.leases.entries)
	}
	if x.calendar.end != 0 {
		n += calendarSize
	}
	if x.debt != 0 {
		n += instantSize
	}
	return n
}

// end returns when x holds nothing any more.
func (x *extra) end() Instant { return max(x.calendar.end, x.leases.end()) }
