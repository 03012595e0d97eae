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
	attribute *attribute // nil for the end of the template
	argument  string     // the header's name, and so on
}

// separators are the characters that can separate two attributes.
const separators = "@|,; /#"

// An attribute is what a template can have of a request.
type attribute struct {
	name   string // with :NAME, if it has an argument
	of     func(r *Request, m match, argument string) (value string, ok bool)
	robots bool   // only a directory tells it
	from   string // as Uses calls what it is read from; empty: name
}

var attributes = []attribute{
	{name: "address", of: func(r *Request, _ match, _ string) (string, bool) { return r.network(128) }},
	{name: "network", of: func(r *Request, m match, _ string) (string, bool) { return r.network(m.bits.ipv6) }},
	{name: "prefix", of: func(r *Request, m match, _ string) (string, bool) {
		return address.Network(r.Addr, m.bits.ipv4, m.bits.ipv6), r.Addr.IsValid()
	}},
	{name: "method", of: func(r *Request, _ match, _ string) (string, bool) { return some(r.Method) }},
	{name: "host", of: func(r *Request, _ match, _ string) (string, bool) { return r.host(), r.Host != "" }},
	{name: "path", of: func(r *Request, m match, _ string) (string, bool) { return m.path, r.Target != "" }},
	{name: "route", of: func(_ *Request, m match, _ string) (string, bool) { return some(m.route) }},
	{name: "user", of: func(r *Request, _ match, _ string) (string, bool) { return r.user() }},
	{name: "robot", of: func(_ *Request, m match, _ string) (string, bool) { return some(m.who.Name) }, robots: true, from: userAgent},
	{name: "group", of: func(_ *Request, m match, _ string) (string, bool) { return some(m.who.Group) }, robots: true, from: userAgent},
	{name: "standing", of: func(_ *Request, m match, _ string) (string, bool) { return some(m.who.Standing.String()) }, robots: true, from: userAgent},
	{name: "asn", of: func(_ *Request, m match, _ string) (string, bool) { return systemText(m.who.ASN), m.who.ASN != 0 }, robots: true},
	{name: "hoster", of: func(_ *Request, m match, _ string) (string, bool) { return some(m.who.Network) }, robots: true},
	{name: "header:NAME", of: func(r *Request, _ match, name string) (string, bool) { return r.header(name) }},
	{name: "cookie:NAME", of: func(r *Request, _ match, name string) (string, bool) { return r.cookie(name) }},
	{name: "field:NAME", of: func(r *Request, _ match, name string) (string, bool) { value, ok := r.Fields[name]; return value, ok }},
}

func some(text string) (string, bool) { return text, text != "" }

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
	for i := range attributes {
		switch a := &attributes[i]; {
		case a.name == name && hasArgument:
			return part{}, fmt.Errorf("{%s} has a name: want {%s}", inside, name)
		case a.name == name+":NAME" && argument == "":
			return part{}, fmt.Errorf("{%s} has no name: want {%s}", inside, a.name)
		case a.name == name || a.name == name+":NAME":
			return part{attribute: a, argument: argument}, nil
		}
	}
	names := make([]string, len(attributes))
	for i := range attributes {
		names[i] = attributes[i].name
	}
	return part{}, fmt.Errorf("{%s} is unknown: want one of %s", inside, strings.Join(names, ", "))
}

// several reports whether t has more than one attribute.
func (t template) several() bool { return len(t.parts) > 2 }

// isAddress reports whether t is made of the client's address alone.
func (t template) isAddress() bool {
	return len(t.parts) == 2 && (t.has("address") || t.has("network"))
}

// isConstant reports whether t is the same for all requests.
func (t template) isConstant() bool { return len(t.parts) == 1 }

// has reports whether t has an attribute.
func (t template) has(attribute string) bool {
	return slices.ContainsFunc(t.parts, func(p part) bool { return p.attribute != nil && p.attribute.name == attribute })
}

// value returns the value for a request. complete is false if the request lacks
// an attribute. That is empty then.
func (t template) value(r *Request, m match) (value string, complete bool) {
	var b strings.Builder
	complete = true
	for _, p := range t.parts {
		b.WriteString(p.text)
		if p.attribute == nil {
			continue
		}
		s, ok := p.attribute.of(r, m, p.argument)
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

// escape percent-encodes the separators in a text.
var escape = func() func(string) string {
	var pairs []string
	for _, c := range separators + "%" {
		pairs = append(pairs, string(c), fmt.Sprintf("%%%02X", c))
	}
	return strings.NewReplacer(pairs...).Replace
}()
