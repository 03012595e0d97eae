// Package urlpath tells how servers may read the path of a request.
//
// Servers disagree about a path that is spelled unusually: what they take for a slash,
// whether they decode it twice, what ends it, and what they do first. An attacker can spell
// a path so that a rule does not match it, and the server answers it all the same. So a path
// is compared in each of its [Readings].
package urlpath

import (
	"path"
	"slices"
	"strings"
	"unicode/utf8"
)

// Clean returns the path that most servers read: decoded, without path parameters, dots,
// doubled slashes and a slash at the end.
func Clean(raw string) string {
	if IsPlain(raw) {
		return trimmed(raw)
	}
	return rooted(withoutParameters(decoded(raw)))
}

// plain are the letters of a path that all servers read alike, besides slashes and dots.
var plain = func() (set [256]bool) {
	for c := range set {
		set[c] = '0' <= c && c <= '9' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || strings.IndexByte("-_~!$&'()*+,=:@", byte(c)) >= 0
	}
	return set
}()

// IsPlain reports whether all servers read a path alike: as Clean does. So do they the empty
// one.
func IsPlain(raw string) bool {
	before := byte('/') // the slash before a path that has none
	for i := range len(raw) {
		c := raw[i]
		switch {
		case plain[c]:
		case c == '/' && (i == 0 || before != '/' && before != '.'):
		case c == '.':
		default:
			return false
		}
		before = c
	}
	return before != '.' && (raw == "" || raw[0] == '/')
}

// trimmed returns a plain path without the slash at its end.
func trimmed(raw string) string {
	if len(raw) < 2 {
		return "/"
	}
	return strings.TrimSuffix(raw, "/")
}

// maxText is how many bytes the readings of some paths have together at most. Comparing that
// many takes about a millisecond.
const maxText = 128 << 10

// Readings returns the paths that servers may take some paths for: all that any of the steps
// make of them, in any order and any number of times. They begin with a slash, have no
// doubled slashes and none at the end, but may have dots, since there are servers that keep
// them.
//
// If there are too many to compare, all is true and paths are some of them: then the paths
// have to be taken for any. The time is bounded for paths of any number and length.
func Readings(raws ...string) (paths []string, all bool) {
	if len(raws) == 1 && IsPlain(raws[0]) {
		return []string{trimmed(raws[0])}, false
	}
	found, all := closure(raws)
	for _, reading := range found {
		if merged(reading) == reading {
			paths = append(paths, reading)
		}
	}
	return paths, all
}

// closure returns what steps make of texts, and whether there is more of it.
func closure(texts []string) (found []string, more bool) {
	var known map[string]bool // found, once that is long
	left := maxText
	add := func(text string) {
		if left < 0 || known[text] || known == nil && slices.Contains(found, text) {
			return
		}
		left -= len(text) + perReading
		if found = append(found, text); known != nil {
			known[text] = true
		} else if len(found) > 16 {
			known = make(map[string]bool)
			for _, text := range found {
				known[text] = true
			}
		}
	}
	for _, text := range texts {
		add(text)
	}
	for i := 0; i < len(found) && left >= 0; i++ {
		for _, step := range steps {
			if made := step(found[i]); made != found[i] {
				add(made)
			}
		}
	}
	return found, left < 0
}

// perReading is what a reading costs besides its bytes, in bytes.
const perReading = 32

// Fold returns one spelling for all that differ in case.
func Fold(s string) string {
	for i := range len(s) {
		if s[i] >= utf8.RuneSelf {
			return strings.ToLower(strings.ToUpper(s))
		}
	}
	return strings.ToLower(s)
}

// rooted returns a path with one slash before it, and without dots, doubled slashes and one
// at the end. Doubled slashes go first.
func rooted(p string) string {
	if !strings.HasPrefix(p, "/") {
		p = "/" + p
	}
	return path.Clean(p)
}
