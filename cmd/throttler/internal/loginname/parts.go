package loginname

import (
	"bufio"
	"bytes"
	"io"
	"net/textproto"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode"
)

// This file reads multipart/form-data. Where servers find the delimiters of parts
// differs, as does how they read header fields of parts. So a delimiter has to stand on
// a line of its own, with CR and LF before and after it, and nowhere else, and a
// Content-Disposition has to be written as clients write it. What some servers take for the
// name of a part that has none is one too: Rack takes Content-ID, for example. Parts within a
// part are not read.

// maxLine is the longest line of a part's header. PHP cuts a line after 5 KiB, and takes
// the rest for another one.
const maxLine = 4 << 10

var boundary = regexp.MustCompile(`^[-_.+/=0-9A-Za-z]{1,70}$`)

// bounding matches what says the boundary, to servers that look for it anywhere.
var bounding = regexp.MustCompile(`boundary\s*=`)

// hasOneBoundary reports whether all servers find the boundary in the same place of a
// Content-Type. PHP takes what follows the first "boundary", also within another parameter.
func hasOneBoundary(text string) bool {
	text = strings.ToLower(text)
	before, after, _ := strings.Cut(text, "boundary")
	return strings.HasSuffix(strings.TrimRight(before, " \t"), ";") && strings.Count(before, `"`)%2 == 0 &&
		strings.HasPrefix(after, "=") && len(bounding.FindAllString(text, 2)) == 1 &&
		!strings.Contains(text, "*") // as in boundary*=utf-8''B, which not all servers know
}

// isBoundary reports whether all servers read the same boundary.
func isBoundary(text string) bool { return boundary.MatchString(text) }

// parts returns how to read parts with a boundary.
func (f *Finder) parts(boundary string) Reading {
	return func(r io.Reader) error {
		p := &partReader{text: bufio.NewReaderSize(r, maxLine), delimiter: []byte("--" + boundary)}
		line, err := p.line()
		if err != nil {
			return err
		}
		switch text := strings.TrimPrefix(string(line), string(p.delimiter)); {
		case len(text) == len(line) || text != "\r\n" && text != "--\r\n":
			return unreadable("it does not begin with its boundary")
		case text == "--\r\n": // a form without fields
			p.last = true
		}
		for !p.last {
			if err := f.part(p); err != nil {
				return err
			}
		}
		rest, err := io.ReadAll(io.LimitReader(p.text, 3))
		if err == nil && len(rest) > 0 && string(rest) != "\r\n" {
			err = unreadable("there is more behind its last boundary")
		}
		return err
	}
}

// part reads a part and the delimiter behind it.
func (f *Finder) part(p *partReader) error {
	h, err := p.header()
	if err != nil {
		return err
	}
	may, sure, err := f.meet(h.name)
	if err != nil {
		return err
	}
	if h.name == "" && slices.ContainsFunc(h.instead, f.IsField) {
		return ambiguous("a part without a name that some servers give the name's")
	}
	inCharset := isCharset(h.name)
	value, length, err := p.content(may || inCharset)
	if err == nil && h.length != "" && h.length != strconv.Itoa(length) {
		err = unreadable("a part has another Content-Length than it says")
	}
	if inCharset && err == nil {
		return checkCharset(string(value))
	}
	if err != nil || !may {
		return err
	}
	if !sure || h.odd || h.inASCII && !isASCII(string(value)) {
		return ambiguous("a part that some servers take for the name")
	}
	return f.add(string(value))
}

func isASCII(s string) bool {
	return strings.IndexFunc(s, func(r rune) bool { return r > unicode.MaxASCII }) < 0
}

// A partReader reads parts.
type partReader struct {
	text      *bufio.Reader
	delimiter []byte // without the line breaks around it
	last      bool   // the last delimiter has been read
}

// line reads a line with its end.
func (p *partReader) line() ([]byte, error) {
	line, err := p.text.ReadSlice('\n')
	switch {
	case err == bufio.ErrBufferFull:
		return nil, unreadable("a line of a part's header is too long")
	case err == io.EOF:
		return nil, unreadable("it ends too early")
	}
	return line, err
}

// A partHeader is what the header of a part says.
type partHeader struct {
	name    string   // of the field; "": none
	instead []string // what some servers take for the name if there is none
	odd     bool     // the value is no text of a form, or is encoded
	inASCII bool     // the value is in a charset that all servers know as far as it is ASCII
	length  string   // of the content, as it is said; "": it is not
}

// disposition matches a Content-Disposition as clients write it: its kind, its name, quoted
// or not, and its file names.
var disposition = regexp.MustCompile(`^([-A-Za-z]+)` +
	`(?: *; *(?i:name)=(?:"([^"\\;]*)"|([^\x00-\x20"'*;=\\\x7f-\x{10ffff}]+)))?` +
	`((?: *; *(?i:filename)\*?=(?:"(?:[^"\\]|\\.)*"|[^ ";\\]+))*) *;?$`)

// naming matches what says a name, to servers that do not care for quotes.
var naming = regexp.MustCompile(`(?i)(^|[^_a-z0-9])name\s*[*=]`)

// heading matches what begins a field, to servers that look for it anywhere.
var heading = regexp.MustCompile(`(?i)content-(disposition|id|type)\s*:`)

// charset matches the type of a part, in small letters, that has one charset, in which ASCII
// is ASCII.
var charset = regexp.MustCompile(`^[-a-z0-9+.]+/[-a-z0-9+.]+\s*;\s*charset\s*=\s*"?(utf-8|us-ascii|iso-8859-1)"?\s*$`)

// header reads the header of a part.
func (p *partReader) header() (h partHeader, err error) {
	for seen := []string{}; ; {
		line, err := p.line()
		if err != nil {
			return h, err
		}
		text, ended := bytes.CutSuffix(line, []byte("\r\n"))
		if !ended || bytes.ContainsFunc(text, func(r rune) bool { return r < ' ' || r == 0x7f }) {
			return h, unreadable("a part's header has a control character")
		}
		if len(text) == 0 {
			return h, nil
		}
		key, value, ok := strings.Cut(string(text), ":")
		if !ok || !token.MatchString(key) || len(seen) == maxFields {
			return h, unreadable("a part's header is malformed")
		}
		key, value = textproto.CanonicalMIMEHeaderKey(key), strings.Trim(value, " ")
		if slices.Contains(seen, key) || heading.MatchString(value) {
			return h, unreadable("a part's header says something twice")
		}
		seen = append(seen, key)
		if err := h.take(key, value); err != nil {
			return h, err
		}
	}
}

// maxFields is how many fields the header of a part may have.
const maxFields = 32

// token matches the name of a field.
var token = regexp.MustCompile(`^[-_.0-9A-Za-z]+$`)

// take takes a field of the header.
func (h *partHeader) take(key, value string) error {
	lower := strings.ToLower(value)
	switch key {
	case "Content-Disposition":
		said, names := disposition.FindStringSubmatch(value), len(naming.FindAllString(value, 2))
		if said == nil {
			return unreadable("a Content-Disposition is malformed")
		}
		h.name = said[2] + said[3]
		if names > 1 || (names == 1) != (h.name != "") || strings.Contains(h.name, "=?") { // as in =?utf-8?Q?user?=
			return unreadable("a Content-Disposition is read in different ways")
		}
		h.instead = append(h.instead, strings.FieldsFunc(said[4], func(r rune) bool { return strings.ContainsRune(`;=" `, r) })...)
		h.odd = h.odd || !strings.EqualFold(said[1], "form-data") || said[4] != ""
	case "Content-Transfer-Encoding":
		h.odd = h.odd || lower != "8bit" && lower != "7bit" && lower != "binary"
	case "Content-Type":
		if strings.Contains(lower, "multipart") { // Mojolicious takes parts within it for fields
			return unreadable("a part has parts")
		}
		h.instead = append(h.instead, value)
		in := charset.FindStringSubmatch(lower)
		h.inASCII = in != nil && in[1] != "utf-8"
		h.odd = h.odd || strings.Contains(lower, "charset") && in == nil
	case "Content-Id":
		h.instead = append(h.instead, value)
	case "Content-Length":
		h.length = value
	}
	return nil
}

// content reads the content of a part, and the delimiter behind it. It returns the
// content if it is wanted, and its length.
func (p *partReader) content(wanted bool) (value []byte, length int, err error) {
	tail := []byte{} // what stands before the line, as far as it matters
	for {
		line, err := p.text.ReadSlice('\n')
		if err != nil && err != bufio.ErrBufferFull && err != io.EOF {
			return nil, 0, err
		}
		rest, isDelimiter := bytes.CutPrefix(line, p.delimiter)
		isDelimiter = isDelimiter && bytes.HasSuffix(tail, []byte("\r\n"))
		switch {
		case isDelimiter && string(rest) == "\r\n":
			return bytes.TrimSuffix(value, []byte("\r\n")), length - len("\r\n"), nil
		case isDelimiter && (string(rest) == "--\r\n" || string(rest) == "--" && err == io.EOF):
			p.last = true
			return bytes.TrimSuffix(value, []byte("\r\n")), length - len("\r\n"), nil
		case err == io.EOF:
			return nil, 0, unreadable("it ends too early")
		}
		length += len(line)
		tail = append(tail, line...)
		if bytes.Contains(tail, p.delimiter) {
			return nil, 0, unreadable("its boundary stands within a part")
		}
		tail = append(tail[:0], tail[max(0, len(tail)-len(p.delimiter)-1):]...)
		if wanted {
			if value = append(value, line...); len(value) > maxValue {
				return nil, 0, unreadable("the name is too long")
			}
		}
	}
}
