package skiptest

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const variable = "THROTTLER_TEST_SKIP"

func TestMain(m *testing.M) { os.Exit(Run(m)) }

func TestEachMissingThingIsALine(t *testing.T) {
	var l list
	var out strings.Builder
	for _, why := range []string{"no b: install b", "no a: install a", "no b: install b"} {
		l.add(why)
	}
	l.write(&out, "pool")
	require.Equal(t, "skip\tpool\t1 of its tests: no a: install a\nskip\tpool\t2 of its tests: no b: install b\n", out.String())
}

func TestNothingIsWrittenIfNothingIsMissing(t *testing.T) {
	var l list
	var out strings.Builder
	l.write(&out, "pool")
	require.Empty(t, out.String())
}

// Skipped is run by the next test, in a go command of its own.
func TestIsSkipped(t *testing.T) {
	if os.Getenv(variable) == "" {
		return
	}
	Skip(t, "this is a trial")
}

func TestTheGoCommandTellsWithoutV(t *testing.T) {
	if os.Getenv(variable) != "" {
		return
	}
	if _, err := os.Stat("/proc/self/fd/2"); err != nil {
		t.Skip("without /proc there is only the terminal")
	}
	var errors strings.Builder
	cmd := exec.Command("go", "test", "-run", "^TestIsSkipped$", "-count=1", "./...")
	cmd.Env = append(os.Environ(), variable+"=1")
	cmd.Stderr = &errors
	out, err := cmd.Output()
	require.NoError(t, err, errors.String())
	require.NotContains(t, string(out), "trial", "the go command has dropped it")
	require.Contains(t, errors.String(), "skip\tgithub.com/adaptivethrottler/throttler/internal/skiptest\t1 of its tests: this is a trial\n")
}
