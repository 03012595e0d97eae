package docs_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Tests that a document names, in backquotes or behind -run, exist in some package.
func TestTestsThatTheDocumentsNameExist(t *testing.T) {
	exist := testsOfTheRepository(t)
	for _, page := range pages(t) {
		for _, name := range testsNamedIn(read(t, page)) {
			assert.Contains(t, exist, name, page)
		}
	}
}

func TestATestThatADocumentNamesIsFound(t *testing.T) {
	require.Equal(t, []string{"TestA1", "FuzzB", "TestC", "Test4D"},
		testsNamedIn("(`TestA1`, `FuzzB`) run `go test -run TestC$ .`:\n\n\tfunc TestSnippet(t *testing.T)\n\n`Test4D` Tests `Testing` `Tester`"))
}

var (
	namedTest  = regexp.MustCompile("`((?:Test|Fuzz)[A-Z0-9]\\w*)`|-run[ =]'?\\^?((?:Test|Fuzz)[A-Z0-9]\\w*)")
	definition = regexp.MustCompile(`(?m)^func ((?:Test|Fuzz)\w*)\(`)
)

func testsNamedIn(text string) (names []string) {
	for _, m := range namedTest.FindAllStringSubmatch(text, -1) {
		names = append(names, m[1]+m[2])
	}
	return names
}

func testsOfTheRepository(t *testing.T) (names []string) {
	require.NoError(t, filepath.WalkDir(".", func(path string, _ fs.DirEntry, err error) error {
		if err == nil && strings.HasSuffix(path, "_test.go") {
			for _, m := range definition.FindAllStringSubmatch(read(t, path), -1) {
				names = append(names, m[1])
			}
		}
		return err
	}))
	return names
}

func read(t *testing.T, path string) string {
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	return string(text)
}

var (
	section   = regexp.MustCompile(`(?m)^## (.*)$`)
	paragraph = regexp.MustCompile(`(?m)^\*\*([^*]*)\.\*\*`)
	promised  = regexp.MustCompile(`(?m)^// ([A-Z][a-z]+): `)
	row       = regexp.MustCompile(`(?m)^\| ([A-Z][^|]*) \| (.*) \|$`)
)

// The page's table has a row for each promise of the page and of the package's
// documentation.
func TestEachPromiseNamesTheTestsThatGuardIt(t *testing.T) {
	page := read(t, "docs/exactness.md")
	page, table, _ := strings.Cut(page, "\n## The tests\n")
	var rows []string
	for _, m := range row.FindAllStringSubmatch(table, -1) {
		rows = append(rows, m[1])
		assert.NotEmpty(t, testsNamedIn(m[2]), m[1])
	}
	require.Equal(t, append(promisesOfThePage(page), promisesOfThePackage(read(t, "throttler.go"))...), rows)
}

// promisesOfThePage returns the sections of a page, or what they are divided into.
func promisesOfThePage(page string) (promises []string) {
	at := section.FindAllStringSubmatchIndex(page, -1)
	for i, m := range at {
		end := len(page)
		if i+1 < len(at) {
			end = at[i+1][0]
		}
		body := page[m[1]:end]
		paragraphs := paragraph.FindAllStringSubmatchIndex(body, -1)
		// A section that does not begin with such a paragraph is a promise too.
		if len(paragraphs) == 0 || strings.TrimSpace(body[:paragraphs[0][0]]) != "" {
			promises = append(promises, page[m[2]:m[3]])
		}
		for _, p := range paragraphs {
			promises = append(promises, body[p[2]:p[3]])
		}
	}
	return promises
}

// promisesOfThePackage returns the promises of a package's documentation, and the
// sections that follow them.
func promisesOfThePackage(source string) (promises []string) {
	doc, _, _ := strings.Cut(source, "\npackage ")
	_, doc, _ = strings.Cut(doc, "\n// # What it promises\n")
	for _, m := range promised.FindAllStringSubmatch(doc, -1) {
		promises = append(promises, m[1])
	}
	for line := range strings.Lines(doc) {
		if heading, ok := strings.CutPrefix(line, "// # "); ok {
			promises = append(promises, strings.TrimSpace(heading))
		}
	}
	return slices.Clip(promises)
}
