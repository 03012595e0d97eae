package docs_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/adaptivethrottler/throttler/internal/record"
	"github.com/adaptivethrottler/throttler/internal/waitqueue"
	"github.com/stretchr/testify/require"

	"github.com/adaptivethrottler/throttler"
)

// Numbers that the pages and the comments of options tell are those of the packages.
func TestThePagesTellTheNumbersOfThePackages(t *testing.T) {
	for _, told := range []struct {
		page, text string
		numbers    []any
	}{
		{"rules.md", "At most %s calls of a process wait for one condition.", []any{thousands(waitqueue.MaxWaiting)}},
		{"rules.md", "| largest Max | %s |", []any{thousands(throttler.MaxHits)}},
		{"operations.md", "`LockoutGrowth` remembers bans for %s after they have ended", []any{days(record.LockoutMemory)}},
		{"login.md", "for %d to %d days after a success there (`KnownFor`)", []any{constant(t, "../login", "defaultKnownFor") / int64(24*time.Hour), 2 * constant(t, "../login", "defaultKnownFor") / int64(24*time.Hour)}},
		{"operations.md", "It holds %s records and %d MiB by default", []any{thousands(int(constant(t, "../memstore", "defaultMaxItems"))), constant(t, "../memstore", "defaultMaxBytes") >> 20}},
		{"operations.md", "once per `BlockCacheTTL` and process. Default: %d s", []any{constant(t, "..", "defaultBlockCacheTTL") / int64(time.Second)}},
		{"../pool/pool.go", "Raise it if the servers are in another region. Default: %s. Timeout time.Duration", []any{duration(t, "../pool", "defaultTimeout")}},
		{"../pool/pool.go", "and the login. Default: %s. DialTimeout time.Duration", []any{duration(t, "../pool", "defaultDialTimeout")}},
		{"../pool/pool.go", "throttler.ErrOverloaded. Default: %s. QueueTimeout time.Duration", []any{duration(t, "../pool", "defaultQueueTimeout")}},
		{"../pool/pool.go", "More of them help only with large values or lost packets. Default: %d. Conns int", []any{constant(t, "../pool", "defaultConns")}},
		{"../pool/pool.go", "in a row mean that a server is down. Default: %d. BreakerFailures int", []any{constant(t, "../pool", "defaultBreakerFailures")}},
		{"../pool/pool.go", "whether it is back. Default: %s. BreakerPause time.Duration", []any{duration(t, "../pool", "defaultBreakerPause")}},
		{"operations.md", "asks each for its statistics every %s", []any{duration(t, "../internal/upstream", "DefaultWatchEvery")}},
	} {
		page, err := os.ReadFile(told.page)
		require.NoError(t, err)
		text := words(fmt.Sprintf(told.text, told.numbers...))
		require.True(t, strings.Contains(words(string(page)), text), "%s does not say: %s", told.page, text)
	}
}

// constant returns the value of a constant of the package in dir. A duration is in
// nanoseconds.
func constant(t *testing.T, dir, name string) int64 {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	require.NoError(t, err)
	for _, file := range files {
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
		require.NoError(t, err)
		for _, d := range parsed.Decls {
			consts, ok := d.(*ast.GenDecl)
			if !ok || consts.Tok != token.CONST {
				continue
			}
			for _, spec := range consts.Specs {
				if spec := spec.(*ast.ValueSpec); spec.Names[0].Name == name {
					expression := types.ExprString(spec.Values[0])
					for unit, d := range map[string]time.Duration{"Millisecond": time.Millisecond, "Second": time.Second, "Minute": time.Minute, "Hour": time.Hour} {
						expression = strings.ReplaceAll(expression, "time."+unit, strconv.FormatInt(int64(d), 10))
					}
					value, err := types.Eval(token.NewFileSet(), nil, token.NoPos, expression)
					require.NoError(t, err)
					n, err := strconv.ParseInt(value.Value.ExactString(), 10, 64)
					require.NoError(t, err)
					return n
				}
			}
		}
	}
	require.Fail(t, "no constant "+name, dir)
	return 0
}

// duration is a constant, as "250 ms" or "1 s".
func duration(t *testing.T, dir, name string) string {
	t.Helper()
	return spaced(time.Duration(constant(t, dir, name)))
}

// words joins the lines of a text, or of a comment.
func words(text string) string {
	return strings.Join(slices.DeleteFunc(strings.Fields(text), func(word string) bool { return word == "//" }), " ")
}

// thousands is n, of 1,000 or more, with its digits in groups of three.
func thousands(n int) string {
	if n < 1_000_000 {
		return fmt.Sprintf("%d,%03d", n/1000, n%1000)
	}
	return fmt.Sprintf("%s,%03d", thousands(n/1000), n%1000)
}

// spaced is "250 ms" or "1 s".
func spaced(d time.Duration) string {
	if d < time.Second {
		return fmt.Sprintf("%d ms", d.Milliseconds())
	}
	return fmt.Sprintf("%v s", d.Seconds())
}

func days(d time.Duration) string {
	if d == 24*time.Hour {
		return "a day"
	}
	return fmt.Sprintf("%v days", d.Hours()/24)
}
