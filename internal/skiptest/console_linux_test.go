package skiptest

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// A log that both outputs go to, as by the shell's "> log 2>&1".
func TestTheGoCommandTellsInItsLog(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	file, err := os.Create(path)
	require.NoError(t, err)
	defer file.Close()
	if taken(os.Getpid(), int(file.Fd())) == nil {
		t.Skip("this process may not take files of another one")
	}
	require.NoError(t, command("skip", file, file, "-count=1").Run())
	log, err := os.ReadFile(path)
	require.NoError(t, err)
	lines := strings.Split(strings.TrimSpace(string(log)), "\n")
	require.Len(t, lines, 2, "%s", log)
	require.Contains(t, lines[0], "1 of its tests: this is a trial")
	require.Regexp(t, "^ok ", lines[1])
}
