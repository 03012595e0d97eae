package engine

import "github.com/adaptivethrottler/throttler/internal/record"

// beside returns what the fallback, b, has to respect besides its own record of key: a share of
// limit hits, and the backend's record as it was last seen.
func (b *backend) beside(key string, limit int) *record.Beside {
	return &record.Beside{Max: b.allows(limit), Seen: b.engine.main.LastSeen(key)}
}

// allows returns how many of limit hits b allows of its own.
func (b *backend) allows(limit int) int {
	if s := b.share; s > 0 && s < 1 {
		const rounding = 1e-9 // 0.29 of 100 is 29
		return max(1, min(limit, int(s*float64(limit)+rounding)))
	}
	return limit
}
