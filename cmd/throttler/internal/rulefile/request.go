package rulefile

import (
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"

	"github.com/adaptivethrottler/throttler/internal/address"
	"github.com/adaptivethrottler/throttler/robots"
)

// A Request is what a front end knows of a request.
type Request struct {
	Addr   netip.Addr  // of the client; zero: unknown
	Method string      // GET
	Host   string      // as in the Host field, with or without a port
	Hosts  []string    // others that a server may take for it; only logins look at these
	Target string      // the request target: "/login?next=%2F"
	Header http.Header // with cookies and the Basic user

	// Fields are further attributes by name: the entries of Envoy's descriptor.
	Fields map[string]string

	read reading          // of Target
	who  *robots.Identity // nil: not yet
}

// host returns the host's name.
func (r *Request) host() string { return hostName(r.Host) }

// hosts returns the names of Host and Hosts, each once.
func (r *Request) hosts() []string {
	names := []string{r.host()}
	for _, host := range r.Hosts {
		if name := hostName(strings.TrimSpace(host)); name != "" {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// hostName returns the name in a host, in lower case. Most servers end it at the first colon
// outside of brackets.
func hostName(host string) string {
	begin := 0
	if strings.HasPrefix(host, "[") {
		begin = max(strings.IndexByte(host, ']'), 0)
	}
	if i := strings.IndexByte(host[begin:], ':'); i >= 0 {
		host = host[:begin+i]
	}
	return strings.TrimSuffix(strings.ToLower(host), ".")
}

// path returns what is read of the path. All rules compare it.
func (r *Request) path() *reading {
	if target := withoutQuery(r.Target); r.read.clean == "" || r.read.target != target {
		r.read = readPath(target, r.rawPath())
	}
	return &r.read
}

func withoutQuery(target string) string {
	target, _, _ = strings.Cut(target, "?")
	return target
}

// rawPath returns the target's path. Most servers drop a fragment.
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

// Of several fields or cookies of one name, applications read different ones. So these count
// together, under "", or a client could make a new value with each request.

func (r *Request) header(name string) (string, bool) {
	lines := r.Header.Values(name)
	if len(lines) != 1 {
		return "", len(lines) > 1
	}
	return lines[0], true
}

func (r *Request) cookie(name string) (value string, ok bool) {
	for _, line := range r.Header["Cookie"] {
		for pair := range strings.SplitSeq(line, ";") {
			key, text, _ := strings.Cut(pair, "=")
			if key = strings.TrimSpace(key); inPHP(key) != inPHP(name) {
				continue
			}
			text, plain := unquote(strings.TrimSpace(text))
			if key != name || !plain || ok && text != value {
				return "", true
			}
			value, ok = text, true
		}
	}
	return value, ok
}

// inPHP returns what PHP takes the name of a cookie for.
func inPHP(name string) string {
	if decoded, err := url.QueryUnescape(name); err == nil {
		name = decoded
	}
	return underscores.Replace(name)
}

var underscores = strings.NewReplacer(".", "_", " ", "_", "[", "_")

// unquote returns the value of a cookie without quotes around it. plain is false if
// applications read it in different ways.
func unquote(text string) (value string, plain bool) {
	if len(text) > 1 && text[0] == '"' && text[len(text)-1] == '"' {
		text = text[1 : len(text)-1]
	}
	return text, !strings.ContainsFunc(text, func(r rune) bool { return r == '"' || r == '\\' || r < ' ' || r >= 0x7f })
}

func (r *Request) user() (string, bool) {
	if lines := r.Header["Authorization"]; len(lines) > 1 {
		return "", true
	}
	name, _, ok := (&http.Request{Header: r.Header}).BasicAuth()
	return name, ok
}
