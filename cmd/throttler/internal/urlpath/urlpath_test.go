package urlpath_test

import (
	"net/url"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/adaptivethrottler/throttler/cmd/throttler/internal/urlpath"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestAPathIsReadAsMostServersReadIt(t *testing.T) {
	for raw, want := range map[string]string{ // of plain paths
		"": "/", "/": "/", "/a": "/a", "/a/": "/a", "/%61": "/a", "/a%20b/c.d": "/a b/c.d", "/é": "/é", "/%c3%a9": "/é", "/.well-known/a.b": "/.well-known/a.b", "/*": "/*",
		"/a-_~!$&'()*+,=:@": "/a-_~!$&'()*+,=:@", "/a%2bb%26": "/a+b&", "/a%3fb": "/a?b", "/a%20%23": "/a #", "/10%25": "/10%", "/%zz/%": "/%zz/%", "/%": "/%", "/%6": "/%6", "/...a": "/...a", "/a b": "/a b",
	} {
		clean, plain := urlpath.Read(raw)
		assert.Equal(t, want, clean, raw)
		assert.True(t, plain, raw)
	}
	for raw, want := range map[string]string{
		"//": "/", "/a//b": "/a/b", "/a//": "/a", "/a/./b/../c": "/a/c", "/..": "/", "a": "/a", "*": "/*", "/a;b=c/d;e": "/a/d", "/x/..;y/a": "/a", "/a%2Fb": "/a/b",
		"/%25U0041": "/%U0041", `/a\b`: `/a\b`, "/a.": "/a.", "/a%20": "/a ", "/a./b": "/a./b",
		"/%e9": "/\xe9", "/%c0%af": "/\xc0\xaf", "/a%00": "/a\x00", "/a%c2%85": "/a\u0085", "/%2541": "/%41", "/a/%2e%2e/b": "/b", "/%u0041": "/%u0041",
	} {
		clean, plain := urlpath.Read(raw)
		assert.Equal(t, want, clean, raw)
		assert.False(t, plain, raw)
	}
}

// servers are how some read a path, each in steps of its own.
var servers = map[string]func(raw string) string{
	"decode, clean": func(raw string) string { return path.Clean("/" + unescaped(raw)) },
	"clean, decode": func(raw string) string { return merged(unescaped(path.Clean("/" + raw))) },
	"Tomcat":        func(raw string) string { return path.Clean("/" + unescaped(cut(raw, ";"))) },
	"Spring":        func(raw string) string { return merged(cut(unescaped(path.Clean(raw)), ";")) },
	"WebOb": func(raw string) string {
		return merged(strings.SplitN(unescaped(strings.SplitN(raw, "#", 2)[0]), "\x00", 2)[0])
	},
	"twice": func(raw string) string { return path.Clean("/" + unescaped(unescaped(raw))) },
	"new URL": func(raw string) string {
		raw = strings.ReplaceAll(strings.SplitN(raw, "#", 2)[0], `\`, "/")
		if strings.HasPrefix(raw, "//") {
			_, raw, _ = strings.Cut(strings.TrimLeft(raw, "/"), "/")
		}
		return merged(unescaped(path.Clean("/" + strings.NewReplacer("%2e", ".", "%2E", ".").Replace(raw))))
	},
	"Windows": func(raw string) string {
		var kept []string
		for _, name := range strings.Split(strings.ReplaceAll(unescaped(raw), `\`, "/"), "/") {
			if name = strings.TrimRight(name, " "); name != "." && name != ".." {
				name = strings.TrimRight(name, ". ")
			}
			kept = append(kept, name)
		}
		return path.Clean("/" + strings.Join(kept, "/"))
	},
	"encoded slashes stay": func(raw string) string {
		return merged(unescaped(path.Clean("/" + strings.NewReplacer("%2f", "%252f", "%2F", "%252F", "%2e", ".").Replace(raw))))
	},
	"empty segments": func(raw string) string {
		var kept []string
		for _, segment := range strings.Split(strings.TrimPrefix(unescaped(raw), "/"), "/") {
			switch segment {
			case ".":
			case "..":
				kept = kept[:max(len(kept)-1, 0)]
			default:
				kept = append(kept, segment)
			}
		}
		return merged(strings.Join(kept, "/"))
	},
}

var encoded = regexp.MustCompile("%[0-9a-fA-F]{2}")

func unescaped(p string) string {
	if whole, err := url.PathUnescape(p); err == nil {
		return whole
	}
	return encoded.ReplaceAllStringFunc(p, func(code string) string {
		octet, _ := strconv.ParseUint(code[1:], 16, 8)
		return string([]byte{byte(octet)})
	})
}

// cut removes what follows mark in each segment.
func cut(p, mark string) string {
	segments := strings.Split(p, "/")
	for i := range segments {
		segments[i], _, _ = strings.Cut(segments[i], mark)
	}
	return strings.Join(segments, "/")
}

// merged returns p without empty segments.
func merged(p string) string {
	return "/" + strings.Join(slices.DeleteFunc(strings.Split(p, "/"), func(s string) bool { return s == "" }), "/")
}

// odd are pieces of paths that servers read in different ways.
var odd = []string{
	"", "/a%20b", "/", "//x/", "/x/..", "/x//..", "/./", "/%2e", "/%2e%2e", "/x/%2e%2e", ";a", "/;a/", "/..;a", "/x/..;a", `\`, `\..`, "%5c", "%5C..", "%2f", "%2F..",
	"%252f", "%252e", "%25%32%66", "#y", "%23y", "%3fy", "%253fy", "%00y", "%2500", ".", "%20", "%20. ", "/%zz/..",
}

func TestNoServerReadsAPlainPathAsAnother(t *testing.T) {
	reached, plains := map[string]int{}, 0
	for i, before := range odd {
		for j, between := range odd {
			for k, after := range odd {
				if (i+j+k)%4 != 0 && before != "" && between != "" && after != "" {
					continue // each pair, and a quarter of the triples
				}
				raw := before + between + "/login" + after
				if raw[0] != '/' {
					raw = "/" + raw
				}
				clean, plain := urlpath.Read(raw)
				if plain {
					plains++
				}
				for server, read := range servers {
					got := read(raw)
					if got == "/login" {
						reached[server]++
						text, ok := urlpath.Text(raw)
						require.True(t, !ok || strings.Contains(text, "login"), raw)
					}
					if plain && got != clean && got != urlpath.Cut(clean) {
						require.Fail(t, "another reading", "%s reads %q as %q, want %q", server, raw, got, clean)
					}
				}
			}
		}
	}
	assert.Greater(t, plains, 10)
	for server := range servers {
		assert.Greater(t, reached[server], 20, "%s has taken that many for /login", server)
	}
}

func TestSomeServersEndAPathAtAnEncodedQuestionMark(t *testing.T) {
	for clean, want := range map[string]string{"/": "/", "/a.": "/a.", "/a?b": "/a", "/a/b #c?d": "/a/b", "/#": "/", "/a/. #": "/a"} {
		assert.Equal(t, want, urlpath.Cut(clean), clean)
	}
}

func TestTheTextOfAPathHasWhatAnyServerFindsInIt(t *testing.T) {
	for raw, want := range map[string]string{
		"/A;b": "/a;b", "/%256cOGIN%252f%25zz": "/login/%zz", "/é%": "/é%", "/%25%34%31": "/a", "/log%C4%B1n//": "/login//",
		"/%c1%acogin": "", "/%u006cogin": "", "/%25u": "", "/a%00": "", "/a%2500": "", "/%" + strings.Repeat("25", 9): "",
	} {
		text, ok := urlpath.Text(raw)
		assert.Equal(t, want != "", ok, raw)
		if ok {
			assert.Equal(t, want, text, raw)
		}
	}
}

func TestAPlainPathCostsNoAllocation(t *testing.T) {
	assert.Zero(t, testing.AllocsPerRun(100, func() {
		if clean, plain := urlpath.Read("/users/17/orders/of-the-last-thirty-days/"); !plain || clean != "/users/17/orders/of-the-last-thirty-days" || urlpath.Fold("/users/17") != "/users/17" {
			panic("not plain")
		}
	}))
}

func TestFoldingMakesOneOfAllCases(t *testing.T) {
	for _, s := range []string{"login", "LOGIN", "Login", "log\u0131n", "LOG\u0131N"} {
		assert.Equal(t, "login", urlpath.Fold(s))
	}
	assert.Equal(t, "s", urlpath.Fold("\u017f"))
	assert.Equal(t, "k", urlpath.Fold("\u212a"))
}
