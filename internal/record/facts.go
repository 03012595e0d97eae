package record

import "time"

// Facts are what a record holds, for tools that show it. A time of 0 is none.
type Facts struct {
	BanEnd    Instant
	BanLength time.Duration // as it was set
	Bans      int           // in a row; 0 if bans do not grow
	Expiries  []Instant     // of the hits of a window, oldest first, MaxHits at most
	WindowTTL time.Duration // the longest time that one of them was counted for
	EmptyAt   Instant       // of a bucket

	Counted                uint64  // in the period of a calendar
	PeriodStart, PeriodEnd Instant // of that

	Leases []LeaseFacts // in the order in which they were taken
}

// LeaseFacts are what a record holds of one lease.
type LeaseFacts struct {
	ID   uint64
	End  Instant
	TTL  time.Duration
	Hits int
}

// Facts returns what r holds.
func (r Record) Facts() Facts {
	f := Facts{BanEnd: r.ban.end, BanLength: time.Duration(r.ban.length), Bans: r.ban.repeats, EmptyAt: r.bucket.score.up()}
	if c := r.calendar; c.end != 0 {
		f.Counted, f.PeriodStart, f.PeriodEnd = c.count, c.start, c.end
	}
	for i := range r.leases.len() {
		l := r.leases.at(i)
		f.Leases = append(f.Leases, LeaseFacts{l.id, l.end, time.Duration(l.ttl), int(l.hits)})
	}
	r.hits.merge()
	f.Expiries = make([]Instant, 0, min(r.hits.len(), MaxHits)) // more is of another program
	for t, n := range r.hits.all {
		for range min(n, cap(f.Expiries)-len(f.Expiries)) {
			f.Expiries = append(f.Expiries, t)
		}
	}
	f.WindowTTL = time.Duration(r.hits.ttl)
	return f
}
