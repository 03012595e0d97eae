package deploy_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/adaptivethrottler/throttler/internal/skiptest"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// systemctl stands in for that of systemd, which does not run in a test: it starts the programs
// of the units that are enabled, as throttler.service says.
const systemctl = `#!/bin/bash
set -e
[ "$1 $2" = "enable --now" ] || { [ "$*" = daemon-reload ]; exit; }
memcached -u nobody -l 127.0.0.1 >/dev/null 2>&1 &
unit=$ROOT/etc/systemd/system/throttler.service
said() { sed -n "s/^$1=-\?//p" "$unit"; }
set -a; . "$(said EnvironmentFile)"; set +a
$(said ExecStartPre)
$(said ExecStart) >"$ROOT/log" 2>&1 &
`

// around runs the commands of the page in a network of their own, then asks the service as a
// proxy does, and ends what was started.
const around = `
PATH=$ROOT/usr/local/bin:$PATH
cd "$ROOT/repository"
mkdir bin && ln -s "$COMMAND" bin/throttler
. "$ROOT/commands"
for n in 1 2; do curl -s -o /dev/null -w 'asked: %{http_code}\n' http://127.0.0.1:4180/auth; done
throttler ban pages address=127.0.0.1 1h -rules "$ROOT/etc/throttler/rules.yaml"
curl -s -o /dev/null -w 'banned: %{http_code}\n' http://127.0.0.1:4180/auth
stat -c 'environment: %a' "$ROOT/etc/throttler/environment"
stat -c 'rules: %a' "$ROOT/etc/throttler/rules.yaml"
`

func TestTheCommandsForSystemdGuardAService(t *testing.T) {
	skiptest.Program(t, "openssl", "openssl")
	_, section, found := strings.Cut(read(t, "../docs/production.md"), "\n## Under systemd\n")
	require.True(t, found)
	commands := regexp.MustCompile("(?s)```sh\n(.*?)```").FindStringSubmatch(section)[1]

	root := t.TempDir()
	inRoot := strings.NewReplacer("/etc/", root+"/etc/", "/usr/local/", root+"/usr/local/").Replace
	for _, folder := range []string{"etc/systemd/system", "usr/local/bin", "repository/cmd/throttler"} {
		require.NoError(t, os.MkdirAll(filepath.Join(root, folder), 0o755))
	}
	for name, text := range map[string]string{
		"commands": inRoot(commands), "usr/local/bin/systemctl": systemctl,
		"repository/cmd/throttler/throttler.service": inRoot(read(t, "../cmd/throttler/throttler.service")),
	} {
		require.NoError(t, os.WriteFile(filepath.Join(root, name), []byte(text), 0o755))
	}
	output := apart(t, root, around)
	for _, line := range []string{"ready", "nothing", "asked: 200\nasked: 200", "banned: 429", "environment: 600", "rules: 644"} {
		assert.Contains(t, "\n"+output, "\n"+line+"\n", output)
	}
}

// apart runs a script in a network of its own, with a folder ROOT, and returns what it prints.
// The processes that it leaves end with it.
func apart(t *testing.T, root, script string) string {
	t.Helper()
	for program, pkg := range map[string]string{"unshare": "util-linux", "ip": "iproute2", "curl": "curl", "memcached": "memcached"} {
		skiptest.Program(t, program, pkg)
	}
	const owned = "set -eu\ntrap 'chown -R --reference=\"$ROOT\" \"$ROOT\"' EXIT\nip link set lo up\n" // of who runs the test
	c := []string{"env", "ROOT=" + root, "COMMAND=" + command, "unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "bash", "-c", owned + script}
	if os.Getuid() != 0 {
		if exec.Command("sudo", "-n", "true").Run() != nil {
			skiptest.Missing(t, "networks for programs of tests need root, or sudo without a password")
		}
		c = append([]string{"sudo", "-n", "--preserve-env=PATH,HOME"}, c...)
	}
	var errs lines
	run := exec.CommandContext(t.Context(), c[0], c[1:]...)
	run.Stderr = &errs
	output, err := run.Output()
	log, _ := os.ReadFile(filepath.Join(root, "log"))
	require.NoError(t, err, "%s\n%s\n%s", output, &errs, log)
	return string(output)
}
