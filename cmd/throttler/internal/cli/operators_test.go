package cli_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/adaptivethrottler/throttler/cmd/throttler/internal/cli"
	"github.com/adaptivethrottler/throttler/internal/servertest"
	"github.com/adaptivethrottler/throttler/internal/skiptest"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// built returns the path of the built command, which needs no libraries.
func built(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "throttler")
	build := exec.CommandContext(t.Context(), "go", "build", "-o", path, "../..")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	output, err := build.CombinedOutput()
	require.NoError(t, err, "%s", output)
	return path
}

func TestTheVersionIsTold(t *testing.T) {
	for _, flag := range []string{"-version", "--version"} {
		a := run(t, flag)
		assert.Equal(t, 0, a.status)
		assert.Regexp(t, `^throttler \S+, go1\.\d+`, a.out)
	}
	t.Setenv("THROTTLER_VERSION", "1")
	assert.Equal(t, 2, run(t, "check").status, "a variable of that name means something else")
}

// serving runs serve until the test ends, with what the environment says.
func serving(t *testing.T, args ...string) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var ended sync.WaitGroup
	ended.Go(func() {
		var errs bytes.Buffer
		status := cli.Run(ctx, append([]string{"serve"}, args...), cli.Streams{Out: io.Discard, Err: &errs})
		assert.Equal(t, 0, status, errs.String())
	})
	t.Cleanup(func() { cancel(); ended.Wait() })
}

func TestEveryFlagOfServeComesFromTheEnvironmentToo(t *testing.T) {
	help := run(t, "serve", "-help").out
	for _, flag := range []string{"servers", "rules", "listen", "admin", "envoy", "api", "listen-cert", "admin-cert-key", "envoy-client-ca", "api-cert", "api-cert-key", "api-client-ca", "proxy", "proxy-cert", "proxy-cert-key", "drain"} {
		name := "THROTTLER_" + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
		assert.Contains(t, strings.Join(strings.Fields(help), " "), "($"+name+")", flag)
	}
	listen, err1 := servertest.FreeAddr(servertest.OtherPorts)
	admin, err2 := servertest.FreeAddr(servertest.OtherPorts)
	require.NoError(t, errors.Join(err1, err2))
	for name, value := range map[string]string{
		"RULES": writeRules(t, ""), "LISTEN": listen, "ADMIN": admin, "ENVOY": "", "API": "", "DRAIN": "0s",
	} {
		t.Setenv("THROTTLER_"+name, value)
	}
	assert.Equal(t, 1, run(t, "health").status, "before it runs")
	serving(t)
	require.Eventually(t, func() bool { return run(t, "health").status == 0 }, 30*time.Second, 20*time.Millisecond)
	answer, err := http.Get("http://" + listen + "/auth")
	require.NoError(t, err)
	answer.Body.Close()
	assert.Equal(t, 200, answer.StatusCode)
	_, port, err := net.SplitHostPort(admin)
	require.NoError(t, err)
	assert.Equal(t, 0, run(t, "health", "-admin", ":"+port).status, "as -admin of a container says it")
}

func TestTheUnitIsOneThatSystemdTakes(t *testing.T) {
	skiptest.Program(t, "systemd-analyze", "systemd")
	unit, err := os.ReadFile("../../throttler.service")
	require.NoError(t, err)
	path := filepath.Join(t.TempDir(), "throttler.service")
	text := strings.ReplaceAll(string(unit), "/usr/local/bin/throttler", built(t))
	require.NoError(t, os.WriteFile(path, []byte(text), 0o644))
	output, err := exec.CommandContext(t.Context(), "systemd-analyze", "verify", "--man=no", path).CombinedOutput()
	assert.NoError(t, err)
	assert.Empty(t, string(output))
	// A service with all that it could do has 9.6.
	output, err = exec.CommandContext(t.Context(), "systemd-analyze", "security", "--offline=true", "--threshold=20", path).CombinedOutput()
	assert.NoError(t, err, "an exposure of more than 2.0: %s", output)
}

func TestTheImageServesAtItsPortsAndIsHealthy(t *testing.T) {
	skiptest.Program(t, "docker", "docker.io")
	docker := func(args ...string) string {
		output, err := exec.Command("docker", args...).CombinedOutput()
		require.NoError(t, err, "docker %v: %s", args, output)
		return strings.TrimSpace(string(output))
	}
	const image = "throttler-of-a-test"
	docker("build", "-q", "-t", image, "-f", "../../../../deploy/Dockerfile", filepath.Dir(built(t)))
	t.Cleanup(func() { exec.Command("docker", "rmi", image).Run() })
	rules := filepath.Join(t.TempDir(), "rules.yaml")
	require.NoError(t, os.WriteFile(rules, []byte("trust: [172.16.0.0/12]\nrules: [{name: a, either: [{name: address, value: \"{address}\", max: 1, per: 1h}]}]\n"), 0o644))
	require.NoError(t, os.Chmod(filepath.Dir(rules), 0o755))
	id := docker("run", "-d", "-P", "--health-interval=1s", "-v", rules+":/etc/throttler/rules.yaml:ro", "-e", "THROTTLER_API_KEYS=a-key-of-16-bytes-or-more", image)
	t.Cleanup(func() { exec.Command("docker", "rm", "-f", id).Run() })
	require.Eventually(t, func() bool {
		return docker("inspect", "-f", "{{.State.Health.Status}}", id) == "healthy"
	}, 60*time.Second, 200*time.Millisecond, docker("logs", id))
	for _, port := range []string{"4180", "4181", "4182", "4183"} {
		published := docker("port", id, port+"/tcp")
		_, number, err := net.SplitHostPort(strings.Fields(published)[0])
		require.NoError(t, err)
		conn, err := net.Dial("tcp", "127.0.0.1:"+number)
		require.NoError(t, err, port)
		conn.Close()
		if port == "4180" {
			var statuses []int
			for range 2 {
				answer, err := http.Get("http://127.0.0.1:" + number + "/auth")
				require.NoError(t, err)
				answer.Body.Close()
				statuses = append(statuses, answer.StatusCode)
			}
			assert.Equal(t, []int{200, 429}, statuses)
		}
	}
}
