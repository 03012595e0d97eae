package record

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

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
	slower := bucketOf(10, 20*time.Second)
	same, _ := Record{bucket: b}.WithoutNewest(1, start, slower)
	require.Equal(t, start+5*slower.Interval(), same.bucket.score.whole, "as full at another rate, but for one")
	later := start.Add(time.Hour)
	_, found = r.WithoutNewest(1, later, limit)
	require.False(t, found, "all has leaked")
	ahead := decide(start.Add(time.Hour), limit, Lockout{}, Record{}, true).Next
	r, _ = ahead.WithoutNewest(10, start, limit)
	require.Zero(t, r.bucket, "of a clock that is ahead")
}
