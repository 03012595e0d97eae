package record

// DecideStored is [Verdict.Decide] on the stored form of a record, which is empty if there is
// none. v is zero. It appends the form to be stored to room, which is empty, and returns it
// with the expiration of its item, and whether a ban of it holds; or nil if found stays as it
// is. The error is that of a record that is left alone.
//
// A record that has a window or a bucket and nothing else is not decoded as a whole: that would
// take longer than to decide on it.
func (v *Verdict) DecideStored(now Instant, limit *Limit, l *Lockout, found, room []byte, count bool) (value []byte, expiration int32, ban bool, err error) {
	if limit.Algorithm == Bucket {
		if b, ok := lone(found); ok {
			store := v.lookAtBucket(now, limit, &b, count)
			if !v.Outcome.Blocked || l.Length == 0 {
				if !store {
					return nil, 0, false, nil
				}
				return b.append(append(room, version, byte(bucketSection))), Expiration(now, b.score.up()), false, nil
			}
		}
	} else if limit.Algorithm == Window && isWindow(found) {
		var r Record
		if len(found) > 0 && !r.hits.decode(sections(found[1]), found[2:]) {
			r.hits = hits{}
		}
		r.hits.expire(now)
		store := v.lookAtWindow(now, limit, &r.hits, count)
		if !v.Outcome.Blocked || l.Length == 0 {
			if !store {
				return nil, 0, false, nil
			}
			return r.Append(room), Expiration(now, r.hits.end()), false, nil
		}
	}
	var r Record
	if len(found) > 0 {
		if err := r.Decode(found); err == ErrNewerRecord {
			return nil, 0, false, err
		}
	}
	if !v.Decide(now, limit, *l, &r, count) {
		return nil, 0, false, nil
	}
	return r.Append(room), Expiration(now, r.End()), r.HoldsBan(now), nil
}

// isWindow reports whether a stored record has the times of a window and nothing else. It is
// empty if there is no record.
func isWindow(b []byte) bool {
	return len(b) == 0 || len(b) > 2 && b[0] == version && b[1] == byte(timesSection)
}

// lone returns the bucket of a record that has nothing else, or an empty one if there is no
// record.
func lone(stored []byte) (b bucket, ok bool) {
	if len(stored) != 2+bucketSize || stored[0] != version || stored[1] != byte(bucketSection) {
		return bucket{}, len(stored) == 0
	}
	b.decode(stored[2:])
	return b, b.sound()
}
