package slots

import (
	"context"
	"runtime"
	"testing"
	"time"

	"github.com/adaptivethrottler/throttler/exchange"
	"github.com/adaptivethrottler/throttler/internal/record"
	"github.com/adaptivethrottler/throttler/memstore"
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

// A late is a memstore whose answers are overtaken by what then does.
type late struct {
	*memstore.Store
	then func()
}

func (l *late) Inline(x exchange.Exchange) {
	l.Store.Inline(x)
	l.then()
}

// A look is a Change that blocks, and changes nothing.
type look struct{}

func (look) Apply(record.Instant, *record.Record) bool { return false }
func (look) Stands() bool                              { return true }
func (look) Doubt() bool                               { return true }

func TestARecordThatIsResetAsItIsKeptIsNotKept(t *testing.T) {
	blocks := NewBlocks(10, time.Hour)
	l := &late{Store: memstore.New()}
	table := NewTable(l, Config{Blocks: blocks, Counts: new(Counts)})
	ban, _ := record.Record{}.Banned(record.InstantOf(time.Now()), time.Hour)
	item := newItem("key", &ban, record.InstantOf(time.Now()))
	require.NoError(t, l.Add(item))
	forgotten := make(chan struct{})
	l.then = func() {
		// The record is about to be kept when the reset comes in between.
		blocks.mu.RLock()
		go func() {
			defer close(forgotten)
			defer blocks.mu.RUnlock()
			for blocks.mu.TryRLock() { // until the entry waits for the lock
				blocks.mu.RUnlock()
				runtime.Gosched()
			}
			table.shards.forget("key")
		}()
	}
	e := &Entry{Key: "key", Change: look{}, Cached: true}
	table.Ask(context.Background(), &Round{Entries: []*Entry{e}})
	<-forgotten
	require.NoError(t, e.Failed())
	_, kept := blocks.Get("key", record.InstantOf(time.Now()))
	require.False(t, kept)
}
