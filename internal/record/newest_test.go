package record

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// What is left of a window are its oldest hits, whether they are stored or not.
func TestTheNewestHitsGoFirst(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		limit := &Limit{Max: rapid.SampledFrom([]int{10, maxTimes}).Draw(t, "max"), TTL: time.Hour}
		var r Record
		var model []Instant
		for range rapid.IntRange(1, 20).Draw(t, "steps") {
			now := start + Instant(rapid.IntRange(0, 50).Draw(t, "second"))*Instant(time.Second)
			n := rapid.IntRange(1, limit.Max).Draw(t, "hits")
			switch {
			case rapid.Bool().Draw(t, "stored"):
				r = decoded(t, r)
			case rapid.Bool().Draw(t, "count"):
				if n = min(n, limit.Max-len(model)); n > 0 {
					r.hits.add(n, now.Add(limit.TTL), Instant(limit.TTL))
					model = append(model, slices.Repeat([]Instant{now.Add(limit.TTL)}, n)...)
					slices.Sort(model)
				}
			default:
				next, found := r.WithoutNewest(n, start, limit)
				require.Equal(t, len(model) > 0, found)
				model = model[:max(len(model)-n, 0)]
				r = next
			}
			var got []Instant
			for i := range r.hits.len() {
				got = append(got, r.hits.time(i))
			}
			require.True(t, slices.Equal(model, got), "%v, want %v", got, model)
		}
	})
}

func decoded(t require.TestingT, r Record) Record {
	same, err := Decode(r.Encode())
	require.NoError(t, err)
	return same
}

func TestTheNewestHitsOfABucketAreItsLastOnes(t *testing.T) {
	limit := bucketOf(10, 10*time.Second)
	b, counted := pour(t, bucket{}, start, limit, 6)
	r, found := Record{bucket: b}.WithoutNewest(4, start, limit)
	require.True(t, found)
	require.Equal(t, start+2*limit.Interval(), r.bucket.score.whole)
	for _, h := range counted {
		_, found := r.Without(h, start)
		require.False(t, found, "it may be one of those that are gone")
	}
	later := start.Add(time.Hour)
	_, found = r.WithoutNewest(1, later, limit)
	require.False(t, found, "all has leaked")
	ahead := decide(start.Add(time.Hour), limit, Lockout{}, Record{}, true).Next
	r, _ = ahead.WithoutNewest(10, start, limit)
	require.Zero(t, r.bucket, "of a clock that is ahead")
}

func TestWhatIsBannedOrInFlightHasNoNewestHits(t *testing.T) {
	limit := &Limit{Max: 5, TTL: time.Minute}
	banned, _ := Record{}.Banned(start, time.Hour)
	banned.hits.add(1, start.Add(time.Minute), Instant(time.Minute))
	_, found := banned.WithoutNewest(1, start, limit)
	require.False(t, found)

	flying := &Limit{Max: 5, TTL: time.Minute, Algorithm: Leases, ID: 1}
	var r Record
	var v Verdict
	require.True(t, v.Decide(start, flying, Lockout{}, &r, true))
	_, found = r.WithoutNewest(1, start, flying)
	require.False(t, found)
}
