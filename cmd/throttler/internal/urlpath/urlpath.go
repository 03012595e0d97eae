// Package urlpath reads the path of a request, and tells whether all servers read it alike.
//
// Servers disagree about a path that is spelled unusually: what they take for a slash, whether
// they decode it twice, what ends it, and what they do first. An attacker can spell a path so
// that a rule does not match it, and the server answers it all the same. There is no end to these
// spellings, so a path that is not spelled plainly may be any path that has its words.
package urlpath

import (
	"cmp"
	"path"
	"regexp"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Read returns the path that most servers read: decoded, without path parameters, dots, doubled
// slashes and a slash at the end. plain is false if a server may read another one.
//
// A plain path is clean, and encoded once: decoded, it is UTF-8 without empty segments, without
// segments that end with a dot or a blank, and without backslashes, semicolons, control characters
// and encodings. No slash of it is encoded. Its case is not looked at. See also [Cut].
func Read(raw string) (clean string, plain bool) {
	decoded := Decode(raw)
	if isPlain(raw, decoded) {
		return cmp.Or(strings.TrimSuffix(decoded, "/"), "/"), true
	}
	segments := strings.Split(decoded, "/")
	for i, segment := range segments { // without parameters
		segments[i], _, _ = strings.Cut(segment, ";")
	}
	return path.Clean("/" + strings.Join(segments, "/")), false
}

// Cut returns a clean path up to a question mark or a number sign: some servers end it there,
// though these were encoded.
func Cut(clean string) string {
	end := strings.IndexAny(clean, "?#")
	if end < 0 {
		return clean
	}
	return "/" + strings.Trim(clean[:end], "/. ")
}

func isPlain(raw, decoded string) bool {
	switch {
	case raw == "":
		return true
	case raw[0] != '/', !utf8.ValidString(decoded), strings.Count(decoded, "/") != strings.Count(raw, "/"), strings.ContainsAny(raw, "?#"), again.MatchString(decoded):
		return false
	}
	before := '/'
	for i, c := range decoded {
		switch {
		case c == '\\', c == ';', unicode.IsControl(c):
			return false
		case c == '/' && i > 0 && strings.ContainsRune("/. ", before):
			return false
		}
		before = c
	}
	return before != '.' && before != ' '
}

// again matches what some servers would decode once more.
var again = regexp.MustCompile(`%([0-9a-fA-F]{2}|[uU])`)

// Decode decodes percent-encodings. What is none stays as it is.
func Decode(raw string) string {
	if !strings.Contains(raw, "%") {
		return raw
	}
	decoded := make([]byte, 0, len(raw))
	for i := 0; i < len(raw); i++ {
		octet := uint64(raw[i])
		if raw[i] == '%' && i+2 < len(raw) {
			if n, err := strconv.ParseUint(raw[i+1:i+3], 16, 8); err == nil {
				octet, i = n, i+2
			}
		}
		decoded = append(decoded, byte(octet))
	}
	return string(decoded)
}

// Text returns all that any server may find in a path: decoded as often as that changes it, and
// folded. ok is false if servers may find more, in what is no UTF-8 or is encoded in other ways, or
// more often.
func Text(raw string) (text string, ok bool) {
	for range 8 {
		decoded := Decode(raw)
		if decoded == raw {
			hides := strings.Contains(raw, "%u") || strings.Contains(raw, "%U") || strings.ContainsFunc(raw, unicode.IsControl)
			return Fold(raw), utf8.ValidString(raw) && !hides
		}
		raw = decoded
	}
	return Fold(raw), false
}

// Fold returns one spelling for all that differ in case.
func Fold(s string) string {
	for i := range len(s) {
		if s[i] >= utf8.RuneSelf {
			return strings.ToLower(strings.ToUpper(s))
		}
	}
	return strings.ToLower(s)
}
