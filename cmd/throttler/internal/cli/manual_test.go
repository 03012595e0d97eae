package cli_test

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/adaptivethrottler/throttler/internal/skiptest"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// asRoot returns the output of a script that needs a network of its own, and so
// root or sudo.
func asRoot(t *testing.T, script string, args ...string) string {
	t.Helper()
	command := append([]string{script}, args...)
	if os.Getuid() != 0 {
		if exec.Command("sudo", "-n", "true").Run() != nil {
			skiptest.Missing(t, "networks for programs of tests need root, or sudo without a password")
		}
		command = append([]string{"sudo", "-n", "--preserve-env=PATH,HOME"}, command...)
	}
	output, err := exec.CommandContext(t.Context(), command[0], command[1:]...).CombinedOutput()
	require.NoError(t, err, "%s", output)
	return string(output)
}

func needAll(t *testing.T) {
	t.Helper()
	for program, pkg := range map[string]string{
		"unshare": "util-linux", "ip": "iproute2", "curl": "curl", "python3": "python3",
		"nginx": "nginx", "caddy": "caddy", "haproxy": "haproxy", "memcached": "memcached", "prometheus": "prometheus",
	} {
		skiptest.Program(t, program, pkg)
	}
}

func TestThePagesConfigurationsRunAsTheyStand(t *testing.T) {
	needAll(t)
	output := asRoot(t, "../../examples/pages.sh", built(t), "../../../../docs")
	t.Log("\n" + output)
	for _, proxy := range []string{"nginx", "caddy", "haproxy"} {
		assert.Contains(t, output, proxy+": 200 200 200 429\n")
	}
	for _, rules := range []string{"rules.md, name: login", "rules.md, name: jobs", "proxies.md, name: login", "proxies.md, domain: messaging", "service.md, name: pages"} {
		assert.Contains(t, output, rules+": rules.yaml: ok\n")
	}
	assert.Contains(t, output, strings.Repeat("service.md: 200\n", 5)+"service.md: 429\n")
	assert.Regexp(t, `service.md: {"status":"authorized",.*"attempt":`, output)
	assert.Regexp(t, `service.md: pages +address +127.0.0.1 +\d{4}-.*, in (1h0m|59m\d+s)`, output, "list and look")
	assert.Regexp(t, `service.md: pages +address +127.0.0.1 +- +0 of 5 `, output, "lift")
	assert.Regexp(t, `service.md: pages +address +203.0.113.9 +\d{4}-.*, in (24h0m|23h59m)`, output, "ban")
	assert.Regexp(t, `service.md: 127.0.0.1:11211 +up `, output, "servers")
	assert.Regexp(t, `service.md: throttler-login +name +alice +- +0 `, output, "lift of a login")
	assert.Regexp(t, `service.md: {"status":"authorized",.*"name":"customer"`, output, "authorize")
}

// The output tells how long each step takes: go test -v -run FirstFiveMinutes.
func TestAnOperatorsFirstFiveMinutes(t *testing.T) {
	needAll(t)
	output := asRoot(t, "../../examples/first-minutes.sh")
	t.Log("\n" + output)
	lines := strings.Split(strings.TrimSpace(output), "\n")
	last := lines[len(lines)-1]
	assert.Regexp(t, `^ *\d{1,6} ms  done: the request passes again$`, last, "within 1,000 s at the very most")
	assert.Contains(t, output, `"values":[[`, "the metric has points in time")
	assert.Regexp(t, `(?m)^pages +address +127.0.0.1 +\d{4}-\d\d-\d\d .* in (1h0m|59m\d+s)`, output, "the ban is listed")
}
