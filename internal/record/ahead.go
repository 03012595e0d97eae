package record

import "time"

// aheadBy is how much later than a caller's clock another one is taken to be ahead, and not
// only the call to be old.
const aheadBy = time.Second

// IsAhead reports whether a clock that is ahead of now has written r: a second and more.
// Of hits in flight it tells nothing.
func (r *Record) IsAhead(now Instant, limit *Limit) bool {
	latest := now.Add(aheadBy)
	if b := r.ban; b.holds(now) && b.end > latest.Add(time.Duration(b.length)) {
		return true
	}
	switch limit.Algorithm {
	case Window:
		return !r.hits.empty() && !r.hits.honest(r.hits.end(), latest) && r.hits.end() > latest.Add(limit.TTL).Add(limit.MostAhead())
	case Bucket:
		return r.bucket.at > latest.Add(limit.MostAhead())
	case Leases:
		return false
	default:
		return r.calendar.begun > latest
	}
}
