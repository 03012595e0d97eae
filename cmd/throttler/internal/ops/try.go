package ops

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/cmd/throttler/internal/rulefile"
	"github.com/adaptivethrottler/throttler/tally"
)

// maxLogLine is the longest line of a log that is read.
const maxLogLine = 1 << 20

// A Replay is what was read of a log.
type Replay struct {
	Lines   int       `json:"lines"`
	Skipped int       `json:"skipped"` // lines in another format
	From    time.Time `json:"from,omitzero"`
	To      time.Time `json:"to,omitzero"`

	Requests int `json:"requests"`

	firstSkipped error
}

// A Trial is the result of replaying a log through rules.
type Trial struct {
	Replay
	Blocked int `json:"blocked"`

	// NotTried names rules that need attributes which the log does not have,
	// and those attributes.
	NotTried map[string][]string `json:"not_tried,omitempty"`

	Rules []TriedRule `json:"rules"`
}

// A TriedRule is the result for one rule.
type TriedRule struct {
	Rule       string           `json:"rule"`
	Requests   uint64           `json:"requests"`
	Blocked    uint64           `json:"blocked"`
	Conditions []TriedCondition `json:"conditions"`
}

// A TriedCondition is the result for one condition.
type TriedCondition struct {
	Condition string       `json:"condition"`
	Blocked   uint64       `json:"blocked"`
	Values    []TriedValue `json:"values"` // most blocked first
}

// A TriedValue is how often a value was blocked, at most, and by how much that may be too large.
type TriedValue struct {
	Value string `json:"value"`
	Count uint64 `json:"count"`
	Error uint64 `json:"error"`
}

// mostBlocked is the number of values shown of each condition.
const mostBlocked = 10

// Try replays a log through the rules, at the times in the log, and shows what
// they would have blocked. size is the size of the log, for the progress bar;
// 0: unknown.
func (o *Operator) Try(ctx context.Context, log io.Reader, size int64) error {
	trial, counts, err := o.replay(ctx, log, size, func(*logged, bool) {})
	if err != nil {
		return err
	}
	if err := trial.count(counts); err != nil {
		return err
	}
	if err := o.print(trial, trial.report); err != nil {
		return err
	}
	return trial.unread()
}

// unread returns why no line of a log can be used, or nil.
func (r *Replay) unread() error {
	if r.Requests == 0 && r.Lines > 0 {
		return fmt.Errorf("no line can be used: want the common, combined or vhost_combined log format or JSON, with times since 1970: %w", r.firstSkipped)
	}
	return nil
}

// report writes r as text. more says what became of the requests.
func (r *Replay) report(w io.Writer, more string) {
	fmt.Fprintf(w, "%d requests", r.Requests)
	if r.Requests > 0 {
		fmt.Fprintf(w, " from %s to %s%s", r.From.Format(time.RFC3339), r.To.Format(time.RFC3339), more)
	}
	fmt.Fprintln(w)
	if r.Skipped > 0 {
		fmt.Fprintf(w, "%d of %d lines were not understood, the first because: %v\n", r.Skipped, r.Lines, r.firstSkipped)
	}
}

// replay decides each line of a log, and calls seen with whether a rule blocks it.
func (o *Operator) replay(ctx context.Context, log io.Reader, size int64, seen func(e *logged, blocked bool)) (*Trial, *tally.Tally, error) {
	trial := &Trial{}
	var rules *rulefile.File // that the log has all attributes for, by its first line
	counts := tally.New()
	var simulation throttler.Simulation
	progress := newProgress(o.Progress, "bytes")
	progress.expect(int(size))
	defer progress.end()
	lines := bufio.NewReaderSize(log, maxLogLine)
	for {
		line, read, err := readLine(lines)
		if err == io.EOF {
			return trial, counts, nil
		}
		if err = cmp.Or(ctx.Err(), err); err != nil && err != errLongLine {
			return nil, nil, err
		}
		progress.add(read)
		trial.Lines++
		var e logged
		if err == nil {
			e, err = parseLine(line)
		}
		if year := e.at.UTC().Year(); err == nil && (year < 1970 || year > 2261) { // see Simulation
			err = fmt.Errorf("no log is of %v", e.at)
		}
		if err != nil {
			trial.Skipped++
			trial.firstSkipped = cmp.Or(trial.firstSkipped, err)
			continue
		}
		if rules == nil {
			rules = trial.possible(o.Rules, &e)
		}
		blocked := trial.Blocked
		if err := trial.decide(ctx, rules, &simulation, counts, &e); err != nil {
			return nil, nil, err
		}
		seen(&e, trial.Blocked > blocked)
	}
}

var errLongLine = fmt.Errorf("it is longer than %d bytes", maxLogLine)

// readLine returns the next line of a log without its end, and how many bytes it has read.
// The error is io.EOF after the last line, errLongLine for one that does not fit into lines,
// or that of reading.
func readLine(lines *bufio.Reader) (line string, read int, err error) {
	text, err := lines.ReadSlice('\n')
	read = len(text)
	if err == nil || err == io.EOF && read > 0 {
		return strings.TrimRight(string(text), "\r\n"), read, nil
	}
	if err != bufio.ErrBufferFull {
		return "", read, err
	}
	for err == bufio.ErrBufferFull {
		text, err = lines.ReadSlice('\n')
		read += len(text)
	}
	if err != nil && err != io.EOF {
		return "", read, err
	}
	return "", read, errLongLine
}

// possible returns the rules that the log has all attributes for, by one of its lines, and
// notes the others.
func (t *Trial) possible(file *rulefile.File, e *logged) *rulefile.File {
	rules := *file
	rules.Rules = nil
	for _, r := range file.Rules {
		missing := slices.DeleteFunc(r.Uses(), e.holds)
		if len(missing) == 0 {
			rules.Rules = append(rules.Rules, r)
			continue
		}
		if t.NotTried == nil {
			t.NotTried = make(map[string][]string)
		}
		t.NotTried[r.Name] = missing
	}
	return &rules
}

// decide decides one line by the rules that apply to it, until one blocks it.
func (t *Trial) decide(ctx context.Context, rules *rulefile.File, s *throttler.Simulation, counts *tally.Tally, e *logged) error {
	if t.Requests == 0 {
		t.From = e.at
	}
	// A server writes a line when the response is complete, so times may go
	// back a little.
	if e.at.After(t.To) {
		t.To = e.at
	}
	t.Requests++
	for _, rule := range rules.For(&e.request) {
		d, err := s.Authorize(t.To, rule)
		if err != nil {
			return err
		}
		counts.Observe(ctx, rule, d)
		if d.WouldBlock {
			t.Blocked++
			return nil
		}
	}
	return nil
}

// count adds the counts of each rule.
func (t *Trial) count(counts *tally.Tally) error {
	type calls struct {
		Calls, Blocked uint64
		WouldBlock     uint64 `json:"would_block"`
	}
	var counted struct {
		Rules []struct {
			Identifier string
			calls
			Conditions []struct {
				Name string
				calls
				Values []TriedValue
			}
		}
	}
	text, err := counts.MarshalJSON()
	if err == nil {
		err = json.Unmarshal(text, &counted)
	}
	if err != nil {
		return err
	}
	t.Rules = []TriedRule{}
	for _, r := range counted.Rules {
		tried := TriedRule{Rule: r.Identifier, Requests: r.Calls, Blocked: r.Blocked + r.WouldBlock}
		for _, c := range r.Conditions {
			values := c.Values[:min(len(c.Values), mostBlocked)]
			tried.Conditions = append(tried.Conditions, TriedCondition{Condition: c.Name, Blocked: c.Blocked + c.WouldBlock, Values: values})
		}
		t.Rules = append(t.Rules, tried)
	}
	return nil
}

// report writes a trial as text.
func (t *Trial) report(w io.Writer) {
	t.Replay.report(w, fmt.Sprintf(": %d (%.2f %%) would have been blocked", t.Blocked, 100*float64(t.Blocked)/float64(t.Requests)))
	for _, r := range t.Rules {
		fmt.Fprintf(w, "\nrule %s: %d requests, %d blocked\n", printable(r.Rule), r.Requests, r.Blocked)
		for _, c := range r.Conditions {
			if c.Blocked == 0 {
				continue
			}
			fmt.Fprintf(w, "  %s\t%d\n", printable(c.Condition), c.Blocked)
			for _, v := range c.Values {
				fmt.Fprintf(w, "    %s\t%d\n", printable(v.Value), v.Count)
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(t.NotTried)) {
		fmt.Fprintf(w, "\nrule %s was not tried: the log does not have %s\n", printable(name), strings.Join(t.NotTried[name], ", "))
	}
}

// Check shows the mistakes in a rule file, or else its warnings and which of its servers do not
// answer. It returns ErrWrong if there are mistakes, or such servers. With offline set, servers
// are not asked.
func (o *Operator) Check(ctx context.Context, path string, offline bool) error {
	file, err := rulefile.Load(path)
	problems := rulefile.Problems{} // [] in JSON
	if err != nil && !errors.As(err, &problems) {
		return err
	}
	if err == nil {
		problems = append(problems, file.Warnings...)
		if !offline {
			asked := *o
			asked.Servers, asked.Store = file.Servers, file.Store
			if _, err = asked.serverStates(ctx); err != nil {
				problems = append(problems, rulefile.Problem{File: path, Message: err.Error() + ". To check the file alone: -offline"})
			}
		}
	}
	printErr := o.print(problems, func(w io.Writer) {
		for _, p := range problems {
			fmt.Fprintf(w, "%v\n", p)
			for line := range strings.Lines(p.Excerpt) {
				fmt.Fprintf(w, "  %s", line)
			}
			fmt.Fprintln(w)
		}
		if err == nil {
			fmt.Fprintf(w, "%s: ok\n", path)
		}
	})
	if err != nil {
		return errors.Join(ErrWrong, printErr)
	}
	return printErr
}

// ErrWrong is the error of a Check that has shown mistakes.
var ErrWrong = errors.New("the rule file cannot be used")
