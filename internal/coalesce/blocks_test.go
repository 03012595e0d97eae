package coalesce

import (
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/adaptivethrottler/throttler/internal/record"
	"github.com/stretchr/testify/require"
)

func TestABanThatIsKeptIsNotBelievedByAClockThatWasSetBack(t *testing.T) {
	set := record.InstantOf(time.Unix(1_800_000_000, 0))
	ban, _ := record.Record{}.Banned(set, time.Hour)
	for asked, want := range map[time.Duration]bool{4 * time.Second: true, 5 * time.Second: false, -time.Minute: false} {
		blocks := NewBlocks(1, 5*time.Second)
		blocks.add("key", ban.Encode(), set)
		r, ok := blocks.Get("key", set+record.Instant(asked))
		require.Equal(t, want, ok && r.HoldsBan(set+record.Instant(asked)), asked)
	}
}

// What has taken the place of a record stays when that one goes, and is as good as that one.
func TestARecordThatWasReplacedTakesNothingWithIt(t *testing.T) {
	now := record.InstantOf(time.Unix(1_800_000_000, 0))
	ban, _ := record.Record{}.Banned(now, time.Hour)
	blocks := NewBlocks(2, time.Hour)
	blocks.add("a", ban.Encode(), now)
	replaced := blocks.records["a"]
	blocks.add("a", ban.Encode(), now)
	blocks.drop(replaced)
	has := func(key string) bool {
		_, ok := blocks.Get(key, now)
		return ok
	}
	require.True(t, has("a"))
	blocks.add("b", ban.Encode(), now)
	blocks.add("c", ban.Encode(), now)
	require.True(t, has("a"), "it was used")
	require.False(t, has("b"))
	blocks.remove("a")
	blocks.remove("c")
	require.Zero(t, blocks.order.Len())
}

// The keys of a call are parts of one string.
func TestARecordThatIsKeptDoesNotKeepOtherKeys(t *testing.T) {
	now := record.InstantOf(time.Unix(1_800_000_000, 0))
	ban, _ := record.Record{}.Banned(now, time.Hour)
	blocks := NewBlocks(2, time.Hour)
	for range 2 { // a new record, and one in its place
		keys := strings.Repeat("key", 1000)
		blocks.add(keys[:3], ban.Encode(), now)
		for key, kept := range blocks.records {
			require.NotSame(t, unsafe.StringData(keys), unsafe.StringData(key))
			require.NotSame(t, unsafe.StringData(keys), unsafe.StringData(kept.key))
		}
	}
	require.Len(t, blocks.records, 1)
}
