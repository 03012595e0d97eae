package rulefile

import (
	"bufio"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"strconv"
)

// readLimits adds the limits of a condition's limits-file: lines of a value and its limit, as in
// "customer-17, 1000". Lines that begin with # are comments. It returns the line of each value.
func (p *parsing) readLimits(at string, raw *conditionYAML, c *condition) (lines map[string]int) {
	if raw.LimitsFile == "" {
		return nil
	}
	path := raw.LimitsFile
	if !filepath.IsAbs(path) {
		path = filepath.Join(filepath.Dir(p.name), path)
	}
	p.limits[path] = nil
	f, err := os.Open(path)
	if err != nil {
		p.problem(at, "%v", err)
		return nil
	}
	defer f.Close()
	if p.limits[path], err = f.Stat(); err != nil {
		p.problem(at, "%v", err)
		return nil
	}
	if p.limits[path].Size() > maxFile {
		p.problem(at, "%s is larger than %d bytes", path, maxFile)
		return nil
	}
	c.limitsFile, c.limits, lines = path, maps.Clone(raw.Limits), make(map[string]int)
	if c.limits == nil {
		c.limits = make(map[string]int)
	}
	text := bufio.NewReader(io.LimitReader(f, maxFile))
	if mark, _ := text.Peek(len(byteOrderMark)); string(mark) == byteOrderMark {
		text.Discard(len(byteOrderMark))
	}
	r := csv.NewReader(text)
	r.Comment, r.FieldsPerRecord, r.TrimLeadingSpace = '#', 2, true
	for {
		fields, err := r.Read()
		var wrong *csv.ParseError
		switch {
		case err == io.EOF:
			return lines
		case errors.As(err, &wrong):
			p.inLimits(c, wrong.Line, "%v: want a value, a comma and its limit", wrong.Err)
			return lines
		case err != nil:
			p.problem(at, "%v", err)
			return lines
		}
		line, _ := r.FieldPos(0)
		value := fields[0]
		if _, twice := c.limits[value]; twice {
			p.inLimits(c, line, "%q has a limit already: leave one of them out", value)
		}
		if c.limits[value], err = strconv.Atoi(fields[1]); err != nil {
			p.inLimits(c, line, "the limit of %q is %q, want a whole number", value, fields[1])
		}
		lines[value] = line
	}
}

// byteOrderMark is what spreadsheets write at the start of a text.
const byteOrderMark = "\ufeff"

// inLimits adds a problem at a line of a condition's limits-file.
func (p *parsing) inLimits(c *condition, line int, format string, args ...any) {
	p.problems = append(p.problems, Problem{File: c.limitsFile, Line: line, Column: 1, Message: fmt.Sprintf(format, args...)})
}
