package ops

import (
	"fmt"
	"net/http"
	"net/netip"
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
	fields, err := logFields(line)
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
	var e logged
	if e.at, err = time.Parse(logTime, fields[3]); err != nil {
		return logged{}, err
	}
	if e.request.Addr, err = netip.ParseAddr(fields[0]); err != nil {
		return logged{}, err
	}
	e.request.Host = host
	method, rest, _ := strings.Cut(fields[4], " ")
	target, _, _ := strings.Cut(rest, " ")
	e.request.Method, e.request.Target, e.request.Header = method, target, make(http.Header)
	if user := fields[2]; user != "-" {
		basic := http.Request{Header: e.request.Header}
		basic.SetBasicAuth(user, "")
	}
	for i, name := range []string{"Referer", "User-Agent"} {
		if at := 7 + i; at < len(fields) && fields[at] != "-" {
			e.request.Header.Set(name, fields[at])
		}
	}
	return e, nil
}

// inLog reports whether a log has an attribute. hasHost says so of the host.
func inLog(attribute string, hasHost bool) bool {
	name, header, isHeader := strings.Cut(attribute, ":")
	if isHeader {
		return name == "header" && (strings.EqualFold(header, "Referer") || strings.EqualFold(header, "User-Agent"))
	}
	return name != "host" || hasHost
}

// logFields splits a line at blanks outside of "" and [].
func logFields(line string) ([]string, error) {
	var fields []string
	rest := strings.TrimSpace(line)
	for rest != "" {
		var field string
		var ok bool
		switch rest[0] {
		case '"':
			field, rest, ok = quoted(rest[1:])
		case '[':
			field, rest, ok = strings.Cut(rest[1:], "]")
		default:
			field, rest, _ = strings.Cut(rest, " ")
			ok = true
		}
		if !ok {
			return nil, fmt.Errorf("field %d has no closing quotation mark or bracket", len(fields)+1)
		}
		fields = append(fields, field)
		rest = strings.TrimLeft(rest, " ")
	}
	return fields, nil
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
