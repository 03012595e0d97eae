package urlpath

import (
	"strconv"
	"strings"
	"unicode"
)

// decoded decodes percent-encodings. What is none stays as it is.
func decoded(p string) string { return decode(p, octet) }

// decodedInSegments is decoded but for slashes.
func decodedInSegments(p string) string {
	return decode(p, func(b *strings.Builder, s string) int {
		if len(s) >= 3 && s[1] == '2' && s[2]|0x20 == 'f' {
			return 0
		}
		return octet(b, s)
	})
}

// decodedDots decodes nothing else.
func decodedDots(p string) string {
	return strings.ReplaceAll(strings.ReplaceAll(p, "%2e", "."), "%2E", ".")
}

// decodedWide is decoded, and decodes %u0041 too.
func decodedWide(p string) string {
	return decode(p, func(b *strings.Builder, s string) int {
		if len(s) >= 6 && s[1]|0x20 == 'u' {
			if r, err := strconv.ParseUint(s[2:6], 16, 32); err == nil {
				b.WriteRune(rune(r))
				return 6
			}
		}
		return octet(b, s)
	})
}

// decode returns p with each % replaced by what one writes for it. one returns how many
// bytes that stands for. 0: the % is none of an encoding.
func decode(p string, one func(b *strings.Builder, s string) int) string {
	at := strings.IndexByte(p, '%')
	if at < 0 {
		return p
	}
	var b strings.Builder
	b.Grow(len(p))
	for ; at >= 0; at = strings.IndexByte(p, '%') {
		b.WriteString(p[:at])
		n := one(&b, p[at:])
		if n == 0 {
			b.WriteByte('%')
			n = 1
		}
		p = p[at+n:]
	}
	b.WriteString(p)
	return b.String()
}

// octet writes the byte that %41 at the beginning of s stands for.
func octet(b *strings.Builder, s string) int {
	if len(s) < 3 || digits[s[1]] == 0 || digits[s[2]] == 0 {
		return 0
	}
	b.WriteByte(digits[s[1]]<<4 | digits[s[2]]&0xf)
	return 3
}

// digits are the values of hexadecimal digits, and 16 more. 0: no digit.
var digits = func() (values [256]byte) {
	for value, digit := range "0123456789abcdef" {
		values[digit] = 16 + byte(value)
		values[unicode.ToUpper(digit)] = 16 + byte(value)
	}
	return values
}()

// shortened replaces ASCII in two bytes of UTF-8, which is too long, as in C0 AF for a slash.
func shortened(p string) string {
	if strings.IndexByte(p, 0xc0) < 0 && strings.IndexByte(p, 0xc1) < 0 {
		return p
	}
	short := make([]byte, 0, len(p))
	for i := 0; i < len(p); i++ {
		if (p[i] == 0xc0 || p[i] == 0xc1) && i+1 < len(p) && p[i+1]&0xc0 == 0x80 {
			short = append(short, p[i]<<6|p[i+1]&0x3f)
			i++
		} else {
			short = append(short, p[i])
		}
	}
	return string(short)
}
