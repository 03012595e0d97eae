package main

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestTheShareOfALimitIsCountedByWindow(t *testing.T) {
	l := limit{4, 400 * time.Millisecond}
	var steady, gap []time.Duration
	for at := time.Duration(0); at < 2*time.Second; at += 100 * time.Millisecond {
		steady = append(steady, at)
		if at < 800*time.Millisecond || at >= 1200*time.Millisecond {
			gap = append(gap, at)
		}
	}
	require.Equal(t, share{admitted: 1, emptiest: 1}, shareBetween(steady, 400*time.Millisecond, 2*time.Second, l))
	sh := shareBetween(gap, 400*time.Millisecond, 2*time.Second, l)
	require.InDelta(t, 12./16, sh.admitted, 1e-9)
	require.Zero(t, sh.emptiest, "after 700 ms none comes for 400 ms")
}

func TestHitsAreTakenAheadExactly(t *testing.T) {
	st := staged(t)
	require.NoError(t, st.verify(aheadSystems))
	all, err := st.admitAll(t.Context(), aheadSystems, 1)
	require.NoError(t, err)
	for _, a := range all {
		require.Equal(t, "50", admitted(a.one), "%s (%s)", a.system.name, a.system.how)
	}
}
