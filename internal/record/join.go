package record

// WithMax returns l with another Max.
func (l Limit) WithMax(n int) Limit {
	l.Max, l.interval = n, span{}
	l.Prepare()
	return l
}

// Join pours into the bucket of r at now what that of other holds, the same record elsewhere,
// beyond the hits that limit allows and own does not. The two buckets may have hits in common:
// the fuller one stands.
func (r *Record) Join(other Record, now Instant, limit, own *Limit) {
	if n := limit.Max - own.Max; n > 0 {
		other, _ = other.WithoutNewest(n, now, limit)
	}
	other.bucket.expire(now)
	if other.bucket.score == 0 {
		return
	}
	other.openBucket(now, own)
	r.bucket.expire(now)
	r.openBucket(now, own)
	if r.bucket.time().less(other.bucket.time()) {
		r.bucket.setTime(other.bucket.time())
	}
}
