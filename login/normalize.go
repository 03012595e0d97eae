package login

import (
	"errors"
	"strings"
	"unicode"

	"golang.org/x/text/unicode/norm"
)

// MaxName is the length of the longest name that is looked at, in bytes.
const MaxName = 1024

// ErrNameTooLong is the error of an attempt with a name of more than [MaxName]
// bytes. Nothing was counted, and the password must not be looked at. The
// application answers as it does to a wrong password.
var ErrNameTooLong = errors.New("login: the name is too long")

// Normalize is the default of [Guard.Normalize]. It maps together the spellings
// by which common databases find one account:
//
//   - upper and lower case, full and half width, and the other compatibility
//     forms of Unicode (NFKC) are one: "WEISS", "Weiß" and "ｗｅｉｓｓ" all become
//     "weiss";
//   - marks are dropped, so that "José" becomes "jose", except after a letter of
//     a script that is neither Latin, Greek nor Cyrillic, where they are vowels;
//   - control characters, format characters and all others that Unicode calls
//     default-ignorable are dropped;
//   - a run of white space becomes one blank, and none is left at the ends.
//
// Bytes that are not UTF-8 become U+FFFD. Normalize of a normalized name is that
// name. The time that it takes grows with the length of name alone.
func Normalize(name string) string {
	var f folder
	f.text.Grow(min(len(name), MaxName))
	for i := 0; i < len(name); {
		if name[i] < 0x80 {
			f.rune(rune(name[i]))
			i++
			continue
		}
		// Each character on its own: nothing before it can make that slow.
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
	return norm.NFC.String(f.text.String())
}

// A folder folds one character after the other.
type folder struct {
	text     strings.Builder
	blank    bool // white space is due before the next character
	keepMark bool // the last letter is of a script whose marks are kept

	seen [64]folded // a name has few characters, and tables are slow
}

// A folded is what a character comes to.
type folded struct {
	r    rune
	kind kind
	text string
}

// kind is what a character is to a name.
type kind int

const (
	unseen kind = iota
	white
	hidden
	mark
	other      // a letter whose marks do not matter, or no letter
	vowelBased // a letter whose marks are vowels
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

// kindOf returns what r is, which is decomposed. Hidden are control and format
// characters, and those that Unicode calls Default_Ignorable_Code_Point.
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

// foldCase returns what the upper and lower case of r, which is decomposed, have
// in common. By way of the upper case, since letters such as ı, ſ and ς share it
// with another.
func foldCase(r rune) string {
	if r == 'ß' || r == 'ẞ' {
		return "ss"
	}
	return string(unicode.ToLower(unicode.ToUpper(r)))
}
