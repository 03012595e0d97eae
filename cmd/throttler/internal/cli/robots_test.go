package cli_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestALogTellsWhichRobotsCame(t *testing.T) {
	const line = `8.8.8.8 - - [27/Nov/2026:10:00:00 +0000] "GET / HTTP/1.1" 200 1 "-" "Googlebot/2.1"` + "\n"
	dir := t.TempDir()
	log, list, rules := filepath.Join(dir, "access.log"), filepath.Join(dir, "list"), filepath.Join(dir, "rules.yaml")
	require.NoError(t, os.WriteFile(log, []byte(strings.Repeat(line, 30)), 0o600))
	require.NoError(t, os.WriteFile(list, []byte("66.249.64.0/27\n"), 0o600))
	text, err := os.ReadFile("../../examples/robots.yaml")
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(rules, []byte(strings.Replace(string(text), "  known: true\n", "  known: true\n  lists: {Googlebot: list}\n", 1)), 0o600))

	came := run(t, "robots", log)
	require.Equal(t, 0, came.status, came.err)
	assert.Regexp(t, `\nsearch +Googlebot +30 +1 +0 +0\n`, came.out, "without rules a name is a claim")
	came = runWith(t, strings.Repeat(line, 30), "robots", "-rules", rules)
	require.Equal(t, 0, came.status, came.err)
	assert.Regexp(t, `\nsearch +Googlebot +30 +1 +0 +30 +20\n`, came.out)

	assert.Equal(t, 1, run(t, "robots", "no/such/file").status)
	assert.Equal(t, 1, run(t, "robots", log, "-rules", list).status)
	assert.Equal(t, 0, run(t, "check", "-offline", rules).status)
	require.NoError(t, os.WriteFile(list, []byte("10.0.0.0/8\n"), 0o600))
	checked := run(t, "check", "-offline", rules)
	assert.Equal(t, 1, checked.status)
	assert.Contains(t, checked.out, list+":1: 10.0.0.0/8 is not on the internet")
}
