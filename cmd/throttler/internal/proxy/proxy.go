// Package proxy is a reverse proxy that guards the logins of a server which cannot be
// changed. It counts an attempt before the server sees it, and ends it by the server's
// answer.
//
// # What is read, and sent on
//
// An attacker can write a request so that the proxy reads one name and the server another. So
// what is on the path of a login is read strictly, and the server gets what was read, as package
// loginname writes it: a form with each field encoded, in parts with a boundary of its own, or
// JSON; with a Content-Type and a Content-Length; the user and password of Basic authentication.
// Fields and cookies that a server may take for the name are taken out of the query and of
// Cookie, so there is no login by a query, and a link that fills in the name counts nothing.
//
// Refused are:
//
//   - 400: what does not parse; a second name, also one beside Basic authentication; another field
//     that some servers take for the name (USER, user[], user.x, model.user, Email for
//     Input.Email, a file); a name that is not UTF-8, has a NUL, or is no text in JSON; a file, in
//     a form without missing: pass; a Content-Encoding, a charset other than UTF-8, also in a field
//     _charset_; a Connection that names other fields than browsers do; no name in a body, if
//     missing is refuse; with basic, an Authorization that is not Basic; the name behind an encoded
//     question mark of the path; credentials or a body on a path that may be that of two logins. On
//     any path: a control character in it, a blank in the query, a target that is no path, or a Host
//     that is neither a name in ASCII nor an address.
//   - 403: a name that does not match matches, or has more than 1,024 bytes; a login that a page of
//     another site sends, by Sec-Fetch-Site or Origin.
//   - 408, 413: a login whose body does not come within 10 seconds, or has more than 64 KiB.
//   - 429: more than 256 KiB of bodies of a client that is banned. 503: more than 16 MiB of one
//     client's, or 256 MiB of all.
//
// With missing: pass, a form or JSON has 1 MiB at most, and a longer form in parts is passed on
// while it comes, without a name. What begins as JSON or as a comment is read as JSON whatever its
// type, if json is given. Other bodies are passed on as they are; one without a Content-Type as
// application/octet-stream, since some servers read a form in it.
//
// A path that is spelled unusually may be that of any login whose words it has: see package
// urlpath. X-Original-URL and X-Rewrite-URL, which some frameworks take for the path, are not
// passed on, nor are trailers. The host is also each in X-Forwarded-Host and Forwarded of a proxy
// in trust. A request without a body or Authorization is no attempt. Upgrades to HTTP/2 (h2c) are
// not passed on: a client would talk to the server past the proxy.
//
// What a client says of itself in X-Forwarded-For, -Host, -Proto or Forwarded is passed on
// only from a proxy in trust. A field whose name has other characters than letters, digits and
// hyphens is not passed on: some servers take X_Forwarded_For or X.Forwarded.For for
// X-Forwarded-For.
//
// # How an attempt ends
//
// An answer that is neither right nor wrong, or does not come, leaves the attempt counted
// until that expires, and does not lead to a ban. So does the answer to OPTIONS or TRACE, or to
// Basic authentication beside a cookie, if it is not wrong: servers may give it before they look
// at a password. The same guess counts once: the same credentials of Basic authentication, or
// the same request. An attempt that the server has not seen, since there was no connection, is
// canceled. An answer that is no HTTP, or is lost because the body was still on its way, is a
// failure.
//
// If the client hangs up, the attempt ends by the answer all the same, and has failed if the
// body was not complete. Requests with the same Basic credentials that come at once wait for
// the first of them.
package proxy

import (
	"errors"
	"log/slog"
	"net/http"
	"net/http/httputil"
	"strings"
	"unicode"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/cmd/throttler/internal/rulefile"
	"github.com/adaptivethrottler/throttler/cmd/throttler/internal/seldom"
	"github.com/adaptivethrottler/throttler/httpthrottle"
	"github.com/adaptivethrottler/throttler/login"
)

// Options configure a Proxy.
type Options struct {
	Rules     *rulefile.Source
	Throttler *throttler.Throttler
	Guard     *login.Guard
	Secret    string // names the cookies of devices; the same in all replicas
	Log       *slog.Logger
}

// A Proxy passes requests on to the server of a rule file. Those that are attempts to log
// in are passed on only if the Guard authorizes them.
type Proxy struct {
	Options
	reverse    *httputil.ReverseProxy
	refusal    *httpthrottle.Middleware
	devices    devices
	basic      *basicLogins
	unanswered recent // guesses
	bodies     bodies
	clients    seldom.Minute // for logging what clients send
	servers    seldom.Minute // for logging what servers do: no client can keep it out of the log
}

// New returns a Proxy.
func New(o Options) *Proxy {
	p := &Proxy{Options: o, devices: newDevices(o.Secret), basic: newBasicLogins(), unanswered: newRecent(guessFor), bodies: bodies{of: make(map[string]int)}}
	p.refusal = httpthrottle.New(o.Throttler, func(*http.Request) throttler.Rule { return httpthrottle.Unlimited() })
	p.reverse = &httputil.ReverseProxy{
		Transport:      newTransport(),
		Rewrite:        rewrite,
		ModifyResponse: func(answer *http.Response) error { callOf(answer.Request.Context()).answered(answer); return nil },
		ErrorHandler:   func(w http.ResponseWriter, r *http.Request, err error) { callOf(r.Context()).failed(w, err) },
		ErrorLog:       slog.NewLogLogger(o.Log.Handler(), slog.LevelWarn),
	}
	return p
}

func (p *Proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	file := p.Rules.File()
	if file.Proxy == nil {
		http.Error(w, "The rule file has no proxy any more.", http.StatusServiceUnavailable)
		return
	}
	if r.Method == http.MethodConnect || r.URL.Opaque != "" || !plainHost.MatchString(r.Host) || strings.ContainsFunc(r.URL.Path, unicode.IsControl) || strings.Contains(r.URL.RawQuery, " ") {
		http.Error(w, "This request is not passed on.", http.StatusBadRequest)
		return
	}
	source := file.Source()
	// Copies: net/http looks at its own body to know whether the rest of it is the next request.
	c := &call{proxy: p, file: file, request: r.WithContext(r.Context()), addr: source.Addr(r), client: source.Key(r)}
	c.request.URL = new(*r.URL)
	hosts := c.hosts()
	logins := file.Proxy.Logins(&rulefile.Request{Host: hosts[0], Hosts: hosts[1:], Target: r.URL.EscapedPath()})
	if len(logins) == 0 {
		p.reverse.ServeHTTP(w, c.outgoing())
		return
	}
	c.login, c.others = logins[0], logins[1:]
	p.guard(w, c)
}

// guard passes c on if it is no attempt, or one that is authorized.
func (p *Proxy) guard(w http.ResponseWriter, c *call) {
	defer c.close()
	err := c.find(w)
	if err == nil && c.named {
		err = p.begin(c)
	}
	if err != nil {
		p.refuse(w, c, err)
		return
	}
	p.reverse.ServeHTTP(w, c.outgoing())
}

// begin begins the attempt of c, unless its credentials are known to be right.
func (p *Proxy) begin(c *call) error {
	ctx := c.request.Context()
	if c.basic {
		known, done, err := p.basic.take(ctx, p.basic.knownID(c))
		if err != nil {
			return err
		}
		c.done = done
		if known {
			return nil
		}
	} else {
		c.device = p.devices.of(c.request, c.name)
	}
	attempt, err := p.Guard.Begin(login.WithDevice(ctx, c.device), c.name, c.addr)
	if err != nil {
		return err
	}
	if attempt.Decision.Status == throttler.Blocked {
		return &throttler.BlockedError{Decision: attempt.Decision}
	}
	c.attempt = attempt
	if attempt.Decision.Err != nil && c.file.Closed {
		c.cancel() // as far as the backend answers
		return errClosed
	}
	return nil
}

// refuse answers a request that is not passed on.
func (p *Proxy) refuse(w http.ResponseWriter, c *call, err error) {
	r := c.request
	if r.ProtoMajor == 1 {
		w.Header().Set("Connection", "close") // the rest of its body is not read
	}
	if blocked, ok := errors.AsType[*throttler.BlockedError](err); ok {
		httpthrottle.SetRetryAfter(w, blocked.Decision)
		p.refusal.WriteAnswer(w, r, blocked.Decision)
		return
	}
	w.Header().Set("Cache-Control", "no-store")
	status, text := statusOf(err)
	if status == http.StatusServiceUnavailable {
		w.Header().Set("Retry-After", "1")
	}
	if c.login != nil && r.Context().Err() == nil && p.clients.Due() {
		p.Log.Warn("a login was not passed on", "client", c.addr, "path", r.URL.Path, "err", err)
	}
	http.Error(w, text, status)
}
