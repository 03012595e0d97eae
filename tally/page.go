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
	pageBans        = 100
)

// ServeHTTP answers GET and HEAD with the counts. It is an HTML page, or JSON
// if the query has format=json or, without a format, if the Accept header names
// application/json and not text/html. The page also lists what is banned, and lifts a ban by POST,
// if [Tally.LiftKeys] are set: not for another site's page, and not without one of the keys. Other
// methods get 405.
//
// The page needs no script and loads nothing. It loads itself again every 10 s, unless the query
// has refresh=off. It shows the 25 most blocked values of a condition and 100 bans, long values
// shortened. The JSON has all values. Header fields forbid to store an answer or to show the page
// in a frame.
//
// There is no access control but that of the keys, and the handler shows everything that the
// tally has recorded. Put it behind the program's own, or on a loopback address.
func (t *Tally) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	header := w.Header()
	header.Set("Cache-Control", "no-store")
	header.Set("X-Content-Type-Options", "nosniff")
	id := r.URL.Query().Get("lift")
	lifts := id != "" && t.canLift()
	if r.Method != http.MethodGet && r.Method != http.MethodHead && !(lifts && r.Method == http.MethodPost) {
		header.Set("Allow", "GET, HEAD")
		if lifts {
			header.Set("Allow", "GET, HEAD, POST")
		}
		http.Error(w, "Method Not Allowed", http.StatusMethodNotAllowed)
		return
	}
	header.Set("Vary", "Accept")
	switch {
	case lifts:
		t.serveLift(w, r, id)
	case wantsJSON(r):
		body, err := json.MarshalIndent(t.snapshot(), "", "  ")
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		header.Set("Content-Type", "application/json")
		send(w, http.StatusOK, body)
	default:
		t.write(w, r, http.StatusOK, "tally", "'none'", t.view(r))
	}
}

// A view is what the page shows.
type view struct {
	snapshot
	Bans    []banned
	AllBans int
	CanLift bool
	Hashed  bool
	Kept    bool
	Refresh bool
}

func (t *Tally) view(r *http.Request) view {
	v := view{
		snapshot: t.snapshot(), CanLift: t.canLift(), Hashed: t.HashKey != nil, Kept: t.maxValues() > 0,
		Refresh: r.URL.Query().Get("refresh") != "off",
	}
	v.Bans, v.AllBans = t.banned(r.Context(), pageBans)
	return v
}

// write answers with a page, whose forms may be sent to there.
func (t *Tally) write(w http.ResponseWriter, r *http.Request, status int, page, forms string, of any) {
	var b bytes.Buffer
	if err := pageTemplate.ExecuteTemplate(&b, page, of); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	header := w.Header()
	header.Set("Content-Type", "text/html; charset=utf-8")
	header.Set("Content-Security-Policy", policy+forms)
	header.Set("Referrer-Policy", "same-origin") // with no-referrer, a form's Origin would be null
	send(w, status, b.Bytes())
}

func send(w http.ResponseWriter, status int, body []byte) {
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(status)
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

// policy allows a page its style sheet and nothing else. It ends before where forms may be sent to.
var policy = func() string {
	hash := sha256.Sum256([]byte(pageStyle))
	return "default-src 'none'; style-src 'sha256-" + base64.StdEncoding.EncodeToString(hash[:]) +
		"'; base-uri 'none'; frame-ancestors 'none'; form-action "
}()

var pageTemplate = template.Must(template.New("page").Funcs(template.FuncMap{
	"style":     func() template.CSS { return template.CSS(pageStyle) },
	"number":    number,
	"value":     func(value string) string { return beginning(printable(value)) },
	"ends":      func(d time.Duration) string { return max(d.Round(time.Second), time.Second).String() },
	"portion":   portion,
	"name":      func(name string) string { return beginning(printable(name)) },
	"beginning": beginning,
	"count":     countOf,
	"moment":    func(t time.Time) string { return t.Format("2006-01-02 15:04:05 UTC") },
	"machine":   func(t time.Time) string { return t.Format(time.RFC3339) },
	"length":    func(since, at time.Time) string { return at.Sub(since).Round(time.Second).String() },
	"first":     func(v []valueCount) []valueCount { return v[:min(len(v), pageValues)] },
	"percent":   func(part float64) string { return strconv.FormatFloat(100*part, 'f', 1, 64) + " %" },
	"failed":    func(kind string, values []valueCount, l *loginCounts) mostFailed { return mostFailed{kind, values, l} },
	"stopped":   func(c conditionCounts) uint64 { return c.Blocked + c.WouldBlock },
}).Parse(pageSource))

// mostFailed are the names, addresses or networks with the most failed logins.
type mostFailed struct {
	Kind   string
	Values []valueCount
	*loginCounts
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
func countOf(v valueCount) string {
	if v.Error == 0 {
		return number(v.Count)
	}
	return number(v.Count-v.Error) + " to " + number(v.Count)
}
