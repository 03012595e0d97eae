package robots

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/adaptivethrottler/throttler/internal/address"
)

// maxList is the largest list that is read, in bytes. All prefixes of the largest cloud take
// a tenth of that.
const maxList = 64 << 20

// ReadPrefixes reads a list of prefixes as operators of robots and clouds publish them:
//
//   - JSON: the strings of the members ipv4Prefix, ipv6Prefix, ip_prefix, ipv6_prefix and
//     ip_address, and the prefixes and addresses in arrays of strings. An object with both
//     ipv4Prefix and ipv6Prefix is ignored. So is everything else.
//   - Text: the first field of each line, up to a blank, a comma or a comment (# or ;). So
//     CSV and geofeeds (RFC 8805) are read too.
//   - Route objects of a routing registry: the lines with route: and route6:.
//
// A byte order mark, CR LF, quotes and a missing newline at the end do not matter. An address
// is a prefix of one address. Bits behind the prefix are cleared. An IPv4-mapped prefix is an
// IPv4 one. Prefixes are in the order of the list, each once.
//
// ReadPrefixes refuses what would verify everybody or nobody: a list without prefixes, a page
// of HTML, text most of whose lines are something else, a prefix shorter than /8 (IPv4) or
// /16 (IPv6), and private, documentation and other reserved networks. It refuses an address
// that is misspelt. Lines that do not look like an address are ignored. The error names the
// line.
func ReadPrefixes(r io.Reader) ([]netip.Prefix, error) {
	contents, err := io.ReadAll(io.LimitReader(r, maxList+1))
	if err != nil {
		return nil, err
	}
	if len(contents) > maxList {
		return nil, badLine(0, "larger than %d MiB, which no list is", maxList>>20)
	}
	contents = bytes.TrimPrefix(contents, []byte(byteOrderMark))
	l := list{seen: make(map[netip.Prefix]bool), contents: contents}
	if start := bytes.TrimSpace(contents); len(start) > 0 && (start[0] == '{' || start[0] == '[') {
		err = l.json()
	} else {
		err = l.text()
	}
	switch {
	case err != nil:
		return nil, err
	case len(l.prefixes) == 0:
		return nil, badLine(0, "no prefixes: the list may have moved, or its publisher may have failed; fetch it again")
	}
	return l.prefixes, nil
}

// A list is one that is being read.
type list struct {
	contents []byte
	prefixes []netip.Prefix
	seen     map[netip.Prefix]bool
}

// add adds a prefix or an address. known is false if text is neither.
func (l *list) add(text string) (known bool, err error) {
	prefix, ok := parsePrefix(text)
	if !ok {
		return false, nil
	}
	if err := refused(prefix); err != nil {
		return true, fmt.Errorf("%s %w", text, err)
	}
	if !l.seen[prefix] {
		l.seen[prefix] = true
		l.prefixes = append(l.prefixes, prefix)
	}
	return true, nil
}

// parsePrefix parses a prefix or an address, and masks it.
func parsePrefix(text string) (netip.Prefix, bool) {
	if prefix, err := netip.ParsePrefix(text); err == nil {
		return address.PlainPrefix(prefix.Masked()), true
	}
	addr, err := netip.ParseAddr(text)
	if err != nil || addr.Zone() != "" {
		return netip.Prefix{}, false
	}
	addr = address.Plain(addr)
	return netip.PrefixFrom(addr, addr.BitLen()), true
}

// reserved are the networks that no robot comes from over the internet (RFC 6890), or that
// stand in examples.
var reserved = []netip.Prefix{
	netip.MustParsePrefix("0.0.0.0/8"), netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("100.64.0.0/10"),
	netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("169.254.0.0/16"), netip.MustParsePrefix("172.16.0.0/12"),
	netip.MustParsePrefix("192.0.0.0/24"), netip.MustParsePrefix("192.0.2.0/24"), netip.MustParsePrefix("192.168.0.0/16"),
	netip.MustParsePrefix("198.18.0.0/15"), netip.MustParsePrefix("198.51.100.0/24"), netip.MustParsePrefix("203.0.113.0/24"),
	netip.MustParsePrefix("224.0.0.0/3"),
	netip.MustParsePrefix("::/8"), netip.MustParsePrefix("100::/64"), netip.MustParsePrefix("2001:db8::/32"),
	netip.MustParsePrefix("3fff::/20"), netip.MustParsePrefix("fc00::/7"), netip.MustParsePrefix("fe80::/9"),
	netip.MustParsePrefix("ff00::/8"),
}

// The shortest prefixes that a list may have. Apple's is a /8, hosters have /16 to /32.
const (
	shortest4 = 8
	shortest6 = 16
)

// refused returns why a list with this prefix is refused, or nil.
func refused(p netip.Prefix) error {
	if shortest := map[bool]int{true: shortest4, false: shortest6}[p.Addr().Is4()]; p.Bits() < shortest {
		return fmt.Errorf("is shorter than /%d, which no robot's network is: remove it if the rest is right", shortest)
	}
	if i := slices.IndexFunc(reserved, p.Overlaps); i >= 0 {
		return fmt.Errorf("is not on the internet, as %v is reserved: remove it if the rest is right", reserved[i])
	}
	return nil
}

// json reads a list in JSON.
func (l *list) json() error {
	var all any
	if err := json.Unmarshal(l.contents, &all); err != nil {
		line := 0
		if syntax, ok := errors.AsType[*json.SyntaxError](err); ok {
			line = 1 + bytes.Count(l.contents[:min(int(syntax.Offset), len(l.contents))], []byte("\n"))
		}
		return badLine(line, "not JSON: %w: fetch it again", err)
	}
	return l.walk(all)
}

// members are the names under which JSON lists have prefixes.
var members = []string{"ipv4Prefix", "ipv6Prefix", "ip_prefix", "ipv6_prefix", "ip_address"}

// walk adds the prefixes in a value of JSON.
func (l *list) walk(value any) error {
	switch value := value.(type) {
	case []any:
		for _, element := range value {
			if text, ok := element.(string); ok {
				if _, err := l.add(text); err != nil {
					return &lineError{l.line(text), err}
				}
			} else if err := l.walk(element); err != nil {
				return err
			}
		}
	case map[string]any:
		return l.object(value)
	}
	return nil
}

// object adds the prefixes of an object of JSON.
func (l *list) object(object map[string]any) error {
	_, four := object["ipv4Prefix"]
	_, six := object["ipv6Prefix"]
	if four && six {
		return nil // as draft-illyes-aipref-jafar has it
	}
	for _, name := range members {
		text, ok := object[name].(string)
		if !ok {
			continue
		}
		known, err := l.add(text)
		if err == nil && !known {
			err = fmt.Errorf("%s %q is no prefix: fetch the list again", name, text)
		}
		if err != nil {
			return &lineError{l.line(text), err}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(object)) {
		if err := l.walk(object[name]); err != nil {
			return err
		}
	}
	return nil
}

// line returns the line of the first such string of JSON, or 0.
func (l *list) line(text string) int {
	i := bytes.Index(l.contents, []byte(`"`+text+`"`))
	if i < 0 {
		return 0
	}
	return 1 + bytes.Count(l.contents[:i], []byte("\n"))
}

// text reads a list of lines.
func (l *list) text() error {
	lines := strings.Split(string(l.contents), "\n")
	// Other lines of route objects are about the routes.
	objects := slices.ContainsFunc(lines, func(line string) bool { _, ok := route(line); return ok })
	strange, first := 0, ""
	for i, text := range lines {
		if objects {
			text, _ = route(text)
		}
		if text = field(text); text == "" {
			continue
		}
		if text[0] == '<' {
			return badLine(i+1, "a page of HTML, not a list: find the list's own address")
		}
		known, err := l.add(text)
		switch {
		case err != nil:
			return &lineError{i + 1, err}
		case known:
		case resemblesAddress(text):
			return badLine(i+1, "%.60q is no prefix: correct it, or fetch the list again", text)
		case i > 0: // the first line may name the columns
			if strange++; strange == 1 {
				first = fmt.Sprintf("line %d is %.60q", i+1, text)
			}
		}
	}
	if strange > 0 && strange >= len(l.prefixes) {
		return badLine(0, "half of the lines or more are no prefixes (%s): this is not a list", first)
	}
	return nil
}

// route returns the prefix of a line of a route object that has it.
func route(line string) (prefix string, ok bool) {
	name, prefix, _ := strings.Cut(line, ":")
	if name = strings.TrimSpace(name); !strings.EqualFold(name, "route") && !strings.EqualFold(name, "route6") {
		return "", false
	}
	return prefix, true
}

// field returns the first field of a line, without a comment.
func field(line string) string {
	if i := strings.IndexAny(line, "#;"); i >= 0 {
		line = line[:i]
	}
	line = strings.TrimSpace(line)
	if i := strings.IndexAny(line, ", \t"); i >= 0 {
		line = line[:i]
	}
	return unquote(line)
}

// resemblesAddress reports whether text was meant as an address.
func resemblesAddress(text string) bool {
	return strings.Trim(text, "0123456789./") == "" && strings.Count(text, ".") > 1 ||
		strings.Trim(text, "0123456789abcdefABCDEF:./") == "" && strings.Count(text, ":") > 1
}
