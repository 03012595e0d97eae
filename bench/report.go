package main

import (
	"fmt"
	"io"
	"math"
	"os"
	"slices"
	"strings"
	"time"
)

// A column of a table says one thing of each result.
type column struct {
	head string
	of   func(result) string
}

// The columns of the tables.
var (
	timeColumn    = timed("µs a decision", time.Microsecond, round.each)
	tailColumn    = timed("p99, µs", time.Microsecond, func(r round) time.Duration { return r.p99 })
	cpuColumn     = timed("client's CPU, µs", time.Microsecond, func(r round) time.Duration { return r.per(r.cpu) })
	tripsColumn   = column{"round trips", func(r result) string { return short(r.trips) }}
	inTripColumn  = column{"decisions in a round trip", func(r result) string { return short(1 / max(r.trips, 1e-9)) }}
	allocsColumn  = column{"allocations", result.allocs}
	ratioColumn   = column{"ratio", result.ratio}
	spreadColumn  = column{"± %", result.spread}
	admitColumn   = column{"admitted", result.admitted}
	latencyColumn = []column{
		timed("half, ms", time.Millisecond, func(r round) time.Duration { return r.half }),
		timed("99 %, ms", time.Millisecond, func(r round) time.Duration { return r.p99 }),
		timed("99.9 %, ms", time.Millisecond, func(r round) time.Duration { return r.p999 }),
	}
)

// timed has the medians of a time.
func timed(head string, unit time.Duration, of func(round) time.Duration) column {
	return counted(head, func(r round) float64 { return float64(of(r)) / float64(unit) })
}

// counted has the medians of a figure.
func counted(head string, of func(round) float64) column {
	return column{head, func(r result) string { return short(r.median(of)) }}
}

func (r result) median(of func(round) float64) float64 {
	_, median, _ := quartiles(r.rounds, of)
	return median
}

func (r result) allocs() string {
	return fmt.Sprintf("%.0f", r.median(func(one round) float64 { return float64(one.allocs) / float64(max(1, one.decisions)) }))
}

// ratio returns the ratio of the times of a decision to those of the system that r is
// compared with: the median of pairs of rounds of the same turn, and their quartiles.
func (r result) ratio() string {
	if r.beside == nil {
		return "-"
	}
	var ratios []float64
	for i, one := range r.rounds {
		ratios = append(ratios, float64(one.each())/float64(max(1, r.beside[i].each())))
	}
	low, median, high := quartiles(ratios, func(x float64) float64 { return x })
	return fmt.Sprintf("%s (%s–%s)", short(median), short(low), short(high))
}

// spread returns half the distance of the quartiles of r's times, in percent of the median.
func (r result) spread() string {
	low, median, high := quartiles(r.rounds, round.each)
	return fmt.Sprintf("%.0f", 50*float64(high-low)/float64(max(1, median)))
}

// admitted returns the range of what was admitted, with the errors.
func (r result) admitted() string {
	least, most, errors := math.MaxInt, 0, 0
	for _, one := range r.rounds {
		least, most, errors = min(least, one.admitted), max(most, one.admitted), errors+one.errors
	}
	text := fmt.Sprint(least)
	if most > least {
		text = fmt.Sprintf("%d to %d", least, most)
	}
	if errors > 0 {
		text += fmt.Sprintf(", %d errors", errors)
	}
	return text
}

// short formats x with two digits, or with all digits before the point.
func short(x float64) string {
	switch {
	case x < 0.995:
		return fmt.Sprintf("%.2f", x)
	case x < 9.95:
		return fmt.Sprintf("%.1f", x)
	}
	return fmt.Sprintf("%.0f", x)
}

// better returns the rounds of the faster of systems, or nil if results has none.
func better(results []result, systems []system) (rounds []round) {
	least := math.Inf(1)
	for _, r := range results {
		found := slices.ContainsFunc(systems, func(s system) bool { return s.name == r.system.name && s.how == r.system.how })
		if took := r.median(func(one round) float64 { return float64(one.each()) }); found && took < least {
			least, rounds = took, r.rounds
		}
	}
	return rounds
}

func callersText(n int) string {
	if n == 1 {
		return "1 caller"
	}
	return fmt.Sprintf("%d callers", n)
}

// write writes a table in Markdown, with a row for each system of each scene. A cell has
// the results for each number of callers.
func (c comparison) write(w io.Writer, played [][][]result) {
	fmt.Fprintf(w, "### %s\n\n", c.title)
	for i, n := range c.callers {
		fmt.Fprint(w, []string{"", " / "}[min(i, 1)], callersText(n))
	}
	fmt.Fprint(w, ". ", c.note, "\n")
	for i, sc := range c.scenes {
		if sc.work.about != "" {
			fmt.Fprintf(w, "%s- %s: %s\n", []string{"\n", ""}[min(i, 1)], sc.work.name, sc.work.about)
		}
	}
	heads := []string{"work", "limiter", "algorithm"}
	for _, col := range c.columns {
		heads = append(heads, col.head)
	}
	fmt.Fprintf(w, "\n| %s |\n|%s\n", strings.Join(heads, " | "), strings.Repeat(" --- |", len(heads)))
	for i, byCallers := range played {
		for s, first := range byCallers[0] {
			row := []string{c.scenes[i].work.name, first.system.name, first.system.how}
			for _, col := range c.columns {
				var cells []string
				for _, results := range byCallers {
					cells = append(cells, col.of(results[s]))
				}
				row = append(row, strings.Join(cells, " / "))
			}
			fmt.Fprintf(w, "| %s |\n", strings.Join(row, " | "))
		}
	}
	fmt.Fprintln(w)
}

// renew replaces the tables in the page at path, between the lines <!-- tables of
// command --> and <!-- end of tables -->.
func renew(path, command string, tables []byte) error {
	page, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	begin, end := "<!-- tables of "+command+" -->\n", "<!-- end of tables -->\n"
	before, rest, begins := strings.Cut(string(page), begin)
	_, after, ends := strings.Cut(rest, end)
	if !begins || !ends {
		return fmt.Errorf("%s has no lines %q and %q", path, begin, end)
	}
	return os.WriteFile(path, []byte(before+begin+"\n"+string(tables)+end+after), 0o644)
}
