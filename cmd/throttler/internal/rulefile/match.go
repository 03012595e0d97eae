package rulefile

import (
	"fmt"
	"net/url"
	"slices"
	"strings"

	"github.com/adaptivethrottler/throttler/cmd/throttler/internal/urlpath"
	"github.com/adaptivethrottler/throttler/robots"
)

// A pattern is a path with wildcards. "*" matches one segment, "**" at the end
// any number of them, also none.
type pattern struct {
	source   string
	segments []string
	rest     bool // ends with "**"
}

func parsePattern(source string) (pattern, error) {
	trimmed, found := strings.CutPrefix(source, "/")
	if !found {
		return pattern{}, fmt.Errorf("%q does not begin with /", source)
	}
	if i := strings.IndexAny(source, "?#;"); i >= 0 {
		return pattern{}, fmt.Errorf("%q: paths are compared without %q and what follows", source, source[i:i+1])
	}
	if decoded, err := url.PathUnescape(source); err == nil && decoded != source {
		return pattern{}, fmt.Errorf("%q: paths are compared decoded, want %q", source, decoded)
	}
	p := pattern{source: source}
	if trimmed = strings.TrimSuffix(trimmed, "/"); trimmed != "" {
		p.segments = strings.Split(trimmed, "/")
	}
	if n := len(p.segments); n > 0 && p.segments[n-1] == "**" {
		p.segments, p.rest = p.segments[:n-1], true
	}
	for _, segment := range p.segments {
		if segment != "*" && strings.Contains(segment, "*") {
			return pattern{}, fmt.Errorf("%q: a * stands for a whole segment, and ** for all that are left", source)
		}
		if segment == "" || segment == "." || segment == ".." {
			return pattern{}, fmt.Errorf("%q matches no path: paths are cleaned before they are compared", source)
		}
	}
	return p, nil
}

// matches reports whether p matches a cleaned path.
func (p pattern) matches(path string) bool {
	path = strings.TrimPrefix(path, "/")
	for _, want := range p.segments {
		if path == "" {
			return false
		}
		segment, rest, _ := strings.Cut(path, "/")
		if want != "*" && want != segment {
			return false
		}
		path = rest
	}
	return p.rest || path == ""
}

// A selector selects the requests that a rule applies to. The zero selector
// selects all.
type selector struct {
	apiOnly bool // selects none: programs name the rule
	paths   []pattern
	methods []string
	hosts   []string
	fields  map[string]string // required fields and their values; "*": any
	robot   *robotSelector    // nil: whoever asks

	directory *robots.Directory // nil: no rule of the file asks who a robot is
	bits      bits
}

// A match is how a selector selects a request.
type match struct {
	route string // the pattern of its path; "": there is none
	path  string // as most applications read it, or the pattern if it may be any

	who  robots.Identity // of the client, if the file has a directory
	bits bits
}

// bits are how many bits of an address are counted: of an IPv4 address in {prefix}, of an IPv6
// address in {network} too.
type bits struct{ ipv4, ipv6 int }

// selects reports whether s selects a request, and how.
func (s *selector) selects(r *Request) (m match, ok bool) {
	if s.apiOnly {
		return match{}, false
	}
	if len(s.methods) > 0 && !matchesMethod(s.methods, r.Method) {
		return match{}, false
	}
	if len(s.hosts) > 0 && !matchesHost(s.hosts, r.host()) {
		return match{}, false
	}
	for name, want := range s.fields {
		if got, ok := r.Fields[name]; !ok || want != "*" && want != got {
			return match{}, false
		}
	}
	who := r.identity(s.directory)
	if s.robot != nil && !s.robot.selects(&who, r) {
		return match{}, false
	}
	path := r.path()
	if len(s.paths) == 0 {
		m, ok = match{path: path.clean}, true
	} else {
		m, ok = s.selectsPath(path)
	}
	m.who, m.bits = who, s.bits
	return m, ok
}

// selectsPath is selects for a path.
func (s *selector) selectsPath(path *reading) (m match, ok bool) {
	for _, clean := range []string{path.clean, urlpath.Cut(path.clean)} {
		if route, ok := s.route(clean); ok {
			return match{route: route, path: clean}, true
		}
	}
	for _, p := range s.paths {
		if path.mayBe(p) {
			return match{route: p.source, path: p.source}, true
		}
	}
	return match{}, false
}

// A reading is what is read of a path.
type reading struct {
	target string // without the query
	clean  string // as most servers read it
	plain  bool   // as all do
	text   string // what any server may find in it, unless it is plain
	hides  bool   // or more than that
}

// readPath reads the path of a target, which has no query.
func readPath(target, path string) reading {
	r := reading{target: target}
	if r.clean, r.plain = urlpath.Read(path); len(path) < len(target) { // it has a host, or a fragment
		r.plain = false
	}
	if !r.plain {
		text, ok := urlpath.Text(target)
		r.text, r.hides = text, !ok
	}
	return r
}

// mayBe reports whether some server may take the path for one that a pattern matches, though it
// is not spelled so: it has all words of the pattern.
func (r *reading) mayBe(p pattern) bool {
	if r.plain || r.hides {
		return r.hides
	}
	for _, segment := range p.segments {
		if segment != "*" && !strings.Contains(r.text, urlpath.Fold(segment)) {
			return false
		}
	}
	return true
}

// route returns the first pattern that matches a cleaned path.
func (s *selector) route(path string) (route string, ok bool) {
	for _, p := range s.paths {
		if p.matches(path) {
			return p.source, true
		}
	}
	return "", false
}

// matchesMethod reports whether method is in the list. GET stands for HEAD too:
// applications do the same work for both.
func matchesMethod(methods []string, method string) bool {
	return slices.ContainsFunc(methods, func(want string) bool {
		return strings.EqualFold(want, method) || strings.EqualFold(want, "GET") && strings.EqualFold(method, "HEAD")
	})
}

// matchesHost reports whether host is in the list. "*.example.org" matches all
// hosts below example.org.
func matchesHost(hosts []string, host string) bool {
	return slices.ContainsFunc(hosts, func(want string) bool {
		suffix, wild := strings.CutPrefix(want, "*")
		return want == host || wild && len(host) > len(suffix) && strings.HasSuffix(host, suffix)
	})
}

// count returns how many of hosts s selects.
func (s *selector) count(hosts []string) int {
	if len(s.hosts) == 0 {
		return len(hosts)
	}
	n := 0
	for _, host := range hosts {
		if matchesHost(s.hosts, host) {
			n++
		}
	}
	return n
}

// isZero reports whether s selects all requests.
func (s *selector) isZero() bool {
	return !s.apiOnly && s.robot == nil && len(s.paths)+len(s.methods)+len(s.hosts)+len(s.fields) == 0
}

// names reports whether s names exactly these fields; domain may be missing.
func (s *selector) names(fields map[string]string) bool {
	asked := 0
	for name := range s.fields {
		if name == "domain" {
			continue
		}
		if _, ok := fields[name]; !ok {
			return false
		}
		asked++
	}
	return asked > 0 && asked == len(fields)
}
