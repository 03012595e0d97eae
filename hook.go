package throttler

import (
	"context"
	"time"

	"github.com/adaptivethrottler/throttler/internal/hook"
	"github.com/adaptivethrottler/throttler/internal/record"
)

func init() {
	hook.CutShort = func(ctx context.Context, d any) bool { return cutShort(ctx, d.(Decision)) }
	hook.WaitLines = func(t any) int { return t.(*Throttler).queue.Len() }
	hook.Queued = func(t any, key string) int { return t.(*Throttler).backend().Queued(key) }
	hook.Slots = func(t any) (all, used int) { return t.(*Throttler).backend().Size() }
	hook.Records = func(s any) int { return len(s.(*Simulation).records) }
	hook.SetBack = func(l any, d time.Duration) {
		of := l.(*Lease)
		of.t.holds.mu.Lock()
		defer of.t.holds.mu.Unlock()
		for _, s := range of.stakes {
			s.end += record.Instant(d)
		}
		of.until.Add(int64(d))
	}
}
