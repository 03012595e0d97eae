package rulefile

import (
	"net/http"
	"net/netip"
	"net/url"
	"path"
	"strings"
)

// A Request is what a front end knows of a request.
type Request struct {
	Addr   netip.Addr  // of the client; zero: unknown
	Method string      // GET
	Host   string      // as in the Host field, with or without a port
	Target string      // the request target: "/login?next=%2F"
	Header http.Header // with cookies and the Basic user

	// Fields are further attributes by name: the entries of Envoy's descriptor.
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

// path returns the path as an application sees it: decoded, without dots,
// doubled slashes and a slash at the end. So no spelling of a path evades its
// rule. A target that cannot be decoded is taken as it is.
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

// network returns the text to count the client's address by: an IPv4 address,
// or the network of an IPv6 address.
func (r *Request) network(ipv6Bits int) (string, bool) {
	addr := r.Addr.Unmap().WithZone("")
	switch {
	case !addr.IsValid():
		return "", false
	case addr.Is4() || ipv6Bits == 128:
		return addr.String(), true
	}
	prefix, _ := addr.Prefix(ipv6Bits) // fails only for bits that Parse refuses
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
