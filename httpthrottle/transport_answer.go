package httpthrottle

import (
	"cmp"
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// An answer is what a server says of its limits in a response.
type answer struct {
	status  int
	wait    time.Duration // by Retry-After; 0: unknown
	empty   time.Duration // until all limits are reset of which nothing is left; 0: none, or unknown
	unclear time.Duration // the same of limits of which it is not said what is left
	limits  limits        // limits of requests that are told with their windows
}

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
	old, there := false, now // there: by the server's clock
	if date, err := http.ParseTime(h.Get("Date")); err == nil && date.Sub(now).Abs() > sameClock {
		old, there = now.Sub(date) > longPast, date
	}
	a := answer{status: response.StatusCode, wait: retryAfter(h, there)}
	a.readResets(h, there)
	if old && !a.refused() {
		return answer{status: response.StatusCode}
	}
	a.limits = readTold(h, now)
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
		return a.wait > 0 || a.empty > 0
	}
	return false
}

// pause returns how long the server wants no requests, or 0 if it does not say. In a refusal
// Retry-After wins over all other fields, and a limit counts as empty if none says so.
func (a *answer) pause() time.Duration {
	if !a.refused() {
		return a.empty
	}
	return cmp.Or(a.wait, a.empty, a.unclear)
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

// forms are the fields that tell of one limit, beside the standard's two: a prefix, what is told,
// a suffix.
var forms = [...]struct {
	prefix, suffix string
	gradual        bool // Reset is the time until all of the limit is there again, at a steady rate
}{
	{prefix: "Ratelimit-"},    // draft 3
	{prefix: "X-Ratelimit-"},  // most servers
	{prefix: "X-Rate-Limit-"}, // X
	{prefix: "X-Ratelimit-", suffix: "-Requests", gradual: true}, // OpenAI
	{prefix: "X-Ratelimit-", suffix: "-Tokens", gradual: true},
}

// readResets reads what is left of each limit, and when it is reset. now is the time by the
// server's clock.
func (a *answer) readResets(h http.Header, now time.Time) {
	dictionary := map[string]string{} // that RateLimit was in draft 7
	for _, m := range members(h[limitField]) {
		if m.quoted {
			a.reset(m.parameters["r"], parseSeconds(m.parameters["t"]))
		}
		key, value, _ := strings.Cut(m.item, "=")
		dictionary[key] = value
	}
	a.reset(dictionary["remaining"], parseSeconds(dictionary["reset"]))
	for _, f := range forms {
		reset := parseReset(h.Get(f.prefix+"Reset"+f.suffix), now)
		if limit := parseCount(h.Get(f.prefix + "Limit" + f.suffix)); f.gradual && limit > 0 {
			reset /= time.Duration(limit) // one more is allowed after its part of that
		}
		a.reset(h.Get(f.prefix+"Remaining"+f.suffix), reset)
	}
}

// reset notes that a limit of which so many remain is reset after some time.
func (a *answer) reset(remaining string, after time.Duration) {
	switch parseCount(remaining) {
	case 0:
		a.empty = max(a.empty, after)
	case -1:
		a.unclear = max(a.unclear, after)
	}
}

// readTold reads the limits of requests that are told with their windows: "a";q=100;w=60, or
// 100;w=60 as in earlier drafts and by Envoy.
func readTold(h http.Header, now time.Time) (told limits) {
	for _, field := range [...]string{policyField, "Ratelimit-Limit", "X-Ratelimit-Limit"} {
		for _, m := range members(h[field]) {
			number, unit := m.item, m.parameters["qu"]
			if m.quoted {
				number = m.parameters["q"]
			}
			l := limit{parseCount(number), parseSeconds(m.parameters["w"]), now}
			if l.valid(now) && (unit == "" || unit == "requests") {
				told = append(told, l)
			}
		}
	}
	return told
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

// maxFieldLength is the length of a List that is read. A longer one is absurd.
const maxFieldLength = 8192

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
