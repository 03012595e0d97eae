package loginname

import (
	"bufio"
	"bytes"
	"io"
	"mime"
	"net/textproto"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// This file reads multipart/form-data. Where servers find the delimiters of parts
// differs, as does how they read header fields of parts. So a delimiter has to stand on
// a line of its own, with CR and LF before and after it, and nowhere else. A part has no
// header field but those that clients send with forms, each once: Rack takes Content-ID
// for a name, and old releases of Python a Content-Length for the end of the part.

// maxLine is the longest line of a part's header. PHP cuts a line after 5 KiB, and takes
// the rest for another one.
const maxLine = 4 << 10

var boundary = regexp.MustCompile(`^[-_.0-9A-Za-z]{1,70}$`)

// bounding matches what says the boundary, to servers that look for it anywhere.
var bounding = regexp.MustCompile(`boundary\s*=`)

// hasOneBoundary reports whether all servers find the boundary in the same place of a
// Content-Type. PHP takes what follows the first "boundary", also within another parameter.
func hasOneBoundary(text string) bool {
	text = strings.ToLower(text)
	before, after, _ := strings.Cut(text, "boundary")
	return strings.HasSuffix(strings.TrimRight(before, " \t"), ";") && strings.Count(before, `"`)%2 == 0 &&
		strings.HasPrefix(after, "=") && len(bounding.FindAllString(text, 2)) == 1
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
		if string(line) != string(p.delimiter)+"\r\n" {
			return unreadable("it does not begin with its boundary")
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
	may, sure := f.isField(h.name)
	if may {
		if err := f.expect(); err != nil {
			return err
		}
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
	if !sure || h.odd {
		return ambiguous("a part that some servers take for the name")
	}
	return f.add(string(value))
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
	name   string // of the field; "": none
	odd    bool   // the value is no text of a form, or is encoded
	length string // of the content, as it is said; "": it is not
}

// extended matches a name that has a charset or is in pieces (RFC 2231).
var extended = regexp.MustCompile(`(?i)(^|[;\s])name\*`)

// naming matches what says the name, to servers that do not care for quotes.
var naming = regexp.MustCompile(`(?i)(^|[^-_a-z0-9])name\s*=`)

// inUTF8 matches the type of a part, in small letters, whose one charset is UTF-8.
var inUTF8 = regexp.MustCompile(`^[-a-z0-9+.]+/[-a-z0-9+.]+\s*;\s*charset\s*=\s*"?utf-8"?\s*$`)

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
		key, value, _ := strings.Cut(string(text), ":")
		key, value = textproto.CanonicalMIMEHeaderKey(key), strings.TrimSpace(value)
		lower := strings.ToLower(value)
		if slices.Contains(seen, key) || strings.Contains(lower, "content-disposition") { // which Rack looks for anywhere
			return h, unreadable("a part's header says something twice")
		}
		seen = append(seen, key)
		switch key {
		case "Content-Disposition":
			if err := h.dispose(value); err != nil {
				return h, err
			}
		case "Content-Transfer-Encoding":
			h.odd = h.odd || lower != "8bit" && lower != "7bit" && lower != "binary"
		case "Content-Type":
			h.odd = h.odd || strings.Contains(lower, "multipart/") || strings.Contains(lower, "charset") && !inUTF8.MatchString(lower)
		case "Content-Length":
			h.length = value
		default:
			return h, unreadable("a part's header has a line that forms do not have")
		}
	}
}

// dispose reads a Content-Disposition. Servers that do not care for quotes, and those that
// do, must find the same name in it, or none.
func (h *partHeader) dispose(value string) error {
	kind, params, err := mime.ParseMediaType(value)
	name, isNamed := params["name"]
	_, isFile := params["filename"]
	namings := len(naming.FindAllString(value, 2))
	if err != nil || extended.MatchString(value) || namings > 1 || isNamed != (namings == 1) {
		return unreadable("a Content-Disposition is malformed")
	}
	h.name = name
	h.odd = h.odd || kind != "form-data" || isFile || strings.Contains(strings.ToLower(value), "filename")
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
