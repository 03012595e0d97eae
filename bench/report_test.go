package main

import (
	"bytes"
	"os"
	"path/filepath"
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
		r.rounds = append(r.rounds, round{decisions: 1, wall: wall, p99: 3 * wall, cpu: wall / 2, allocs: 4, admitted: n})
	}
	return r
}

// beside returns r, compared with other.
func (r result) compared(other result) result {
	r.beside = other.rounds
	return r
}

func TestRatioIsThatOfRoundsOfTheSameTurn(t *testing.T) {
	// The machine was slow for both in the second round.
	require.Equal(t, "0.50 (0.50–0.50)", took(poolWindow, 10, 1000, 12).compared(took(rueidisLog, 20, 2000, 24)).ratio())
	require.Equal(t, "1.0 (0.50–2.0)", took(poolWindow, 10, 20, 40).compared(took(rueidisLog, 20, 20, 20)).ratio())
	require.Equal(t, "-", took(poolWindow, 10).ratio(), "Redis is not installed")
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
	require.Equal(t, took(rueidisLog, 20).rounds, better(scene, rueidisBoth))
	require.Equal(t, took(rueidisBucket, 40).rounds, better(scene, []system{rueidisBucket}))
	require.Nil(t, better(scene[:1], rueidisBoth), "Redis is not installed")
}

func TestATableHasARowForEachSystemAndACellForEachNumberOfCallers(t *testing.T) {
	var out bytes.Buffer
	comparison{
		title: "Over a network", note: "Of one machine.", scenes: []scene{{work: fullWork}, {work: hotWork.named("again")}}, callers: []int{1, 64},
		columns: []column{timeColumn, tailColumn, cpuColumn, tripsColumn, allocsColumn, spreadColumn},
	}.write(&out, [][][]result{
		{{took(poolWindow, 80, 100, 120)}, {took(poolWindow, 4, 8, 8)}},
		{{took(envoy, 1)}, {took(envoy, 2)}},
	})
	require.Equal(t, `### Over a network

1 caller / 64 callers. Of one machine.

- full: one value for all callers whose 50 a day are used up

| work | limiter | algorithm | µs a decision | p99, µs | client's CPU, µs | round trips | allocations | ± % |
| --- | --- | --- | --- | --- | --- | --- | --- | --- |
| full | throttler, pool | sliding window | 100 / 8.0 | 300 / 24 | 50 / 4.0 | 1.0 / 1.0 | 4 / 4 | 20 / 25 |
| again | envoyproxy/ratelimit | fixed window | 1.0 / 2.0 | 3.0 / 6.0 | 0.50 / 1.0 | 1.0 / 1.0 | 4 / 4 | 0 / 0 |

`, out.String())
}

func TestAdmittedSaysTheLeastAndTheMost(t *testing.T) {
	require.Equal(t, "50", took(envoy, 50, 50).admitted())
	r := took(envoy, 237, 49, 60)
	r.rounds[0].errors, r.rounds[1].errors = 1, 2
	require.Equal(t, "49 to 237, 3 errors", r.admitted())
}

const tablesBegin, tablesEnd = "<!-- tables of go run ./bench -->\n", "<!-- end of tables -->\n"

func TestTablesOfAPageAreReplaced(t *testing.T) {
	path := filepath.Join(t.TempDir(), "page.md")
	services := "<!-- tables of go run ./bench -services -->\nservices\n" + tablesEnd
	require.NoError(t, os.WriteFile(path, []byte("# A\n"+services+tablesBegin+"old\n"+tablesEnd+"end\n"), 0o600))
	for _, tables := range []string{"new\n", "newer\n"} {
		require.NoError(t, renew(path, "go run ./bench", []byte(tables)))
		page, err := os.ReadFile(path)
		require.NoError(t, err)
		require.Equal(t, "# A\n"+services+tablesBegin+"\n"+tables+tablesEnd+"end\n", string(page))
	}
	for _, page := range []string{"", tablesBegin, tablesEnd, tablesEnd + tablesBegin} {
		require.NoError(t, os.WriteFile(path, []byte(page), 0o600))
		require.ErrorContains(t, renew(path, "go run ./bench", []byte("new")), "has no lines")
		left, err := os.ReadFile(path)
		require.NoError(t, err)
		require.Equal(t, page, string(left))
	}
	require.ErrorIs(t, renew(path+"x", "go run ./bench", nil), os.ErrNotExist)
}
