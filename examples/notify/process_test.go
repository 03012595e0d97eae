package main

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/adaptivethrottler/throttler/internal/memcachedtest"
	"github.com/adaptivethrottler/throttler/internal/skiptest"
	"github.com/stretchr/testify/require"
)

// patience is how long a test waits for what must happen.
const patience = 20 * time.Second

var build = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "notify")
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "notify")
	out, err := exec.Command("go", "build", "-o", path, ".").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%w: %s", err, out)
	}
	return path, nil
})

func TestMain(m *testing.M) {
	status := skiptest.Run(m)
	if path, err := build(); err == nil {
		os.RemoveAll(filepath.Dir(path))
	}
	os.Exit(status)
}

// place is a folder of messages and a log of those that the command was handed,
// one a line, which outlive the processes that work on them.
type place struct {
	*testing.T
	messages string
	log      string
}

func newPlace(t *testing.T) *place {
	dir := t.TempDir()
	p := &place{T: t, messages: filepath.Join(dir, "messages"), log: filepath.Join(dir, "log")}
	require.NoError(t, os.Mkdir(p.messages, 0o700))
	require.NoError(t, os.WriteFile(p.log, nil, 0o600))
	return p
}

// write puts the messages 00, 01 and so on into the folder, and returns them.
func (p *place) write(n int) []string {
	p.Helper()
	var messages []string
	for i := range n {
		messages = append(messages, fmt.Sprintf("%02d", i))
		require.NoError(p, os.WriteFile(filepath.Join(p.messages, messages[i]), []byte(messages[i]), 0o600))
	}
	return messages
}

// logged returns what the command was handed.
func (p *place) logged() []string {
	p.Helper()
	content, err := os.ReadFile(p.log)
	require.NoError(p, err)
	return strings.Fields(string(content))
}

// left returns the messages that are in the folder.
func (p *place) left() []string {
	p.Helper()
	q, err := openFolder(p.messages)
	require.NoError(p, err)
	ids, err := q.list()
	require.NoError(p, err)
	return ids
}

// process is a running notify.
type process struct {
	*exec.Cmd
	t      *testing.T
	stdin  io.WriteCloser
	events *bufio.Reader
	errors *bytes.Buffer
}

// start starts a process whose command writes to the log, unless args say
// otherwise.
func (p *place) start(args ...string) *process {
	p.Helper()
	path, err := build()
	require.NoError(p, err)
	args = append([]string{"-command", fmt.Sprintf(`m=$(cat) && echo "$m" >>'%s'`, p.log)}, args...)
	cmd := exec.Command(path, args...)
	errors := new(bytes.Buffer)
	cmd.Stderr = errors
	stdin, err := cmd.StdinPipe()
	require.NoError(p, err)
	stdout, err := cmd.StdoutPipe()
	require.NoError(p, err)
	require.NoError(p, cmd.Start())
	p.Cleanup(func() { cmd.Process.Kill() })
	time.AfterFunc(patience, func() { cmd.Process.Kill() })
	return &process{Cmd: cmd, t: p.T, stdin: stdin, events: bufio.NewReader(stdout), errors: errors}
}

// await returns when the process has printed n events of the kind.
func (p *process) await(kind string, n int) {
	p.t.Helper()
	for n > 0 {
		line, err := p.events.ReadString('\n')
		require.NoError(p.t, err, "%s", kind)
		if strings.HasPrefix(line, kind+" ") {
			n--
		}
	}
}

// end waits for the process's end and returns its exit status, -1 if it was
// killed.
func (p *process) end() int {
	p.t.Helper()
	io.Copy(io.Discard, p.events)
	p.Wait()
	return p.ProcessState.ExitCode()
}

func TestStoppedProcessIsContinuedByTheNextAtTheSameRate(t *testing.T) {
	const ttl = 1500 * time.Millisecond
	p, server := newPlace(t), memcachedtest.Process(t)
	messages := p.write(10)
	flags := []string{"-dir", p.messages, "-max", "4", "-ttl", ttl.String(), "-memcached", server.Addr}
	begin := time.Now()
	first := p.start(flags...)
	first.await("sent", 4)
	time.Sleep(ttl / 5) // now it waits
	stopped := time.Now()
	require.NoError(t, first.Process.Signal(syscall.SIGTERM))
	require.Zero(t, first.end(), "%s", first.errors)
	require.Less(t, time.Since(stopped), 2*ttl/3) // it does not wait for the limit to open
	require.Equal(t, messages[:4], p.logged())
	require.Equal(t, messages[4:], p.left())

	second := p.start(flags...)
	require.Zero(t, second.end(), "%s", second.errors)
	require.Equal(t, messages, p.logged())
	require.Empty(t, p.left())
	// 4 and 4 and 2.
	require.GreaterOrEqual(t, time.Since(begin), 2*ttl)
}

func TestKilledProcessesLoseNothing(t *testing.T) {
	p := newPlace(t)
	messages := p.write(100)
	kills := 0
	for len(p.left()) > 0 {
		proc := p.start("-dir", p.messages, "-max", "1000")
		time.AfterFunc(time.Duration(5+rand.IntN(40))*time.Millisecond, func() { proc.Process.Kill() })
		if proc.end() == -1 {
			kills++
		}
	}
	t.Logf("%d processes killed", kills)
	require.Positive(t, kills)
	// A message may have been handed over more than once, the last time by a
	// command that has outlived its process.
	var first []string
	for _, message := range p.logged() {
		if !slices.Contains(first, message) {
			first = append(first, message)
		}
	}
	require.Equal(t, messages, first)
	require.LessOrEqual(t, len(p.logged()), len(messages)+kills)
}

func TestAcknowledgedLinesSurviveAKill(t *testing.T) {
	p := newPlace(t)
	first := p.start("-spool", p.messages, "-max", "3", "-ttl", "1h")
	var lines []string
	for i := range 20 {
		lines = append(lines, fmt.Sprintf(`{"number":%d}`, i))
	}
	_, err := io.WriteString(first.stdin, strings.Join(lines, "\n")+"\n")
	require.NoError(t, err)
	first.await("queued", 20)
	require.Eventually(t, func() bool { return len(p.logged()) == 3 && len(p.left()) == 17 }, patience, time.Millisecond)
	require.NoError(t, first.Process.Kill())
	require.Equal(t, -1, first.end())

	second := p.start("-spool", p.messages, "-max", "1000")
	_, err = io.WriteString(second.stdin, "\"one more\"")
	require.NoError(t, err)
	require.NoError(t, second.stdin.Close())
	require.Zero(t, second.end(), "%s", second.errors)
	content, err := os.ReadFile(p.log)
	require.NoError(t, err)
	require.Equal(t, strings.Join(append(lines, `"one more"`), "\n")+"\n", string(content))
	require.Empty(t, p.left())
}

func TestInterruptStopsAProcessWhoseInputGoesOn(t *testing.T) {
	p := newPlace(t)
	proc := p.start("-spool", p.messages, "-max", "1", "-ttl", "1h")
	_, err := io.WriteString(proc.stdin, "1\n2\n")
	require.NoError(t, err)
	proc.await("sent", 1)
	stopped := time.Now()
	require.NoError(t, proc.Process.Signal(os.Interrupt))
	require.Zero(t, proc.end(), "%s", proc.errors)
	require.Less(t, time.Since(stopped), grace+5*time.Second)
	require.Len(t, p.left(), 1)
}

func TestStopLetsTheCommandComeToItsEnd(t *testing.T) {
	p := newPlace(t)
	p.write(2)
	proc := p.start("-dir", p.messages,
		"-command", fmt.Sprintf(`echo begun >>'%[1]s'; sleep 1; echo done >>'%[1]s'`, p.log))
	require.Eventually(t, func() bool { return len(p.logged()) == 1 }, patience, time.Millisecond)
	require.NoError(t, proc.Process.Signal(syscall.SIGTERM))
	require.Zero(t, proc.end(), "%s", proc.errors)
	require.Equal(t, []string{"begun", "done"}, p.logged())
	require.Equal(t, []string{"01"}, p.left())
}

func TestFailingCommandKeepsTheMessageAndSaysSo(t *testing.T) {
	p := newPlace(t)
	p.write(3)
	proc := p.start("-dir", p.messages, "-command", `echo "about $NOTIFY_ID"; test "$(cat)" != 01 || exit 7`)
	require.Equal(t, 1, proc.end())
	require.Equal(t, []string{"01"}, p.left())
	require.Equal(t, "about 00\nabout 01\nnotify: kept 01: exit status 7\nabout 02\n"+
		"notify: 1 messages could not be handed over and are kept in "+p.messages+"\n", proc.errors.String())
}

func TestCommandThatTakesTooLongIsEnded(t *testing.T) {
	p := newPlace(t)
	p.write(1)
	proc := p.start("-dir", p.messages, "-timeout", "100ms", "-command", "exec sleep 60")
	require.Equal(t, 1, proc.end())
	require.Equal(t, []string{"00"}, p.left())
	require.Contains(t, proc.errors.String(), "kept 00: the command has taken longer than 100ms")
}

func TestServerThatIsNotThereIsReportedOnceAndTheRateIsKept(t *testing.T) {
	p := newPlace(t)
	messages := p.write(5)
	begin := time.Now()
	proc := p.start("-dir", p.messages, "-max", "2", "-ttl", "400ms", "-memcached", "127.0.0.1:1")
	require.Zero(t, proc.end())
	require.GreaterOrEqual(t, time.Since(begin), 4*200*time.Millisecond)
	require.Equal(t, messages, p.logged())
	require.Equal(t, 1, strings.Count(proc.errors.String(), "\n"), proc.errors)
	require.Contains(t, proc.errors.String(), "127.0.0.1:1")
}

func TestBadFlagsExitWith2(t *testing.T) {
	for args, want := range map[string]string{
		"-max 5":                           "-command is missing",
		"-command cat -max 0":              "-max is 0, want 1 to 100000",
		"-command cat -ttl 0":              "-ttl is 0s, want 1ms or more",
		"-command cat -retry 0":            "-retry is 0s, want 1ms or more",
		"-command cat -timeout 0":          "-timeout is 0s, want 1ms or more",
		"-command cat -watch 1s":           "-watch needs -dir",
		"-command cat -watch -1s -dir .":   "-watch is -1s, want 0s or more",
		"-command cat file":                `unexpected argument "file"`,
		"-command cat -memcached here":     "-memcached: ",
		"-command cat -memcached 1.2.3:no": "-memcached: ",
		"-comand cat":                      "not defined: -comand",
	} {
		t.Run(args, func(t *testing.T) {
			var stdout, stderr strings.Builder
			require.Equal(t, 2, run(t.Context(), strings.NewReader("1\n"), &stdout, &stderr, strings.Fields(args)...))
			require.Empty(t, stdout.String())
			require.Contains(t, stderr.String(), "notify: ")
			require.Contains(t, stderr.String(), want)
		})
	}
}

func TestHelpListsTheFlags(t *testing.T) {
	var stdout, stderr strings.Builder
	require.Zero(t, run(t.Context(), nil, &stdout, &stderr, "-h"))
	require.Empty(t, stdout.String())
	for _, name := range []string{"command", "dir", "spool", "watch", "max", "ttl", "retry", "timeout", "memcached"} {
		require.Contains(t, stderr.String(), "  -"+name+" ")
	}
}

func TestFolderThatIsMissingIsAnError(t *testing.T) {
	var stdout, stderr strings.Builder
	missing := filepath.Join(t.TempDir(), "missing")
	require.Equal(t, 1, run(t.Context(), nil, &stdout, &stderr, "-command", "cat", "-dir", missing))
	require.Contains(t, stderr.String(), missing)
}
