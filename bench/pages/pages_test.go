package pages

import (
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// A shown is a table of a page, with figures of results.md.
type shown struct {
	page string
	head string
	rows [][]string
}

func TestPagesShowWhatWasMeasured(t *testing.T) {
	r := measuredIn(t, resultsPage)
	for _, table := range []shown{r.headline(), r.beside(), r.further(), r.steady(), r.middlewares(), r.services(), r.readme()} {
		text, err := os.ReadFile(table.page)
		require.NoError(t, err)
		head := "\n" + table.head + "\n"
		before, after, found := strings.Cut(string(text), head)
		require.True(t, found, "%s has no table %s", table.page, table.head)
		line, rest, _ := strings.Cut(after, "\n") // below the head
		end := 0
		for row := range strings.Lines(rest) {
			if !strings.HasPrefix(row, "|") {
				break
			}
			end += len(row)
		}
		var rows strings.Builder
		for _, row := range table.rows {
			rows.WriteString("| " + strings.Join(row, " | ") + " |\n")
		}
		requireShows(t, table.page, before+head+line+"\n"+rows.String()+rest[end:])
	}
}

// TestThePictureShowsWhatWasMeasured leaves out our buckets: they take about as long as our
// windows.
func TestThePictureShowsWhatWasMeasured(t *testing.T) {
	r := measuredIn(t, resultsPage)
	p := &Bars{
		Title:   "The time of a decision, and what is admitted of a limit of 50, beside other rate limiters",
		Columns: 2,
		Keys: []Key{
			{Name: "throttler", Note: "with records in memcached or Redis"},
			{Name: "On Redis", Note: "rueidis with scripts of this benchmark, redis_rate"},
			{Name: "On memcached", Note: "envoyproxy/ratelimit"},
		},
	}
	for _, shown := range []struct {
		title, subtitle, heading, work, column string
		callers                                int // the index of their figure
	}{
		{"4,000 values, 1 caller", "µs a decision", "Over a network", "spread", "µs a decision", 0},
		{"4,000 values, 64 callers", "µs a decision", "Over a network", "spread", "µs a decision", 2},
		{"New values, 64 callers", "µs a decision", "Over a network", "new", "µs a decision", 2},
		{"One value, not full, 64 callers", "µs a decision", "Over a network", "hot", "µs a decision", 2},
		{"One value that is full, 64 callers", "µs a decision", "Over a network", "full", "µs a decision", 2},
		{"Admitted of a limit of 50", "64 callers of 8 instances, as of 8 processes; the worst round", "Admitted of a limit of 50", "crowd", "admitted", 0},
	} {
		panel := Panel{Title: shown.title, Subtitle: shown.subtitle}
		for _, row := range r.rows(shown.heading, shown.work) {
			limiter, algorithm := row["limiter"], row["algorithm"]
			if strings.HasPrefix(limiter, "throttler") && algorithm == "leaky bucket" {
				continue
			}
			figure := strings.Split(row[shown.column], " / ")[shown.callers]
			figure, _, _ = strings.Cut(figure, ",")                // without errors
			figure = figure[strings.LastIndexByte(figure, ' ')+1:] // the most of a range
			value, err := strconv.ParseFloat(figure, 64)
			require.NoError(t, err)
			panel.Bars = append(panel.Bars, Bar{Name: limiter + ": " + algorithm, Key: keyOf(limiter), Value: value, Figure: figure})
		}
		p.Panels = append(p.Panels, panel)
	}
	requireShows(t, "../../docs/benchmarks.svg", p.SVG())
}

// keyOf returns the index of a limiter's key in the picture.
func keyOf(limiter string) int {
	switch {
	case strings.HasPrefix(limiter, "throttler"):
		return 0
	case strings.HasPrefix(limiter, "envoyproxy"):
		return 2
	}
	return 1
}

const (
	resultsPage    = "../results.md"
	benchmarksPage = "../../docs/benchmarks.md"
)

// headline is the first table of the page.
func (r measured) headline() shown {
	table := r.columns("| limiter | µs a decision | p99, µs | client's CPU, µs | admitted of 50 |",
		"Over a network", "spread", []string{"µs a decision", "p99, µs", "client's CPU, µs"},
		"throttler, pool", "throttler, redisstore", "throttler, gomemcache", "rueidis, Lua", "redis_rate, go-redis", "envoyproxy/ratelimit")
	for i, row := range table.rows {
		table.rows[i] = append(row, r.last("Admitted of a limit of 50", "crowd", row[0], "admitted"))
	}
	return table
}

// columns has columns of a table of results, for some limiters at one work.
func (r measured) columns(head, heading, work string, columns []string, limiters ...string) shown {
	table := shown{page: benchmarksPage, head: head}
	for _, limiter := range limiters {
		row := []string{limiter}
		for _, column := range columns {
			row = append(row, r.last(heading, work, limiter, column))
		}
		table.rows = append(table.rows, row)
	}
	return table
}

// middlewares is the table of HTTP in one process.
func (r measured) middlewares() shown {
	return r.columns("| middleware | µs a request | allocations |", "HTTP middleware in process memory", "allowed",
		[]string{"µs a decision", "allocations"}, "httpthrottle", "go-chi/httprate", "ulule/limiter", "didip/tollbooth")
}

// services is the table of services for Envoy.
func (r measured) services() shown {
	return r.columns("| over memcached | requests a second | p99, ms | late, % |", "Requests of Envoy", "below",
		[]string{"requests a second", "p99, ms", "late, %"}, "throttler", "envoyproxy/ratelimit")
}

// beside is the table of ratios to the faster script.
func (r measured) beside() shown {
	table := shown{page: benchmarksPage, head: "| work | memcached: 1 caller | 16 | 64 | Redis: 1 caller | 16 | 64 |"}
	for _, about := range []string{"spread: many values", "new: values without a record", "hot: one value below its limit", "full: one value at its limit"} {
		work, _, _ := strings.Cut(about, ":")
		table.rows = append(table.rows, slices.Concat([]string{about},
			r.ratios("Over a network", work, "throttler, pool"), r.ratios("Over a network", work, "throttler, redisstore")))
	}
	return table
}

// further is the table of other ratios.
func (r measured) further() shown {
	table := shown{page: benchmarksPage, head: "| throttler | beside | 1 caller | 64 callers |"}
	for _, f := range []struct{ what, beside, heading, work, limiter string }{
		{"memcached, each call with a ctx that can end", "throttler, with `context.Background()`", "A ctx that can end", "spread", "throttler, pool"},
		{"Redis, each call with a ctx that can end", "throttler, with `context.Background()`", "A ctx that can end", "spread", "throttler, redisstore"},
		{"memcached, 2 conditions", "one script with 2 keys", "Several conditions in a call", "2 conditions", "throttler, pool"},
		{"memcached, 8 conditions", "one script with 8 keys", "Several conditions in a call", "8 conditions", "throttler, pool"},
		{"memcached, 32 conditions", "one script with 32 keys", "Several conditions in a call", "32 conditions", "throttler, pool"},
		{"memcached, a window of 10,000 hits", "the GCRA script, which stores one number", "Windows by the hits that they hold", "10000 hits", "throttler, pool"},
		{"memcached, 8 clients that share 4,000 values", "the faster script", "Clients that share values", "spread", "throttler, pool"},
		{"… one value below its limit", "the faster script", "Clients that share values", "hot", "throttler, pool"},
		{"… one value at its limit", "the faster script", "Clients that share values", "full", "throttler, pool"},
		{"Redis, 8 clients that share 4,000 values", "the faster script", "Clients that share values", "spread", "throttler, redisstore"},
		{"… one value below its limit", "the faster script", "Clients that share values", "hot", "throttler, redisstore"},
		{"… one value at its limit", "the faster script", "Clients that share values", "full", "throttler, redisstore"},
		{"memcached, 4,000 values with `Prefetch`", "throttler, without", "Hits taken ahead", "spread", "throttler, pool, Prefetch"},
		{"… one value", "throttler, without", "Hits taken ahead", "hot", "throttler, pool, Prefetch"},
		{"memcached, a full value in `BlockCache`", "the faster script", "Over a network", "full", "throttler, pool, BlockCache"},
		{"process memory, 4,000 values", "go-limiter", "In process memory", "spread", "throttler, memstore"},
		{"… by `Limit.Take`", "go-limiter", "In process memory", "spread", "throttler, memstore, Take"},
		{"HTTP in one process", "httprate", "HTTP middleware in process memory", "allowed", "httpthrottle"},
		{"… with `NoDecision`", "httprate", "HTTP middleware in process memory", "allowed", "httpthrottle, NoDecision"},
		{"… by `PerValue`", "httprate", "HTTP middleware in process memory", "allowed", "httpthrottle.PerValue"},
	} {
		ratios := r.ratios(f.heading, f.work, f.limiter)
		if ratios == nil {
			continue // not measured
		}
		if len(ratios) == 1 {
			ratios = append([]string{""}, ratios...)
		}
		table.rows = append(table.rows, []string{f.what, f.beside, ratios[0], ratios[len(ratios)-1]})
	}
	return table
}

// steady is the table of the open loop.
func (r measured) steady() shown {
	table := shown{page: benchmarksPage, head: "| 99 % are answered within, ms | memcached | Redis | the GCRA script |"}
	for _, rate := range []string{"10,000 a second", "20,000 a second"} {
		row := []string{rate}
		for _, limiter := range []string{"throttler, pool", "throttler, redisstore", "rueidis, Lua"} {
			row = append(row, r.last("Open loop", rate, limiter, "99 %, ms"))
		}
		table.rows = append(table.rows, row)
	}
	const long = "20,000 a second, windows of 10 s"
	for _, row := range [][2]string{{long, "throttler, pool"}, {"… with `Prefetch`", "throttler, pool, Prefetch"}} {
		table.rows = append(table.rows, []string{row[0], r.last("Open loop", long, row[1], "99 %, ms"), "", ""})
	}
	return table
}

func (r measured) readme() shown {
	table := shown{page: "../../README.md", head: "| limiter | over | 4,000 values | new values | one value, full | admitted of 50 |"}
	for _, row := range [][]string{
		{"throttler", "memcached", "throttler, pool"},
		{"throttler", "Redis", "throttler, redisstore"},
		{"rueidis and a Lua script (GCRA)", "Redis", "rueidis, Lua"},
		{"redis_rate", "Redis", "redis_rate, go-redis"},
		{"envoyproxy/ratelimit", "memcached", "envoyproxy/ratelimit"},
	} {
		limiter := row[2]
		row = row[:2]
		for _, work := range []string{"spread", "new", "full"} {
			row = append(row, r.last("Over a network", work, limiter, "µs a decision"))
		}
		table.rows = append(table.rows, append(row, r.last("Admitted of a limit of 50", "crowd", limiter, "admitted")))
	}
	return table
}

// measured has the lines of results.md.
type measured struct {
	t     *testing.T
	lines []string
}

func measuredIn(t *testing.T, path string) measured {
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	return measured{t, strings.Split(string(text), "\n")}
}

// rows returns the rows of a work below a heading, by column.
func (r measured) rows(heading, work string) (rows []map[string]string) {
	at := slices.Index(r.lines, "### "+heading)
	var heads []string
	for _, line := range r.lines[at+1:] {
		cells := strings.Split(strings.Trim(line, "| "), " | ")
		switch {
		case at < 0 || strings.HasPrefix(line, "#"):
			return rows
		case cells[0] == "work":
			heads = cells
		case cells[0] == work && len(cells) == len(heads):
			row := make(map[string]string)
			for i, head := range heads {
				row[head] = cells[i]
			}
			rows = append(rows, row)
		}
	}
	return rows
}

// figures returns a cell of the first row of work and limiter below a heading: the figures
// by the number of callers. It returns nil if results.md does not have it.
func (r measured) figures(heading, work, limiter, column string) []string {
	for _, row := range r.rows(heading, work) {
		if cell := row[column]; row["limiter"] == limiter && cell != "" {
			return strings.Split(cell, " / ")
		}
	}
	return nil
}

// last returns the figure of the most callers.
func (r measured) last(heading, work, limiter, column string) string {
	all := r.figures(heading, work, limiter, column)
	require.NotEmpty(r.t, all, "%s: %s, %s: %s", heading, work, limiter, column)
	return all[len(all)-1]
}

// ratios returns the medians of ratios.
func (r measured) ratios(heading, work, limiter string) []string {
	all := r.figures(heading, work, limiter, "ratio")
	for i := range all {
		all[i], _, _ = strings.Cut(all[i], " (")
	}
	return all
}
