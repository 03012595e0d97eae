package throttler

import (
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"slices"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
)

// The core decides on what it is given: it asks no server and no clock, waits for
// nobody and holds no lock. It compiles by itself, so it uses nothing of the files
// that do.
func TestPureFilesArePure(t *testing.T) {
	allowed := []string{
		"crypto/sha256", "encoding/binary", "encoding/hex", "errors", "fmt",
		"math", "math/bits", "reflect", "slices", "sort", "strings", "time",
	}
	clock := []string{"Now", "Since", "Until", "Sleep", "After", "AfterFunc", "Tick", "NewTimer", "NewTicker"}
	set := token.NewFileSet()
	var files []*ast.File
	for _, name := range []string{
		"bucket.go", "codec.go", "conditions.go", "decision.go", "hits.go", "instant.go", "key.go", "lockout.go", "window.go",
	} {
		file, err := parser.ParseFile(set, name, nil, 0)
		require.NoError(t, err)
		files = append(files, file)
		for _, i := range file.Imports {
			path, err := strconv.Unquote(i.Path.Value)
			require.NoError(t, err)
			require.Contains(t, allowed, path, name)
		}
		ast.Inspect(file, func(n ast.Node) bool {
			if s, ok := n.(*ast.SelectorExpr); ok {
				x, _ := s.X.(*ast.Ident)
				require.False(t, x != nil && x.Name == "time" && slices.Contains(clock, s.Sel.Name), "%s: time.%s", name, s.Sel.Name)
			}
			_, starts := n.(*ast.GoStmt)
			require.False(t, starts, "%s starts a goroutine", name)
			return true
		})
	}
	rest, err := parser.ParseFile(set, "", "package throttler; type receipt struct{}", 0) // a Decision holds one
	require.NoError(t, err)
	files = append(files, rest)
	alone := types.Config{Importer: importer.ForCompiler(set, "source", nil)}
	_, err = alone.Check("core", set, files, nil)
	require.NoError(t, err)
}
