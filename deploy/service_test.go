package deploy_test

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/adaptivethrottler/throttler/internal/servertest"
	"github.com/adaptivethrottler/throttler/internal/skiptest"
	"github.com/stretchr/testify/require"
)

var command string // the path of the command throttler

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	folder, err := os.MkdirTemp("", "")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(folder)
	command = filepath.Join(folder, "throttler")
	if out, err := exec.Command("go", "build", "-o", command, "../cmd/throttler").CombinedOutput(); err != nil {
		panic(string(out))
	}
	return skiptest.Run(m)
}

// A service is a process of throttler serve.
type service struct {
	listen, admin, api string
	log                lines
}

const apiKey = "a-key-of-16-bytes-or-more"

// serve starts the service with a rule file, and more variables.
func serve(t *testing.T, rules string, variables ...string) *service {
	t.Helper()
	s := new(service)
	var errs [3]error
	s.listen, errs[0] = servertest.FreeAddr(servertest.OtherPorts)
	s.admin, errs[1] = servertest.FreeAddr(servertest.OtherPorts)
	s.api, errs[2] = servertest.FreeAddr(servertest.OtherPorts)
	require.NoError(t, errors.Join(errs[:]...))
	c := exec.Command(command, "serve", "-rules", rules)
	c.Env = append(os.Environ(), "THROTTLER_LISTEN="+s.listen, "THROTTLER_ADMIN="+s.admin, "THROTTLER_API="+s.api,
		"THROTTLER_ENVOY=", "THROTTLER_PROXY=", "THROTTLER_DRAIN=0s", "THROTTLER_API_KEYS="+apiKey)
	c.Env = append(c.Env, variables...)
	c.Stderr = &s.log
	exited, err := servertest.Start(c)
	require.NoError(t, err)
	t.Cleanup(func() {
		c.Process.Signal(os.Interrupt)
		<-exited
		if t.Failed() {
			t.Log(s.log.String())
		}
	})
	for began := time.Now(); !s.healthy(); time.Sleep(20 * time.Millisecond) {
		select {
		case <-exited:
			require.Fail(t, "the service has ended")
		default:
			require.Less(t, time.Since(began), time.Minute)
		}
	}
	return s
}

func (s *service) healthy() bool {
	answer, err := http.Get("http://" + s.admin + "/healthz")
	if err != nil {
		return false
	}
	answer.Body.Close()
	return answer.StatusCode == 200
}

// status is what the service answers a proxy about a request of a client.
func (s *service) status(t *testing.T, client string, header ...string) int {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), "GET", "http://"+s.listen+"/auth", nil)
	require.NoError(t, err)
	r.Header.Set("X-Forwarded-For", client)
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	answer, err := http.DefaultClient.Do(r)
	require.NoError(t, err)
	defer answer.Body.Close()
	io.Copy(io.Discard, answer.Body)
	return answer.StatusCode
}

// lines are what a process has written so far.
type lines struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// read returns the text of a file.
func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	return string(text)
}

// write writes a file in a folder of its own, and returns its path.
func write(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	require.NoError(t, os.WriteFile(path, []byte(text), 0o644))
	return path
}

// replaced is text with old, which it has, replaced.
func replaced(t *testing.T, text string, pairs ...string) string {
	t.Helper()
	for i := 0; i < len(pairs); i += 2 {
		require.Contains(t, text, pairs[i])
	}
	return strings.NewReplacer(pairs...).Replace(text)
}
