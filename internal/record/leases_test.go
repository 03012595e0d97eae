package record

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A lease of a clock that is ahead counts for its own TTL at most, and one that was taken
// under a longer TTL is not cut by a caller with a shorter one.
func TestLeaseCountsForItsOwnTTLAtMost(t *testing.T) {
	now := InstantOf(epoch)
	limit := Limit{Algorithm: Leases, Max: 1, TTL: time.Minute, ID: 1}
	ahead := decide(now.Add(time.Hour), &limit, Lockout{}, Record{}, true).Next
	shorter := Limit{Algorithm: Leases, Max: 1, TTL: time.Second, ID: 2}
	v := decide(now, &shorter, Lockout{}, ahead, true)
	require.True(t, v.Store, "corrected")
	require.Equal(t, time.Minute, v.Outcome.RetryAfter)
	v = decide(now.Add(time.Second), &shorter, Lockout{}, v.Next, true)
	require.False(t, v.Store)
	require.Equal(t, 59*time.Second, v.Outcome.RetryAfter)
	require.False(t, decide(now.Add(time.Minute), &shorter, Lockout{}, v.Next, true).Outcome.Blocked)
}

func TestBansKeepLeases(t *testing.T) {
	now := InstantOf(epoch)
	limit := Limit{Algorithm: Leases, Max: 2, TTL: time.Hour, ID: 1}
	first := decide(now, &limit, Lockout{}, Record{}, true)
	window := Limit{Max: 1, TTL: time.Minute}
	r := decide(now, &window, Lockout{}, first.Next, true).Next
	for name, banned := range map[string]Record{
		"by hand":       func() Record { r, _ := r.Banned(now, time.Minute); return r }(),
		"by a window":   decide(now, &window, Lockout{Length: time.Minute}, r, true).Next,
		"with the hits": decide(now, &window, Lockout{Length: time.Minute, KeepHits: true}, r, true).Next,
	} {
		require.True(t, banned.HoldsBan(now), name)
		require.EqualValues(t, 1, banned.leases.hits(), name)
		ends := map[uint64]Instant{1: 0}
		require.True(t, banned.Renew(now+1, ends), name)
		require.Equal(t, now.Add(time.Hour)+1, ends[1], name)
		free, found := banned.Withdrawn(first.Hit, now+2, &limit)
		require.True(t, found, name)
		require.Zero(t, free.leases.hits(), name)
		require.True(t, free.HoldsBan(now+2), name)
	}
}

func TestFullLeasesStayUnder1MiB(t *testing.T) {
	var ls leases
	ls.entries = make([]byte, MaxLeases*leaseSize)
	r := Record{leases: ls}
	require.Less(t, r.Size(), 300_000)
}

// The answer to the write that has counted a lease was lost, and others have settled beyond
// Max before the call is decided again: it is refused, and leaves no lease behind.
func TestACallThatIsRefusedAfterALostAnswerLeavesNoLease(t *testing.T) {
	limit := &Limit{Algorithm: Leases, Max: 2, TTL: time.Minute, ID: 1}
	r, others := reserve(t, start, Record{}, limit)
	mine := *limit
	mine.ID = 2
	r, _ = reserve(t, start, r, &mine)
	r, _ = others.settleAt(t, start, r, 2)
	v := decide(start, &mine, Lockout{}, r, true)
	require.True(t, v.Outcome.Blocked)
	require.True(t, v.Store)
	next := reread(t, v.Next)
	require.False(t, decide(start, &mine, Lockout{}, next, true).Store, "it is gone")
	_, o := others.settleAt(t, start, next, 0)
	require.Equal(t, 2, o.Remaining)
}
