package login_test

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/adaptivethrottler/throttler/login"
)

// Whatever an attacker does to the spelling, a normalized name stays as it is:
// there is no second form of it to get other guesses with.
func TestNormalizeIsStable(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		name := rapid.String().Draw(t, "name")
		once := login.Normalize(name)
		require.Equal(t, once, login.Normalize(once))
		require.Equal(t, once, login.Normalize(" \t"+name+"\u3000\n"))
		require.Equal(t, once, strings.TrimSpace(once))
		require.True(t, utf8.ValidString(once))
	})
}

func TestNormalizeIgnoresCase(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		name := rapid.StringMatching(`[a-zäöüéñçα-ωа-я0-9@._-]{0,20}`).Draw(t, "name")
		require.Equal(t, login.Normalize(name), login.Normalize(strings.ToUpper(name)))
		require.Equal(t, login.Normalize(name), login.Normalize(strings.ToTitle(name)))
	})
}

func FuzzNormalize(f *testing.F) {
	for _, name := range []string{"", "Alice", "\xff", "ΐ", "ͅα", "İi", "ẞß", "ﬃ", "a\u0345\u0301"} {
		f.Add(name)
	}
	f.Fuzz(func(t *testing.T, name string) {
		once := login.Normalize(name)
		if twice := login.Normalize(once); twice != once {
			t.Errorf("%q becomes %q, and that %q", name, once, twice)
		}
	})
}
