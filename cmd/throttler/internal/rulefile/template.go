package rulefile

import (
	"fmt"
	"slices"
	"strings"

	"github.com/adaptivethrottler/throttler/internal/address"
)

// A template makes a condition's value from a request: text with attributes in
// braces, as in "{user}@{network}".
//
// Requests that differ in an attribute never make the same value, unless they
// have it several times. With several attributes, a separator must stand between
// two of them, and separators in what the client sent are percent-encoded.
type template struct {
	source string
	parts  []part
}

// A part is text, and the attribute that follows it.
type part struct {
	text      string
	attribute string // "" for the end of the template
	argument  string // the header's name, and so on
}

// separators are the characters that can separate two attributes.
const separators = "@|,; /#"

// attributes are those of a request. Some have an argument.
var attributes = []string{
	"address", "network", "prefix", "method", "host", "path", "route", "user", "robot", "group", "standing", "asn", "hoster",
	"header:NAME", "cookie:NAME", "field:NAME",
}

// parseTemplate parses a template.
func parseTemplate(source string) (template, error) {
	t := template{source: source}
	rest := source
	for {
		text, after, found := strings.Cut(rest, "{")
		if strings.Contains(text, "}") {
			return template{}, fmt.Errorf("a } without a { in %q", source)
		}
		if !found {
			t.parts = append(t.parts, part{text: text})
			return t, nil
		}
		inside, after, closed := strings.Cut(after, "}")
		if !closed {
			return template{}, fmt.Errorf("a { without a } in %q", source)
		}
		p, err := parsePart(inside)
		if err != nil {
			return template{}, err
		}
		if len(t.parts) > 0 && !strings.ContainsAny(text, separators) {
			return template{}, fmt.Errorf("nothing separates {%s} from the part before it: put one of %q in between", inside, separators)
		}
		p.text = text
		t.parts = append(t.parts, p)
		rest = after
	}
}

func parsePart(inside string) (part, error) {
	name, argument, hasArgument := strings.Cut(inside, ":")
	needsArgument := slices.Contains(attributes, name+":NAME")
	switch {
	case !needsArgument && !slices.Contains(attributes, name):
		return part{}, fmt.Errorf("{%s} is unknown: want one of %s", inside, strings.Join(attributes, ", "))
	case needsArgument && argument == "":
		return part{}, fmt.Errorf("{%s} has no name: want {%s:NAME}", inside, name)
	case hasArgument && !needsArgument:
		return part{}, fmt.Errorf("{%s} has a name: want {%s}", inside, name)
	}
	return part{attribute: name, argument: argument}, nil
}

// several reports whether t has more than one attribute.
func (t template) several() bool { return len(t.parts) > 2 }

// isAddress reports whether t is made of the client's address alone.
func (t template) isAddress() bool {
	return len(t.parts) == 2 && (t.parts[0].attribute == "address" || t.parts[0].attribute == "network")
}

// isConstant reports whether t is the same for all requests.
func (t template) isConstant() bool { return len(t.parts) == 1 }

// has reports whether t has an attribute.
func (t template) has(attribute string) bool {
	return slices.ContainsFunc(t.parts, func(p part) bool { return p.attribute == attribute })
}

// value returns the value for a request. complete is false if the request lacks
// an attribute. That is empty then.
func (t template) value(r *Request, m match, ipv6Bits int) (value string, complete bool) {
	var b strings.Builder
	complete = true
	for _, p := range t.parts {
		b.WriteString(p.text)
		if p.attribute == "" {
			continue
		}
		s, ok := p.of(r, m, ipv6Bits)
		if !ok {
			complete = false
		}
		if t.several() {
			s = escape(s)
		}
		b.WriteString(s)
	}
	return b.String(), complete
}

// of returns the attribute of a request, and whether the request has it.
func (p part) of(r *Request, m match, ipv6Bits int) (string, bool) {
	switch p.attribute {
	case "address":
		return r.network(128)
	case "network":
		return r.network(ipv6Bits)
	case "method":
		return r.Method, r.Method != ""
	case "host":
		return r.host(), r.Host != ""
	case "path":
		return m.path, r.Target != ""
	case "route":
		return m.route, m.route != ""
	case "user":
		return r.user()
	case "robot":
		return m.who.Name, m.who.Name != ""
	case "group":
		return m.who.Group, m.who.Group != ""
	case "standing":
		return m.who.Standing.String(), true
	case "asn":
		return systemText(m.who.ASN), m.who.ASN != 0
	case "hoster":
		return m.who.Network, m.who.Network != ""
	case "prefix":
		return address.Network(r.Addr, m.ipv4Bits, ipv6Bits), r.Addr.IsValid()
	case "header":
		return r.header(p.argument)
	case "cookie":
		return r.cookie(p.argument)
	}
	s, ok := r.Fields[p.argument]
	return s, ok
}

// escape percent-encodes the separators in a text.
var escape = func() func(string) string {
	var pairs []string
	for _, c := range separators + "%" {
		pairs = append(pairs, string(c), fmt.Sprintf("%%%02X", c))
	}
	return strings.NewReplacer(pairs...).Replace
}()
