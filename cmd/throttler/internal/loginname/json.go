package loginname

import (
	"bufio"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"unicode"
	"unicode/utf8"
)

// maxDepth is the deepest nesting of JSON that is read.
const maxDepth = 256

// anyJSON reads the name in an object, if the body begins as one: its type is another.
func (f *Finder) anyJSON(r io.Reader) error {
	text := bufio.NewReader(r)
	switch isObject, err := skipToObject(text); {
	case err == io.EOF:
		return nil
	case err != nil || !isObject:
		return err
	}
	return f.json(text)
}

// skipToObject skips what some servers skip before JSON: blanks, marks of the byte order, zeros
// of UTF-16, comments, and Gson's guard )]}'. It reports whether an object begins there.
func skipToObject(text *bufio.Reader) (bool, error) {
	for {
		r, size, err := text.ReadRune()
		if err != nil {
			return false, err
		}
		switch {
		case r == '{':
			return true, text.UnreadRune()
		case r == utf8.RuneError && size == 1: // of a mark, perhaps
			if err := text.UnreadRune(); err != nil {
				return false, err
			}
			if b, _ := text.ReadByte(); b < 0xfe {
				return false, nil
			}
		case r == '#' || r == '/' || r == ')':
			if err := skipComment(text, r); err != nil {
				return false, err
			}
		case r != 0 && r != '\ufeff' && !unicode.IsSpace(r):
			return false, nil
		}
	}
}

// skipComment skips the rest of a comment that begins with first: to the end of the line, but
// for one that begins with a slash and a star.
func skipComment(text *bufio.Reader, first rune) error {
	if next, err := text.Peek(1); first != '/' || err != nil || next[0] != '*' {
		_, err := skip(text, "\r\n")
		return err
	}
	text.Discard(1)
	for last := byte(0); ; {
		b, err := text.ReadByte()
		if err != nil || last == '*' && b == '/' {
			return err
		}
		last = b
	}
}

// json reads the name in an object. Keys are compared without regard to case, since some
// servers do: another spelling is an error, and so is a second one.
func (f *Finder) json(r io.Reader) error {
	w := &walk{text: &abridged{reader: r}, finder: f}
	w.decoder = json.NewDecoder(w.text)
	w.decoder.UseNumber() // or else one that is too large for a float64 is an error
	token, err := w.within()
	if err != nil {
		return err
	}
	if token == json.Delim('{') {
		err = w.object(f.Keys)
	} else {
		err = w.skip(token)
	}
	if err != nil {
		return err
	}
	switch _, err := w.next(); {
	case errors.Is(err, io.EOF):
		return nil
	case err != nil:
		return err
	}
	return unreadable("more than one JSON value")
}

// walk walks through a JSON value.
type walk struct {
	decoder *json.Decoder
	text    *abridged
	long    bool // the last token may be abridged
	finder  *Finder
}

// next returns the next token.
func (w *walk) next() (json.Token, error) {
	w.text.left = maxToken
	before := w.decoder.InputOffset()
	token, err := w.decoder.Token()
	w.long = w.decoder.InputOffset()-before > maxText
	var syntax *json.SyntaxError
	if errors.As(err, &syntax) || errors.Is(err, io.ErrUnexpectedEOF) {
		return nil, unreadable("it is no JSON")
	}
	return token, err
}

// within is next where there has to be a token.
func (w *walk) within() (json.Token, error) {
	token, err := w.next()
	if errors.Is(err, io.EOF) {
		err = unreadable("it ends too early")
	}
	return token, err
}

// object reads an object in which keys lead to the name.
func (w *walk) object(keys []string) error {
	for seen := false; ; {
		token, err := w.within()
		if err != nil {
			return err
		}
		key, ok := token.(string)
		if !ok { // its end
			return nil
		}
		switch {
		case w.long:
			return unreadable("a key in JSON is too long")
		case isCut(key):
			return ambiguous("a key that some servers cut")
		}
		leads := strings.EqualFold(key, keys[0])
		if leads && len(keys) == 1 {
			if err := w.finder.expect(); err != nil {
				return err
			}
		}
		value, err := w.within()
		if err != nil {
			return err
		}
		if !leads {
			if err := w.skip(value); err != nil {
				return err
			}
			continue
		}
		if seen || key != keys[0] {
			return ambiguous("a key that some servers take for the name's")
		}
		seen = true
		if err := w.value(value, keys[1:]); err != nil {
			return err
		}
	}
}

// isCut reports whether some servers read only a part of a text: cJSON ends it at a NUL, and PHP
// can be told to leave out what is no UTF-8. The decoder writes U+FFFD for that.
func isCut(text string) bool { return strings.ContainsAny(text, "\x00\ufffd") }

// value reads the value of a key that leads to the name, or is the name's.
func (w *walk) value(token json.Token, keys []string) error {
	name, isText := token.(string)
	switch {
	case len(keys) == 0 && isText && w.long:
		return unreadable("the name is too long")
	case len(keys) == 0 && isText && isCut(name):
		return ambiguous("a name that some servers cut")
	case len(keys) == 0 && isText:
		return w.finder.add(name)
	case len(keys) > 0 && token == json.Delim('{'):
		return w.object(keys)
	}
	return ambiguous("the name is no text")
}

// skip reads the rest of a value that begins with token.
func (w *walk) skip(token json.Token) error {
	for depth := 0; ; {
		switch token {
		case json.Delim('{'), json.Delim('['):
			depth++
		case json.Delim('}'), json.Delim(']'):
			depth--
		}
		if depth == 0 {
			return nil
		}
		if depth > maxDepth {
			return unreadable("JSON that is nested too deep")
		}
		var err error
		if token, err = w.within(); err != nil {
			return err
		}
	}
}
