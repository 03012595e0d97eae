package record

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestABrokenWindowIsNone has each form of one that is cut off behind its section's number.
func TestABrokenWindowIsNone(t *testing.T) {
	limit := &Limit{Algorithm: Window, Max: 5, TTL: time.Minute}
	var r Record
	for i := range 3 {
		r = decide(start+Instant(i)*Instant(time.Second), limit, Lockout{}, r, true).Next
	}
	stored := r.Append(nil)
	now := start + Instant(10*time.Second)
	var none, whole Verdict
	want, end, _, err := none.DecideStored(now, limit, &Lockout{}, nil, nil, true)
	require.NoError(t, err)
	_, _, _, err = whole.DecideStored(now, limit, &Lockout{}, stored, nil, true)
	require.NoError(t, err)
	require.NotEqual(t, none, whole)
	for n := 3; n < len(stored); n++ {
		var h hits
		if h.decode(sections(stored[1]), stored[2:n]) {
			continue // it is a shorter window
		}
		var a Verdict
		value, expiration, ban, err := a.DecideStored(now, limit, &Lockout{}, stored[:n], nil, true)
		require.NoError(t, err)
		require.Equal(t, want, value, "%d bytes", n)
		require.Equal(t, end, expiration)
		require.False(t, ban)
		require.Equal(t, none, a)
	}
}
