package rulefile_test

import (
	"os"
	"strings"
	"testing"

	"github.com/adaptivethrottler/throttler/cmd/throttler/internal/rulefile"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestNoOtherSpellingOfANameMatches has names that the programs of the manual take for alice, or
// for another name that matches.
func TestNoOtherSpellingOfANameMatches(t *testing.T) {
	manual, err := os.ReadFile("../../../../docs/login-proxy.md")
	require.NoError(t, err)
	for program, c := range map[string]struct {
		path           string
		names, refused []string
	}{
		"radicale": {"/", []string{"alice", "a.l-i_ce", ""}, []string{"ALICE", "alice@x", "al ice", "alice\n"}},
		"dokuwiki": {"/doku.php", []string{"alice", "alice1", ""}, []string{"AL!ICE_", "Alice", "alice ", "_alice", "al.ice", "\u00e4lice"}},
		"wordpress": {"/wp-login.php", []string{"alice", "Alice B", "a.b+c@example.org"}, []string{
			"ad%41min", "ad%99min", "<b1>admin", "admin<!--N-->", "adm&amp;in", "&x;admin", "\u00e1dmin", "ad\\min", "admin ", " admin", "al  ice", "admin\t", "al'ice", "",
		}},
	} {
		_, block, found := strings.Cut(string(manual), "```yaml\n# "+program)
		require.True(t, found, program)
		block, _, _ = strings.Cut(block, "```")
		file, err := rulefile.Parse("x", []byte("# "+block))
		require.NoError(t, err)
		assert.Empty(t, file.Warnings, program)
		login := file.Proxy.Logins(&rulefile.Request{Host: "a", Target: c.path})[0]
		for _, name := range c.names {
			assert.True(t, login.Names.MatchString(name), "%s: %q", program, name)
		}
		for _, name := range c.refused {
			assert.False(t, login.Names.MatchString(name), "%s: %q", program, name)
		}
	}
}
