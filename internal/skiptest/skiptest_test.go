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

// TestTrial is run by the next tests, in a go command of its own.
func TestTrial(t *testing.T) {
	switch os.Getenv(variable) {
	case "skip":
		Skip(t, "this is a trial")
		t.Fatal("it goes on after Skip")
	case "fail":
		t.Fatal("this is a trial")
	}
}

// trial runs TestTrial, and returns what the go command wrote to its two outputs.
func trial(t *testing.T, how string) (out, console string, err error) {
	var stdout, stderr strings.Builder
	cmd := exec.Command("go", "test", "-run", "^TestTrial$", "-count=1", "./...")
	cmd.Env = append(os.Environ(), variable+"="+how)
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err = cmd.Run()
	return stdout.String(), stderr.String(), err
}

func TestAFailureIsStillOne(t *testing.T) {
	_, _, err := trial(t, "fail")
	require.Error(t, err)
}

func TestTheGoCommandTellsWithoutV(t *testing.T) {
	if _, err := os.Stat("/proc/self/fd/2"); err != nil {
		t.Skip("without /proc there is only the terminal")
	}
	out, console, err := trial(t, "skip")
	require.NoError(t, err, console)
	require.NotContains(t, out, "trial", "the go command drops what passing tests write")
	require.Contains(t, console, "skip\tgithub.com/adaptivethrottler/throttler/internal/skiptest\t1 of its tests: this is a trial\n")
}
