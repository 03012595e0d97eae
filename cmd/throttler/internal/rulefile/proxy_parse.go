package rulefile

import (
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/adaptivethrottler/throttler/cmd/throttler/internal/loginname"
	"github.com/adaptivethrottler/throttler/cmd/throttler/internal/urlpath"
)

// This file reads what a rule file says of a Proxy.

// The time for which an attempt waits for its answer. After 30 s the guard counts an
// attempt as a failure, so the most is less.
const (
	defaultTimeout = 20 * time.Second
	maxTimeout     = 25 * time.Second
)

// The structure of a proxy. Keep it equal to schema.json.
type (
	proxyYAML struct {
		Server  string      `yaml:"server"`
		Timeout string      `yaml:"timeout"`
		Logins  []loginYAML `yaml:"logins"`
	}
	loginYAML struct {
		For     loginForYAML `yaml:"for"`
		Name    nameYAML     `yaml:"name"`
		Missing string       `yaml:"missing"`
		Right   outcomeYAML  `yaml:"right"`
		Wrong   outcomeYAML  `yaml:"wrong"`
	}
	loginForYAML struct {
		Path []string `yaml:"path"`
		Host []string `yaml:"host"`
	}
	nameYAML struct {
		Form    string `yaml:"form"`
		JSON    string `yaml:"json"`
		Basic   bool   `yaml:"basic"`
		Matches string `yaml:"matches"`
	}
	outcomeYAML struct {
		Status   []int    `yaml:"status"`
		Location []string `yaml:"location"`
		Cookie   []string `yaml:"cookie"`
	}
)

// proxy parses a proxy. raw may be nil: the file has none.
func (p *parsing) proxy(raw *proxyYAML) *Proxy {
	if raw == nil {
		return nil
	}
	parsed := &Proxy{Server: p.server(raw.Server), Timeout: defaultTimeout}
	if raw.Timeout != "" {
		parsed.Timeout = p.duration("$.proxy.timeout", raw.Timeout)
		if parsed.Timeout <= 0 || parsed.Timeout > maxTimeout {
			p.problem("$.proxy.timeout", "%v, want up to %v: after 30 s an attempt counts as a failure", parsed.Timeout, maxTimeout)
		}
	}
	if len(raw.Logins) == 0 {
		p.problem("$.proxy", "no logins: want which requests try a name, and which answers are right")
	}
	for i := range raw.Logins {
		parsed.logins = append(parsed.logins, p.login(at("$.proxy.logins", i), &raw.Logins[i]))
	}
	return parsed
}

// server parses the URL of a server.
func (p *parsing) server(text string) *url.URL {
	server, err := url.Parse(text)
	switch {
	case err != nil || server.Host == "" || server.Scheme != "http" && server.Scheme != "https":
		p.problem("$.proxy.server", "%q is no server: want http://host:port or https://host:port", text)
	case strings.Trim(server.Path, "/") != "" || server.RawQuery != "" || server.User != nil || server.Fragment != "":
		p.problem("$.proxy.server", "%q: want the scheme, the host and the port alone, since paths are passed on as they are", text)
	}
	return server
}

// login parses a login.
func (p *parsing) login(path string, raw *loginYAML) *Login {
	l := &Login{
		Place: path, Basic: raw.Name.Basic, Pass: raw.Missing == "pass",
		selector: p.loginSelector(path+".for", &raw.For),
		right:    p.outcome(path+".right", &raw.Right),
		wrong:    p.outcome(path+".wrong", &raw.Wrong),
	}
	p.oneOf(path+".missing", raw.Missing, "refuse", "pass")
	var keys []string
	if raw.Name.JSON != "" {
		keys = strings.Split(raw.Name.JSON, ".")
		if slices.Contains(keys, "") {
			p.problem(path+".name.json", "%q has an empty key: want keys with dots between them, as in user.name", raw.Name.JSON)
		}
	}
	if raw.Name.Form != "" || keys != nil {
		l.Finder = loginname.New(raw.Name.Form, keys)
	}
	if l.Finder == nil && !l.Basic {
		p.problem(path, "no name: want form, json or basic")
	}
	if raw.Missing != "" && l.Finder == nil {
		p.problem(path+".missing", "only bodies can lack a name: a request without Basic authentication is no attempt")
	}
	if raw.Name.Matches != "" {
		names, err := regexp.Compile(`^(?:` + raw.Name.Matches + `)$`)
		if err != nil {
			p.problem(path+".name.matches", "%v", err)
		}
		l.Names = names
	}
	if l.right.isZero() {
		p.problem(path, "no answer is right: want a status, location or cookie that no wrong password gets")
	}
	return l
}

// loginSelector parses which requests a login is for.
func (p *parsing) loginSelector(path string, raw *loginForYAML) selector {
	paths := make([]string, len(raw.Path))
	for i, source := range raw.Path {
		paths[i] = urlpath.Fold(source)
	}
	if len(paths) == 0 {
		p.problem(path, "no path: want the login page's, or /** if any page takes a name and a password")
	}
	return p.selector(path, &forYAML{Path: paths, Host: raw.Host})
}

// outcome parses which answers an outcome matches.
func (p *parsing) outcome(path string, raw *outcomeYAML) outcome {
	o := outcome{statuses: raw.Status, cookies: raw.Cookie}
	checkEach(p, path+".status", raw.Status, "%d is not from 200 to 599", func(status int) bool { return status >= 200 && status <= 599 })
	o.locations = parseEach(p, path+".location", raw.Location, parseLocation)
	checkEach(p, path+".cookie", raw.Cookie, "%q is no name of a cookie: want session, or DW* for all that begin so",
		func(name string) bool { return isToken(name) && name != "*" })
	return o
}

// warnProxy adds warnings about a valid proxy.
func (p *parsing) warnProxy(proxy *Proxy) {
	if proxy == nil {
		return
	}
	for i, l := range proxy.logins {
		path := at("$.proxy.logins", i)
		if l.Names == nil {
			p.problem(path+".name", "without matches, each spelling that the server takes for a name has guesses of its own: "+
				"write which names there are, as in docs/login-proxy.md")
		}
		if l.Finder != nil && len(l.right.cookies) == 0 && len(l.right.locations) > 0 {
			p.problem(path+".right.location", "a server may send back to where a request says that it came from: "+
				"add the cookie that only a right password gets, or be sure that a wrong one cannot lead there")
		}
		if l.Finder != nil && !l.wrong.isZero() {
			p.problem(path+".wrong", "an answer that is neither right nor wrong leads to no ban: "+
				"leave wrong out, or be sure that a wrong password gets no other answer")
		}
		if page := l.right.unproven(); l.Basic && page != 0 {
			p.problem(path+".right.status", "a server may answer %d before it looks at the password: "+
				"leave out what a wrong one gets on any page", page)
		}
	}
}

// unproven returns a status that tells nothing of a password on some pages, if o tells no
// more: those of redirects, and of pages that are not there. 0: none.
func (o *outcome) unproven() int {
	if len(o.locations)+len(o.cookies) > 0 {
		return 0
	}
	for _, status := range o.statuses {
		if status >= 300 {
			return status
		}
	}
	return 0
}
