package record

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Copies of a record share its sections of version 3, so a change of one must not be seen
// in the other.
func TestWhatIsDoneToACopyLeavesTheRecord(t *testing.T) {
	now := InstantOf(epoch)
	lease := Limit{Algorithm: Leases, Max: 2, TTL: time.Hour, ID: 1}
	calendar := Limit{Algorithm: Calendar, Max: 2}
	held := decide(now, &lease, Lockout{}, Record{}, true)
	counted := decide(now, &calendar, Lockout{}, held.Next, true)
	r := counted.Next
	before := r.Facts()
	for name, change := range map[string]func(*Record){
		"leases": func(c *Record) {
			new(Verdict).Decide(now+1, &Limit{Algorithm: Leases, Max: 2, TTL: time.Hour, ID: 2}, Lockout{}, c, true)
		},
		"calendar": func(c *Record) { new(Verdict).Decide(now+1, &calendar, Lockout{}, c, true) },
		"window": func(c *Record) {
			new(Verdict).Decide(now.Add(time.Hour), &Limit{Max: 1, TTL: time.Hour}, Lockout{}, c, true)
		},
		"renewal": func(c *Record) { c.Renew(now+1, map[uint64]Instant{1: 0}) },
		"refund":  func(c *Record) { *c, _ = c.Without(counted.Hit, now+1) },
		"release": func(c *Record) { *c, _ = c.Without(held.Hit, now+1) },
		"ban":     func(c *Record) { *c, _ = c.Banned(now+1, time.Hour) },
	} {
		c := r
		change(&c)
		require.NotEqual(t, before, c.Facts(), name)
		require.Equal(t, before, r.Facts(), name)
	}
}

func TestRecordWithoutLeasesAndCountsIsOfAnEarlierVersion(t *testing.T) {
	now := InstantOf(epoch)
	limit := Limit{Algorithm: Leases, Max: 1, TTL: time.Hour, ID: 1}
	held := decide(now, &limit, Lockout{}, Record{}, true)
	require.EqualValues(t, version3, held.Next.version())
	free, _ := held.Next.Without(held.Hit, now)
	require.EqualValues(t, version1, free.version())
	over := decide(now.Add(time.Hour), &Limit{Max: 1, TTL: time.Hour}, Lockout{}, held.Next, true)
	require.EqualValues(t, version1, over.Next.version())
}
