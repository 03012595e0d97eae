package ops

import (
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/adaptivethrottler/throttler/cmd/throttler/internal/rulefile"
)

// logTime is the time format of the common log format.
const logTime = "02/Jan/2006:15:04:05 -0700"

// A logged is a request in a line of a web server's log.
type logged struct {
	at      time.Time
	request rulefile.Request

	// held are the attributes that lines of its format hold, beside those that all hold.
	held []string
}

// parseLine parses a line in the common or the combined log format, in Apache's
// vhost_combined, which has the host and a port before it, or a JSON object:
//
//	203.0.113.7 - alice [21/Nov/2026:22:00:00 +0000] "GET / HTTP/1.1" 200 12 "referer" "agent"
//
// Further fields are ignored.
func parseLine(line string) (logged, error) {
	if strings.HasPrefix(line, "{") {
		return parseJSON(line)
	}
	fields, broken, err := logFields(line)
	if err != nil {
		return logged{}, err
	}
	host := ""
	if len(fields) > 1 {
		if _, err := netip.ParseAddr(fields[1]); err == nil { // the address comes second
			host, fields = fields[0], fields[1:]
		}
	}
	if len(fields) < 7 {
		return logged{}, fmt.Errorf("%d fields, want 7 or more", len(fields))
	}
	e := logged{held: []string{"user"}}
	if e.at, err = time.Parse(logTime, fields[3]); err != nil {
		return logged{}, err
	}
	if e.request.Addr, err = netip.ParseAddr(fields[0]); err != nil {
		return logged{}, err
	}
	if e.request.Host = host; host != "" {
		e.held = append(e.held, "host")
	}
	method, rest, _ := strings.Cut(fields[4], " ")
	target, _, _ := strings.Cut(rest, " ")
	e.request.Method, e.request.Target, e.request.Header = method, target, make(http.Header)
	e.setUser(fields[2])
	for i, name := range []string{"Referer", "User-Agent"} {
		if at := 7 + i; at < len(fields) {
			e.setHeader(name, fields[at])
		}
	}
	if broken != "" && len(fields) < 9 {
		e.setBroken(broken)
	}
	return e, nil
}

// setBroken sets the fields of a line that a client has broken by quotation marks in them: what is
// behind the last mark between two is the user agent.
func (e *logged) setBroken(rest string) {
	e.held = append(e.held, "header:Referer")
	if i := strings.LastIndex(rest, `" "`); i >= 0 {
		rest = rest[i+len(`" "`):]
	}
	e.setHeader("User-Agent", strings.Trim(rest, `" `))
}

// setUser sets the user, which is "-" or empty if there was none.
func (e *logged) setUser(user string) {
	if user != "" && user != "-" {
		basic := http.Request{Header: e.request.Header}
		basic.SetBasicAuth(user, "")
	}
}

// setHeader notes that lines of this format hold a field, and sets it unless it is "-" or
// empty.
func (e *logged) setHeader(name, value string) {
	e.held = append(e.held, "header:"+name)
	if value != "" && value != "-" {
		e.request.Header.Set(name, value)
	}
}

// holds reports whether lines of e's format hold an attribute.
func (e *logged) holds(attribute string) bool {
	switch attribute {
	case "address", "network", "prefix", "asn", "hoster", "method", "path", "route":
		return true
	}
	return slices.ContainsFunc(e.held, func(held string) bool { return strings.EqualFold(held, attribute) })
}

// logFields splits a line at blanks outside of "" and []. Behind the fields that a server writes by
// itself, broken is what follows the first one that is not closed as it should be.
func logFields(line string) (fields []string, broken string, err error) {
	rest := strings.TrimSpace(line)
	for rest != "" {
		var field, behind string
		var ok bool
		switch rest[0] {
		case '"':
			field, behind, ok = quoted(rest[1:])
			ok = ok && (behind == "" || behind[0] == ' ' || len(fields) < 7)
		case '[':
			field, behind, ok = strings.Cut(rest[1:], "]")
		default:
			field, behind, _ = strings.Cut(rest, " ")
			ok = true
		}
		if !ok && len(fields) >= 7 {
			return fields, rest, nil
		}
		if !ok {
			return nil, "", fmt.Errorf("field %d has no closing quotation mark or bracket", len(fields)+1)
		}
		fields = append(fields, field)
		rest = strings.TrimLeft(behind, " ")
	}
	return fields, "", nil
}

// quoted reads to the next unescaped quotation mark. Only \" and \\ are
// unescaped.
func quoted(s string) (field, rest string, ok bool) {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		switch {
		case s[i] == '"':
			return b.String(), s[i+1:], true
		case s[i] == '\\' && i+1 < len(s) && (s[i+1] == '"' || s[i+1] == '\\'):
			i++
		}
		b.WriteByte(s[i])
	}
	return "", "", false
}
