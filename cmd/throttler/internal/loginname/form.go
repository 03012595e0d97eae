package loginname

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"net/url"
	"strings"
)

// The longest texts of a form that are kept, in bytes as they are sent.
const (
	maxKey   = 4 << 10
	maxValue = 16 << 10
)

// typedForm reads a body that has the type of a form.
func (f *Finder) typedForm(r io.Reader) error {
	text := bufio.NewReader(r)
	switch {
	case beginsOddly(text):
		return ambiguous("a form that begins with what some servers skip")
	case f.mayBeJSON(text):
		return ambiguous("a form that is JSON to some servers")
	}
	return f.form(text)
}

// untyped returns how to read a body without a type, in which Rack, WebOb and others read a
// form. What cannot be read has no name, but behind a name another one may follow.
func (f *Finder) untyped(s *Scan) Reading {
	return func(r io.Reader) error {
		text := bufio.NewReader(r)
		switch {
		case f.mayBeJSON(text):
			s.noForm = true
			return f.anyJSON(text)
		case beginsOddly(text):
			return ambiguous("a form that begins with what some servers skip")
		}
		err := f.form(text)
		if errors.Is(err, ErrUnreadable) && !s.named() {
			s.noForm, err = true, nil
		}
		return err
	}
}

// beginsOddly reports whether a form begins with many blanks or a mark of the byte order.
func beginsOddly(text *bufio.Reader) bool {
	peeked, _ := text.Peek(64) // an error comes again
	start := bytes.TrimLeft(peeked, " \t\r\n")
	return len(start) == 0 && len(peeked) > 0 ||
		bytes.HasPrefix(start, []byte("\ufeff")) || bytes.HasPrefix(start, []byte("\xff\xfe")) || bytes.HasPrefix(start, []byte("\xfe\xff"))
}

// mayBeJSON reports whether a form begins as no key of one does, to servers that read JSON
// whatever its type: with what they skip, or as an object.
func (f *Finder) mayBeJSON(text *bufio.Reader) bool {
	peeked, _ := text.Peek(1) // an error comes again
	return f.Keys != nil && len(peeked) > 0 && (peeked[0] <= ' ' || peeked[0] >= 0x7f || strings.IndexByte("{/#)", peeked[0]) >= 0)
}

// form reads fields as application/x-www-form-urlencoded. Some servers take a semicolon
// for an ampersand: one beside the field is an error.
func (f *Finder) form(r io.Reader) error {
	text := bufio.NewReader(r) // or r itself, if it is one
	for before := byte('&'); before != 0; {
		raw, end, err := until(text, "=&;", maxKey)
		if err != nil {
			return err
		}
		key, err := url.QueryUnescape(raw)
		if err != nil {
			return unreadable("a field's name is malformed")
		}
		may, sure, err := f.meet(key)
		if err != nil {
			return err
		}
		value, inCharset := "", isCharset(key)
		if end == '=' && (may || inCharset) {
			value, end, err = until(text, "&;", maxValue)
		} else if end == '=' {
			end, err = skip(text, "&;")
		}
		if err == nil && inCharset {
			err = checkCharset(value)
		}
		if err != nil {
			return err
		}
		if may {
			if !sure || before == ';' || end == ';' {
				return ambiguous("a field that some servers take for the name")
			}
			name, err := url.QueryUnescape(value)
			if err != nil {
				return ambiguous("the name is malformed")
			}
			if err := f.add(name); err != nil {
				return err
			}
		}
		before = end
	}
	return nil
}

// until returns the text before the next of ends, and which it is: 0 at the end.
func until(r *bufio.Reader, ends string, most int) (text string, end byte, err error) {
	var read []byte
	for {
		b, err := r.ReadByte()
		switch {
		case err == io.EOF:
			return string(read), 0, nil
		case err != nil:
			return "", 0, err
		case strings.IndexByte(ends, b) >= 0:
			return string(read), b, nil
		case len(read) == most:
			return "", 0, unreadable("a field's name, or the name, is too long")
		}
		read = append(read, b)
	}
}

// skip reads up to the next of ends.
func skip(r *bufio.Reader, ends string) (end byte, err error) {
	for {
		b, err := r.ReadByte()
		switch {
		case err == io.EOF:
			return 0, nil
		case err != nil:
			return 0, err
		case strings.IndexByte(ends, b) >= 0:
			return b, nil
		}
	}
}
