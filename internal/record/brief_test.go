package record

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestABriefHitIsTheWholeHit(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		limit := Limit{Algorithm: rapid.SampledFrom([]Algorithm{Window, Bucket}).Draw(t, "Algorithm")}
		limit.Max = rapid.IntRange(1, 5000).Draw(t, "Max")
		limit.TTL = time.Duration(rapid.Int64Range(int64(time.Millisecond), int64(time.Hour)).Draw(t, "TTL"))
		noted := limit
		limit.Cost = rapid.IntRange(0, limit.Max).Draw(t, "Cost")
		var r Record
		var v Verdict
		for i := range rapid.IntRange(1, 4).Draw(t, "calls") {
			v.Decide(Instant(1e18)+Instant(i), &limit, Lockout{}, &r, true)
			b := v.Hit.Brief()
			require.Equal(t, v.Hit, b.Hit(&noted))
		}
	})
}
