package docs_test

import (
	"bytes"
	"go/ast"
	"go/build"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// maxNames is how many names of another package of this project a file may use. A file that
// needs more does several things.
const maxNames = 10

const module = "github.com/adaptivethrottler/throttler"

func TestFilesNeedFewNamesOfAnotherPackage(t *testing.T) {
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

// importRow is a row of the table of packages in docs/design.md: the package first, and
// last those of this project that it imports.
var importRow = regexp.MustCompile("(?m)^\\| (root|`[a-z/]+`) \\|.*\\| (-|[^|]*) \\|$")

func TestTheMapHasTheImportsOfEachPackage(t *testing.T) {
	page, err := os.ReadFile("docs/design.md")
	require.NoError(t, err)
	from := string(page[bytes.Index(page, []byte("| package |")):])
	rows := importRow.FindAllStringSubmatch(from[:strings.Index(from, "\n\n")], -1)
	require.Greater(t, len(rows), 6)
	for _, row := range rows {
		dir := "."
		if row[1] != "root" {
			dir = strings.Trim(row[1], "`")
		}
		of, err := build.ImportDir(dir, 0)
		require.NoError(t, err)
		ours := []string{}
		for _, imported := range of.Imports {
			if imported == module {
				ours = append(ours, "root")
			} else if rest, ok := strings.CutPrefix(imported, module+"/"); ok {
				ours = append(ours, "`"+rest+"`")
			}
		}
		require.Equal(t, strings.Trim(row[2], "-"), strings.Join(ours, ", "), "imports of %s", row[1])
	}
}

func TestTheMapHasEachFileOfTheRoot(t *testing.T) {
	page, err := os.ReadFile("docs/design.md")
	require.NoError(t, err)
	of, err := build.ImportDir(".", 0)
	require.NoError(t, err)
	for _, file := range of.GoFiles {
		require.Contains(t, string(page), "`"+file+"`")
	}
}
