package docs_test

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// requireShown requires that page shows the code of file between the two comments that say so.
func requireShown(t *testing.T, page, file string) {
	t.Helper()
	text, err := os.ReadFile(page)
	require.NoError(t, err)
	code, err := os.ReadFile(file)
	require.NoError(t, err)
	_, shown, ok := strings.Cut(string(code), "\n// What follows is shown in "+page+".\n\n")
	require.True(t, ok)
	shown, _, ok = strings.Cut(shown, "\n// Up to here.\n")
	require.True(t, ok)
	require.Contains(t, string(text), "```go\n"+shown+"```")
}
