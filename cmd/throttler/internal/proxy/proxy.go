// Package proxy is a reverse proxy that guards the logins of a server which cannot be
// changed. It counts an attempt before the server sees it, and ends it by the server's
// answer.
//
// # What is refused
//
// An attacker can write a request so that the proxy reads one name and the server another.
// So a request on the path of a login is passed on only if every server would read the same
// name.
//
//   - 400: two fields, keys or Authorization fields with the name, or both Basic
//     authentication and a form; a field that some servers take for the name (USER, user[],
//     user.x=, model.user, Email for Input.Email, one behind a semicolon, a file, a part with the
//     name in Content-ID); a name with a NUL; in JSON, a name that is no text, or a name or key
//     that some servers cut, with a NUL or with U+FFFD or what is no UTF-8; no name in a body, if
//     missing is refuse; with basic, an Authorization that is not Basic, since there are servers
//     that do not look at the scheme; credentials or a body on a path that may be that of two
//     logins (/dav/%252e%252e/login); with form, a query with a fragment; with json, a query with
//     the name, which Laravel and Rails take for that in JSON; a control character in the path, a
//     blank in the query, a target that is no path, or a Host that is neither a name in ASCII nor
//     an address, with or without a port, on any path.
//   - 415: a body with a Content-Encoding, a charset other than UTF-8 (also in a field
//     _charset_), or that is malformed; a part of a form whose Content-Disposition is written as
//     no client does, whose header has a line of more than 4 KiB, or that has parts; a name of
//     more than 16 KiB; with json, a key of more than 16 KiB, or a body of another type that
//     begins as an object and is malformed.
//   - 414: a path of more than 8 KiB, on any path.
//   - 403: a name that does not match matches, or has more than 1,024 bytes.
//
// Paths are compared in each reading of package urlpath, and in any case: //LOGIN;x,
// /%256cogin and \login are /login. So is the path in X-Original-URL or X-Rewrite-URL. A path
// with too many readings may be any login's. The query is also that of these fields, and what
// follows an encoded question mark. A field that Connection names is not read: the server does
// not get it. Nor does it get a cookie with the name of the form's field: PHP may prefer it. The
// host is also each in X-Forwarded-Host and Forwarded of a proxy in trust.
//
// The name must stand in the first 64 KiB of the body, and these must come within 10 seconds.
// A longer body is passed on while it comes. If another name comes in it, the server never
// gets the whole body, and the attempt has failed. GET, HEAD and OPTIONS are no attempts, unless
// they have the name of a form in the query. Nor is a request without a body or Authorization.
// Chunked bodies of logins are passed on with a Content-Length. A body without a Content-Type
// that is JSON, or cannot be read as a form, or is long and has no name, is passed on as
// application/octet-stream: some servers could read a form in it. Upgrades to HTTP/2 (h2c) are
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
	verified   *verified
	unanswered guesses
	clients    teller // of what clients send
	servers    teller // of what servers do: no client can keep it out of the log
}

// New returns a Proxy.
func New(o Options) *Proxy {
	p := &Proxy{Options: o, devices: newDevices(o.Secret), verified: newVerified(), clients: teller{log: o.Log}, servers: teller{log: o.Log}}
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
	if r.Method == http.MethodConnect || r.URL.Opaque != "" || !plainHost.MatchString(r.Host) || hasControl(r.URL.Path) || strings.Contains(r.URL.RawQuery, " ") {
		http.Error(w, "This request is not passed on.", http.StatusBadRequest)
		return
	}
	if len(r.URL.EscapedPath())+len(strings.Join(rulefile.PathFields(r.Header), "")) > maxPath {
		http.Error(w, "The path is too long.", http.StatusRequestURITooLong)
		return
	}
	source := file.Source()
	// A copy: net/http looks at its own body to know whether the rest of it is the next request.
	c := &call{proxy: p, file: file, request: r.WithContext(r.Context()), addr: source.Addr(r), trusted: source.Trusted}
	hosts := c.hosts()
	c.login, c.others = file.Proxy.Login(&rulefile.Request{Host: hosts[0], Hosts: hosts[1:], Target: r.URL.EscapedPath(), Header: r.Header})
	if c.login == nil {
		p.reverse.ServeHTTP(w, c.passed())
		return
	}
	p.guard(w, c)
}

// guard passes c on if it is no attempt, or one that is authorized.
func (p *Proxy) guard(w http.ResponseWriter, c *call) {
	defer c.close()
	if err := c.find(w); err != nil {
		p.turnAway(w, c, err)
		return
	}
	if c.named {
		if err := p.begin(w, c); err != nil {
			p.turnAway(w, c, err)
			return
		}
	}
	p.reverse.ServeHTTP(w, c.passed())
}

// begin begins the attempt of c, unless its credentials are known to be right.
func (p *Proxy) begin(w http.ResponseWriter, c *call) error {
	ctx := c.request.Context()
	if c.basic {
		known, done, err := p.verified.take(ctx, p.verified.knownID(c))
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
	attempt, err := p.Guard.BeginDevice(ctx, c.name, c.addr, c.device)
	if err != nil {
		return err
	}
	if attempt.Decision.Status == throttler.Blocked {
		return &refused{attempt.Decision}
	}
	c.attempt = attempt
	if attempt.Decision.Err != nil && c.file.Closed {
		c.cancel() // as far as the backend answers
		return errClosed
	}
	return nil
}

// A refused is the error of an attempt that the Guard refuses.
type refused struct{ decision throttler.Decision }

func (*refused) Error() string { return "refused" }

// errClosed is the error of an attempt while the backend fails.
var errClosed = errors.New("the backend fails, and the rule file says failure: closed")

// turnAway answers a request that is not passed on.
func (p *Proxy) turnAway(w http.ResponseWriter, c *call, err error) {
	r := c.request
	if r.ProtoMajor == 1 {
		w.Header().Set("Connection", "close") // the rest of its body is not read
	}
	if blocked := new(refused); errors.As(err, &blocked) {
		httpthrottle.SetRetryAfter(w, blocked.decision)
		p.refusal.WriteAnswer(w, r, blocked.decision)
		return
	}
	w.Header().Set("Cache-Control", "no-store")
	status, text := statusOf(err)
	if status == http.StatusServiceUnavailable {
		w.Header().Set("Retry-After", "1")
	}
	if c.login != nil && r.Context().Err() == nil {
		p.clients.tell("a login was not passed on", "client", c.addr, "path", r.URL.Path, "err", err)
	}
	http.Error(w, text, status)
}

// A teller logs a warning, at most one a minute.
type teller struct {
	log  *slog.Logger
	when seldom.Minute
}

func (t *teller) tell(message string, args ...any) {
	if t.when.Due() {
		t.log.Warn(message, args...)
	}
}

// maxPath is how many bytes a path, and the fields that may stand for it, have together at
// most: as many as most servers take. Each is compared in many readings.
const maxPath = 8 << 10

// hasControl reports whether a path has a control character: some servers end it there.
func hasControl(path string) bool {
	for i := range len(path) {
		if path[i] < ' ' || path[i] == 0x7f {
			return true
		}
	}
	return false
}
