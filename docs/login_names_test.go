package docs_test

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/login"
	"github.com/adaptivethrottler/throttler/memstore"
)

// What follows is shown in login.md.

func nameOf(typed string) string {
	if number, found := accountOf(typed); found {
		return "id:" + number
	}
	return "typed:" + typed // or else guesses at the text "1" would count as guesses at account 1
}

// Up to here.

func TestTheLoginPageShowsTheCodeOfThisFile(t *testing.T) {
	requireShown(t, "login.md", "login_names_test.go")
}

func accountOf(typed string) (number string, found bool) { return "1", typed == "alice" }

// Account 1 is alice's, and nobody is called "1".
func TestGuessesAtTheTextOfANumberAreNotGuessesAtThatAccount(t *testing.T) {
	guard := login.New(throttler.New(memstore.New()))
	attempt := func(typed string, from byte) *login.Attempt {
		a, err := guard.Begin(t.Context(), nameOf(typed), netip.AddrFrom4([4]byte{192, 0, 2, from}))
		require.NoError(t, err)
		return a
	}
	for i := range 24 { // as many as a name has
		a := attempt("1", byte(i))
		require.Equal(t, throttler.Authorized, a.Decision.Status)
		require.NoError(t, a.Fail(t.Context()))
	}
	require.Equal(t, throttler.Blocked, attempt("1", 100).Decision.Status)
	require.Equal(t, throttler.Authorized, attempt("alice", 100).Decision.Status)
}
