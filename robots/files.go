package robots

import (
	"bufio"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"strconv"
	"strings"

	"github.com/adaptivethrottler/throttler/internal/address"
)

// A file is what was read of a file of prefixes or of autonomous systems.
type file struct {
	File
	prefixes []netip.Prefix
	systems  *table
}

// A fileKey names what is read: a file may be a list and a table at once.
type fileKey struct {
	path  string
	table bool // of autonomous systems; otherwise a list of prefixes
}

// read reads the contents of a file into f, and sets Entries.
func (k fileKey) read(f *file, r io.Reader) error {
	if k.table {
		return readSystems(f, r)
	}
	return readList(f, r)
}

func readList(f *file, r io.Reader) (err error) {
	f.prefixes, err = ReadPrefixes(r)
	f.Entries = len(f.prefixes)
	return err
}

func readSystems(f *file, r io.Reader) (err error) {
	f.systems, f.Entries, err = readASN(r)
	return err
}

// file returns what is read of a file, or was read of it before if it is refused, or an empty
// file. It reads each file once.
func (r *reading) file(key fileKey) *file {
	if f := r.files[key]; f != nil {
		return f
	}
	f, err := key.open()
	before := r.d.files[key]
	if err == nil && before != nil && 2*f.Entries < before.Entries {
		err = fmt.Errorf("robots: %s has %d entries where %d were: it may be a part of the list; if it is right, restart", key.path, f.Entries, before.Entries)
	}
	if err != nil {
		r.problems = append(r.problems, err)
		f = &file{File: File{Path: key.path}, systems: new(table)}
		if before != nil {
			*f = *before
		}
		f.Err = err
	}
	r.files[key] = f
	r.order = append(r.order, key)
	return f
}

// open reads a file, which may be compressed by gzip.
func (k fileKey) open() (*file, error) {
	path := k.path
	opened, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("robots: %w", err)
	}
	defer opened.Close()
	info, err := opened.Stat()
	if err != nil {
		return nil, fmt.Errorf("robots: %w", err)
	}
	f := &file{File: File{Path: path, Modified: info.ModTime()}}
	var contents io.Reader = bufio.NewReader(opened)
	if magic, _ := contents.(*bufio.Reader).Peek(2); string(magic) == "\x1f\x8b" {
		if contents, err = gzip.NewReader(contents); err != nil {
			return nil, fmt.Errorf("robots: %s: %w: fetch it again", path, err)
		}
	}
	if err := k.read(f, contents); err != nil {
		if bad, ok := errors.AsType[*lineError](err); ok && bad.line > 0 {
			return nil, fmt.Errorf("robots: %s:%d: %w", path, bad.line, bad.problem)
		} else if ok {
			return nil, fmt.Errorf("robots: %s: %w", path, bad.problem)
		}
		return nil, fmt.Errorf("robots: %s: %w", path, err)
	}
	return f, nil
}

// A lineError is what is wrong with a line of a file.
type lineError struct {
	line    int // from 1; 0: with all of it
	problem error
}

func (e *lineError) Error() string {
	if e.line == 0 {
		return "robots: " + e.problem.Error()
	}
	return fmt.Sprintf("robots: line %d: %v", e.line, e.problem)
}

func (e *lineError) Unwrap() error { return e.problem }

func badLine(line int, format string, args ...any) error {
	return &lineError{line, fmt.Errorf(format, args...)}
}

// byteOrderMark may begin a file that was written on Windows.
const byteOrderMark = "\xef\xbb\xbf"

// readASN reads a table of autonomous systems: see [Options.ASN].
func readASN(r io.Reader) (*table, int, error) {
	var spans []span
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, maxLine)
	for n := 1; lines.Scan(); n++ {
		text := strings.TrimSpace(lines.Text())
		if n == 1 {
			text = strings.TrimPrefix(text, byteOrderMark)
		}
		if text == "" || text[0] == '#' {
			continue
		}
		s, err := parseRange(text)
		switch {
		case err == nil && s.value == 0:
		case err == nil:
			spans = append(spans, s)
		case n == 1 && text[0] != '<': // the names of the columns
		default:
			return nil, 0, &lineError{n, err}
		}
	}
	if err := lines.Err(); err != nil {
		return nil, 0, err
	}
	if len(spans) == 0 {
		return nil, 0, badLine(0, "no ranges: want lines of start, end and number, separated by tabs or commas")
	}
	return newTable(spans), len(spans), nil
}

// maxLine is the longest line of a table, in bytes.
const maxLine = 1 << 20

// parseRange parses a line of a table: start, end and number, or prefix and number.
func parseRange(text string) (s span, err error) {
	separator := ","
	if strings.Contains(text, "\t") {
		separator = "\t"
	}
	first, rest, _ := strings.Cut(text, separator)
	second, rest, _ := strings.Cut(rest, separator)
	third, _, _ := strings.Cut(rest, separator)
	first, second, third = unquote(first), unquote(second), unquote(third)
	if strings.Contains(first, "/") {
		prefix, err := netip.ParsePrefix(first)
		if err != nil {
			return s, fmt.Errorf("%q is no prefix", first)
		}
		s, third = spanOf(address.PlainPrefix(prefix.Masked())), second
	} else if s, err = rangeOf(first, second); err != nil {
		return s, err
	}
	number, ok := parseSystem(third)
	if !ok {
		number, ok = parseNumber(third)
	}
	if !ok {
		return s, fmt.Errorf("%q is no number of an autonomous system: want start, end and number", third)
	}
	s.value = number
	return s, nil
}

// rangeOf returns the addresses from first to last.
func rangeOf(first, last string) (s span, err error) {
	from, err := parseBound(first)
	if err != nil {
		return s, err
	}
	to, err := parseBound(last)
	if err != nil {
		return s, err
	}
	if from.BitLen() != to.BitLen() || to.Less(from) {
		return s, fmt.Errorf("%s to %s is no range", first, last)
	}
	return span{first: positionOf(from), last: positionOf(to), six: from.Is6()}, nil
}

// parseBound parses an address, or the decimal number of an IPv4 one.
func parseBound(text string) (netip.Addr, error) {
	if number, ok := parseNumber(text); ok {
		return netip.AddrFrom4([4]byte{byte(number >> 24), byte(number >> 16), byte(number >> 8), byte(number)}), nil
	}
	addr, err := netip.ParseAddr(text)
	if err != nil || addr.Zone() != "" {
		return addr, fmt.Errorf("%q is no address", text)
	}
	return address.Plain(addr), nil
}

// parseNumber parses a decimal number of 32 bits.
func parseNumber(text string) (uint32, bool) {
	if text == "" || text[0] < '0' || text[0] > '9' || len(text) > 10 {
		return 0, false
	}
	number, err := strconv.ParseUint(text, 10, 32)
	return uint32(number), err == nil
}

// unquote returns text without the blanks and quotes around it.
func unquote(text string) string { return strings.Trim(strings.TrimSpace(text), `"'`) }
