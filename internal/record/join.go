package record

// WithMax returns l with another Max.
func (l Limit) WithMax(n int) Limit {
	l.Max, l.interval = n, amount{}
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
	b := &other.bucket
	b.enter(now, limit)
	if b.score.up() <= now {
		return
	}
	// As many hits at another rate: what they filled was part of a bucket of own.Max.
	b.at = max(b.at, now)
	b.score, b.rate = amount{whole: b.score.up()}, rate{limit.amount(own.Max).up(), uint64(own.Max)}
	b.enter(now, own)
	r.bucket.enter(now, own)
	if r.bucket.score.less(b.score) {
		r.bucket.score, r.bucket.at = b.score, max(r.bucket.at, b.at)
	}
}
