package rulefile

import (
	"net/http"
	"net/netip"
	"net/url"
	"path"
	"strings"
)

// A Request is what a front end knows of a call that is to be limited.
type Request struct {
	Addr   netip.Addr  // the client's; zero: unknown
	Method string      // GET
	Host   string      // as in the Host field, with or without a port
	Target string      // the request target: "/login?next=%2F"
	Header http.Header // header fields, cookies and the Basic user among them

	// Fields are what else the front end knows, by name: the entries of Envoy's
	// descriptor.
	Fields map[string]string
}

// host returns the host's name in lower case, without the port.
func (r *Request) host() string {
	host := strings.ToLower(r.Host)
	if i := strings.LastIndexByte(host, ':'); i >= 0 && strings.IndexByte(host[i:], ']') < 0 {
		host = host[:i]
	}
	return strings.TrimSuffix(host, ".")
}

// path returns the path that an application sees: decoded, without dots, doubled
// slashes and a slash at its end. So no spelling of a path escapes its rule. A
// target that cannot be decoded is taken as it stands.
func (r *Request) path() string {
	target, _, _ := strings.Cut(r.Target, "?")
	if rest, absolute := strings.CutPrefix(target, "http://"); absolute {
		target = afterHost(rest)
	} else if rest, absolute := strings.CutPrefix(target, "https://"); absolute {
		target = afterHost(rest)
	}
	if decoded, err := url.PathUnescape(target); err == nil {
		target = decoded
	}
	return path.Clean("/" + target)
}

func afterHost(s string) string {
	if i := strings.IndexByte(s, '/'); i >= 0 {
		return s[i:]
	}
	return "/"
}

// network returns what an address is counted by: an IPv4 address itself, an IPv6
// one by its first bits.
func (r *Request) network(ipv6Bits int) (string, bool) {
	addr := r.Addr.Unmap().WithZone("")
	switch {
	case !addr.IsValid():
		return "", false
	case addr.Is4() || ipv6Bits == 128:
		return addr.String(), true
	}
	prefix, _ := addr.Prefix(ipv6Bits) // fails only for a number of bits that Parse refuses
	return prefix.String(), true
}

func (r *Request) header(name string) (string, bool) {
	values := r.Header.Values(name)
	if len(values) == 0 {
		return "", false
	}
	return strings.Join(values, ", "), true
}

func (r *Request) cookie(name string) (string, bool) {
	cookie, err := (&http.Request{Header: r.Header}).Cookie(name)
	if err != nil {
		return "", false
	}
	return cookie.Value, true
}

func (r *Request) user() (string, bool) {
	name, _, ok := (&http.Request{Header: r.Header}).BasicAuth()
	return name, ok
}
