package main

import (
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"
)

// A table is a table in Markdown.
type table struct {
	title string
	note  string // below the title
	head  []string
	rows  [][]string
}

func (t table) write(w io.Writer) {
	fmt.Fprintf(w, "### %s\n\n", t.title)
	if t.note != "" {
		fmt.Fprintf(w, "%s\n\n", t.note)
	}
	fmt.Fprintf(w, "| %s |\n|%s\n", strings.Join(t.head, " | "), strings.Repeat(" --- |", len(t.head)))
	for _, row := range t.rows {
		fmt.Fprintf(w, "| %s |\n", strings.Join(row, " | "))
	}
	fmt.Fprintln(w)
}

// columns are a system's results of one work, for each number of callers.
type columns []result

// join returns a cell with of(r) for each result.
func (c columns) join(of func(result) string) string {
	var cells []string
	for _, r := range c {
		cells = append(cells, of(r))
	}
	return strings.Join(cells, " / ")
}

// bySystem groups the results of scenes with the same systems by system.
func bySystem(scenes [][]result) []columns {
	all := make([]columns, len(scenes[0]))
	for _, scene := range scenes {
		for i, r := range scene {
			all[i] = append(all[i], r)
		}
	}
	return all
}

// median returns the median of of(round) over r's rounds.
func (r result) median(of func(round) time.Duration) time.Duration {
	_, median, _ := quartilesOf(r.rounds, of)
	return median
}

func (r round) tail() time.Duration { return r.p99 }

func (r round) cpuEach() time.Duration { return r.cpu / time.Duration(max(1, r.decisions)) }

// spreadPercent returns half the distance of the quartiles of r's times, in
// percent of the median.
func (r result) spreadPercent() string {
	low, median, high := quartilesOf(r.rounds, round.each)
	return fmt.Sprintf("%.0f", 50*float64(high-low)/float64(max(1, median)))
}

func (r result) allocsEach() string {
	allocs, decisions := uint64(0), 0
	for _, one := range r.rounds {
		allocs += one.allocs
		decisions += one.decisions
	}
	return fmt.Sprintf("%.0f", float64(allocs)/float64(max(1, decisions)))
}

// inMicros formats d in microseconds, as short does.
func inMicros(d time.Duration) string { return short(float64(d) / float64(time.Microsecond)) }

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

// A ratio compares the times of two systems: the quartiles over pairs of rounds
// of the same turn.
type ratio struct{ low, median, high float64 }

// beside returns the ratio of a's times to b's in the same scene.
func beside(a, b result) ratio {
	var ratios []float64
	for i := range a.rounds {
		ratios = append(ratios, float64(a.rounds[i].each())/float64(max(1, b.rounds[i].each())))
	}
	low, median, high := quartiles(ratios)
	return ratio{low, median, high}
}

func (r ratio) String() string {
	return fmt.Sprintf("%s (%s–%s)", short(r.median), short(r.low), short(r.high))
}

// find returns the result of s in a scene.
func find(scene []result, s system) (result, bool) {
	i := slices.IndexFunc(scene, func(r result) bool { return r.system.name == s.name && r.system.how == s.how })
	if i < 0 {
		return result{}, false
	}
	return scene[i], true
}

// better returns the faster of systems in scene.
func better(scene []result, systems ...system) (best result, ok bool) {
	for _, s := range systems {
		if r, found := find(scene, s); found && (!ok || r.median(round.each) < best.median(round.each)) {
			best, ok = r, true
		}
	}
	return best, ok
}

// workTable has the results of all systems for one work. scenes are by the
// number of callers.
func workTable(w work, scenes [][]result) table {
	t := table{
		title: "Work: " + w.name,
		note:  strings.ToUpper(w.about[:1]) + w.about[1:] + ".",
		head:  []string{"limiter", "algorithm", "µs a decision", "p99, µs", "client's CPU, µs", "round trips", "± %"},
	}
	for _, c := range bySystem(scenes) {
		t.rows = append(t.rows, []string{
			c[0].system.name, c[0].system.how,
			c.join(func(r result) string { return inMicros(r.median(round.each)) }),
			c.join(func(r result) string { return inMicros(r.median(round.tail)) }),
			c.join(func(r result) string { return inMicros(r.median(round.cpuEach)) }),
			c.join(func(r result) string { return short(r.trips) }),
			c.join(result.spreadPercent),
		})
	}
	return t
}

// ratioTable compares ours with the faster of rueidis' two scripts.
func ratioTable(scenes map[string][][]result) table {
	t := table{
		title: "Ours beside the faster of rueidis' two scripts",
		note:  "Ratio of the times of a decision: median of the rounds (quartiles). Below 1, ours is faster.",
		head:  []string{"work", "limiter", "algorithm"},
	}
	for _, n := range callerCounts {
		t.head = append(t.head, callersText(n))
	}
	for _, w := range works {
		for _, s := range systemsFor(w) {
			row, ok := ratioRow(scenes[w.name], s)
			if ok && s.ours() {
				t.rows = append(t.rows, append([]string{w.name, s.name, s.how}, row...))
			}
		}
	}
	return t
}

func ratioRow(scenes [][]result, s system) (row []string, ok bool) {
	for _, scene := range scenes {
		a, found := find(scene, s)
		b, there := better(scene, rueidisBucket, rueidisLog)
		if !found || !there {
			return nil, false
		}
		row = append(row, beside(a, b).String())
	}
	return row, true
}

func callersText(n int) string {
	if n == 1 {
		return "1 caller"
	}
	return fmt.Sprintf("%d callers", n)
}

// admittedTable has what was admitted of a crowd.
func admittedTable(all []admissions) table {
	t := table{
		title: "Admitted of a limit of 50",
		note: fmt.Sprintf("%d callers at once call %d times each for one value that has a limit of %d a day: "+
			"the least and the most that was admitted, and the time of all calls divided by their number.", maxCallers, crowdCalls, crowdLimit),
		head: []string{"limiter", "algorithm", "1 instance", "8 instances, as of 8 processes", "µs a call, 8 instances"},
	}
	for _, a := range all {
		t.rows = append(t.rows, []string{a.system.name, a.system.how, admitted(a.one), admitted(a.many), timeEach(a.many)})
	}
	return t
}

// admitted returns the range of what was admitted in runs, with the errors.
func admitted(runs []admission) string {
	errors := 0
	for _, r := range runs {
		errors += r.errors
	}
	least, most := extremes(runs)
	text := fmt.Sprint(least)
	if most > least {
		text = fmt.Sprintf("%d to %d", least, most)
	}
	if errors > 0 {
		text += fmt.Sprintf(", %d errors", errors)
	}
	return text
}

// extremes returns the least and the most admitted in runs.
func extremes(runs []admission) (least, most int) {
	least = runs[0].admitted
	for _, r := range runs {
		least, most = min(least, r.admitted), max(most, r.admitted)
	}
	return least, most
}

func timeEach(runs []admission) string {
	_, median, _ := quartilesOf(runs, func(r admission) time.Duration { return r.wall / (maxCallers * crowdCalls) })
	return inMicros(median)
}

// memoryTable has the results of decisions in process memory.
func memoryTable(title string, w work, scenes [][]result) table {
	t := table{
		title: title,
		note:  strings.ToUpper(w.about[:1]) + w.about[1:] + ".",
		head:  []string{"limiter", "algorithm", "µs a decision", "allocations", "± %"},
	}
	for _, c := range bySystem(scenes) {
		t.rows = append(t.rows, []string{
			c[0].system.name, c[0].system.how,
			c.join(func(r result) string { return inMicros(r.median(round.each)) }),
			c[0].allocsEach(),
			c.join(result.spreadPercent),
		})
	}
	return t
}

// The lines of a page around the tables.
const (
	tablesBegin = "<!-- tables of go run ./bench -->\n"
	tablesEnd   = "<!-- end of tables -->\n"
)

// renew replaces the tables in the page at path.
func renew(path string, tables []byte) error {
	page, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	before, rest, begins := strings.Cut(string(page), tablesBegin)
	_, after, ends := strings.Cut(rest, tablesEnd)
	if !begins || !ends {
		return fmt.Errorf("%s has no lines %q and %q", path, tablesBegin, tablesEnd)
	}
	return os.WriteFile(path, []byte(before+tablesBegin+"\n"+string(tables)+tablesEnd+after), 0o644)
}
