package httpthrottle

import (
	"encoding/json"
	"slices"
	"strconv"
	"strings"

	"github.com/adaptivethrottler/throttler"
)

// problemDetails is the JSON object of RFC 9457, section 3. ViolatedPolicies
// belongs to the type quota-exceeded, see ratelimit.go.
type problemDetails struct {
	Type             string   `json:"type,omitempty"` // absent: about:blank
	Title            string   `json:"title"`
	Status           int      `json:"status"`
	Detail           string   `json:"detail,omitempty"`
	ViolatedPolicies []string `json:"violated-policies,omitempty"`
	Messages         []string `json:"messages,omitempty"`
	RetryAfter       int64    `json:"retry_after,omitempty"` // seconds; absent: never
}

func problemBody(title string, status int, d *throttler.Decision, violated []string) []byte {
	p := problemDetails{
		Title:    title,
		Status:   status,
		Detail:   strings.Join(d.Messages, "; "),
		Messages: d.Messages,
	}
	if d.RetryAfter > 0 {
		p.RetryAfter = retrySeconds(d.RetryAfter)
	}
	if len(violated) > 0 {
		p.Type, p.Title, p.ViolatedPolicies = quotaExceeded, quotaExceededTitle, violated
	}
	return append(p.encode(), '\n')
}

// encode returns what json.Marshal does. Most texts need no escapes, and are then encoded here
// in a third of the time. Detail has all Messages.
func (p *problemDetails) encode() []byte {
	if isEscaped(p.Title) || isEscaped(p.Detail) || slices.ContainsFunc(p.ViolatedPolicies, isEscaped) {
		body, err := json.Marshal(*p) // not p, which would be allocated for all
		if err != nil {
			panic(err) // strings and numbers always marshal
		}
		return body
	}
	b := append(make([]byte, 0, 160+len(p.Type)+2*len(p.Detail)), '{')
	if p.Type != "" {
		b = append(appendText(b, `"type":`, p.Type), ',')
	}
	b = appendText(b, `"title":`, p.Title)
	b = strconv.AppendInt(append(b, `,"status":`...), int64(p.Status), 10)
	if p.Detail != "" {
		b = appendText(b, `,"detail":`, p.Detail)
	}
	b = appendTexts(b, `,"violated-policies":`, p.ViolatedPolicies)
	b = appendTexts(b, `,"messages":`, p.Messages)
	if p.RetryAfter != 0 {
		b = strconv.AppendInt(append(b, `,"retry_after":`...), p.RetryAfter, 10)
	}
	return append(b, '}')
}

// isEscaped reports whether json.Marshal may change text.
func isEscaped(text string) bool {
	for i := range len(text) {
		switch c := text[i]; {
		case c < ' ', c >= 0x7f, c == '"', c == '\\', c == '<', c == '>', c == '&':
			return true
		}
	}
	return false
}

// appendText appends a member to a JSON object in b. head is its name, text needs no escapes.
func appendText(b []byte, head, text string) []byte {
	b = append(append(b, head...), '"')
	return append(append(b, text...), '"')
}

// appendTexts is appendText for a list. If that is empty, it appends nothing.
func appendTexts(b []byte, head string, texts []string) []byte {
	if len(texts) == 0 {
		return b
	}
	b = append(append(b, head...), '[')
	for i, text := range texts {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendText(b, "", text)
	}
	return append(b, ']')
}
