package docs_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var (
	backquoted = regexp.MustCompile("`([^`]+)`")
	literal    = regexp.MustCompile(`"((?:[^"\\]|\\.)*)"`)
)

// Each row of the table says by which metrics and lines of the log it is seen. The code has
// both.
func TestTheTableForOperatorsHasTheMetricsAndLinesOfTheCode(t *testing.T) {
	_, table, found := strings.Cut(read(t, "docs/operations.md"), "\n## What you see, what it means, what to do\n")
	require.True(t, found)
	table, _, _ = strings.Cut(table, "\n## ")
	texts := literals(t, "otelthrottle", "cmd/throttler/internal", "internal/record", "internal/counts")
	rows := 0
	for line := range strings.Lines(table) {
		cells := strings.Split(line, " | ")
		if len(cells) != 4 || !strings.HasPrefix(line, "| `") {
			continue
		}
		rows++
		metrics, lines := backquoted.FindAllStringSubmatch(cells[0], -1), backquoted.FindAllStringSubmatch(cells[1], -1)
		require.NotEmpty(t, metrics, line)
		require.NotEmpty(t, lines, line)
		for _, m := range metrics {
			name, labels, _ := strings.Cut(m[1], "{")
			assert.Contains(t, texts.metrics, strings.TrimSuffix(name, "_total"), "no such metric: %s", m[1])
			for _, value := range literal.FindAllStringSubmatch(labels, -1) {
				assert.Contains(t, texts.all, value[1], "no such label: %s", m[1])
			}
		}
		for _, l := range lines {
			assert.Regexp(t, `(^|\n|: )`+regexp.QuoteMeta(l[1]), strings.Join(texts.all, "\n"), "no such line")
		}
	}
	require.Greater(t, rows, 12)
}

// The texts of code are its string literals, and the names of metrics among them as Prometheus
// has them, without _total.
type texts struct {
	all     []string
	metrics []string
}

func literals(t *testing.T, folders ...string) (of texts) {
	t.Helper()
	for _, folder := range folders {
		require.NoError(t, filepath.WalkDir(folder, func(path string, _ os.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			for _, m := range literal.FindAllStringSubmatch(read(t, path), -1) {
				of.all = append(of.all, m[1])
				if strings.HasPrefix(m[1], "throttler.") || strings.HasPrefix(m[1], "throttler_") {
					of.metrics = append(of.metrics, strings.TrimSuffix(strings.ReplaceAll(m[1], ".", "_"), "_total"))
				}
			}
			return nil
		}))
	}
	return of
}
