package login

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"
)

// MaxName is the length of the longest name that is accepted, in bytes.
const MaxName = 1024

// ErrNameTooLong is the error for a name of more than [MaxName] bytes. Nothing
// was counted. Do not look at the password, and answer as to a wrong one.
var ErrNameTooLong = fmt.Errorf("login: the name is longer than %d bytes", MaxName)

// Normalize is the default of [Guard.Normalize]. It maps together the spellings
// by which common databases find one account:
//
//   - Upper and lower case, full and half width, and the other compatibility
//     forms of Unicode (NFKC) become one: "WEISS", "Weiß" and "ｗｅｉｓｓ" become
//     "weiss".
//   - Marks are dropped: "José" becomes "jose". After a letter of a script that
//     is not Latin, Greek or Cyrillic they are kept, since they are vowels
//     there.
//   - Control characters, format characters and the others that Unicode calls
//     default-ignorable are dropped.
//   - A run of white space becomes one blank, and none at either end.
//
// Bytes that are not UTF-8 become U+FFFD. A normalized name stays as it is. The
// time depends on the length of name alone.
func Normalize(name string) string {
	var f folder
	f.text.Grow(min(len(name), MaxName))
	for i := 0; i < len(name); {
		if name[i] < 0x80 {
			f.rune(rune(name[i]))
			i++
			continue
		}
		// Decompose each character by itself: what precedes it cannot slow that.
		p := norm.NFKD.PropertiesString(name[i:])
		if n := p.Size(); n > 0 && p.Decomposition() != nil {
			f.string(string(p.Decomposition()))
			i += n
			continue
		}
		r := []rune(name[i:min(i+4, len(name))])[0]
		f.rune(r)
		i += max(p.Size(), 1)
	}
	return compose(f.text.String())
}

// compose returns text, which is decomposed, in NFC, but leaves characters
// above U+FFFF decomposed: package norm composes U+20061 with U+0301 as if it
// were U+0061, so that the result would change when it is normalized again.
func compose(text string) string {
	text = norm.NFD.String(text) // the canonical order of marks
	var b strings.Builder
	b.Grow(len(text))
	from := 0
	for i, r := range text {
		if r > 0xffff {
			b.WriteString(norm.NFC.String(text[from:i]))
			b.WriteRune(r)
			from = i + utf8.RuneLen(r)
		}
	}
	b.WriteString(norm.NFC.String(text[from:]))
	return b.String()
}

// A folder folds a name character by character.
type folder struct {
	text     strings.Builder
	blank    bool // write a blank before the next character
	keepMark bool // the last letter's script keeps its marks

	seen [64]folded // a cache: the Unicode tables are slow
}

// A folded is a character and what it is replaced by.
type folded struct {
	r    rune
	kind kind
	text string
}

// kind is how a character is folded.
type kind int

const (
	unseen kind = iota
	white
	hidden
	mark
	other      // a letter whose marks are dropped, or no letter
	vowelBased // a letter whose marks are vowels and kept
)

func (f *folder) string(s string) {
	for _, r := range s {
		f.rune(r)
	}
}

func (f *folder) rune(r rune) {
	c := &f.seen[uint32(r)%uint32(len(f.seen))]
	if c.r != r || c.kind == unseen {
		*c = folded{r, kindOf(r), foldCase(r)}
		if c.kind == mark {
			c.text = string(r) // the upper case of U+0345, iota subscript, is a letter
		}
	}
	switch {
	case c.kind == white:
		f.blank, f.keepMark = true, false
		return
	case c.kind == hidden, c.kind == mark && !f.keepMark:
		return
	case c.kind != mark:
		f.keepMark = c.kind == vowelBased
	}
	if f.blank && f.text.Len() > 0 {
		f.text.WriteByte(' ')
	}
	f.blank = false
	f.text.WriteString(c.text)
}

// kindOf returns the kind of r, a decomposed character. Control and format
// characters, and those that Unicode calls Default_Ignorable_Code_Point, are
// hidden.
func kindOf(r rune) kind {
	switch {
	case unicode.IsSpace(r):
		return white
	case unicode.In(r, unicode.Cc, unicode.Cf, unicode.Other_Default_Ignorable_Code_Point, unicode.Variation_Selector):
		return hidden
	case unicode.Is(unicode.M, r):
		return mark
	case unicode.IsLetter(r) && !unicode.In(r, unicode.Latin, unicode.Greek, unicode.Cyrillic):
		return vowelBased
	}
	return other
}

// foldCase returns the form that the upper and lower case of r, a decomposed
// character, share. It goes by way of the upper case, since letters such as ı,
// ſ and ς share that with another letter.
func foldCase(r rune) string {
	if r == 'ß' || r == 'ẞ' {
		return "ss"
	}
	return string(unicode.ToLower(unicode.ToUpper(r)))
}
