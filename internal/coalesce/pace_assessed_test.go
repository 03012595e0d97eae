package coalesce

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/adaptivethrottler/throttler/internal/adapter"
	"github.com/adaptivethrottler/throttler/internal/record"
	"github.com/adaptivethrottler/throttler/memstore"
	"github.com/stretchr/testify/require"
)

// A ban bans the record.
type ban struct{}

func (ban) Apply(now record.Instant, r *record.Record) (store bool) {
	*r, store = r.Banned(now, time.Hour)
	return store
}

func (ban) Stands() bool               { return false }
func (ban) Doubt() (again, twice bool) { return true, true }

// A banLook reports whether the record is banned.
type banLook struct{ banned bool }

func (l *banLook) Apply(now record.Instant, r *record.Record) (store bool) {
	l.banned = r.HoldsBan(now)
	return false
}

func (l *banLook) Stands() bool               { return l.banned }
func (l *banLook) Doubt() (again, twice bool) { return true, true }

// A call whose record was assessed pauses before it counts. Another call, which comes during
// the pause and after a Reset, must not be decided on that record.
func TestACallThatComesDuringAPauseIsNotDecidedOnAnOlderRecord(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var counts Counts
		client := struct{ adapter.Client }{memstore.New()}
		table := NewTable(adapter.New(client, time.Second), Config{Remembered: 100, Timeout: time.Second, Counts: &counts})
		ask := func(ctx context.Context, e *Entry) { table.Ask(ctx, &Round{Entries: []*Entry{e}}) }

		ask(t.Context(), &Entry{Key: "k", Change: ban{}})
		s := table.acquire("k") // for a call that has not joined yet, which keeps the coalescer
		assessed := &Entry{Key: "k", Change: &banLook{}, Precedes: true}
		ask(t.Context(), assessed)
		s.mu.Lock()
		s.pace = &pace{trip: time.Millisecond, pause: 8 * time.Millisecond, until: time.Now().Add(8 * time.Millisecond)}
		s.mu.Unlock()

		ctx, leave := context.WithCancel(t.Context())
		counting := &Entry{Key: "k", Change: ban{}}
		counting.Follow(assessed)
		go ask(ctx, counting)
		synctest.Wait() // until it pauses
		require.Equal(t, []error{nil}, table.Reset(t.Context(), []string{"k"}, func(string) {}))
		later := &banLook{}
		done := make(chan struct{})
		go func() { ask(t.Context(), &Entry{Key: "k", Change: later}); close(done) }()
		synctest.Wait()
		leave()
		<-done
		require.False(t, later.banned)
	})
}
