package login_test

import (
	"fmt"
	"strings"
	"testing"
	"time"
	"unicode"
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

// Some letters above U+FFFF, such as U+20061, are composed with a mark as if they
// were Latin, and iota subscript is a mark whose upper case is a letter.
func TestNormalizeIsStableForEachLetterWithMarks(t *testing.T) {
	takesLong(t)
	stable := func(name string) {
		once := login.Normalize(name)
		if twice := login.Normalize(once); twice != once {
			t.Errorf("%+q becomes %+q, and that %+q", name, once, twice)
		}
	}
	stable("\U00020061\u0301")
	for r := rune(0); r <= unicode.MaxRune; r++ {
		if unicode.In(r, unicode.L, unicode.M) {
			for _, format := range []string{"%c\u0301", "a%c", "\u05d0%c\u0345", "\u05d0\u0345%c"} {
				stable(fmt.Sprintf(format, r))
			}
		}
	}
	require.Equal(t, "\u03b1", login.Normalize("\u1fb3"), "alpha with iota subscript")
}

func TestNormalizeIgnoresCase(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		name := rapid.StringMatching(`[a-zäöüéñçα-ωа-я0-9@._-]{0,20}`).Draw(t, "name")
		require.Equal(t, login.Normalize(name), login.Normalize(strings.ToUpper(name)))
		require.Equal(t, login.Normalize(name), login.Normalize(strings.ToTitle(name)))
	})
}

// Names of one account in a database that ignores what cannot be seen.
func TestNormalizeIgnoresWhatCannotBeSeen(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		name := rapid.StringMatching(`[a-zα-ωа-я0-9@._-]{1,20}`).Draw(t, "name")
		hidden := rapid.SampledFrom([]rune("\u00ad\u034f\u061c\u115f\u180e\u200b\u200d\u202e\u2060\u206f\u3164\ufe0f\ufeff\uffa0\U0001d173\U000e0001\U000e0100\x00\x07\x7f\u0301\u0489\u20dd")).Draw(t, "hidden")
		at := rapid.IntRange(0, utf8.RuneCountInString(name)).Draw(t, "at")
		runes := []rune(name)
		spelled := string(runes[:at]) + strings.Repeat(string(hidden), rapid.IntRange(1, 40).Draw(t, "times")) + string(runes[at:])
		require.Equal(t, login.Normalize(name), login.Normalize(spelled), "%+q", spelled)
	})
}

// The worst that a megabyte can be, some of it by characters that become many.
func TestNormalizeIsCheapForAnyInput(t *testing.T) {
	takesLong(t)
	took := func(name string) time.Duration {
		start := time.Now()
		login.Normalize(name)
		return time.Since(start)
	}
	plain := max(took(strings.Repeat("x", 1<<20)), time.Millisecond)
	for _, unit := range []string{"\ufdfa", "\u0301", "\u0915\u0301", "\u1e9e", "\u0f71\u0f72", "\xff", " \u0301", "\u1100"} {
		name := strings.Repeat(unit, 1<<20/len(unit))
		least := took(name)
		for range 5 { // others may have had the processor meanwhile
			if least >= 200*plain {
				least = min(least, took(name))
			}
		}
		require.Less(t, least, 200*plain, "%+q", unit)
	}
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
