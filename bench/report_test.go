package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// took returns a result with one round for each of micros: one decision in that
// time.
func took(s system, micros ...int) result {
	r := result{system: s, trips: 1}
	for _, n := range micros {
		wall := time.Duration(n) * time.Microsecond
		r.rounds = append(r.rounds, round{decisions: 1, wall: wall, p99: 3 * wall, cpu: wall / 2, allocs: 4})
	}
	return r
}

func TestRatioIsThatOfRoundsOfTheSameTurn(t *testing.T) {
	// The machine was slow for both in the second round.
	require.Equal(t, ratio{0.5, 0.5, 0.5}, beside(took(poolWindow, 10, 1000, 12), took(rueidisLog, 20, 2000, 24)))
	require.Equal(t, ratio{0.5, 1, 2}, beside(took(poolWindow, 10, 20, 40), took(rueidisLog, 20, 20, 20)))
	require.Equal(t, "1.0 (0.50–2.0)", ratio{0.5, 1, 2}.String())
}

func TestFiguresHaveTwoDigitsOrMore(t *testing.T) {
	for _, c := range []struct {
		x    float64
		want string
	}{
		{0, "0.00"}, {0.046, "0.05"}, {0.994, "0.99"}, {0.996, "1.0"}, {2.71, "2.7"}, {9.94, "9.9"}, {9.96, "10"}, {12.5, "12"}, {2804, "2804"},
	} {
		require.Equal(t, c.want, short(c.x))
	}
}

func TestOursIsSetBesideTheFasterScript(t *testing.T) {
	scene := []result{took(poolWindow, 10), took(rueidisBucket, 40), took(rueidisLog, 20)}
	best, ok := better(scene, rueidisBucket, rueidisLog)
	require.True(t, ok)
	require.Equal(t, rueidisLog.how, best.system.how)
	row, ok := ratioRow([][]result{scene, {took(poolWindow, 10), took(rueidisBucket, 5), took(rueidisLog, 20)}}, poolWindow)
	require.True(t, ok)
	require.Equal(t, []string{"0.50 (0.50–0.50)", "2.0 (2.0–2.0)"}, row)

	_, ok = ratioRow([][]result{{took(poolWindow, 10)}}, poolWindow)
	require.False(t, ok, "Redis is not installed")
}

func TestTableOfAWorkHasACellForEachNumberOfCallers(t *testing.T) {
	var out bytes.Buffer
	workTable(full, [][]result{{took(poolWindow, 80, 100, 120)}, {took(poolWindow, 4, 8, 8)}}).write(&out)
	require.Equal(t, `### Work: full

One value for all callers whose 50 a day are used up.

| limiter | algorithm | µs a decision | p99, µs | client's CPU, µs | round trips | ± % |
| --- | --- | --- | --- | --- | --- | --- |
| throttler, pool | sliding window | 100 / 8.0 | 300 / 24 | 50 / 4.0 | 1.0 / 1.0 | 20 / 25 |

`, out.String())
}

func TestAdmittedSaysTheLeastAndTheMost(t *testing.T) {
	require.Equal(t, "50", admitted([]admission{{admitted: 50}, {admitted: 50}}))
	require.Equal(t, "49 to 237, 3 errors", admitted([]admission{{admitted: 237, errors: 1}, {admitted: 49, errors: 2}, {admitted: 60}}))
}

func TestPictureHasTheFiguresOfTheTables(t *testing.T) {
	scenes := make(map[string][][]result)
	for i, w := range works {
		for range callerCounts {
			scenes[w.name] = append(scenes[w.name], []result{took(poolWindow, 11+i), took(poolBucket, 77), took(envoy, 21+i)})
		}
	}
	svg := string(picture(scenes, []admissions{{system: limitersLocked, many: []admission{{admitted: 49}, {admitted: 53}}}}))
	for _, want := range []string{
		">4,000 values, 1 caller<", ">4,000 values, 64 callers<", ">One value that is full, 64 callers<",
		">14<", ">24<", "mennanov/limiters: token bucket, lock", ">53<",
	} {
		require.Contains(t, svg, want)
	}
	require.NotContains(t, svg, ">77<")
}

// The page has rows of the results: the first table in part, all others as they stand.
func TestThePageShowsWhatWasMeasured(t *testing.T) {
	read := func(path string) string {
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		return string(text)
	}
	page, results := read("../docs/benchmarks.md"), read("results.md")
	first, others, _ := strings.Cut(page, "\n## Which one")
	_, others, _ = strings.Cut(others, "\n## Beside")
	rowOf := func(heading, limiter string) []string {
		_, table, _ := strings.Cut(results, "\n### "+heading+"\n")
		_, row, found := strings.Cut(table, "\n| "+limiter+" | ")
		require.True(t, found, limiter)
		row, _, _ = strings.Cut(row, " |\n")
		return strings.Split(row, " | ")
	}
	last := func(cell string) string { return cell[strings.LastIndex(cell, " ")+1:] } // of the most callers
	shown := strings.Split(first, "\n| ")[3:]
	require.Len(t, shown, 5)
	for _, row := range shown {
		row, _, _ = strings.Cut(row, " |\n")
		row = strings.TrimSuffix(row, " |")
		cells := strings.Split(row, " | ")
		spread, admitted := rowOf("Work: spread", cells[0]), rowOf("Admitted of a limit of 50", cells[0])
		require.Equal(t, []string{last(spread[1]), last(spread[2]), last(spread[3]), admitted[2]}, cells[1:], cells[0])
	}
	rows := 0
	for line := range strings.Lines(others) {
		if strings.HasPrefix(line, "| ") {
			require.True(t, strings.Contains(results, line), "not in results.md: %s", line)
			rows++
		}
	}
	require.Greater(t, rows, 12)
}

func TestTablesOfAPageAreReplaced(t *testing.T) {
	path := filepath.Join(t.TempDir(), "page.md")
	require.NoError(t, os.WriteFile(path, []byte("# A\n"+tablesBegin+"old\n"+tablesEnd+"end\n"), 0o600))
	for _, tables := range []string{"new\n", "newer\n"} {
		require.NoError(t, renew(path, []byte(tables)))
		page, err := os.ReadFile(path)
		require.NoError(t, err)
		require.Equal(t, "# A\n"+tablesBegin+"\n"+tables+tablesEnd+"end\n", string(page))
	}
	for _, page := range []string{"", tablesBegin, tablesEnd, tablesEnd + tablesBegin} {
		require.NoError(t, os.WriteFile(path, []byte(page), 0o600))
		require.ErrorContains(t, renew(path, []byte("new")), "has no lines")
		left, err := os.ReadFile(path)
		require.NoError(t, err)
		require.Equal(t, page, string(left))
	}
	require.ErrorIs(t, renew(path+"x", nil), os.ErrNotExist)
}
