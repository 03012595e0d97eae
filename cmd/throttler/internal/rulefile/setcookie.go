package rulefile

import (
	"net/http"
	"strconv"
	"strings"
	"time"
)

// This file reads Set-Cookie as browsers do (RFC 6265, section 5.2): whatever bytes a value
// has, which net/http would drop. A right password would not be seen as right.

// setCookies returns the names of the cookies that an answer sets. Setting one to nothing, or
// to end at once, takes back that it was set before.
func setCookies(answer *http.Response) []string {
	type place struct{ name, domain, path string }
	var order []place
	set := make(map[place]bool)
	for _, line := range answer.Header["Set-Cookie"] {
		pair, rest, _ := strings.Cut(line, ";")
		name, value, found := strings.Cut(pair, "=")
		if name = blankless(name); !found || name == "" {
			continue
		}
		at, ends := place{name: name}, strings.Trim(blankless(value), `"`) == ""
		for attribute := range strings.SplitSeq(rest, ";") {
			key, value, _ := strings.Cut(attribute, "=")
			switch value = blankless(value); strings.ToLower(blankless(key)) {
			case "domain":
				at.domain = strings.ToLower(strings.TrimPrefix(value, "."))
			case "path":
				at.path = value
			case "max-age":
				ends = ends || isOver(value)
			case "expires":
				when, ok := cookieDate(value)
				ends = ends || ok && when.Before(time.Now())
			}
		}
		order, set[at] = append(order, at), !ends
	}
	var names []string
	for _, at := range order {
		if set[at] {
			names = append(names, at.name)
		}
	}
	return names
}

func blankless(s string) string { return strings.Trim(s, " \t") }

// isOver reports whether a Max-Age is zero or less.
func isOver(age string) bool {
	digits, negative := strings.CutPrefix(age, "-")
	isNumber := digits != "" && strings.Trim(digits, "0123456789") == ""
	return isNumber && (negative || strings.Trim(digits, "0") == "")
}

// cookieDate reads a date in any of the ways that it is written in cookies (RFC 6265, section
// 5.1.1).
func cookieDate(text string) (when time.Time, ok bool) {
	var clock time.Time
	var month time.Month
	day, year := -1, -1
	for _, token := range strings.FieldsFunc(text, func(r rune) bool {
		return !(r >= 0x80 || r == ':' || '0' <= r && r <= '9' || 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z')
	}) {
		if at, err := time.Parse("15:4:5", token); err == nil && clock.IsZero() {
			clock = at
			continue
		}
		n, err := strconv.Atoi(token)
		switch {
		case err == nil && day < 0 && len(token) <= 2:
			day = n
		case err == nil && year < 0 && len(token) >= 2 && len(token) <= 4:
			year = n
		case err != nil && month == 0:
			month = monthOf(token)
		}
	}
	switch {
	case year >= 70 && year <= 99:
		year += 1900
	case year >= 0 && year < 70:
		year += 2000
	}
	if day < 1 || day > 31 || month == 0 || year < 1601 || clock.IsZero() {
		return time.Time{}, false
	}
	return time.Date(year, month, day, clock.Hour(), clock.Minute(), clock.Second(), 0, time.UTC), true
}

// monthOf returns the month that a word begins with, or 0.
func monthOf(word string) time.Month {
	for month := time.January; month <= time.December; month++ {
		if len(word) >= 3 && strings.EqualFold(word[:3], month.String()[:3]) {
			return month
		}
	}
	return 0
}
