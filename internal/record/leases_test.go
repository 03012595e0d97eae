package record

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// TestLeasesHoldWhatAModelHolds takes, renews and gives back leases at random, and compares
// with a map of them, over a million operations with -rapid.checks=10000.
func TestLeasesHoldWhatAModelHolds(t *testing.T) {
	type held struct {
		end  Instant
		ttl  Instant
		hits int
	}
	rapid.Check(t, func(t *rapid.T) {
		limit := Limit{Algorithm: Leases, Max: rapid.IntRange(1, 5).Draw(t, "max")}
		now := InstantOf(epoch)
		model := make(map[uint64]held)
		hits := make(map[uint64]Hit)
		var r Record
		sum := func() (n int) {
			for id, h := range model {
				if h.end <= now {
					delete(model, id)
					continue
				}
				n += h.hits
			}
			return n
		}
		for i := range rapid.IntRange(1, 200).Draw(t, "operations") {
			now = now.Add(time.Duration(rapid.Int64Range(0, int64(500*time.Millisecond)).Draw(t, "step")))
			id := uint64(rapid.IntRange(1, i+1).Draw(t, "lease"))
			switch rapid.IntRange(0, 3).Draw(t, "operation") {
			case 0, 1:
				limit.ID, limit.TTL = uint64(i+1), time.Duration(rapid.Int64Range(1e8, 3e9).Draw(t, "ttl"))
				limit.Cost = rapid.IntRange(1, limit.Max).Draw(t, "cost")
				limit.Least = rapid.IntRange(0, limit.Cost).Draw(t, "least")
				free := limit.Max - sum()
				v := decide(now, &limit, Lockout{}, r, true)
				require.Equal(t, free < limit.Needed(), v.Outcome.Blocked)
				if v.Outcome.Blocked {
					require.Positive(t, v.Outcome.RetryAfter)
					later := decide(now.Add(v.Outcome.RetryAfter), &limit, Lockout{}, r, true)
					require.False(t, later.Outcome.Blocked, "RetryAfter is when there is room")
					earlier := decide(now.Add(v.Outcome.RetryAfter-1), &limit, Lockout{}, r, true)
					require.True(t, earlier.Outcome.Blocked, "and not earlier")
				} else {
					require.Equal(t, min(limit.Cost, free), v.Outcome.Cost)
					require.Equal(t, free-v.Outcome.Cost, v.Outcome.Remaining)
					model[limit.ID] = held{now.Add(limit.TTL), Instant(limit.TTL), v.Outcome.Cost}
					hits[limit.ID] = v.Hit
					again := decide(now, &limit, Lockout{}, v.Next, true)
					require.Equal(t, v.Next.Encode(), again.Next.Encode(), "a lost answer counts nothing twice")
				}
				if v.Store {
					r = v.Next
				}
			case 2:
				sum()
				ends := map[uint64]Instant{id: 1}
				store := r.Renew(now, ends)
				m, there := model[id]
				require.Equal(t, there, store)
				if there {
					m.end = now.Add(time.Duration(m.ttl))
					model[id] = m
				}
				require.Equal(t, model[id].end, ends[id])
			case 3:
				sum()
				next, found := r.Without(hits[id], now)
				_, there := model[id]
				require.Equal(t, there, found)
				delete(model, id)
				r = next
			}
			stored, err := Decode(r.Encode())
			require.NoError(t, err)
			require.Equal(t, r.Facts(), stored.Facts())
			r = stored
		}
	})
}

func TestLeasesLeaveRoomAsTheyEnd(t *testing.T) {
	now := InstantOf(epoch)
	const minute = time.Minute
	var r Record
	for i, s := range []struct {
		at        time.Duration
		max, cost int
		ttl       time.Duration
		want      Outcome
		end       time.Duration // of the record
	}{
		{0, 3, 2, minute, Outcome{Cost: 2, Remaining: 1, ResetAfter: minute}, minute},
		{10 * time.Second, 3, 1, minute, Outcome{Cost: 1, RetryAfter: 50 * time.Second, ResetAfter: minute}, 70 * time.Second},
		{20 * time.Second, 3, 2, minute, Outcome{Blocked: true, RetryAfter: 40 * time.Second, ResetAfter: 50 * time.Second}, 70 * time.Second},
		{20 * time.Second, 3, 3, minute, Outcome{Blocked: true, RetryAfter: 50 * time.Second, ResetAfter: 50 * time.Second}, 70 * time.Second},
		{20 * time.Second, 1, 1, minute, Outcome{Blocked: true, RetryAfter: 50 * time.Second, ResetAfter: 50 * time.Second}, 70 * time.Second}, // a rule that was changed
		{minute - 1, 3, 1, minute, Outcome{Blocked: true, RetryAfter: 1, ResetAfter: 10*time.Second + 1}, 70 * time.Second},
		{minute, 3, 1, time.Second, Outcome{Cost: 1, Remaining: 1, ResetAfter: 10 * time.Second}, 70 * time.Second}, // ends before the one that was there
		{61 * time.Second, 3, 2, minute, Outcome{Cost: 2, RetryAfter: 9 * time.Second, ResetAfter: minute}, 121 * time.Second},
	} {
		limit := Limit{Algorithm: Leases, Max: s.max, Cost: s.cost, TTL: s.ttl, ID: uint64(i + 1)}
		v := decide(now.Add(s.at), &limit, Lockout{}, r, true)
		require.Equal(t, s.want, v.Outcome, "step %d", i)
		r = v.Next
		require.Equal(t, now.Add(s.end), r.End(), "step %d", i)
	}
}

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

func TestLeaseIsWrittenAsNumbers(t *testing.T) {
	limit := Limit{Algorithm: Leases, Max: 2, TTL: time.Hour, ID: 1<<63 + 5}
	h := decide(InstantOf(epoch), &limit, Lockout{}, Record{}, true).Hit
	require.Equal(t, h, HitOf(h.Numbers()))
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
