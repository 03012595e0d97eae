package login_test

import (
	"math/rand/v2"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/login"
	"github.com/adaptivethrottler/throttler/memstore"
)

// A code is what attempts at the codes of one account come to.
type code struct {
	*login.Codes
	t *testing.T
}

func codesOn(t *testing.T) code { return code{login.NewCodes(throttler.New(memstore.New())), t} }

// enters enters a code for account, and reports whether it was looked at.
func (c code) enters(account string, from netip.Addr, right bool) bool {
	c.t.Helper()
	a, err := c.Begin(c.t.Context(), account, from)
	require.NoError(c.t, err)
	end := a.Fail
	if right && a.Decision.Status == throttler.Authorized {
		end = a.Succeed
	}
	require.NoError(c.t, end(c.t.Context()))
	return a.Decision.Status == throttler.Authorized
}

// An attacker who has the password guesses for a year from as many addresses as
// they like, while the owner logs in twice a day. With three valid codes of six
// digits, a guess is right with a probability of 3 in a million.
func TestACodeIsNotFoundInAYear(t *testing.T) {
	takesLong(t)
	synctest.Test(t, func(t *testing.T) {
		c := codesOn(t)
		guesses, refused := 0, 0
		for hour := range 365 * 24 {
			for i := range 12 {
				if c.enters("alice", addr(12*hour+i), false) {
					guesses++
				}
			}
			if hour%12 == 0 && !c.enters("alice", home, true) {
				refused++
			}
			time.Sleep(time.Hour)
		}
		require.Less(t, float64(guesses)*3/1e6, 0.001, "%v guesses", guesses)
		require.Positive(t, guesses)
		require.NotZero(t, refused, "the page says so")
	})
}

// Owners who mistype one code in four, for years.
func TestOwnersAreNotRefusedForTypos(t *testing.T) {
	takesLong(t)
	synctest.Test(t, func(t *testing.T) {
		c, random := codesOn(t), rand.New(rand.NewPCG(7, 8))
		const logins = 20_000
		refused := 0
		for i := range logins {
			account, from := string(rune('a'+i%10)), addr(i%10)
			for {
				right := random.IntN(4) != 0
				if !c.enters(account, from, right) {
					refused++
					break
				}
				if right {
					break
				}
				time.Sleep(8 * time.Second)
			}
			time.Sleep(50 * time.Minute)
		}
		require.Less(t, float64(refused), float64(logins)/10_000)
	})
}

// Asking for a new code or logging in again buys no guess, nor does an own account.
func TestConsecutiveFailuresAreCountedByAccount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := codesOn(t)
		verified := 0
		for i := range 100 {
			if c.enters("alice", addr(i), false) {
				verified++
			}
			require.True(t, c.enters("mallory", addr(i), true))
		}
		require.Equal(t, 10, verified)
		require.True(t, c.enters("bob", home, false), "another account")
		require.True(t, c.enters("Alice", home, false), "another account")
		require.False(t, c.enters("alice", home, true))
		time.Sleep(time.Hour)
		require.True(t, c.enters("alice", home, true))
		for range 3 { // a success clears them
			for range 9 {
				require.True(t, c.enters("alice", home, false))
				time.Sleep(time.Second)
			}
			require.True(t, c.enters("alice", home, true))
		}
		for range 60 {
			c.enters("alice", away, false)
			time.Sleep(10 * time.Minute)
		}
		require.False(t, c.enters("alice", home, true))
		require.NoError(t, c.Lift(t.Context(), "alice"))
		require.True(t, c.enters("alice", home, true))
	})
}

func TestCodesSayWhatIsWrong(t *testing.T) {
	c := codesOn(t)
	_, err := c.Begin(t.Context(), "", home)
	require.ErrorIs(t, err, login.ErrNoAccount)
	_, err = c.Begin(t.Context(), "alice", netip.Addr{})
	require.ErrorIs(t, err, login.ErrNoAddress)
	c = codesOn(t)
	c.Limits = limits{"name": {TTL: -1}}
	require.ErrorIs(t, c.Validate(), throttler.ErrInvalidRule)
	c = codesOn(t)
	c.Limits = limits{"account": {TTL: -1}}
	require.ErrorIs(t, c.Validate(), throttler.ErrInvalidRule)
	c = codesOn(t)
	c.Limits = limits{"accounts": {Max: 5}}
	require.ErrorIs(t, c.Validate(), throttler.ErrInvalidRule)
	require.Panics(t, func() { login.NewCodes(nil) })
}
