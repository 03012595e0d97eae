package proxy

import (
	"cmp"
	"regexp"
	"slices"
	"strings"
)

// This file finds the host that a request is for.

// plainHost matches hosts in which all servers read the same name: one in ASCII, or an IPv6
// address, with or without a port; and "". Of a:1:2 some read a and others a:1, and net/http
// passes bücher.example on as xn--bcher-kva.example.
var plainHost = regexp.MustCompile(`^((([A-Za-z0-9_-]+\.)*[A-Za-z0-9_-]+\.?|\[[0-9A-Fa-f:.]+\])(:[0-9]*)?)?$`)

// hosts returns what the server may take for the host of c: the one that is passed on, and
// those that trusted proxies name.
func (c *call) hosts() []string {
	host := cmp.Or(c.request.Host, c.file.Proxy.Server.Host) // as net/http does
	x, standard := c.forwardedHosts()
	return slices.Concat([]string{host}, x, standard)
}

// forwardedHosts returns the hosts that trusted proxies name in X-Forwarded-Host and in
// Forwarded.
func (c *call) forwardedHosts() (x, standard []string) {
	if !c.isTrusted() {
		return nil, nil
	}
	for _, line := range c.request.Header["X-Forwarded-Host"] {
		x = append(x, strings.Split(line, ",")...)
	}
	for _, line := range c.request.Header["Forwarded"] {
		for _, pair := range strings.FieldsFunc(line, func(r rune) bool { return r == ',' || r == ';' }) {
			if name, value, _ := strings.Cut(pair, "="); strings.EqualFold(strings.TrimSpace(name), "host") {
				standard = append(standard, unquoted.Replace(value))
			}
		}
	}
	return x, standard
}

var unquoted = strings.NewReplacer(`"`, "", `\`, "")

// isTrusted reports whether c comes from a trusted proxy. What others say in the fields of
// proxies is not passed on.
func (c *call) isTrusted() bool { return c.file.Trusts(c.request.RemoteAddr) }
