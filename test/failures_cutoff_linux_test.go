package throttler_test

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"github.com/adaptivethrottler/throttler/internal/servertest"
	"github.com/adaptivethrottler/throttler/internal/skiptest"
	"github.com/stretchr/testify/require"
)

// inOwnNetwork runs test in a network namespace of its own, where it may drop
// packets and nobody else is hurt: the test's program starts itself once more,
// with this test alone. The namespace ends with that process.
func inOwnNetwork(t *testing.T, test func()) {
	t.Helper()
	const variable = "THROTTLER_TEST_IN_OWN_NETWORK"
	if os.Getenv(variable) != "" {
		test()
		return
	}
	runtime.LockOSThread() // which is what a child's Pdeathsig is about
	defer runtime.UnlockOSThread()
	path := "PATH=" + os.Getenv("PATH") + ":/usr/sbin:/sbin" // where not everybody looks
	tools := exec.Command("sh", "-c", "command -v ip && command -v iptables")
	tools.Env = append(os.Environ(), path)
	if tools.Run() != nil {
		skiptest.Skip(t, "cannot cut off a server: apt-get install iproute2 iptables")
	}
	up := ownNetwork("sh", "-c", "ip link set lo up")
	up.Env = tools.Env
	if out, err := up.CombinedOutput(); err != nil {
		skiptest.Skip(t, fmt.Sprintf("cannot make a network namespace: run as root, or allow user namespaces: %v: %s", err, bytes.TrimSpace(out)))
	}
	cmd := ownNetwork("sh", "-c", `ip link set lo up && exec "$0" "$@"`, os.Args[0], "-test.run=^"+t.Name()+"$",
		"-test.v", "-test.timeout=5m", "-outage="+outageTime.String())
	cmd.Env = append(os.Environ(), path, variable+"=1")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for line := range strings.Lines(string(out)) {
		if strings.HasPrefix(line, "    ") { // what the test has logged
			t.Log(strings.TrimSpace(line))
		}
	}
}

// ownNetwork returns a command in a new network namespace, and in a new user
// namespace if only that way this user may make one.
func ownNetwork(name string, args ...string) *exec.Cmd {
	cmd := exec.Command(name, args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
	if os.Geteuid() != 0 {
		cmd.SysProcAttr.Cloneflags |= syscall.CLONE_NEWUSER
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Geteuid(), Size: 1}}
		cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getegid(), Size: 1}}
	}
	return cmd
}

// drop has all packets to and from addr dropped, or no longer.
func drop(t *testing.T, addr string, on bool) {
	t.Helper()
	_, port, err := net.SplitHostPort(addr)
	require.NoError(t, err)
	do := map[bool]string{true: "--append", false: "--delete"}[on]
	for _, end := range []string{"--destination-port", "--source-port"} {
		out, err := exec.Command("iptables", "--wait", do, "INPUT", "--protocol", "tcp", end, port, "--jump", "DROP").CombinedOutput()
		require.NoError(t, err, string(out))
	}
}

func TestOneOfThreeServersIsCutOff(t *testing.T) {
	t.Parallel()
	inOwnNetwork(t, func() {
		o := underLoad(t, three(t, servertest.NewMemcached), nil, timeoutOfHung)
		addr := o.servers[sick].Addr
		o.befall(t, func() { drop(t, addr, true) }, func() { drop(t, addr, false) }, false)
	})
}
