package record

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestPlainKeysReadAsInTheOriginal(t *testing.T) {
	long := strings.Repeat("x", 249-len("login#ip#"))
	for _, tt := range []struct{ identifier, name, value, key string }{
		{"login", "ip", "192.0.2.1", "login#ip#192.0.2.1"},
		{"login", "ip", "", "login#ip#"},
		{"login", "ip", "0", "login#ip#0"},
		{"login", "name", "#a#b#", "login#name##a#b#"},
		{"login", "name", "Zoë", "login#name#Zoë"},
		{"login", "name", "\xff\xfe", "login#name#\xff\xfe"},
		{"login", "ip", long, "login#ip#" + long},
	} {
		require.Equal(t, tt.key, Key(tt.identifier, tt.name, tt.value))
	}
}

func TestOtherKeysAreHashed(t *testing.T) {
	for _, tt := range []struct{ identifier, name, value string }{
		{"login", "name", "bob smith"},
		{"login", "name", "bob\r\nflush_all\r\n"},
		{"login", "name", "\x00"},
		{"login", "name", "\x7f"},
		{"login", "name", strings.Repeat("x", 10_000)},
		{"login", "ip", strings.Repeat("x", 250-len("login#ip#"))},
		{"log#in", "ip", "1"},
		{"login", "i#p", "1"},
		{"log in", "ip", "1"},
		{"login", "i p", "1"},
	} {
		require.Regexp(t, `^#sha256#[0-9a-f]{64}$`, Key(tt.identifier, tt.name, tt.value))
	}
	// As documented, so that an operator can compute it.
	sum := sha256.Sum256([]byte("\x00\x00\x00\x00\x00\x00\x00\x05login\x00\x00\x00\x00\x00\x00\x00\x04name\x00\x00\x00\x00\x00\x00\x00\x09bob smith"))
	require.Equal(t, "#sha256#"+hex.EncodeToString(sum[:]), Key("login", "name", "bob smith"))
}

func TestDifferentTriplesHaveDifferentKeys(t *testing.T) {
	// Strings over a few telling bytes, so that collisions would be found.
	part := rapid.StringOfN(rapid.RuneFrom([]rune("#ab \n\x00")), 0, 4, -1)
	rapid.Check(t, func(t *rapid.T) {
		a := [3]string{part.Draw(t, "a0"), part.Draw(t, "a1"), part.Draw(t, "a2")}
		b := [3]string{part.Draw(t, "b0"), part.Draw(t, "b1"), part.Draw(t, "b2")}
		same := Key(a[0], a[1], a[2]) == Key(b[0], b[1], b[2])
		require.Equal(t, a == b, same)
	})
}

// FuzzKey shows that no triple makes an illegal key, and that its plain form
// can be taken apart again, so that no other triple has it.
func FuzzKey(f *testing.F) {
	f.Add("login", "ip", "192.0.2.1")
	f.Add("login", "name", "bob smith\r\nflush_all\r\n")
	f.Add("#sha256#", "", strings.Repeat("0", 64))
	f.Add("", "#", "\xff#")
	f.Fuzz(func(t *testing.T, identifier, name, value string) {
		key := Key(identifier, name, value)
		require.NoError(t, legalKey(key))
		if strings.HasPrefix(key, HashedKey) {
			require.Len(t, key, len(HashedKey)+64)
			return
		}
		parts := strings.SplitN(key, "#", 3)
		require.Equal(t, []string{identifier, name, value}, parts)
		require.NotEmpty(t, identifier)
	})
}

// legalKey is what the client and the protocol ask of a key.
func legalKey(key string) error {
	if key == "" || len(key) > MaxKey {
		return fmt.Errorf("%d bytes", len(key))
	}
	for i := range len(key) {
		if key[i] <= ' ' || key[i] == 0x7f {
			return errors.New("illegal byte")
		}
	}
	return nil
}

func TestPlainKeysOfAllValuesBeginWithThePrefix(t *testing.T) {
	require.Equal(t, Key("login", "ip", ""), Prefix("login", "ip"))
	require.Empty(t, Prefix("login", "i p"))
	require.Empty(t, Prefix("log#in", "ip"))
	require.Empty(t, Prefix("", "ip"))
}
