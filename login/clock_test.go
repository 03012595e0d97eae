package login_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/adaptivethrottler/throttler/memstore"
)

// A process whose clock is behind learns it from the records of another, once.
func TestDifferentClocksAreReportedOnce(t *testing.T) {
	for ahead, noticed := range map[time.Duration]bool{5 * time.Minute: true, 11 * time.Second: true, 3 * time.Second: false, 0: false} {
		store := memstore.New()
		// Each bubble begins at the same time, so one that sleeps first is ahead.
		synctest.Test(t, func(t *testing.T) {
			time.Sleep(ahead)
			w := watchOn(t, store)
			w.ClockSkew = func(context.Context, time.Duration) { t.Error("another clock is behind") }
			w.stuff(1)
			time.Sleep(reported)
			w.begin("looker", away)
		})
		synctest.Test(t, func(t *testing.T) {
			w := watchOn(t, store)
			var told []time.Duration
			w.ClockSkew = func(_ context.Context, ahead time.Duration) { told = append(told, ahead) }
			w.begin("looker", away)
			for range 5 {
				w.stuff(1)
				time.Sleep(time.Second)
				w.look()
			}
			if !noticed {
				require.Empty(t, told)
				return
			}
			require.Len(t, told, 1, "%v", ahead)
			require.InDelta(t, ahead+reported, told[0], float64(time.Second))
		})
	}
}
