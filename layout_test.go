package throttler_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// maxNames is how many names of another package of this project a file may use. A file that
// needs more does several things.
const maxNames = 8

func TestFilesNeedFewNamesOfAnotherPackage(t *testing.T) {
	const module = "github.com/adaptivethrottler/throttler"
	err := filepath.WalkDir(".", func(file string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && entry.Name() == "testdata":
			return filepath.SkipDir
		case entry.IsDir(), !strings.HasSuffix(file, ".go"), strings.HasSuffix(file, "_test.go"):
			return nil
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
		require.NoError(t, err)
		names := make(map[string]map[string]bool) // by package, of those that are imported
		for _, i := range parsed.Imports {
			imported, _ := strconv.Unquote(i.Path.Value)
			if name := path.Base(imported); i.Name == nil && strings.HasPrefix(imported, module) {
				names[name] = make(map[string]bool)
			}
		}
		ast.Inspect(parsed, func(n ast.Node) bool {
			if s, ok := n.(*ast.SelectorExpr); ok {
				if x, ok := s.X.(*ast.Ident); ok && x.Obj == nil && names[x.Name] != nil {
					names[x.Name][s.Sel.Name] = true
				}
			}
			return true
		})
		for of, used := range names {
			require.LessOrEqual(t, len(used), maxNames, "%s uses these names of package %s: %v", file, of, slices.Sorted(maps.Keys(used)))
		}
		return nil
	})
	require.NoError(t, err)
}
