package rulefile_test

import (
	"encoding/json"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/adaptivethrottler/throttler/cmd/throttler/internal/rulefile"
	"github.com/google/jsonschema-go/jsonschema"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The tables of the manual have each key of a rule file once, and no other.
func TestTheManualHasEachKeyOfARuleFile(t *testing.T) {
	var s jsonschema.Schema
	require.NoError(t, json.Unmarshal([]byte(rulefile.Schema), &s))
	for _, table := range []struct {
		page, heading string
		objects       []*jsonschema.Schema
	}{
		{"rules.md", "The file", []*jsonschema.Schema{&s}},
		{"rules.md", "A rule", []*jsonschema.Schema{s.Defs["rule"]}},
		{"rules.md", "A condition", []*jsonschema.Schema{s.Defs["condition"]}},
		{"login-proxy.md", "What to write", []*jsonschema.Schema{s.Properties["proxy"], s.Defs["login"]}},
	} {
		var want []string
		for _, object := range table.objects {
			want = slices.AppendSeq(want, maps.Keys(object.Properties))
		}
		assert.ElementsMatch(t, want, keysTold(t, table.page, table.heading), "%s, %s", table.page, table.heading)
	}
}

var (
	keyCell = regexp.MustCompile("(?m)^\\| (`[^|]*) \\|")
	keyTold = regexp.MustCompile("`([a-z0-9-]+)`")
)

// keysTold returns the keys in the first column of the first table below a heading.
func keysTold(t *testing.T, page, heading string) (keys []string) {
	t.Helper()
	text, err := os.ReadFile("../../../../docs/" + page)
	require.NoError(t, err)
	_, rest, ok := strings.Cut(string(text), "\n## "+heading+"\n")
	require.True(t, ok, heading)
	_, rest, ok = strings.Cut(rest, "| key | meaning |")
	require.True(t, ok, heading)
	table, _, _ := strings.Cut(rest, "\n\n")
	for _, cell := range keyCell.FindAllStringSubmatch(table, -1) {
		for _, key := range keyTold.FindAllStringSubmatch(cell[1], -1) {
			keys = append(keys, key[1])
		}
	}
	return keys
}
