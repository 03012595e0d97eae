package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"github.com/adaptivethrottler/throttler/internal/servertest"
	"github.com/stretchr/testify/require"
)

// A typed line comes at seconds after the start of the program.
type typed struct {
	at   int
	line string
}

// typing returns the lines as an input that takes its time, and must be read
// under synctest.
func typing(lines []typed) io.Reader {
	start := time.Now()
	r, w := io.Pipe()
	go func() {
		defer w.Close()
		for _, l := range lines {
			time.Sleep(time.Until(start.Add(time.Duration(l.at) * time.Second)))
			io.WriteString(w, l.line+"\n")
		}
	}()
	return r
}

// The session that the documentation of Algorithm::FloodControl shows.
func TestPublishedSessionIsAnsweredAlike(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		var stdout, stderr strings.Builder
		status := run(t.Context(), typing([]typed{
			{35, "hello"}, {38, "hello"}, {40, "hello"}, {43, "bye"}, {45, "hello"}, {48, "see you"},
			{52, "next time"}, {69, "one more try?"}, {91, "free again"}, {102, "free again"},
		}), &stdout, &stderr)
		require.Zero(t, status)
		require.Empty(t, stderr.String())
		var want strings.Builder
		for _, l := range []typed{
			{35, "ok: hello"},
			{38, "ok: hello"},
			{40, "wait 5 s (equal): hello"},
			{43, "ok: bye"},
			{45, "ok: hello"},
			{48, "ok: see you"},
			{52, "wait 43 s (all): next time"},
			{69, "wait 26 s (all): one more try?"},
			{91, "wait 4 s (all): free again"},
			{102, "ok: free again"},
		} {
			fmt.Fprintln(&want, start.Add(time.Duration(l.at)*time.Second).Format(time.TimeOnly), l.line)
		}
		require.Equal(t, want.String(), stdout.String())
	})
}

// answers runs the program on input and returns what it prints, without the
// time of day.
func answers(t *testing.T, input io.Reader, args ...string) (stdout, stderr string, status int) {
	t.Helper()
	var out, errs strings.Builder
	status = run(t.Context(), input, &out, &errs, args...)
	return withoutTime(out.String()), errs.String(), status
}

func withoutTime(output string) string {
	var rest strings.Builder
	for line := range strings.Lines(output) {
		rest.WriteString(line[len("hh:mm:ss "):])
	}
	return rest.String()
}

func TestWaitsAreInWholeSecondsAndNameTheirLimits(t *testing.T) {
	for _, test := range []struct{ args, input, want string }{
		{"-equal 1 -all 2", "a\nb\na\nc\n", "ok: a\nok: b\nwait 60 s (equal, all): a\nwait 60 s (all): c\n"},
		{"-equal 1", "a\na\n", "ok: a\nwait 10 s (equal): a\n"},
		{"-equal 1 -equal-ttl 2001ms", "a\na\n", "ok: a\nwait 3 s (equal): a\n"},
		{"-equal 1 -equal-ttl 1ms", "a\na\n", "ok: a\nwait 1 s (equal): a\n"},
	} {
		synctest.Test(t, func(t *testing.T) {
			for range 10 { // the record keeps ticks of 100 microseconds, rounded up
				time.Sleep(12*time.Minute + 34567*time.Nanosecond)
				stdout, _, status := answers(t, strings.NewReader(test.input), strings.Fields(test.args)...)
				require.Zero(t, status)
				require.Equal(t, test.want, stdout)
			}
		})
	}
}

func TestLinesAreTakenAsTheyAre(t *testing.T) {
	long := strings.Repeat("0123456789", 1<<20)
	for name, c := range map[string]struct{ input, want string }{
		"nothing":            {"", ""},
		"an empty line":      {"\n", "ok: \n"},
		"no end of line":     {"a\nb", "ok: a\nok: b\n"},
		"CR LF":              {"a\r\na\na\r\n", "ok: a\nok: a\nwait 10 s (equal): a\n"},
		"a CR inside":        {"a\rb\r\r\n", "ok: a\rb\r\n"},
		"any bytes":          {"\x00\xff ok: #\t\n", "ok: \x00\xff ok: #\t\n"},
		"blanks that differ": {"a\na \n a\n", "ok: a\nok: a \nok:  a\n"},
		"10 MiB":             {long + "\n" + long + "\n" + long + "!\n" + long, "ok: " + long + "\nok: " + long + "\nok: " + long + "!\nwait 10 s (equal): " + long + "\n"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				stdout, stderr, status := answers(t, strings.NewReader(c.input))
				require.Zero(t, status)
				require.Empty(t, stderr)
				require.True(t, c.want == stdout, "answered %.200q", stdout)
			})
		})
	}
}

func TestLinesBeforeAReadingErrorAreAnswered(t *testing.T) {
	broken := io.MultiReader(strings.NewReader("a\nb"), iotest.ErrReader(errors.New("the tape is torn")))
	stdout, stderr, status := answers(t, broken)
	require.Equal(t, 1, status)
	require.Equal(t, "ok: a\nok: b\n", stdout)
	require.Equal(t, "lines: reading: the tape is torn\n", stderr)
}

func TestWritingErrorEndsTheProgram(t *testing.T) {
	nobody, w := io.Pipe()
	nobody.Close()
	var stderr strings.Builder
	status := run(t.Context(), strings.NewReader("a\n"), w, &stderr)
	require.Equal(t, 1, status)
	require.Contains(t, stderr.String(), "lines: writing: ")
}

func TestDoneContextEndsTheProgram(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var stdout, stderr strings.Builder
	require.Equal(t, 1, run(ctx, strings.NewReader("a\n"), &stdout, &stderr))
	require.Empty(t, stdout.String())
	require.Equal(t, "lines: context canceled\n", stderr.String())
}

func TestBadFlagsAreExplained(t *testing.T) {
	for args, want := range map[string]string{
		"-equal 0":                "Max is 0, want 1 to 1000000",
		"-all-ttl -1s":            "TTL is -1s, want 1ms or more",
		"-equal two":              `invalid value "two" for flag -equal`,
		"-memcached localhost":    "-memcached: ",
		"-memcached 127.0.0.1:no": "-memcached: ",
		"-limit 3":                "flag provided but not defined: -limit",
		"file.txt":                `unexpected argument "file.txt"`,
	} {
		t.Run(args, func(t *testing.T) {
			stdout, stderr, status := answers(t, strings.NewReader("a\n"), strings.Fields(args)...)
			require.Equal(t, 2, status)
			require.Empty(t, stdout)
			require.Contains(t, stderr, "lines: ")
			require.Contains(t, stderr, want)
			require.Contains(t, stderr, "lines -h")
		})
	}
}

// refusing returns an address that refuses connections.
func refusing(t *testing.T) string {
	addr, err := servertest.FreeAddr(servertest.OtherPorts)
	require.NoError(t, err)
	return addr
}

func TestServerThatIsNotThereIsReportedOnceAndLetsPass(t *testing.T) {
	addr := refusing(t)
	stdout, stderr, status := answers(t, strings.NewReader("a\na\na\na\n"), "-memcached", addr)
	require.Zero(t, status)
	require.Equal(t, strings.Repeat("ok: a\n", 4), stdout)
	require.Equal(t, 1, strings.Count(stderr, "\n"), stderr)
	require.Contains(t, stderr, addr)
}

// build compiles the program.
func build(t *testing.T) string {
	path := filepath.Join(t.TempDir(), "lines")
	out, err := exec.Command("go", "build", "-o", path, ".").CombinedOutput()
	require.NoError(t, err, "%s", out)
	return path
}

func TestProcessAnswersLineByLine(t *testing.T) {
	cmd := exec.Command(build(t), "-equal-ttl", "1h")
	stdin, err := cmd.StdinPipe()
	require.NoError(t, err)
	stdout, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	lines := bufio.NewReader(stdout)
	answer := func() string { // it comes before the next line is typed
		_, err := io.WriteString(stdin, "a\n")
		require.NoError(t, err)
		line, err := lines.ReadString('\n')
		require.NoError(t, err)
		return withoutTime(line)
	}
	begun := time.Now()
	require.Equal(t, "ok: a\n", answer())
	require.Equal(t, "ok: a\n", answer())
	third := answer()
	var wait float64
	_, err = fmt.Sscanf(third, "wait %f", &wait)
	require.NoError(t, err, third)
	require.Equal(t, fmt.Sprintf("wait %.0f s (equal): a\n", wait), third)
	require.LessOrEqual(t, wait, 3600.)
	require.GreaterOrEqual(t, wait, 3600-time.Since(begun).Seconds())
	require.NoError(t, stdin.Close())
	require.NoError(t, cmd.Wait())
}

func TestProcessesWithTheSameServerCountTogether(t *testing.T) {
	path, server := build(t), servertest.AnyMemcached(t)
	line := fmt.Sprint("counted together ", time.Now().UnixNano())
	var got string
	for range 3 {
		cmd := exec.Command(path, "-memcached", server.Addr, "-equal-ttl", "1h", "-all", "100000")
		cmd.Stdin = strings.NewReader(line + "\n")
		out, err := cmd.CombinedOutput()
		require.NoError(t, err)
		got += withoutTime(string(out))
	}
	require.Regexp(t, "^ok: "+line+"\nok: "+line+"\nwait 3[56]\\d\\d s \\(equal\\): "+line+"\n$", got)
}
