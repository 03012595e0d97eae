package loginname

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"net/url"
	"slices"
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
	isObject, err := f.beginsAsObject(text)
	switch {
	case err != nil:
		return err
	case isObject:
		return ambiguous("a form that is JSON to some servers")
	}
	return f.form(text)
}

// untyped returns how to read a body without a type, in which Rack, WebOb and others read a
// form. What cannot be read has no name, but behind a name another one may follow.
func (f *Finder) untyped(s *Scan) Reading {
	return func(r io.Reader) error {
		text := bufio.NewReader(r)
		isObject, err := f.beginsAsObject(text)
		switch {
		case err != nil:
			return err
		case isObject:
			s.noForm = true
			return f.json(text)
		}
		err = f.form(text)
		if errors.Is(err, ErrUnreadable) && !s.named() {
			s.noForm, err = true, nil
		}
		return err
	}
}

// beginsAsObject reports whether a form begins as an object in JSON, for servers that read
// JSON whatever its type. Its error is that of a form whose beginning some servers skip.
func (f *Finder) beginsAsObject(text *bufio.Reader) (bool, error) {
	peeked, _ := text.Peek(64) // an error comes again
	start := bytes.TrimLeft(peeked, " \t\r\n")
	begins := func(all ...string) bool {
		return slices.ContainsFunc(all, func(prefix string) bool { return bytes.HasPrefix(start, []byte(prefix)) })
	}
	if len(start) == 0 && len(peeked) > 0 || begins("\ufeff", "\xff\xfe", "\xfe\xff") || f.Keys != nil && begins("/", "#", "\x00{", "\x00\x00\x00{") {
		return false, ambiguous("a form that begins with blanks, a byte order mark or a comment")
	}
	return f.Keys != nil && begins("{"), nil
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
		may, sure := f.isField(key)
		if may {
			if err := f.expect(); err != nil {
				return err
			}
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
