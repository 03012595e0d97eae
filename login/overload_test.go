package login

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/memstore"
)

// What a burst of guesses exceeds is refused for seconds, and not let pass.
func TestOverloadRefusesUnlessAFallbackHasDecided(t *testing.T) {
	busy := throttler.Decision{Status: throttler.Authorized, Err: fmt.Errorf("busy: %w", throttler.ErrOverloaded)}
	for _, test := range []struct {
		what             string
		fallback, shadow bool
		decision         throttler.Decision
		refused          bool
	}{
		{"alone", false, false, busy, true},
		{"a fallback has decided", true, false, busy, false},
		{"a trial refuses nobody", false, true, busy, false},
		{"another failure", false, false, throttler.Decision{Status: throttler.Authorized, Err: throttler.ErrUnavailable}, false},
		{"blocked already", false, false, throttler.Decision{Err: throttler.ErrOverloaded}, false},
	} {
		limits := throttler.New(memstore.New())
		if test.fallback {
			limits.Fallback = memstore.New()
		}
		g := New(limits)
		g.Shadow = test.shadow
		a := newAttempt(g, party{}, plan{}, test.decision)
		require.Equal(t, test.refused, g.overloaded(a), test.what)
	}

	a := newAttempt(New(throttler.New(memstore.New())), party{}, plan{}, busy)
	a.refuse(comeBack)
	require.Equal(t, throttler.Blocked, a.Decision.Status)
	require.Equal(t, 5*time.Second, a.Decision.RetryAfter)
	require.Equal(t, []string{defaultMessage}, a.Decision.Messages)
	require.ErrorIs(t, a.Succeed(t.Context()), ErrSettled)
}
