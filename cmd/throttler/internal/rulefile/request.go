package rulefile

import (
	"net/http"
	"net/netip"
	"path"
	"strings"

	"github.com/adaptivethrottler/throttler/internal/address"
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

// path returns the path as an application sees it: decoded, without path
// parameters (";a=b"), dots, doubled slashes and a slash at the end. So no
// spelling of a path evades its rule. A target that cannot be decoded is taken
// as it is.
func (r *Request) path() string { return cleaned(r.rawPath()) }

// otherPaths returns what other applications take the path for: they take an encoded slash
// or parameters as part of a segment, a doubled slash as an empty segment, or a backslash
// as a slash.
func (r *Request) otherPaths() []string {
	raw := r.rawPath()
	if !strings.ContainsAny(raw, `%;\`) && !strings.Contains(raw, "//") {
		return nil
	}
	whole := decoded(raw)
	bare := withoutParameters(whole)
	return []string{
		cleaned(encodedSlash.Replace(raw)),
		path.Clean("/" + whole),
		path.Clean("/" + withoutDots(bare)),
		path.Clean("/" + backslashes.Replace(bare)),
	}
}

// encodedSlash encodes an encoded slash once more.
var encodedSlash = strings.NewReplacer("%2F", "%252F", "%2f", "%252F")

// rawPath returns the target's path. Servers drop a fragment.
func (r *Request) rawPath() string {
	target := r.Target
	if end := strings.IndexAny(target, "?#"); end >= 0 {
		target = target[:end]
	}
	if rest, absolute := strings.CutPrefix(target, "http://"); absolute {
		return afterHost(rest)
	} else if rest, absolute := strings.CutPrefix(target, "https://"); absolute {
		return afterHost(rest)
	}
	return target
}

// cleaned returns a path decoded and in its shortest spelling.
func cleaned(raw string) string {
	return path.Clean("/" + withoutParameters(decoded(raw)))
}

// withoutParameters removes from each segment what follows a semicolon.
func withoutParameters(path string) string {
	kept, rest, found := strings.Cut(path, ";")
	if !found {
		return path
	}
	var b strings.Builder
	for b.WriteString(kept); found; b.WriteString(kept) {
		next := strings.IndexByte(rest, '/')
		if next < 0 {
			break
		}
		kept, rest, found = strings.Cut(rest[next:], ";")
	}
	return b.String()
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
	return address.Text(r.Addr, ipv6Bits), r.Addr.IsValid()
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
