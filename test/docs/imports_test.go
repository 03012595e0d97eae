package docs_test

import (
	"bytes"
	"go/build"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// What a program imports is counted by go list. The README may be wrong by a tenth.
func TestTheReadmeTellsHowManyLinesAPackageBrings(t *testing.T) {
	readme, err := os.ReadFile("README.md")
	require.NoError(t, err)
	for _, row := range []struct{ name, of, beside string }{
		{"throttler", ".", ""},
		{"… and memstore", "./memstore", "."},
		{"… and pool", "./pool", "."},
		{"… and redisstore, a module of its own", "./redisstore", "."},
		{"… and httpthrottle", "./httpthrottle", "."},
		{"… and robots, over httpthrottle", "./robots", "./httpthrottle"},
		{"… and login", "./login", "."},
	} {
		found := regexp.MustCompile(`(?m)^\| ` + regexp.QuoteMeta(row.name) + ` \| ([\d,]+)`).FindSubmatch(readme)
		require.NotNil(t, found, row.name)
		told, err := strconv.Atoi(strings.ReplaceAll(string(found[1]), ",", ""))
		require.NoError(t, err)

		dirs := dirsOf(t, row.of)
		if row.beside != "" {
			for dir := range dirsOf(t, row.beside) {
				delete(dirs, dir)
			}
		}
		require.InEpsilon(t, linesIn(t, dirs), told, 0.1, row.name)
	}
}

// dirsOf returns the directories of this project that a package is built from.
func dirsOf(t *testing.T, path string) map[string]bool {
	cmd := exec.Command("go", "list", "-deps", "-f", "{{.Dir}}", ".")
	cmd.Dir = path
	out, err := cmd.Output()
	require.NoError(t, err)
	abs, err := os.Getwd()
	require.NoError(t, err)
	dirs := map[string]bool{}
	for dir := range strings.Lines(string(out)) {
		if dir = strings.TrimSpace(dir); dir == abs || strings.HasPrefix(dir, abs+string(filepath.Separator)) {
			dirs[dir] = true
		}
	}
	return dirs
}

func linesIn(t *testing.T, dirs map[string]bool) (n int) {
	for dir := range dirs {
		p, err := build.ImportDir(dir, 0)
		require.NoError(t, err)
		for _, file := range p.GoFiles {
			b, err := os.ReadFile(filepath.Join(dir, file))
			require.NoError(t, err)
			n += bytes.Count(b, []byte("\n"))
		}
	}
	return n
}
