package httpthrottle

import (
	"cmp"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

// An answer is what a server says of its limits in a response.
type answer struct {
	status int
	wait   time.Duration // by Retry-After; 0: unknown
	quotas []quota       // of one dialect only, so that none is read twice
}

// A quota is one limit of a server, as far as it is known.
type quota struct {
	limit     int           // 0: unknown
	window    time.Duration // in which limit is allowed; 0: unknown
	remaining int           // -1: unknown
	reset     time.Duration // until requests are allowed again if remaining is 0; 0: unknown
	requests  bool          // it counts requests, and not bytes or tokens
}

// What more than this is absurd, and not read.
const (
	maxFieldLength = 8192 // bytes of a List
	maxQuotas      = 16   // of an answer
)

const (
	// sameClock is how far Date may be from now if the clocks agree: it has no fractions of a
	// second, and is as old as the answer.
	sameClock = 2 * time.Second

	// longPast is how old an answer may be whose server has no exact clock. An older one comes
	// from a cache.
	longPast = time.Minute
)

// readAnswer returns what the response says. Values that make no sense, such as negative
// numbers, count as absent, and so does all of a cached answer: what a limit was then says
// nothing of now. A refusal whose Date alone is old is believed: its server's clock may be
// wrong.
func readAnswer(response *http.Response, now time.Time) answer {
	h := response.Header
	if parseNumber(h.Get("Age")) >= 1 { // an Age of 0 comes with what a cache has passed on
		return answer{status: http.StatusOK}
	}
	a, old := answer{status: response.StatusCode}, false
	if date, err := http.ParseTime(h.Get("Date")); err == nil && date.Sub(now).Abs() > sameClock {
		old = now.Sub(date) > longPast
		now = date // the server's times are by its own clock, which is another one
	}
	a.wait, a.quotas = retryAfter(h, now), readQuotas(h, now)
	if len(a.quotas) > maxQuotas || old && !a.refused() {
		a.quotas = nil
	}
	return a
}

// refused reports whether the server refuses the request because of a limit. That is a 429,
// a 503 with Retry-After, and GitHub's 403 with Retry-After or with nothing left.
func (a *answer) refused() bool {
	switch a.status {
	case http.StatusTooManyRequests:
		return true
	case http.StatusServiceUnavailable:
		return a.wait > 0
	case http.StatusForbidden:
		return a.wait > 0 || a.exhausted(0) > 0
	}
	return false
}

// exhausted returns the time until all quotas are reset of which so many requests remain, or 0.
// -1 stands for an unknown number.
func (a *answer) exhausted(remaining int) (reset time.Duration) {
	for _, q := range a.quotas {
		if q.remaining == remaining {
			reset = max(reset, q.reset)
		}
	}
	return reset
}

// pause returns how long the server wants no requests, or 0 if it does not say. In a refusal
// Retry-After wins over all other fields, and a quota counts as exhausted if none says so.
func (a *answer) pause() time.Duration {
	if !a.refused() {
		return a.exhausted(0)
	}
	return cmp.Or(a.wait, a.exhausted(0), a.exhausted(-1))
}

// retryAfter reads Retry-After (RFC 9110, section 10.2.3), and the same in milliseconds. Of
// several values the longest counts.
func retryAfter(h http.Header, now time.Time) (wait time.Duration) {
	for _, text := range h.Values("Retry-After-Ms") {
		wait = max(wait, parseSeconds(text)/1000)
	}
	for _, text := range h.Values("Retry-After") {
		if date, err := http.ParseTime(text); err == nil {
			wait = max(wait, date.Sub(now))
		} else {
			wait = max(wait, parseSeconds(text))
		}
	}
	return wait
}

// A form is the fields in which a server tells one quota: prefix, what is told, suffix.
type form struct {
	prefix, suffix string
	gradual        bool // Reset is the time until all of the limit is there again, at a steady rate
	tokens         bool // it counts tokens, not requests
}

// forms are those in use beside the standard's two fields. The first group counts that says
// anything.
var forms = [...][]form{
	{{prefix: "Ratelimit-"}},    // draft 3
	{{prefix: "X-Ratelimit-"}},  // most servers
	{{prefix: "X-Rate-Limit-"}}, // X
	{ // OpenAI
		{prefix: "X-Ratelimit-", suffix: "-Requests", gradual: true},
		{prefix: "X-Ratelimit-", suffix: "-Tokens", gradual: true, tokens: true},
	},
}

// readQuotas reads the fields that tell limits. now is the time by the server's clock.
func readQuotas(h http.Header, now time.Time) []quota {
	quotas := standardQuotas(h, now)
	for _, group := range forms {
		if len(quotas) > 0 {
			break
		}
		for _, f := range group {
			quotas = append(quotas, f.read(h, now)...)
		}
	}
	return quotas
}

// read reads a quota, and those of policies that are told with it: draft 3 has them in
// RateLimit-Limit (100, 100;w=60), and later drafts in RateLimit-Policy. The window of the quota
// is that of the first policy with its limit. The result is nil if the three fields say nothing.
func (f form) read(h http.Header, now time.Time) []quota {
	field := func(name string) string { return f.prefix + name + f.suffix }
	q := quota{remaining: parseCount(h.Get(field("Remaining"))), reset: parseReset(h.Get(field("Reset")), now), requests: !f.tokens}
	var others []quota
	for _, m := range slices.Concat(members(h[field("Limit")]), members(h[policyField])) {
		limit, window := parseCount(m.item), parseSeconds(m.parameters["w"])
		switch {
		case m.quoted || limit < 1:
		case q.limit == 0, q.limit == limit && q.window == 0:
			q.limit, q.window = limit, window
		case window > 0:
			others = append(others, quota{limit: limit, window: window, remaining: -1, requests: !f.tokens})
		}
	}
	if q.limit == 0 && q.remaining < 0 && q.reset == 0 {
		return nil
	}
	if f.gradual && q.remaining >= 0 && q.limit > q.remaining {
		q.reset /= time.Duration(q.limit - q.remaining) // one request is after the part that it takes
	}
	return append([]quota{q}, others...)
}

// standardQuotas reads RateLimit-Policy and RateLimit of draft 11, or the dictionary that
// RateLimit was in draft 7.
func standardQuotas(h http.Header, now time.Time) (quotas []quota) {
	var names []string // of quotas
	named := func(name string) *quota {
		i := slices.Index(names, name)
		if i < 0 {
			i = len(names)
			names, quotas = append(names, name), append(quotas, quota{remaining: -1, requests: true})
		}
		return &quotas[i]
	}
	for _, m := range members(h[policyField]) {
		if limit := parseCount(m.parameters["q"]); m.quoted && limit > 0 {
			q, unit := named(m.item), m.parameters["qu"]
			q.limit, q.window, q.requests = limit, parseSeconds(m.parameters["w"]), unit == "" || unit == "requests"
		}
	}
	dictionary := http.Header{}
	for _, m := range members(h[limitField]) {
		if remaining := parseCount(m.parameters["r"]); m.quoted && remaining >= 0 {
			q := named(m.item)
			q.remaining, q.reset = remaining, parseSeconds(m.parameters["t"])
		}
		key, value, _ := strings.Cut(m.item, "=")
		dictionary.Set(key, value)
	}
	if len(quotas) == 0 {
		return form{}.read(dictionary, now)
	}
	return quotas
}

const (
	// earliestUnix is where Unix times begin, in 1985. A number below it is in seconds from
	// now: nobody waits for 15 years.
	earliestUnix = 500_000_000

	// maxUnix is the latest Unix time in milliseconds, in the year 9999.
	maxUnix = 253_402_300_799_000
)

// parseReset returns the time from now until text, which is a number of seconds, a Unix time
// in seconds or milliseconds, or a duration such as 6m0s. 0: it is past, or none of these.
func parseReset(text string, now time.Time) time.Duration {
	text = strings.TrimSpace(text)
	if d, err := time.ParseDuration(text); err == nil {
		return max(d, 0)
	}
	seconds := parseNumber(text)
	switch {
	case seconds >= 1000*earliestUnix:
		return max(time.UnixMilli(int64(min(seconds, maxUnix))).Sub(now), 0)
	case seconds >= earliestUnix:
		return max(time.Unix(int64(seconds), 0).Sub(now), 0)
	}
	return parseSeconds(text)
}

// parseSeconds returns the duration of a decimal number of seconds, or 0 if text is none.
// The longest is 292 years.
func parseSeconds(text string) time.Duration {
	const longest = math.MaxInt64 - 1023 // the largest float64 that is an int64
	return time.Duration(min(parseNumber(text)*float64(time.Second), longest))
}

// parseNumber returns a decimal number, or 0 if text is none.
func parseNumber(text string) float64 {
	text = strings.TrimSpace(text)
	if strings.Trim(text, "0123456789.") != "" {
		return 0 // a sign, an exponent, Inf
	}
	n, err := strconv.ParseFloat(text, 64)
	if err != nil {
		return 0
	}
	return n
}

// parseCount returns a number of 0 or more, or -1 if text is none.
func parseCount(text string) int {
	n, err := strconv.ParseUint(strings.TrimSpace(text), 10, 31)
	if err != nil {
		return -1
	}
	return int(n)
}

// A member is one of a List of RFC 9651.
type member struct {
	item       string // without quotation marks
	quoted     bool
	parameters map[string]string
}

// members returns the members of the List in lines. It is lenient: what is no member is
// taken for one without parameters that anybody knows. A List with a quotation mark too many
// has no members.
func members(lines []string) []member {
	text := strings.Join(lines, ",")
	if text == "" || len(text) > maxFieldLength {
		return nil
	}
	var all []member
	for _, part := range split(text, ',') {
		pieces := split(part, ';')
		if pieces == nil {
			continue
		}
		m := member{parameters: map[string]string{}}
		m.item, m.quoted = unquote(pieces[0])
		for _, p := range pieces[1:] {
			key, value, _ := strings.Cut(p, "=")
			m.parameters[strings.TrimSpace(key)], _ = unquote(value)
		}
		all = append(all, m)
	}
	return all
}

// split returns the parts of text between separators that are not in quotation marks, or nil
// if these do not match.
func split(text string, separator byte) (parts []string) {
	begin, quoted := 0, false
	for i := 0; i < len(text); i++ {
		switch {
		case quoted && text[i] == '\\':
			i++
		case text[i] == '"':
			quoted = !quoted
		case text[i] == separator && !quoted:
			parts = append(parts, text[begin:i])
			begin = i + 1
		}
	}
	if quoted {
		return nil
	}
	return append(parts, text[begin:])
}

// unquote returns text without blanks around it and, if it is a String, without quotation
// marks and backslashes.
func unquote(text string) (plain string, quoted bool) {
	text = strings.TrimSpace(text)
	if len(text) < 2 || text[0] != '"' || text[len(text)-1] != '"' {
		return text, false
	}
	return unescape.Replace(text[1 : len(text)-1]), true
}

var unescape = strings.NewReplacer(`\\`, `\`, `\"`, `"`)
