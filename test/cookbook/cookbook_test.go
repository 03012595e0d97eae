package cookbook_test

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// recipe is a heading of the cookbook, and the program and the output that follow it.
var recipe = regexp.MustCompile("(?m)^## (.+)\n(?s:(?:[^#].*?)?)^```go\n(package (?s:.*?))^```\n\n```\n((?s:.*?))^```$")

// Every program of the cookbook prints what stands below it. They are built at once, as if they
// were packages of this module.
func TestTheProgramsOfTheCookbookPrintWhatThePageSays(t *testing.T) {
	page, err := os.ReadFile("../../docs/cookbook.md")
	require.NoError(t, err)
	recipes := recipe.FindAllStringSubmatch(string(page), -1)
	require.Len(t, recipes, strings.Count(string(page), "\n## "))
	require.Len(t, recipes, strings.Count(string(page), "```go\n"))

	root, err := filepath.Abs("../..")
	require.NoError(t, err)
	dir := t.TempDir()
	overlay := map[string]string{}
	var programs []string
	for i, r := range recipes {
		name, file := fmt.Sprint("recipe", i), "main.go"
		if strings.Contains(r[2], `"testing"`) {
			file = "recipe_test.go"
		} else {
			programs = append(programs, "./cookbook/"+name)
		}
		source := filepath.Join(dir, name+".go")
		require.NoError(t, os.WriteFile(source, []byte(r[2]), 0o600))
		overlay[filepath.Join(root, "cookbook", name, file)] = source
	}
	text, err := json.Marshal(map[string]any{"Replace": overlay})
	require.NoError(t, err)
	replace := filepath.Join(dir, "overlay.json")
	require.NoError(t, os.WriteFile(replace, text, 0o600))
	run := func(command ...string) string {
		c := exec.CommandContext(t.Context(), command[0], command[1:]...)
		c.Dir = root
		out, err := c.CombinedOutput()
		assert.NoError(t, err, "%v: %s", command, out)
		return string(out)
	}
	run(append([]string{"go", "build", "-overlay", replace, "-o", dir + "/"}, programs...)...)
	for i, r := range recipes {
		name := fmt.Sprint("recipe", i)
		t.Run(r[1], func(t *testing.T) {
			if strings.Contains(r[2], `"testing"`) {
				run("go", "test", "-c", "-vet=off", "-overlay", replace, "-o", filepath.Join(dir, name), "./cookbook/"+name)
			}
			require.Equal(t, r[3], run(filepath.Join(dir, name)))
		})
	}
}
