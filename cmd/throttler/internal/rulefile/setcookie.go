package rulefile

import (
	"net/http"
	"regexp"
	"strings"
	"time"
)

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
