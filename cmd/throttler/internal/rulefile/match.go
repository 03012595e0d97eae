package rulefile

import (
	"fmt"
	"strings"
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
	paths   []pattern
	methods []string
	hosts   []string
	fields  map[string]string // required fields and their values; "*": any
}

// selects reports whether s selects a request, and by which pattern of its
// path.
func (s *selector) selects(r *Request) (route string, ok bool) {
	if len(s.methods) > 0 && !containsFold(s.methods, r.Method) {
		return "", false
	}
	if len(s.hosts) > 0 && !matchesHost(s.hosts, r.host()) {
		return "", false
	}
	for name, want := range s.fields {
		if got, ok := r.Fields[name]; !ok || want != "*" && want != got {
			return "", false
		}
	}
	if len(s.paths) == 0 {
		return "", true
	}
	path := r.path()
	for _, p := range s.paths {
		if p.matches(path) {
			return p.source, true
		}
	}
	return "", false
}

func containsFold(list []string, s string) bool {
	for _, each := range list {
		if strings.EqualFold(each, s) {
			return true
		}
	}
	return false
}

// matchesHost reports whether host is in the list. "*.example.org" matches all
// hosts below example.org.
func matchesHost(hosts []string, host string) bool {
	for _, want := range hosts {
		if suffix, wild := strings.CutPrefix(want, "*"); wild && len(host) > len(suffix) && strings.HasSuffix(host, suffix) {
			return true
		}
		if want == host {
			return true
		}
	}
	return false
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
