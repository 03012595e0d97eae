package urlpath

import (
	"bytes"
	"strings"
	"unicode"
)

// steps are what servers do with a path, each with some server that does it.
var steps = []func(string) string{
	withoutScheme,     // of a target in absolute form
	withoutHost,       // new URL(target, base) and parse_url take //a/b for /b at host a
	withoutFragment,   // also behind an encoded #, if a framework parses it again
	withoutQuery,      // likewise
	withoutControl,    // C ends a text at a NUL
	withoutParameters, // Java and its kin
	withSlashes,       // Windows, new URL
	decoded,           // all; proxies and frameworks once more
	decodedInSegments, // an encoded slash is a part of its segment
	decodedDots,       // new URL
	decodedWide,       // HTTP.sys reads %u0041
	shortened,         // hand-made decoders of UTF-8
	withoutTails,      // Windows drops dots and blanks at the end of a name
	withoutDots,       // before doubled slashes are one
	rooted,            // after it
	merged,            // dots stay
}

func withoutScheme(p string) string {
	scheme, rest, found := strings.Cut(p, ":")
	if !found || scheme == "" || strings.Trim(strings.ToLower(scheme), "abcdefghijklmnopqrstuvwxyz0123456789+-.") != "" {
		return p
	}
	return rest
}

func withoutHost(p string) string {
	rest := strings.TrimLeft(p, `/\`)
	if len(p)-len(rest) < 2 {
		return p
	}
	if end := strings.IndexAny(rest, `/\`); end >= 0 {
		return rest[end:]
	}
	return "/"
}

func withoutFragment(p string) string {
	p, _, _ = strings.Cut(p, "#")
	return p
}

func withoutQuery(p string) string {
	p, _, _ = strings.Cut(p, "?")
	return p
}

func withoutControl(p string) string {
	if end := strings.IndexFunc(p, unicode.IsControl); end >= 0 {
		return p[:end]
	}
	return p
}

// withoutParameters removes from each segment what follows a semicolon.
func withoutParameters(p string) string {
	kept, rest, found := strings.Cut(p, ";")
	if !found {
		return p
	}
	var b strings.Builder
	b.Grow(len(p))
	for b.WriteString(kept); found; b.WriteString(kept) {
		next := strings.IndexByte(rest, '/')
		if next < 0 {
			break
		}
		kept, rest, found = strings.Cut(rest[next:], ";")
	}
	return b.String()
}

func withSlashes(p string) string { return strings.ReplaceAll(p, `\`, "/") }

// withoutTails removes dots and blanks at the end of each segment that has more.
func withoutTails(p string) string {
	if !strings.ContainsAny(p, ". ") {
		return p
	}
	return eachSegment(p, func(kept []byte, segment string) []byte {
		bare := strings.TrimRight(segment, " ")
		if bare != "." && bare != ".." {
			bare = strings.TrimRight(bare, " .")
		}
		return append(append(kept, '/'), bare...)
	})
}

// withoutDots removes dots with the segment before them, which may be empty.
func withoutDots(p string) string {
	if !strings.Contains(p, "/.") && !strings.HasPrefix(p, ".") {
		return p
	}
	return eachSegment(p, func(kept []byte, segment string) []byte {
		switch segment {
		case ".":
			return kept
		case "..":
			return kept[:max(bytes.LastIndexByte(kept, '/'), 0)]
		}
		return append(append(kept, '/'), segment...)
	})
}

// merged returns a path with one slash before each segment that is not empty, and none at
// the end.
func merged(p string) string {
	if strings.HasPrefix(p, "/") && !strings.Contains(p, "//") && (p == "/" || !strings.HasSuffix(p, "/")) {
		return p
	}
	p = eachSegment(p, func(kept []byte, segment string) []byte {
		if segment == "" {
			return kept
		}
		return append(append(kept, '/'), segment...)
	})
	if p == "" {
		return "/"
	}
	return p
}

// eachSegment returns what add makes of the segments of a path, one after the other.
func eachSegment(p string, add func(kept []byte, segment string) []byte) string {
	kept := make([]byte, 0, len(p)+1)
	for segment := range strings.SplitSeq(strings.TrimPrefix(p, "/"), "/") {
		kept = add(kept, segment)
	}
	return string(kept)
}
