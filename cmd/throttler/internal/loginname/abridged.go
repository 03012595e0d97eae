package loginname

import (
	"io"
	"strings"
)

// The most that the decoder keeps of JSON, in bytes as they are sent.
const (
	maxText  = maxValue    // of a text
	maxToken = 2 * maxText // of any token: a longer one is a number
)

// abridged is a reader of JSON that leaves out what may be long: of a text, what follows its first
// maxText bytes, and of blanks between tokens, all but the first. So the decoder keeps little,
// however long a text is. What is left is valid if all of it was.
type abridged struct {
	reader io.Reader
	left   int // how much may still be read of one token

	blank  bool // the last byte was one
	inText bool
	length int // of the text so far
	escape int // how much of an escape is to come, or escaped
	cut    bool
}

// escaped says that the next byte tells which escape begins.
const escaped = 5

func (a *abridged) Read(b []byte) (int, error) {
	if a.left <= 0 {
		return 0, unreadable("a number in JSON is too long")
	}
	for {
		n, err := a.reader.Read(b)
		kept := b[:0]
		for _, c := range b[:n] {
			keep, valid := a.take(c)
			if !valid {
				return 0, unreadable("it is no JSON")
			}
			if keep {
				kept = append(kept, c)
			}
		}
		a.left -= len(kept)
		if len(kept) > 0 || n == 0 || err != nil {
			return len(kept), err
		}
	}
}

// take takes a byte. It returns whether to keep it, and whether it may stand in its text.
func (a *abridged) take(c byte) (keep, valid bool) {
	if a.inText {
		return a.takeOfText(c)
	}
	before := a.blank
	a.blank = strings.IndexByte(" \t\r\n", c) >= 0
	a.inText, a.length, a.escape, a.cut = c == '"', 0, 0, false
	return !a.blank || !before, true
}

// takeOfText takes a byte of a text, or its end. Escapes are kept whole or not at all.
func (a *abridged) takeOfText(c byte) (keep, valid bool) {
	switch {
	case a.escape == 0 && c == '"':
		a.inText, a.blank = false, false
		return true, true
	case a.escape == 0:
		a.cut, valid = a.length >= maxText, c >= ' '
		if c == '\\' {
			a.escape = escaped
		}
	case a.escape == escaped:
		a.escape, valid = 0, strings.IndexByte(`"\/bfnrtu`, c) >= 0
		if c == 'u' {
			a.escape = 4
		}
	default:
		a.escape, valid = a.escape-1, strings.IndexByte("0123456789abcdefABCDEF", c) >= 0
	}
	a.length++
	return !a.cut, valid
}
