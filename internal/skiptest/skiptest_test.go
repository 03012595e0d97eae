package skiptest

import (
	"io"
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
		l.add(why, true)
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
	case "program":
		Program(t, "no-such-program", "no-such-package")
		t.Fatal("it goes on without the program")
	case "slow":
		Slow(t)
	case "fail":
		t.Fatal("this is a trial")
	}
}

// trial runs TestTrial, and returns what the go command wrote to its two outputs.
func trial(t *testing.T, how string, flags ...string) (out, console string, err error) {
	var stdout, stderr strings.Builder
	err = command(how, &stdout, &stderr, flags...).Run()
	return stdout.String(), stderr.String(), err
}

func command(how string, stdout, stderr io.Writer, flags ...string) *exec.Cmd {
	args := append([]string{"test", "-run", "^TestTrial$"}, flags...)
	cmd := exec.Command("go", append(args, "./...")...)
	cmd.Env = append(os.Environ(), variable+"="+how, "THROTTLER_SLOW=0")
	cmd.Stdout, cmd.Stderr = stdout, stderr
	return cmd
}

func TestAFailureIsStillOne(t *testing.T) {
	_, _, err := trial(t, "fail", "-count=1")
	require.Error(t, err)
}

func TestTheGoCommandTellsWithoutV(t *testing.T) {
	if _, err := os.Stat("/proc/self/fd/2"); err != nil {
		t.Skip("without /proc there is only the terminal")
	}
	out, console, err := trial(t, "skip", "-count=1")
	require.NoError(t, err, console)
	require.NotContains(t, out, "trial", "the go command drops what passing tests write")
	require.Contains(t, console, "skip\tgithub.com/adaptivethrottler/throttler/internal/skiptest\t1 of its tests: this is a trial\n")
}

func TestAMissingProgramSkipsOrFailsWhereAllMustBeThere(t *testing.T) {
	const why = "no-such-program is not installed: apt-get install no-such-package"
	for required, skips := range map[string]bool{"": true, "0": true, "1": false} {
		t.Setenv("THROTTLER_REQUIRE_MEMCACHED", required)
		out, _, err := trial(t, "program", "-count=1", "-v")
		require.Equal(t, skips, err == nil, out)
		require.Contains(t, out, why)
	}
	path, err := exec.LookPath("go")
	require.NoError(t, err)
	require.Equal(t, path, Program(t, "go", "golang"))
}

func TestTheGoCommandTellsAgainNextTime(t *testing.T) {
	for range 2 {
		out, _, err := trial(t, "skip")
		require.NoError(t, err)
		require.NotContains(t, out, "(cached)")
	}
}

// Nobody installs anything to have it run.
func TestTheResultOfASlowTestIsKept(t *testing.T) {
	_, console, err := trial(t, "slow", "-count=1")
	require.NoError(t, err)
	require.Contains(t, console, "slow: set THROTTLER_SLOW=1")
	trial(t, "slow") // fills the cache
	out, _, err := trial(t, "slow")
	require.NoError(t, err)
	require.Contains(t, out, "(cached)")
}
