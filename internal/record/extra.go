package record

// An extra has the sections that only version 3 of a record has. Most records have none
// of them, and are smaller without.
//
// Copies of a [Record] share its extra. So an extra is never changed, but replaced: see
// [Record.extras] and [Record.setExtras].
type extra struct {
	leases   leases
	calendar calendar
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

// expireExtras removes from the sections of version 3 what has expired at now.
func (r *Record) expireExtras(now Instant) {
	if r.extra == nil {
		return
	}
	x := *r.extra
	x.expire(now)
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
	return s
}

// decode reads the sections of version 3 from the head of b, and returns the rest.
func (x *extra) decode(has sections, b []byte) (rest []byte, ok bool) {
	if b, ok = x.leases.decode(has, b); !ok {
		return nil, false
	}
	return x.calendar.decode(has, b)
}

// append appends the sections of x to b.
func (x *extra) append(b []byte) []byte {
	if len(x.leases.entries) > 0 {
		b = x.leases.encodeAll(b)
	}
	if x.calendar.end != 0 {
		b = x.calendar.append(b)
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
	return n
}

// end returns when x holds nothing any more.
func (x *extra) end() Instant { return max(x.calendar.end, x.leases.end()) }

// expire removes from x what has expired at now.
func (x *extra) expire(now Instant) {
	x.calendar.expire(now)
	x.leases.expire(now)
}
