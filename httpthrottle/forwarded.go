package httpthrottle

import (
	"iter"
	"net/netip"
	"strings"

	"github.com/adaptivethrottler/throttler/internal/address"
)

// The header fields with forwarded addresses, in the form of the keys of an
// http.Header. Every field but Forwarded is read like X-Forwarded-For.
const (
	forwarded     = "Forwarded"
	xForwardedFor = "X-Forwarded-For"
)

// elements yields the elements of the lists in lines, from the right. It splits
// only what is read, so a huge field costs no more.
func elements(lines []string, field string) iter.Seq[string] {
	return func(yield func(string) bool) {
		for i := len(lines) - 1; i >= 0; i-- {
			rest, more := lines[i], true
			for more {
				comma := strings.LastIndexByte(rest, ',')
				if field == forwarded {
					comma = lastComma(rest)
				}
				element := rest[comma+1:]
				if more = comma >= 0; more {
					rest = rest[:comma]
				}
				if !yield(strings.Trim(element, " \t")) {
					return
				}
			}
		}
	}
}

// lastComma returns the index of the last comma in s outside quoted strings, or
// -1.
//
// It must read from the right. There stands the element of a proxy, whose
// quotes match. From the left, a client's single quotation mark would swallow
// it.
func lastComma(s string) int {
	quoted := false
	for i := len(s) - 1; i >= 0; i-- {
		switch {
		case s[i] == '"' && quoted && i > 0 && s[i-1] == '\\':
			// An escaped quotation mark inside the string. (After an even
			// number of backslashes it would end the string, which is then
			// malformed in any case.)
		case s[i] == '"':
			quoted = !quoted
		case s[i] == ',' && !quoted:
			return i
		}
	}
	return -1
}

// forwardedAddr returns the address in an element of field.
func forwardedAddr(element, field string) (netip.Addr, bool) {
	if field == forwarded {
		node, ok := forParameter(element)
		if !ok {
			return netip.Addr{}, false
		}
		element = node
	}
	return nodeAddr(element)
}

// forParameter returns the value of the parameter "for" of a forwarded-element
// (RFC 7239, section 4). found is false unless the element is well-formed and
// has exactly one.
func forParameter(element string) (node string, found bool) {
	rest := element
	for rest != "" {
		if rest[0] == ';' || rest[0] == ' ' || rest[0] == '\t' {
			rest = rest[1:]
			continue
		}
		name, value, ok := strings.Cut(rest, "=")
		if !ok {
			return "", false
		}
		value, rest, ok = cutValue(value)
		if !ok {
			return "", false
		}
		if !strings.EqualFold(name, "for") {
			continue
		}
		if found {
			return "", false
		}
		node, found = value, true
	}
	return node, found
}

// cutValue cuts a parameter's value, a token or a quoted string, from the rest.
func cutValue(s string) (value, rest string, ok bool) {
	if !strings.HasPrefix(s, `"`) {
		value, rest, _ = strings.Cut(s, ";")
		return strings.TrimRight(value, " \t"), rest, true
	}
	var b strings.Builder
	for i := 1; i < len(s); i++ {
		switch {
		case s[i] == '"':
			rest = strings.TrimLeft(s[i+1:], " \t")
			return b.String(), rest, rest == "" || rest[0] == ';'
		case s[i] == '\\' && i+1 < len(s):
			i++
		}
		b.WriteByte(s[i])
	}
	return "", "", false
}

// maxNode is longer than any address with brackets, zone and port.
const maxNode = 100

// nodeAddr returns the address of a node (RFC 7239, section 6), with or without
// a port: 192.0.2.1, 192.0.2.1:80, [2001:db8::1], [2001:db8::1]:80. It accepts
// 2001:db8::1 too, which is usual in X-Forwarded-For.
func nodeAddr(node string) (netip.Addr, bool) {
	if len(node) > maxNode {
		return netip.Addr{}, false
	}
	host, bracketed := node, false
	if after, found := strings.CutPrefix(node, "["); found {
		bracketed = true
		var port string
		host, port, found = strings.Cut(after, "]")
		if !found || port != "" && !isPort(port) {
			return netip.Addr{}, false
		}
	} else if i := strings.IndexByte(node, ':'); i >= 0 && i == strings.LastIndexByte(node, ':') {
		if !isPort(node[i:]) {
			return netip.Addr{}, false
		}
		host = node[:i]
	}
	addr, err := netip.ParseAddr(host)
	if err != nil || bracketed && !addr.Is6() {
		return netip.Addr{}, false
	}
	return address.Plain(addr), true
}

// isPort reports whether s is a colon and a port: a number or an obfuscated
// one.
func isPort(s string) bool {
	if len(s) < 2 || s[0] != ':' {
		return false
	}
	if s[1] == '_' {
		return len(s) > 2 && strings.Trim(s[2:], letters+digits+"._-") == ""
	}
	for i := 1; i < len(s); i++ { // a third of the time of strings.Trim
		if s[i] < '0' || s[i] > '9' {
			return false
		}
	}
	return len(s) <= len(":65535")
}

const (
	digits  = "0123456789"
	letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
)
