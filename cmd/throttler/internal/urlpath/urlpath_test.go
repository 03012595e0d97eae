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

func TestAPathIsComparedAsMostServersReadIt(t *testing.T) {
	for raw, want := range map[string]string{
		"": "/", "/": "/", "//": "/", "/a": "/a", "/a/": "/a", "/a//b": "/a/b", "/a/./b/../c": "/a/c", "/..": "/", "a": "/a", "*": "/*",
		"/a;b=c/d;e": "/a/d", "/x/..;y/a": "/a", "/%61%2Fb": "/a/b", "/%zz/%": "/%zz/%", "/%zz%61": "/%zza", "/%": "/%", "/%6": "/%6", "/a%3fb": "/a?b", "/é": "/é", "/.well-known/a.b": "/.well-known/a.b",
	} {
		assert.Equal(t, want, urlpath.Clean(raw), raw)
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
	"", "/", "//x/", "/x/..", "/x//..", "/./", "/%2e", "/%2e%2e", "/x/%2e%2e", ";a", "/;a/", "/..;a", "/x/..;a", `\`, `\..`, "%5c", "%5C..", "%2f", "%2F..",
	"%252f", "%252e", "%25%32%66", "#y", "%23y", "%3fy", "%253fy", "%00y", "%2500", ".", "%20", "%20. ", "/%zz/..",
}

func TestEachReadingOfEachServerIsOne(t *testing.T) {
	reached := map[string]int{}
	for i, before := range odd {
		for j, between := range odd {
			for k, after := range odd {
				if (i+j+k)%4 != 0 && before != "" && between != "" && after != "" {
					continue // each pair, and a quarter of the triples
				}
				raw := "/" + before + between + "/login" + after
				readings, all := urlpath.Readings(raw)
				require.False(t, all, raw)
				for server, read := range servers {
					got := read(raw)
					if got == "/login" {
						reached[server]++
					}
					if !slices.Contains(readings, got) {
						require.Fail(t, "a reading is missing", "%s reads %q as %q: %q", server, raw, got, readings)
					}
				}
			}
		}
	}
	for server := range servers {
		assert.Greater(t, reached[server], 20, "%s has taken that many for /login", server)
	}
}

func TestReadingsOfSpellingsThatCombineSteps(t *testing.T) {
	for _, raw := range []string{
		"//login;a/%2e", "/login;a/..;/..", "//x/login", `/\x/login`, "HTTP://x/login", "x:login", "/x/..%5c%252e%252e;a%2flogin", "/%u006cogin", "/%25u006Cogin.", "/%c1%acogin%20",
		"/x%zz/../%6cogin", "/login/..%3bx/..;y", "/x%c0%ae%c0%ae%c0%afx/../login", "/x#/..//../login%2500", "/login%253f/../x", `/x;a\..\..\login;b`,
	} {
		readings, all := urlpath.Readings(raw)
		assert.Contains(t, readings, "/login", raw)
		assert.False(t, all, raw)
	}
	readings, _ := urlpath.Readings("/a/../login/b")
	assert.Equal(t, []string{"/a/../login/b", "/login/b"}, readings, "there are servers that keep dots")
	readings, _ = urlpath.Readings("/a", "/b;c")
	assert.Equal(t, []string{"/a", "/b;c", "/b"}, readings)
}

func TestAPlainPathHasOneReading(t *testing.T) {
	letters := []string{"", "/", "/a", "/b.c", "/.d", ".", "..", "a-_~!$&'()*+,=:@", ";", "%41", `\`, "#", "?", " ", "\x00", "é", "\xff"}
	plain := 0
	for _, a := range letters {
		for _, b := range letters {
			for _, c := range letters {
				raw := a + b + c
				if !urlpath.IsPlain(raw) {
					continue
				}
				plain++
				readings, all := urlpath.Readings(raw)
				assert.Equal(t, []string{urlpath.Clean(raw)}, readings, raw)
				assert.False(t, all)
				made, _ := urlpath.Closure([]string{raw})
				for _, text := range made {
					assert.Equal(t, strings.TrimRight(urlpath.Clean(raw), "/"), strings.TrimRight(text, "/"), raw)
				}
			}
		}
	}
	assert.Greater(t, plain, 50)
	for _, raw := range []string{"a", "*", "/a//b", "/a/.", "/a./b", "/..", "/a;b", "/a%20", `/a\b`, "/a#", "/a?", "/a b", "/é"} {
		assert.False(t, urlpath.IsPlain(raw), raw)
	}
}

func TestAPlainPathCostsNoAllocation(t *testing.T) {
	assert.Zero(t, testing.AllocsPerRun(100, func() {
		if !urlpath.IsPlain("/users/17/orders/") || urlpath.Clean("/users/17/orders/") != "/users/17/orders" || urlpath.Fold("/users/17") != "/users/17" {
			panic("not plain")
		}
	}))
}

// worst are paths that have many readings, or long ones.
func worst(size int) []string {
	paths := []string{}
	for _, piece := range []string{
		`/%252f/..;a\%2f%253f%2509b%25u0041%c1%a1. `, `/%252f/..;a\%2f%253f%2509b`, "/../", "/", ";", "%", "%25", "/a;b", `\..`, ". ", "%c0%ae", "a/./", "%u002f",
	} {
		paths = append(paths, strings.Repeat(piece, size/len(piece)))
	}
	return append(paths, "/"+strings.Repeat("%25", size/4)+`32e;a\..//b%2f..%u0041. /%c1%a1#x?y%00z`)
}

func TestReadingsAreBounded(t *testing.T) {
	unbounded := 0
	for _, size := range []int{100, 1 << 10, 8 << 10, 1 << 20} {
		for _, raw := range worst(size) {
			readings, all := urlpath.Closure([]string{raw, "/a;b", raw + "a"})
			assert.LessOrEqual(t, len(strings.Join(readings, "")), urlpath.MaxText+len(raw)+1, "%.40s", raw)
			if all {
				unbounded++
			}
		}
	}
	assert.NotZero(t, unbounded)
	_, all := urlpath.Readings(strings.Repeat(";", urlpath.MaxText))
	assert.True(t, all, "one that is longer than all readings may be")
	_, all = urlpath.Readings("/" + strings.Repeat("x", urlpath.MaxText))
	assert.False(t, all, "a plain one is one reading")
}

func TestFoldingMakesOneOfAllCases(t *testing.T) {
	for _, s := range []string{"login", "LOGIN", "Login", "log\u0131n", "LOG\u0131N"} {
		assert.Equal(t, "login", urlpath.Fold(s))
	}
	assert.Equal(t, "s", urlpath.Fold("\u017f"))
	assert.Equal(t, "k", urlpath.Fold("\u212a"))
}

func BenchmarkReadings(b *testing.B) {
	for name, raw := range map[string]string{"plain": "/users/17/orders", "encoded": "/users/a%20b/orders", "many": worst(8 << 10)[1]} {
		b.Run("path="+name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				urlpath.Clean(raw)
				urlpath.Readings(raw)
			}
		})
	}
}
