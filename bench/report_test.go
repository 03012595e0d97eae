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

// The page has figures of the results.
func TestThePageShowsWhatWasMeasured(t *testing.T) {
	page, results := readPage(t, "../docs/benchmarks.md"), readPage(t, "results.md")
	first, others, _ := strings.Cut(page, "\n## Which one")
	_, others, _ = strings.Cut(others, "\n## Beside")
	shown := strings.Split(first, "\n| ")[3:]
	require.Len(t, shown, 5)
	for _, row := range shown {
		row, _, _ = strings.Cut(row, " |\n")
		row = strings.TrimSuffix(row, " |")
		cells := strings.Split(row, " | ")
		spread, admitted := resultsOf(t, results, "Work: spread", cells[0]), resultsOf(t, results, "Admitted of a limit of 50", cells[0])
		require.Equal(t, []string{ofMostCallers(spread[1]), ofMostCallers(spread[2]), ofMostCallers(spread[3]), admitted[2]}, cells[1:], cells[0])
	}
	_, ratios, _ := strings.Cut(results, "\n### Ours beside")
	for _, work := range []string{"spread", "new", "hot", "full"} {
		var want []string
		for _, limiter := range []string{"pool", "redisstore"} {
			_, row, found := strings.Cut(ratios, "\n| "+work+" | throttler, "+limiter+" | sliding window | ")
			require.True(t, found, work)
			row, _, _ = strings.Cut(row, " |\n")
			for _, cell := range strings.Split(row, " | ") {
				median, _, _ := strings.Cut(cell, " (")
				want = append(want, median)
			}
		}
		require.Regexp(t, `(?m)^\| `+work+`: [^|]* \| `+strings.Join(want, ` \| `)+` \|$`, others)
	}
}

func TestTheReadmeShowsWhatWasMeasured(t *testing.T) {
	readme, results := readPage(t, "../README.md"), readPage(t, "results.md")
	for row, limiter := range map[string]string{
		"throttler | memcached":                   "throttler, pool",
		"throttler | Redis":                       "throttler, redisstore",
		"rueidis and a Lua script (GCRA) | Redis": "rueidis, Lua",
		"redis_rate | Redis":                      "redis_rate, go-redis",
		"envoyproxy/ratelimit | memcached":        "envoyproxy/ratelimit",
	} {
		want := []string{row}
		for _, work := range []string{"spread", "new", "full"} {
			want = append(want, ofMostCallers(resultsOf(t, results, "Work: "+work, limiter)[1]))
		}
		want = append(want, resultsOf(t, results, "Admitted of a limit of 50", limiter)[2])
		require.Contains(t, readme, "\n| "+strings.Join(want, " | ")+" |\n")
	}
}

func readPage(t *testing.T, path string) string {
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	return string(text)
}

// resultsOf returns the cells after the name in a limiter's first row below a heading.
func resultsOf(t *testing.T, results, heading, limiter string) []string {
	_, table, _ := strings.Cut(results, "\n### "+heading+"\n")
	_, row, found := strings.Cut(table, "\n| "+limiter+" | ")
	require.True(t, found, limiter)
	row, _, _ = strings.Cut(row, " |\n")
	return strings.Split(row, " | ")
}

// ofMostCallers returns the last figure of a cell.
func ofMostCallers(cell string) string { return cell[strings.LastIndex(cell, " ")+1:] }

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
