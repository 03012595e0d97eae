package login_test

import (
	"encoding/base64"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/adaptivethrottler/throttler/login"
)

// What databases find equal, asked of the databases themselves: each character of
// Unicode's planes 0 and 1, and of the tags and selectors of plane 14, stands for
// one of these texts, or between two letters of "alice". No server is started, and
// nothing listens. testdata/simulations.md has the table, which -update writes.

var texts = []string{"a", "l", "i", "c", "e", "ae", "oe", "ss", "th"}

const inserted = "alice" // with the character after its second letter

// A found is a character that a lookup takes for text, or ignores.
type found struct {
	text string
	r    rune
}

// beyond reports whether the guard counts the two spellings apart.
func (f found) beyond() bool {
	spelling := string(f.r)
	if f.text == inserted {
		spelling = "al" + spelling + "ice"
	}
	return login.Normalize(spelling) != f.text
}

// A lookup is a way in which a database finds an account.
type lookup struct {
	name  string
	found []found
}

// row returns the row of the table: how many were found, and how many, and which,
// are beyond Normalize.
func (l lookup) row() string {
	beyond := slices.DeleteFunc(slices.Clone(l.found), func(f found) bool { return !f.beyond() })
	insertions := 0
	examples := make(map[string]string)
	var order []string
	for _, f := range beyond {
		if f.text == inserted {
			insertions++
		}
		if _, ok := examples[f.text]; !ok && len(order) < 3 {
			order = append(order, f.text)
			examples[f.text] = fmt.Sprintf("U+%04X = %s", f.r, f.text)
			if f.text == inserted {
				examples[f.text] = fmt.Sprintf("U+%04X is ignored", f.r)
			}
		}
	}
	for i, text := range order {
		order[i] = examples[text]
	}
	return fmt.Sprintf("| %s | %s | %s | %s | %s |\n", l.name, number(len(l.found)), number(len(beyond)), number(insertions), strings.Join(order, ", "))
}

// installed returns the paths of programs, or skips the test.
func installed(t *testing.T, names ...string) (paths []string) {
	for _, name := range names {
		path, err := exec.LookPath(name)
		if err != nil {
			path, err = exec.LookPath("/usr/sbin/" + name)
		}
		if err != nil {
			t.Skipf("%s is not installed, so its spellings are not looked at", name)
		}
		paths = append(paths, path)
	}
	return paths
}

// output returns what a program prints, which is given input.
func output(t *testing.T, input, program string, args ...string) string {
	command := exec.Command(program, args...)
	command.Stdin = strings.NewReader(input)
	var stderr strings.Builder
	command.Stderr = &stderr
	printed, err := command.Output()
	require.NoError(t, err, "%s: %s", program, stderr.String())
	return string(printed)
}

// rows parses lines of a text and a code point, with a tab between.
func rows(t *testing.T, lines string) (all []found) {
	for line := range strings.Lines(lines) {
		text, point, ok := strings.Cut(strings.TrimSpace(line), "\t")
		require.True(t, ok, line)
		r, err := strconv.Atoi(point)
		require.NoError(t, err)
		all = append(all, found{text, rune(r)})
	}
	return all
}

// mariaDB asks MariaDB, which reads its statements from stdin and leaves its
// answers in files.
func mariaDB(t *testing.T) (lookups []lookup) {
	server := installed(t, "mariadbd")[0]
	dir := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(dir, "data"), 0o700))
	var sql strings.Builder
	statement := func(format string, args ...any) { fmt.Fprintf(&sql, format+";\n", args...) }
	statement("CREATE DATABASE d")
	statement("USE d")
	statement("CREATE TABLE c (n INT PRIMARY KEY, s VARCHAR(1) CHARACTER SET utf8mb4) ENGINE=MyISAM")
	for _, points := range []string{"seq_1_to_131071", "seq_917504_to_918015"} {
		statement("INSERT INTO c SELECT seq, CONVERT(CHAR(seq USING utf32) USING utf8mb4) FROM %s WHERE seq NOT BETWEEN 0xD800 AND 0xDFFF", points)
	}
	collations := []string{"utf8mb4_bin", "utf8mb4_general_ci", "utf8mb4_unicode_ci", "utf8mb4_unicode_520_ci", "utf8mb4_uca1400_as_ci", "utf8mb4_uca1400_ai_ci"}
	for _, c := range collations {
		statement("SELECT * FROM (SELECT '%[1]s' t, n FROM c WHERE CONCAT('al', s, 'ice') COLLATE %[2]s = 'alice' "+
			"UNION ALL SELECT t, n FROM c, (SELECT '%[3]s' t) l WHERE s COLLATE %[2]s = t) found ORDER BY t, n INTO OUTFILE '%[4]s/%[2]s'",
			inserted, c, strings.Join(texts, "' t UNION SELECT '"), dir)
	}
	output(t, sql.String(), server, "--no-defaults", "--bootstrap", "--user=root", "--datadir="+filepath.Join(dir, "data"),
		"--character-set-server=utf8mb4", "--collation-server=utf8mb4_bin")
	for _, c := range collations {
		lines, err := os.ReadFile(filepath.Join(dir, c))
		require.NoError(t, err)
		lookups = append(lookups, lookup{"MariaDB `" + c + "`", rows(t, string(lines))})
	}
	return lookups
}

// openLDAP asks OpenLDAP by the filters of slapcat.
func openLDAP(t *testing.T) lookup {
	programs := installed(t, "slapadd", "slapcat")
	const core = "/etc/ldap/schema/core.schema"
	if _, err := os.Stat(core); err != nil {
		t.Skip("the schema of OpenLDAP is not installed, so its spellings are not looked at")
	}
	dir := t.TempDir()
	config := filepath.Join(dir, "slapd.conf")
	require.NoError(t, os.WriteFile(config, []byte("include "+core+"\nmodulepath /usr/lib/ldap\nmoduleload back_mdb\n"+
		"database mdb\nmaxsize 1073741824\nsuffix o=x\ndirectory "+dir+"\ndbnosync\n"), 0o600))
	var ldif strings.Builder
	ldif.WriteString("dn: o=x\nobjectClass: organization\no: x\n\n")
	entry := func(kind string, r rune, cn string) {
		fmt.Fprintf(&ldif, "dn: ou=%s%d,o=x\nobjectClass: organizationalUnit\nobjectClass: extensibleObject\nou: %[1]s%[2]d\ncn:: %s\n\n",
			kind, r, base64.StdEncoding.EncodeToString([]byte(cn)))
	}
	for _, points := range [][2]rune{{1, 0xD7FF}, {0xE000, 0x1FFFF}, {0xE0000, 0xE01FF}} {
		for r := points[0]; r <= points[1]; r++ {
			entry("alone", r, string(r))
			entry("between", r, "al"+string(r)+"ice")
		}
	}
	output(t, ldif.String(), programs[0], "-q", "-s", "-f", config)
	l := lookup{name: "OpenLDAP `caseIgnoreMatch`"}
	for _, text := range append([]string{inserted}, texts...) {
		for line := range strings.Lines(output(t, "", programs[1], "-f", config, "-a", "(cn="+text+")")) {
			for _, kind := range []string{"ou: alone", "ou: between"} {
				if point, ok := strings.CutPrefix(strings.TrimSpace(line), kind); ok {
					l.found = append(l.found, rows(t, text+"\t"+point)...)
				}
			}
		}
	}
	return l
}

// sqLite asks SQLite, in memory.
func sqLite(t *testing.T) (lookups []lookup) {
	program := installed(t, "sqlite3")[0]
	for _, c := range []string{"BINARY", "NOCASE", "RTRIM"} {
		lines := output(t, fmt.Sprintf(".mode tabs\nWITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c WHERE n < 131071), "+
			"l(t) AS (VALUES ('%s')) SELECT '%[2]s', n FROM c WHERE 'al' || char(n) || 'ice' = '%[2]s' COLLATE %[3]s "+
			"UNION ALL SELECT t, n FROM l, c WHERE char(n) = t COLLATE %[3]s;\n", strings.Join(texts, "'), ('"), inserted, c),
			program, ":memory:")
		lookups = append(lookups, lookup{"SQLite `" + c + "`", rows(t, lines)})
	}
	return lookups
}

// TestDatabasesFindWhatTheGuideSays compares the table with what is installed. Of
// a database of another version than the guide's it asks less.
func TestDatabasesFindWhatTheGuideSays(t *testing.T) {
	takesLong(t)
	content, err := os.ReadFile(simulations)
	require.NoError(t, err)
	var table strings.Builder
	table.WriteString("| lookup | found | beyond `Normalize` | of these by insertion | such as |\n| --- | ---: | ---: | ---: | --- |\n")
	for _, database := range []struct {
		name, program, version string
		lookups                func(*testing.T) []lookup
	}{
		{"MariaDB", "mariadbd", "10.11.", mariaDB},
		{"OpenLDAP", "slapd", "2.5.", func(t *testing.T) []lookup { return []lookup{openLDAP(t)} }},
		{"SQLite", "sqlite3", "3.", sqLite},
	} {
		t.Run(database.name, func(t *testing.T) {
			program := installed(t, database.program)[0]
			flag := map[string]string{"slapd": "-VV"}[database.program]
			if flag == "" {
				flag = "--version"
			}
			version, _ := exec.Command(program, flag).CombinedOutput() // slapd exits with 1
			for _, l := range database.lookups(t) {
				require.GreaterOrEqual(t, len(l.found), 5, "%s finds the letters themselves", l.name)
				table.WriteString(l.row())
				if strings.Contains(string(version), database.version) && !*update {
					require.Contains(t, string(content), l.row(), "go test ./login -run Databases -update has the guide say so")
				}
			}
		})
	}
	if *update {
		require.NoError(t, os.WriteFile(simulations, []byte(replace(t, string(content), "lookups", table.String())), 0o644))
	}
}
