package ops

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net"
	"net/http"
	"net/netip"
	"regexp"
	"strings"
	"time"
)

// A jsonLine is a line of a log in JSON: by Caddy, by Traefik, or by nginx with
// the names of its variables. A nil pointer stands for a key that is not there.
type jsonLine struct {
	// Caddy
	TS      json.RawMessage `json:"ts"` // seconds since the Unix epoch
	UserID  json.RawMessage `json:"user_id"`
	Request json.RawMessage

	// nginx; Request is "GET / HTTP/1.1" there
	TimeISO   string  `json:"time_iso8601"`
	TimeLocal string  `json:"time_local"`
	Remote    string  `json:"remote_addr"`
	User      *string `json:"remote_user"`
	Method    string  `json:"request_method"`
	URI       string  `json:"request_uri"`
	Host      string  `json:"host"`
	Referer   *string `json:"http_referer"`
	Agent     *string `json:"http_user_agent"`

	// Traefik
	StartUTC       string
	ClientHost     string
	ClientUsername json.RawMessage
	RequestMethod  string
	RequestPath    string
	RequestHost    string
	RequestReferer *string `json:"request_Referer"`
	RequestAgent   *string `json:"request_User-Agent"`
}

// A caddyRequest is the field request of Caddy.
type caddyRequest struct {
	RemoteIP string      `json:"remote_ip"`
	ClientIP string      `json:"client_ip"`
	Method   string      `json:"method"`
	Host     string      `json:"host"`
	URI      string      `json:"uri"`
	Headers  http.Header `json:"headers"`
}

var hexEscape = regexp.MustCompile(`\\x([0-9A-Fa-f]{2})`)

// parseJSON parses a line of a log in JSON.
func parseJSON(line string) (logged, error) {
	var l jsonLine
	if err := json.Unmarshal([]byte(line), &l); err != nil {
		// nginx without escape=json writes \x22 for a quotation mark, which is no JSON.
		mended := hexEscape.ReplaceAllString(line, `\u00$1`)
		if mended == line || json.Unmarshal([]byte(mended), &l) != nil {
			return logged{}, err
		}
	}
	var caddy caddyRequest
	var request string // of nginx
	if json.Unmarshal(l.Request, &caddy) != nil {
		json.Unmarshal(l.Request, &request) // "" if it is neither
	}
	var e logged
	var err error
	if e.at, err = l.at(); err != nil {
		return logged{}, err
	}
	client := cmp.Or(caddy.ClientIP, caddy.RemoteIP, l.Remote, l.ClientHost)
	if host, _, err := net.SplitHostPort(client); err == nil {
		client = host
	}
	if e.request.Addr, err = netip.ParseAddr(client); err != nil {
		return logged{}, fmt.Errorf("no address of a client: %w", err)
	}
	method, rest, _ := strings.Cut(request, " ")
	target, _, _ := strings.Cut(rest, " ")
	e.request.Method = cmp.Or(caddy.Method, l.Method, l.RequestMethod, method)
	e.request.Target = cmp.Or(caddy.URI, l.URI, l.RequestPath, target)
	e.request.Host = cmp.Or(caddy.Host, l.Host, l.RequestHost)
	if e.request.Method == "" || e.request.Target == "" {
		return logged{}, errors.New("no method or no path")
	}
	if e.request.Host != "" {
		e.held = append(e.held, "host")
	}
	l.header(&e, caddy.Headers)
	user := l.User
	switch { // other logs may have such keys of their own
	case caddy.URI != "":
		user = cmp.Or(user, text(l.UserID))
	case l.ClientHost != "":
		user = cmp.Or(user, text(l.ClientUsername))
	}
	if user != nil {
		e.held = append(e.held, "user")
		e.setUser(*user)
	}
	return e, nil
}

// text returns the text in JSON, or nil if it is none.
func text(raw json.RawMessage) *string {
	var s *string
	if json.Unmarshal(raw, &s) != nil {
		return nil
	}
	return s
}

// at returns the time of the request.
func (l *jsonLine) at() (time.Time, error) {
	switch {
	case l.TimeISO != "":
		return time.Parse(time.RFC3339, l.TimeISO)
	case l.TimeLocal != "":
		return time.Parse(logTime, l.TimeLocal)
	case l.StartUTC != "":
		return time.Parse(time.RFC3339, l.StartUTC)
	}
	var ts float64
	if json.Unmarshal(l.TS, &ts) == nil && ts > 0 {
		seconds, part := math.Modf(ts)
		return time.Unix(int64(seconds), int64(part*1e9)), nil
	}
	return time.Time{}, errors.New("no time: want ts (a number), time_iso8601, time_local or StartUTC")
}

// header sets the header of e, to fields that Caddy has logged or else to those that are
// known.
func (l *jsonLine) header(e *logged, h http.Header) {
	e.request.Header = h
	if h != nil { // of all fields
		e.held = append(e.held, "header:Referer", "header:User-Agent")
	} else {
		e.request.Header = make(http.Header)
	}
	if value := cmp.Or(l.Referer, l.RequestReferer); value != nil {
		e.setHeader("Referer", *value)
	}
	if value := cmp.Or(l.Agent, l.RequestAgent); value != nil {
		e.setHeader("User-Agent", *value)
	}
}
