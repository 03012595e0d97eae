package serve_test

import (
	"bufio"
	"encoding/base64"
	"fmt"
	"net"
	"os"
	"os/user"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/adaptivethrottler/throttler/cmd/throttler/internal/serve"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A dovecot is one whose policy server is a service.
type dovecot struct {
	address, log string
	marks        int // made by guessAs
}

// startDovecot starts Dovecot with the lines of the manual. All passwords are "right". It
// waits longer for the service than by default: on a busy machine it would let guesses pass.
func startDovecot(t *testing.T, s *service, key string) *dovecot {
	t.Helper()
	needs(t, "/usr/lib/dovecot/imap", "dovecot-imapd")
	manual, err := os.ReadFile("../../../../docs/dovecot.md")
	require.NoError(t, err)
	_, lines, found := strings.Cut(string(manual), "```ini\n")
	require.True(t, found)
	lines, _, _ = strings.Cut(lines, "```")
	lines = strings.NewReplacer("127.0.0.1:4183", s.api, "THE_KEY", key).Replace(lines)
	require.Contains(t, lines, s.api)
	require.Contains(t, lines, key)

	dir, err := os.MkdirTemp("", "dovecot") // a short path: it has sockets
	require.NoError(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	require.NoError(t, os.Chmod(dir, 0o755))
	current, err := user.Current()
	require.NoError(t, err)
	login := current.Username
	if current.Uid == "0" {
		login = "nobody"
	}
	d := &dovecot{address: freeAddress(t), log: filepath.Join(dir, "log")}
	host, port, err := net.SplitHostPort(d.address)
	require.NoError(t, err)
	config := filepath.Join(dir, "dovecot.conf")
	require.NoError(t, os.WriteFile(config, []byte(fmt.Sprintf(`base_dir = %[1]s/run
state_dir = %[1]s/state
log_path = %[2]s
protocols = imap
listen = %[3]s
ssl = no
disable_plaintext_auth = no
auth_verbose = yes
auth_username_format = %%Ln
auth_failure_delay = 0
auth_master_user_separator = *
auth_policy_server_timeout_msecs = 60000
default_login_user = %[5]s
default_internal_user = %[5]s
default_internal_group = nogroup
service imap-login {
  chroot =
  inet_listener imap {
    port = %[4]s
  }
  inet_listener imaps {
    port = 0
  }
  client_limit = 2000
  service_count = 0
}
service anvil {
  chroot =
  client_limit = 4000
}
service auth {
  client_limit = 4000
  unix_listener auth-penalty {
    mode = 0
  }
}
mail_location = maildir:%[1]s/mail/%%u
passdb {
  driver = static
  args = password=master
  master = yes
}
passdb {
  driver = static
  args = password=right
}
userdb {
  driver = static
  args = uid=%[5]s gid=nogroup home=%[1]s/mail/%%u
}
`, dir, d.log, host, port, login)+lines), 0o644))
	require.NoError(t, os.Mkdir(filepath.Join(dir, "mail"), 0o777))
	require.NoError(t, os.Chmod(filepath.Join(dir, "mail"), 0o777))
	run(t, d.address, "dovecot", "-F", "-c", config)
	t.Cleanup(func() {
		if t.Failed() {
			text, _ := os.ReadFile(d.log)
			t.Logf("%.6000s", text)
		}
	})
	return d
}

var mismatch = regexp.MustCompile(`Password mismatch`)

// verified is how many passwords were found wrong.
func (d *dovecot) verified(t *testing.T) int {
	t.Helper()
	text, err := os.ReadFile(d.log)
	require.NoError(t, err)
	return len(mismatch.FindAll(text, -1))
}

// login logs in from an address, and reports whether it got in.
func (d *dovecot) login(t *testing.T, name, password, from string) bool {
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}, Timeout: 30 * time.Second}
	conn, err := dialer.DialContext(t.Context(), "tcp", d.address)
	if !assert.NoError(t, err) {
		return false
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(60 * time.Second))
	command := fmt.Sprintf("a login %s %s", name, password)
	if master, account, found := strings.Cut(name, " for "); found { // SASL's authorization identity
		command = "a authenticate plain " + base64.StdEncoding.EncodeToString([]byte(account+"\x00"+master+"\x00"+password))
	}
	fmt.Fprintf(conn, "%s\r\n", command)
	for lines := bufio.NewScanner(conn); lines.Scan(); {
		if answer, ours := strings.CutPrefix(lines.Text(), "a "); ours {
			return strings.HasPrefix(answer, "OK ")
		}
	}
	assert.Fail(t, "no answer")
	return false
}

// guess makes n guesses at once, and returns how many were verified.
func (d *dovecot) guess(t *testing.T, n int, name string, from func(i int) string) int {
	t.Helper()
	return d.guessAs(t, n, func(int) string { return name }, from)
}

// guessAs is guess with several spellings of a name.
func (d *dovecot) guessAs(t *testing.T, n int, name, from func(i int) string) int {
	t.Helper()
	before, begun := d.verified(t), time.Now()
	var running sync.WaitGroup
	for i := range n {
		running.Go(func() { assert.False(t, d.login(t, name(i), fmt.Sprint("guess", i), from(i))) })
	}
	running.Wait()
	t.Logf("%d guesses in %v", n, time.Since(begun))
	// What Dovecot has logged comes late, but in turn: once this is there, so is all before it.
	d.marks++
	mark := fmt.Sprint("mark", d.marks)
	assert.False(t, d.login(t, mark, "guess", fmt.Sprint("127.0.7.", d.marks)))
	marked := regexp.MustCompile(mark + `\b.*Password mismatch`)
	require.Eventually(t, func() bool {
		text, err := os.ReadFile(d.log)
		return err == nil && marked.Match(text)
	}, time.Minute, 10*time.Millisecond)
	return d.verified(t) - before - 1
}

func TestDovecotVerifiesNoMoreGuessesAtAMasterUser(t *testing.T) {
	t.Parallel()
	s := startAPI(t, serve.API{Listen: "127.0.0.1:0", Keys: programs.Keys}, limits)
	d := startDovecot(t, s, programs.Keys[0])
	many := func(i int) string { return fmt.Sprintf("127.0.1.%d", i%250+1) }
	assert.Equal(t, 24, d.guessAs(t, 200, func(i int) string {
		if i%2 == 0 {
			return fmt.Sprintf("account%d*Root", i)
		}
		return fmt.Sprintf("ROOT for account%d", i)
	}, many), "through any account")
	assert.Equal(t, 0, d.guess(t, 10, "root", many), "as its own account")
	assert.Equal(t, 24, d.guessAs(t, 100, func(i int) string { return fmt.Sprintf("alice*root%d", i) }, many), "as any master user of one account")
	for range 7 {
		assert.True(t, d.login(t, "bob*admin", "master", "127.0.0.9"), "a right password costs nothing")
		assert.True(t, d.login(t, "admin for bob", "master", "127.0.0.9"))
	}
	assert.True(t, d.login(t, "bob", "right", "127.0.0.8"))
}

func TestDovecotVerifiesNoMoreGuessesThanAreAllowed(t *testing.T) {
	t.Parallel()
	s := startAPI(t, serve.API{Listen: "127.0.0.1:0", Keys: programs.Keys}, limits)
	d := startDovecot(t, s, programs.Keys[0])
	for range 7 {
		require.True(t, d.login(t, "alice", "right", "127.0.0.9"), "a right password costs nothing")
	}
	assert.Equal(t, 5, d.guess(t, 1000, "bob", func(int) string { return "127.0.0.2" }), "from one address")
	assert.Equal(t, 24, d.guessAs(t, 100, func(i int) string { return fmt.Sprintf("Dave@%d.example.org", i) }, func(i int) string { return fmt.Sprintf("127.0.2.%d", i+1) }), "spellings of one user")
	assert.Equal(t, 24, d.guess(t, 1000, "alice", func(i int) string { return fmt.Sprintf("127.0.1.%d", i%250+1) }), "from many")
	assert.False(t, d.login(t, "alice", "right", "127.0.0.3"), "a stranger with the right password")
	assert.True(t, d.login(t, "alice", "right", "127.0.0.9"), "the owner, from a known place")
	assert.True(t, d.login(t, "carol", "right", "127.0.0.3"), "another name")
}
