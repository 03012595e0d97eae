package docs_test

import (
	"errors"
	"fmt"
	"go/ast"
	"go/doc"
	"go/doc/comment"
	"go/format"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Every Go snippet of the documents compiles as it is printed. What a snippet
// takes from the reader's program, the page declares before it, where readers do
// not see it:
//
//	<!-- given: name, password string; mux *http.ServeMux -->
//
// A snippet may use what an earlier one of the page has declared. Imports need
// not be printed.
func TestSnippetsOfTheDocumentsCompile(t *testing.T) {
	for _, page := range pages(t) {
		t.Run(page, func(t *testing.T) {
			text, err := os.ReadFile(page)
			require.NoError(t, err)
			known := map[string]string{"ctx": "context.Context"}
			for _, s := range snippets(string(text)) {
				maps.Copy(known, s.given)
				err := s.compile(known)
				if missing := new(notHere); errors.As(err, missing) {
					t.Logf("%s:%d: not compiled, since no module here has package %s", page, s.line, string(*missing))
				} else if err != nil {
					t.Errorf("%s:%d: %v", page, s.line, err)
				}
			}
		})
	}
}

// The README begins with three programs as they are run. The page on production shows another
// main for the last one.
func TestTheReadmeBeginsWithWholePrograms(t *testing.T) {
	code := func(page string, i int) string {
		text, err := os.ReadFile(page)
		require.NoError(t, err)
		code := snippets(string(text))[i].code
		formatted, err := format.Source([]byte(code))
		require.NoError(t, err)
		require.Equal(t, string(formatted), code, page)
		return code
	}
	var program string
	for i := range 3 {
		program = code("README.md", i)
		require.True(t, strings.HasPrefix(program, "package main\n"))
		require.NoError(t, snippet{code: program}.compile(map[string]string{}))
	}

	before, rest, found := strings.Cut(program, "func main() {\n")
	require.True(t, found)
	_, after, found := strings.Cut(rest, "\n}\n")
	require.True(t, found)
	_, before, _ = strings.Cut(before, ")\n")
	other := before + code("docs/start.md", 0) + after
	for _, main := range []string{program, other} {
		require.Contains(t, main, "http.NewCrossOriginProtection()", "pages of other sites would count as guesses")
	}
	require.NoError(t, snippet{code: "package main\n" + imports(other) + other}.compile(map[string]string{}))
}

func TestSnippetsThatDoNotCompileAreFound(t *testing.T) {
	for name, code := range map[string]string{
		"a name that is not there":    "th.Authorise(ctx, rule)",
		"an error that is forgotten":  "d, err := th.Authorize(ctx, rule)\nfmt.Println(d)",
		"a field of the wrong type":   `throttler.Condition{Name: "ip", Max: "5"}`,
		"no Go":                       "if then else",
		"a program without an import": "package main\n\nfunc main() { fmt.Println() }",
		"an unused name of a program": "package main\n\nfunc main() { th := 1 }",
	} {
		known := map[string]string{"ctx": "context.Context", "th": "*throttler.Throttler", "rule": "throttler.Rule"}
		require.Error(t, snippet{code: code}.compile(known), name)
	}
}

// A snippet is one Go block of a page.
type snippet struct {
	line  int
	code  string
	given map[string]string // types of the names that the page declares before it
}

var (
	block = regexp.MustCompile("(?m)^( *)```go\n((?s:.*?))^ *```$|<!-- given: (.*?) -->")
	list  = regexp.MustCompile(`^((?:\w+, )*\w+) (.+)$`) // of names, and their type
)

func snippets(page string) []snippet {
	var all []snippet
	given := map[string]string{}
	for _, m := range block.FindAllStringSubmatchIndex(page, -1) {
		if m[6] >= 0 {
			maps.Copy(given, declared(page[m[6]:m[7]]))
			continue
		}
		indent := page[m[2]:m[3]]
		code := strings.ReplaceAll("\n"+page[m[4]:m[5]], "\n"+indent, "\n")[1:]
		all = append(all, snippet{1 + strings.Count(page[:m[0]], "\n"), code, given})
		given = map[string]string{}
	}
	return all
}

// declared reads "a, b string; c int".
func declared(text string) map[string]string {
	given := map[string]string{}
	for _, part := range strings.Split(text, "; ") {
		if m := list.FindStringSubmatch(part); m != nil {
			for _, name := range strings.Split(m[1], ", ") {
				given[name] = m[2]
			}
		}
	}
	return given
}

// compile type-checks s among the names known, and adds to them what s declares.
func (s snippet) compile(known map[string]string) error {
	source, err := s.source(known)
	if err != nil {
		return err
	}
	files := token.NewFileSet()
	file, err := parser.ParseFile(files, "", source, 0)
	if err != nil {
		return err
	}
	var missing notHere
	var problems []error
	info := &types.Info{Defs: map[*ast.Ident]types.Object{}}
	config := types.Config{
		Importer: importer.ForCompiler(files, "gc", func(path string) (io.ReadCloser, error) {
			f, err := openExportData(path)
			errors.As(err, &missing)
			return f, err
		}),
		Error: func(err error) {
			if isWhole(s.code) || !isLeftToTheRest(err) {
				problems = append(problems, err)
			}
		},
	}
	config.Check("snippet", files, []*ast.File{file}, info)
	for name, object := range info.Defs {
		switch object.(type) {
		case *types.Var, *types.Func:
			if name.Name != "_" && object.Type() != nil {
				known[name.Name] = types.TypeString(object.Type(), (*types.Package).Name)
			}
		}
	}
	if missing != "" {
		return missing
	}
	return errors.Join(problems...)
}

// isLeftToTheRest reports whether err is no mistake in part of a program, since
// the rest uses what the part declares. Only an err is handled where it arises.
func isLeftToTheRest(err error) bool {
	text := err.Error()
	return strings.Contains(text, "declared and not used") && !strings.HasSuffix(text, ": err")
}

// isWhole reports whether code is a file, which needs nothing else to compile.
func isWhole(code string) bool { return strings.HasPrefix(code, "package ") }

// source returns a file with s in it, be it a file, declarations, statements, a
// value, or conditions of a rule.
func (s snippet) source(known map[string]string) (string, error) {
	if isWhole(s.code) {
		return s.code, nil
	}
	var mistake error
	frames := []string{
		"%s",
		"func _() any { return []throttler.Condition{\n%s} }",
		"func _() " + results(s.code) + " {\n{\n%s}\npanic(0) }",
	}
	if value, err := parser.ParseExpr(s.code); err == nil && is[*ast.CompositeLit](value) {
		frames = []string{"var _ = %s"}
	}
	for _, frame := range frames {
		body := fmt.Sprintf(frame, strings.TrimSpace(s.code)+"\n")
		file, err := parser.ParseFile(token.NewFileSet(), "", "package snippet\n"+body, 0)
		if err != nil {
			mistake = err
			continue
		}
		body += variables(file, known)
		return "package snippet\n" + imports(body) + body, nil
	}
	return "", mistake
}

func is[T any](x any) bool {
	_, ok := x.(T)
	return ok
}

// variables declares those of the names known that file uses and does not declare.
func variables(file *ast.File, known map[string]string) string {
	var b strings.Builder
	done := map[string]bool{}
	for _, name := range file.Unresolved {
		if of := known[name.Name]; of != "" && !done[name.Name] {
			fmt.Fprintf(&b, "\nvar %s %s", name.Name, of)
			done[name.Name] = true
		}
	}
	return b.String()
}

// results returns what a function must return to have code as its body.
func results(code string) string {
	file, err := parser.ParseFile(token.NewFileSet(), "", "package snippet\nfunc _() {\n"+code+"}", parser.SkipObjectResolution)
	if err != nil {
		return ""
	}
	n := 0
	ast.Inspect(file, func(node ast.Node) bool {
		if r, ok := node.(*ast.ReturnStmt); ok {
			n = max(n, len(r.Results))
		}
		_, inner := node.(*ast.FuncLit)
		return !inner
	})
	if n == 0 {
		return ""
	}
	return "(" + strings.Repeat("any, ", n-1) + "any)"
}

// importable are the packages that snippets use, by name.
var importable = func() map[string]string {
	const ours = "github.com/adaptivethrottler/throttler"
	all := map[string]string{"throttler": ours, "prometheus": "go.opentelemetry.io/otel/exporters/prometheus"}
	for _, path := range []string{
		"context", "errors", "expvar", "fmt", "io", "iter", "log", "log/slog", "net", "net/http", "net/http/httptest", "net/netip", "os",
		"strconv", "strings", "sync", "testing", "testing/synctest", "time", "crypto/tls", "crypto/x509", "crypto/rand", "encoding/json",
		ours + "/grpcthrottle", ours + "/httpthrottle", ours + "/login", ours + "/memstore", ours + "/otelthrottle", ours + "/pool", ours + "/redisstore", ours + "/robots", ours + "/storetest", ours + "/tally",
		"github.com/bradfitz/gomemcache/memcache", "github.com/gin-gonic/gin", "github.com/stretchr/testify/require",
		"go.opentelemetry.io/otel", "google.golang.org/grpc", "google.golang.org/grpc/codes", "google.golang.org/grpc/status",
		"google.golang.org/protobuf/proto", "go.opentelemetry.io/otel/sdk/metric", "github.com/prometheus/client_golang/prometheus/promhttp", "math", "math/rand/v2", "database/sql",
	} {
		all[path[strings.LastIndexByte(path, '/')+1:]] = path
	}
	all["chi"] = "github.com/go-chi/chi/v5"
	all["echo"] = "github.com/labstack/echo/v4"
	all["rate"] = "golang.org/x/time/rate"
	all["redis"] = "github.com/redis/go-redis/v9"
	all["redis_rate"] = "github.com/go-redis/redis_rate/v10"
	all["httprate"] = "github.com/go-chi/httprate"
	all["limiter"] = "github.com/ulule/limiter/v3"
	all["stdlib"] = "github.com/ulule/limiter/v3/drivers/middleware/stdlib"
	all["memory"] = "github.com/ulule/limiter/v3/drivers/store/memory"
	return all
}()

// imports returns the imports that body lacks.
func imports(body string) string {
	file, err := parser.ParseFile(token.NewFileSet(), "", "package snippet\n"+body, 0)
	if err != nil || len(file.Imports) > 0 {
		return ""
	}
	paths := map[string]bool{}
	for _, name := range file.Unresolved {
		if path := importable[name.Name]; path != "" {
			paths[path] = true
		}
	}
	var b strings.Builder
	for _, path := range slices.Sorted(maps.Keys(paths)) {
		fmt.Fprintf(&b, "import %q\n", path)
	}
	return b.String()
}

// exportData tells where the compiled form of each package is that a snippet can
// import. The go command compiles what it has not yet, and downloads nothing: a
// package of a module that is not here has no such file.
var exportData = sync.OnceValues(func() (map[string]string, error) {
	paths := slices.Sorted(maps.Values(importable))
	cmd := exec.Command("go", append([]string{"list", "-e", "-deps", "-export", "-f", "{{.ImportPath}}={{.Export}}"}, paths...)...)
	cmd.Env = append(os.Environ(), "GOPROXY=off", "GOFLAGS=")
	out, err := cmd.Output()
	files := map[string]string{}
	for line := range strings.Lines(string(out)) {
		path, file, _ := strings.Cut(strings.TrimSpace(line), "=")
		files[path] = file
	}
	return files, err
})

func openExportData(path string) (io.ReadCloser, error) {
	files, err := exportData()
	if err != nil {
		return nil, err
	}
	if files[path] == "" {
		return nil, notHere(path)
	}
	return os.Open(files[path])
}

// notHere is the path of a package that cannot be imported.
type notHere string

func (path notHere) Error() string { return "no package " + string(path) }

// Every link from a document to a file of the repository, and to a heading in it,
// leads somewhere.
func TestLinksOfTheDocumentsLeadSomewhere(t *testing.T) {
	for _, page := range pages(t) {
		text, err := os.ReadFile(page)
		require.NoError(t, err)
		for _, m := range link.FindAllStringSubmatch(string(text), -1) {
			if strings.Contains(m[1], "://") {
				continue
			}
			path, heading, _ := strings.Cut(m[1], "#")
			target := page
			if path != "" {
				target = filepath.Join(filepath.Dir(page), path)
			}
			content, err := os.ReadFile(target)
			if info, statErr := os.Stat(target); statErr == nil && info.IsDir() {
				err = nil
			}
			if assert.NoError(t, err, page) && heading != "" {
				assert.Contains(t, headings(string(content)), heading, "%s links to %s", page, m[1])
			}
		}
	}
}

var (
	link      = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	heading   = regexp.MustCompile(`(?m)^#+ (.*)$`)
	notInLink = regexp.MustCompile(`[^\p{L}\p{N}_ -]`)
)

// headings returns the names by which links refer to the headings of a page.
func headings(page string) []string {
	var all []string
	for _, m := range heading.FindAllStringSubmatch(page, -1) {
		all = append(all, strings.ReplaceAll(notInLink.ReplaceAllString(strings.ToLower(m[1]), ""), " ", "-"))
	}
	return all
}

// Every link to the reference leads to a package of the repository and, if it has an anchor,
// to a name, a heading or an example there.
func TestLinksToTheReferenceLeadSomewhere(t *testing.T) {
	anchors := map[string][]string{} // by the directory of a package
	found := 0
	for _, page := range pages(t) {
		text, err := os.ReadFile(page)
		require.NoError(t, err)
		for _, m := range reference.FindAllStringSubmatch(string(text), -1) {
			dir := "." + m[1]
			if anchors[dir] == nil {
				anchors[dir] = anchorsOf(t, dir)
			}
			found++
			assert.True(t, m[2] == "" || slices.Contains(anchors[dir], m[2]), "%s links to %s", page, m[0])
		}
	}
	require.Greater(t, found, 20)
	require.NotContains(t, anchors["."], "Throttler.Nothing")
}

var reference = regexp.MustCompile(`pkg\.go\.dev/github\.com/adaptivethrottler/throttler([/a-z]*)(?:#([^)\s]+))?\)`)

// anchorsOf returns the anchors of a package's page, without those of fields.
func anchorsOf(t *testing.T, dir string) (anchors []string) {
	names, err := filepath.Glob(filepath.Join(dir, "*.go"))
	require.NoError(t, err)
	set := token.NewFileSet()
	var files []*ast.File
	for _, name := range names {
		file, err := parser.ParseFile(set, name, nil, parser.ParseComments)
		require.NoError(t, err)
		files = append(files, file)
	}
	of, err := doc.NewFromFiles(set, files, dir)
	require.NoError(t, err, dir)
	add := func(name string, examples []*doc.Example) {
		anchors = append(anchors, name)
		for _, e := range examples {
			anchors = append(anchors, strings.TrimSuffix("example-"+strings.ReplaceAll(name, ".", "-")+"-"+e.Suffix, "-"))
		}
	}
	functions := of.Funcs
	for _, x := range of.Types {
		add(x.Name, x.Examples)
		functions = append(functions, x.Funcs...)
		for _, method := range x.Methods {
			add(x.Name+"."+method.Name, method.Examples)
		}
	}
	for _, f := range functions {
		add(f.Name, f.Examples)
	}
	for _, block := range of.Parser().Parse(of.Doc).Content {
		if h, ok := block.(*comment.Heading); ok {
			anchors = append(anchors, h.DefaultID())
		}
	}
	return anchors
}

// The map has one row for each page, so that each has one purpose.
func TestTheMapOfTheDocumentsHasEachPageOnce(t *testing.T) {
	text, err := os.ReadFile("docs/README.md")
	require.NoError(t, err)
	want, err := filepath.Glob("docs/*.md")
	require.NoError(t, err)
	var listed []string
	for line := range strings.Lines(string(text)) {
		if !strings.HasPrefix(line, "| ") {
			continue
		}
		for _, m := range link.FindAllStringSubmatch(line, -1) {
			listed = append(listed, filepath.Join("docs", m[1]))
		}
	}
	require.ElementsMatch(t, slices.DeleteFunc(want, func(page string) bool { return page == "docs/README.md" }), listed)
}

// pages returns the paths of all documents.
func pages(t *testing.T) []string {
	pages, err := filepath.Glob("docs/*.md")
	require.NoError(t, err)
	require.NotEmpty(t, pages)
	return append(pages, "README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")
}
