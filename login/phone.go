package login

import (
	"slices"
	"strings"
	"unicode"
)

// How phone numbers are dialed (ITU-T E.164, and its list of dialing procedures). A
// national number without a plus may begin with an exit code and a calling code, with
// a trunk prefix, or with neither.

// dialing is how numbers are dialed in a country.
type dialing struct {
	exits  []string // beside "00"
	trunks []string
	length int // of the longest national number; 0: national numbers always have the trunk prefix
}

// most is the dialing of countries that are not in dialings.
var most = dialing{trunks: []string{"0"}}

// dialings are countries that differ from most, by calling code.
var dialings = map[string]dialing{
	"1":   {exits: []string{"011"}, trunks: []string{"1"}, length: 10},
	"7":   {exits: []string{"810"}, trunks: []string{"8"}, length: 10},
	"30":  {length: 10},
	"34":  {length: 9},
	"36":  {trunks: []string{"06"}, length: 9},
	"39":  {length: 10}, // a 0 is a part of the number
	"45":  {length: 8},
	"47":  {length: 8},
	"48":  {trunks: []string{"0"}, length: 9},
	"52":  {trunks: []string{"01", "044", "045", "1"}, length: 10},
	"53":  {exits: []string{"119"}, trunks: []string{"0"}},
	"56":  {length: 9},
	"57":  {length: 10},
	"61":  {exits: []string{"0011"}, trunks: []string{"0"}},
	"62":  {exits: []string{"001", "007", "008"}, trunks: []string{"0"}},
	"65":  {exits: []string{"000", "001", "002", "008"}, length: 8},
	"66":  {exits: []string{"001"}, trunks: []string{"0"}},
	"81":  {exits: []string{"010"}, trunks: []string{"0"}},
	"82":  {exits: []string{"001", "002"}, trunks: []string{"0"}},
	"90":  {trunks: []string{"0"}, length: 10},
	"91":  {trunks: []string{"0"}, length: 10},
	"225": {length: 10}, // a 0 is a part of the number
	"234": {exits: []string{"009"}, trunks: []string{"0"}},
	"241": {length: 9},
	"242": {length: 9},
	"254": {exits: []string{"000"}, trunks: []string{"0"}},
	"255": {exits: []string{"000"}, trunks: []string{"0"}},
	"256": {exits: []string{"000"}, trunks: []string{"0"}},
	"351": {length: 9},
	"352": {length: 9},
	"354": {length: 7},
	"356": {length: 8},
	"357": {length: 8},
	"371": {length: 8},
	"372": {length: 8},
	"375": {exits: []string{"810"}, trunks: []string{"0", "8"}, length: 9},
	"420": {length: 9},
	"592": {exits: []string{"001"}, length: 7},
	"852": {exits: []string{"001"}, length: 8},
	"853": {length: 8},
	"886": {exits: []string{"002"}, trunks: []string{"0"}},
	"965": {length: 8},
	"968": {length: 8},
	"973": {length: 8},
	"974": {length: 8},
	"976": {exits: []string{"001"}, trunks: []string{"0"}},
	"992": {exits: []string{"810"}, length: 9},
	"993": {exits: []string{"810"}, trunks: []string{"8"}, length: 8},
}

func dialingOf(code string) dialing {
	if d, listed := dialings[code]; listed {
		return d
	}
	return most
}

// twoDigits are the calling codes of two digits. "1" and "7" have one, all others three.
var twoDigits = strings.Fields("20 27 30 31 32 33 34 36 39 40 41 43 44 45 46 47 48 49 51 52 53 54 55 56 57 58 60 61 62 63 64 65 66 81 82 84 86 90 91 92 93 94 95 98")

// callingCode returns the calling code at the beginning of digits.
func callingCode(digits string) string {
	length := 3
	switch {
	case digits[0] == '1', digits[0] == '7':
		length = 1
	case slices.Contains(twoDigits, digits[:2]):
		length = 2
	}
	return digits[:length]
}

// The lengths of phone numbers: that of E.164 at most, and with a calling code more
// than an emergency call has.
const (
	shortestNumber, shortestInternational, longestNumber = 3, 5, 15
)

// number returns the phone number in text as "+" and its digits. Without Country, one
// that has no calling code is its digits alone.
func (s *Sending) number(text string) (string, bool) {
	text = Normalize(text)
	text = strings.TrimPrefix(text, "tel:")
	text = strings.Replace(text, "(0)", "", 1) // +49 (0)151
	digits, international, ok := digitsOf(text)
	if !ok {
		return "", false
	}
	country := strings.TrimLeft(s.Country, "+ ")
	if !international {
		digits, international = dial(digits, country)
	}
	if !international {
		return digits, len(digits) >= shortestNumber && len(digits) <= longestNumber
	}
	digits = strings.TrimLeft(digits, "0") // no calling code begins with it
	if len(digits) < shortestInternational {
		return "", false
	}
	code := callingCode(digits)
	digits = code + dialingOf(code).national(digits[len(code):])
	return "+" + digits, len(digits) <= longestNumber
}

// digitsOf returns the digits of text, and whether it begins with a plus.
func digitsOf(text string) (digits string, plus, ok bool) {
	var b strings.Builder
	for _, r := range text {
		switch {
		case unicode.Is(unicode.Nd, r):
			b.WriteByte(digit(r))
		case r == '+' && b.Len() == 0:
			plus = true
		case unicode.In(r, unicode.Zs, unicode.Pd, unicode.Ps, unicode.Pe), strings.ContainsRune("./\u2212\u00b7\u2022~", r):
		default:
			return "", false, false
		}
	}
	return b.String(), plus, b.Len() > 0
}

// digit returns the ASCII digit of r, a decimal digit of any script: Unicode has them
// in rows of ten.
func digit(r rune) byte {
	for _, row := range unicode.Nd.R16 {
		if rune(row.Lo) <= r && r <= rune(row.Hi) {
			return byte('0' + (r-rune(row.Lo))%10)
		}
	}
	for _, row := range unicode.Nd.R32 {
		if rune(row.Lo) <= r && r <= rune(row.Hi) {
			return byte('0' + (r-rune(row.Lo))%10)
		}
	}
	panic("login: no digit")
}

// dial returns digits, which were typed without a plus, from the calling code on, if
// it can be known.
func dial(digits, country string) (string, bool) {
	d := dialingOf(country)
	for _, exit := range append(slices.Clone(d.exits), "00") {
		if country == "" && exit != "00" {
			continue
		}
		if rest, found := strings.CutPrefix(digits, exit); found {
			return rest, true
		}
	}
	if country == "" {
		return digits, false
	}
	if strings.HasPrefix(digits, country) && len(digits) > d.length && d.national(digits) == digits {
		return digits, true // the plus was left out
	}
	return country + digits, true
}

// national returns a national number without its trunk prefix.
func (d dialing) national(digits string) string {
	for _, trunk := range d.trunks {
		rest, found := strings.CutPrefix(digits, trunk)
		if found && (trunk[0] == '0' || len(digits) > d.length) {
			return rest
		}
	}
	return digits
}
