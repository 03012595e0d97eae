package legal_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/adaptivethrottler/throttler/internal/legal"
)

func TestKey(t *testing.T) {
	for key, want := range map[string]bool{
		"a": true, "é": true, "\x80\xff": true, "~!": true, strings.Repeat("a", 250): true,
		"": false, strings.Repeat("a", 251): false,
		" ": false, "a ": false, "a b": false, "a\n": false, "\x00": false, "\x1f": false, "a\x7f": false,
	} {
		require.Equal(t, want, legal.Key(key), "%q", key)
	}
}

// Whichever byte it is, wherever it stands, and whatever the bytes beside it.
func TestEachByteIsLegalOrNot(t *testing.T) {
	for length := 1; length <= 17; length++ {
		for at := range length {
			for b := range 256 {
				for _, beside := range []string{"!", "~", "\x80", "\xff"} {
					text := []byte(strings.Repeat(beside, length))
					text[at] = byte(b)
					require.Equal(t, b > ' ' && b != 0x7f, legal.Bytes(text), "%q", text)
				}
			}
		}
	}
}
