package rulefile

import (
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/adaptivethrottler/throttler/cmd/throttler/internal/loginname"
	"github.com/adaptivethrottler/throttler/cmd/throttler/internal/urlpath"
)

// A Proxy is a server whose logins the service guards.
type Proxy struct {
	Server  *url.URL      // where requests are passed on to
	Timeout time.Duration // for the answer to an attempt

	logins []*Login
}

// A Login says which requests of a Proxy are attempts to log in, whose name they try, and
// which answers say that the password was right or wrong.
type Login struct {
	Finder *loginname.Finder // of names in bodies; nil: there are none
	Basic  bool              // the user of HTTP Basic authentication
	Names  *regexp.Regexp    // what names must match; nil: anything
	Place  string            // in the file
	Pass   bool              // requests with a body without a name are no attempts; false: they are refused

	selector     selector
	right, wrong outcome
}

// Logins returns the logins that r may be an attempt at. There is more than one if servers may
// read another path than urlpath does, or take another host for r's.
//
// Paths are compared as for rules, and without regard to case.
func (p *Proxy) Logins(r *Request) (found []*Login) {
	target := withoutQuery(r.Target)
	path := readPath(target, target)
	path.clean = urlpath.Fold(path.clean)
	hosts := r.hosts()
	for _, l := range p.logins {
		matching := l.selector.count(hosts)
		if _, ok := l.selector.selectsPath(&path); !ok || matching == 0 {
			continue
		}
		found = append(found, l)
		_, is := l.selector.route(path.clean)
		_, isCut := l.selector.route(urlpath.Cut(path.clean))
		if is && isCut && path.plain && matching == len(hosts) {
			break
		}
	}
	return found
}

// A Verdict is what an answer says of a password.
type Verdict int

// The verdicts.
const (
	Neither Verdict = iota
	Right
	Wrong
)

// Verdict returns what the answer to an attempt says.
//
// An answer that is both right and wrong is wrong. Without answers that are wrong, all
// below 500 are that are not right.
func (l *Login) Verdict(answer *http.Response) Verdict {
	switch {
	case l.wrong.matches(answer):
		return Wrong
	case l.right.matches(answer):
		return Right
	case l.wrong.isZero() && answer.StatusCode < 500:
		return Wrong
	}
	return Neither
}

// An outcome matches answers that have all of what it lists: of each list, one.
type outcome struct {
	statuses  []int
	locations []location
	cookies   []string // names; one that ends with "*" is a prefix
}

func (o *outcome) isZero() bool { return len(o.statuses)+len(o.locations)+len(o.cookies) == 0 }

func (o *outcome) matches(answer *http.Response) bool {
	return !o.isZero() && o.matchesStatus(answer.StatusCode) && o.matchesLocation(answer) && o.matchesCookie(answer)
}

func (o *outcome) matchesStatus(status int) bool {
	return len(o.statuses) == 0 || slices.Contains(o.statuses, status)
}

// matchesLocation compares a Location on any host.
func (o *outcome) matchesLocation(answer *http.Response) bool {
	if len(o.locations) == 0 {
		return true
	}
	to, err := answer.Location()
	return err == nil && slices.ContainsFunc(o.locations, func(want location) bool { return want.matches(to) })
}

// matchesCookie reports whether the answer sets a cookie.
func (o *outcome) matchesCookie(answer *http.Response) bool {
	return len(o.cookies) == 0 || slices.ContainsFunc(setCookies(answer), func(name string) bool {
		return slices.ContainsFunc(o.cookies, func(want string) bool {
			prefix, open := strings.CutSuffix(want, "*")
			return want == name || open && strings.HasPrefix(name, prefix)
		})
	})
}

// A location is a path, and a parameter that the query has: "/login?error".
type location struct {
	path      pattern
	parameter string // "": any query
	value     string // "": any
}

func parseLocation(source string) (l location, err error) {
	source, query, _ := strings.Cut(source, "?")
	l.parameter, l.value, _ = strings.Cut(query, "=")
	l.path, err = parsePattern(source)
	return l, err
}

func (l *location) matches(to *url.URL) bool {
	if path, _ := urlpath.Read(to.EscapedPath()); !l.path.matches(path) {
		return false
	}
	if l.parameter == "" {
		return true
	}
	values, ok := to.Query()[l.parameter]
	return ok && (l.value == "" || len(values) > 0 && values[0] == l.value)
}

// setCookies returns the names of the cookies that an answer sets, whatever bytes their values
// have. Setting one to nothing, or to end at once, takes back that it was set before. An Expires
// that cannot be read is over.
func setCookies(answer *http.Response) (names []string) {
	type place struct{ name, domain, path string }
	set := make(map[place]bool)
	for _, line := range answer.Header["Set-Cookie"] {
		pair, attributes, _ := strings.Cut(line, ";")
		name, value, _ := strings.Cut(pair, "=")
		cookie, err := http.ParseSetCookie(name + "=x;" + blanks.ReplaceAllString(attributes, "=")) // it takes few values as they are
		if err != nil {
			continue
		}
		at := place{cookie.Name, strings.ToLower(strings.TrimPrefix(cookie.Domain, ".")), cookie.Path}
		isOver := cookie.MaxAge < 0 || cookie.MaxAge == 0 && cookie.RawExpires != "" && endOf(cookie.RawExpires).Before(time.Now())
		set[at] = strings.Trim(value, "\" \t") != "" && !isOver
	}
	for at, isSet := range set {
		if isSet {
			names = append(names, at.name)
		}
	}
	return names
}

// blanks matches what browsers skip around the value of an attribute.
var blanks = regexp.MustCompile(`[ \t]*=[ \t]*`)

// endOf returns the time of an Expires, in one of the forms that servers write, or the zero time.
func endOf(expires string) time.Time {
	for _, layout := range []string{http.TimeFormat, "Mon, 02-Jan-2006 15:04:05 MST", "Mon, 02-Jan-06 15:04:05 MST", time.ANSIC, time.RFC850} {
		if end, err := time.Parse(layout, expires); err == nil {
			return end
		}
	}
	return time.Time{}
}
