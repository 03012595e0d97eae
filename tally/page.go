package tally

import (
	"bytes"
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"encoding/json"
	"html/template"
	"net/http"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// The page shows part of the values. The JSON has all of them, in full.
const (
	pageValues      = 25 // of a condition, at most
	pageValueLength = 80 // in characters
)

// ServeHTTP answers GET and HEAD with a [Snapshot]. It is an HTML page, or JSON
// if the query has format=json or, without a format, if the Accept header names
// application/json and not text/html. Other methods get 405.
//
// The page needs no script and loads nothing. It shows the 25 most blocked
// values of a condition, long ones shortened. The JSON has all. Header fields
// forbid to store an answer or to show the page in a frame.
//
// There is no access control, and the handler shows everything that the tally
// has recorded. Put it behind the program's own, or on a loopback address.
func (t *Tally) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	header := w.Header()
	header.Set("Cache-Control", "no-store")
	header.Set("X-Content-Type-Options", "nosniff")
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		header.Set("Allow", "GET, HEAD")
		http.Error(w, "Method Not Allowed", http.StatusMethodNotAllowed)
		return
	}
	header.Set("Vary", "Accept")
	var body []byte
	var err error
	if wantsJSON(r) {
		header.Set("Content-Type", "application/json")
		body, err = json.MarshalIndent(t.Snapshot(), "", "  ")
	} else {
		header.Set("Content-Type", "text/html; charset=utf-8")
		header.Set("Content-Security-Policy", policy)
		header.Set("Referrer-Policy", "no-referrer")
		body, err = t.page()
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	header.Set("Content-Length", strconv.Itoa(len(body)))
	w.Write(body) // an error means that the client has gone
}

func wantsJSON(r *http.Request) bool {
	switch r.URL.Query().Get("format") {
	case "json":
		return true
	case "html":
		return false
	}
	accept := strings.ToLower(strings.Join(r.Header.Values("Accept"), ","))
	return strings.Contains(accept, "application/json") && !strings.Contains(accept, "text/html")
}

//go:embed page.css
var pageStyle string

//go:embed page.html
var pageSource string

// policy allows the page its style sheet and nothing else.
var policy = func() string {
	hash := sha256.Sum256([]byte(pageStyle))
	return "default-src 'none'; style-src 'sha256-" + base64.StdEncoding.EncodeToString(hash[:]) +
		"'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
}()

var pageTemplate = template.Must(template.New("page").Funcs(template.FuncMap{
	"number":    number,
	"portion":   portion,
	"name":      func(name string) string { return beginning(printable(name)) },
	"beginning": beginning,
	"count":     countOf,
	"moment":    func(t time.Time) string { return t.Format("2006-01-02 15:04:05 UTC") },
	"machine":   func(t time.Time) string { return t.Format(time.RFC3339) },
	"length":    func(s Snapshot) string { return s.At.Sub(s.Since).Round(time.Second).String() },
	"first":     func(v []ValueCount) []ValueCount { return v[:min(len(v), pageValues)] },
	"percent":   func(part float64) string { return strconv.FormatFloat(100*part, 'f', 1, 64) + " %" },
	"failed":    func(kind string, values []ValueCount, l *LoginCounts) mostFailed { return mostFailed{kind, values, l} },
	"stopped":   func(c ConditionCounts) uint64 { return c.Blocked + c.WouldBlock },
}).Parse(pageSource))

// mostFailed are the names, addresses or networks with the most failed logins.
type mostFailed struct {
	Kind   string
	Values []ValueCount
	*LoginCounts
}

// page returns the page of a new snapshot.
func (t *Tally) page() ([]byte, error) {
	var b bytes.Buffer
	err := pageTemplate.Execute(&b, struct {
		Snapshot
		Style  template.CSS
		Hashed bool
		Kept   bool
	}{t.Snapshot(), template.CSS(pageStyle), t.HashKey != nil, t.maxValues() > 0})
	return b.Bytes(), err
}

// number returns n in groups of three digits.
func number(n uint64) string {
	digits := strconv.FormatUint(n, 10)
	var b strings.Builder
	for i, digit := range digits {
		if i > 0 && (len(digits)-i)%3 == 0 {
			b.WriteByte(',')
		}
		b.WriteRune(digit)
	}
	return b.String()
}

// portion returns part of all in percent.
func portion(part, all uint64) string {
	if all == 0 {
		return "0 %"
	}
	return strconv.FormatFloat(100*float64(part)/float64(all), 'f', 1, 64) + " %"
}

// beginning returns the part of value, which is printable, that the page shows.
func beginning(value string) string {
	if utf8.RuneCountInString(value) <= pageValueLength {
		return value
	}
	return string([]rune(value)[:pageValueLength]) + "…"
}

// countOf returns the count of v, as a range if it is not exact.
func countOf(v ValueCount) string {
	if v.Error == 0 {
		return number(v.Count)
	}
	return number(v.Count-v.Error) + " to " + number(v.Count)
}
