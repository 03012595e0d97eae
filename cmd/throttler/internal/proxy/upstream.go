package proxy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httputil"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/adaptivethrottler/throttler/cmd/throttler/internal/rulefile"
)

// This file has what passes between the proxy and the server.

func newTransport() http.RoundTripper {
	return &http.Transport{
		DialContext:         (&net.Dialer{Timeout: 5 * time.Second, KeepAlive: 30 * time.Second}).DialContext,
		TLSHandshakeTimeout: 5 * time.Second,
		ForceAttemptHTTP2:   true,
		MaxIdleConns:        1024,
		MaxIdleConnsPerHost: 256,
		IdleConnTimeout:     30 * time.Second,
		DisableCompression:  true, // answers are passed on as they are
	}
}

// rewrite makes the request to the server.
func rewrite(r *httputil.ProxyRequest) {
	c := callOf(r.In.Context())
	server := c.file.Proxy.Server
	r.Out.URL.Scheme, r.Out.URL.Host, r.Out.Host = server.Scheme, server.Host, r.In.Host
	r.Out.URL.RawQuery = r.In.URL.RawQuery // as it was read here
	r.Out.Trailer = nil                    // what follows a body is not read, and not passed on
	c.forward(r)
	if upgrade := r.Out.Header.Get("Upgrade"); upgrade != "" && !strings.EqualFold(upgrade, "websocket") {
		// With h2c the client would talk to the server past this proxy.
		r.Out.Header.Del("Upgrade")
		r.Out.Header.Del("Connection")
	}
	removeCookies(r.Out.Header, isDevice) // they are not the server's
	maps.DeleteFunc(r.Out.Header, func(name string, _ []string) bool {
		return strings.ContainsFunc(name, isStrange) || slices.Contains(otherPaths, name)
	})
}

// otherPaths are fields that some frameworks take for the path.
var otherPaths = []string{"X-Original-Url", "X-Rewrite-Url"}

// isStrange reports whether some servers take a character in the name of a field for a hyphen,
// as in X_Forwarded_For, Transfer_Encoding or X.Original.Url.
func isStrange(r rune) bool {
	return r != '-' && (r < '0' || r > '9') && (r < 'a' || r > 'z') && (r < 'A' || r > 'Z')
}

// forward says who the client is. What a client that is no trusted proxy says of itself
// in these fields is not passed on.
func (c *call) forward(r *httputil.ProxyRequest) {
	if !c.isTrusted() {
		r.SetXForwarded()
		if field := c.file.Forwarded; !strings.EqualFold(field, "X-Forwarded-For") && !strings.EqualFold(field, "Forwarded") {
			r.Out.Header.Set(field, c.addr.String())
		}
		return
	}
	r.Out.Header["X-Forwarded-For"] = r.In.Header["X-Forwarded-For"]
	r.SetXForwarded()
	for _, field := range []string{"Forwarded", "X-Forwarded-Host", "X-Forwarded-Proto", c.file.Forwarded} {
		if values := r.In.Header.Values(field); len(values) > 0 && !strings.EqualFold(field, "X-Forwarded-For") { // also one that Connection names
			r.Out.Header[http.CanonicalHeaderKey(field)] = values
		}
	}
}

// failed answers a request that the server has not answered.
func (c *call) failed(w http.ResponseWriter, err error) {
	cut := c.body.failure()
	switch {
	case cut != nil: // the client has gone, or its body cannot be read
		c.close()
		c.proxy.refuse(w, c, fmt.Errorf("%w: %w", errBody, cut))
		return
	case !c.reached.Load():
		c.cancel()
	case c.timedOut(err) || c.sent() && noAnswer(err):
		c.keep(rulefile.Neither)
	default: // an attacker could bring it about that the answer is lost, or is no HTTP
		c.close()
	}
	status := http.StatusBadGateway
	if c.timedOut(err) {
		status = http.StatusGatewayTimeout
	}
	if c.request.Context().Err() == nil && c.proxy.servers.Due() {
		c.proxy.Log.Warn("the server does not answer", "server", c.file.Proxy.Server, "err", err)
	}
	http.Error(w, http.StatusText(status), status)
}

// timedOut reports whether the server has not answered in time, so that err came instead.
func (c *call) timedOut(err error) bool {
	timeout, ok := errors.AsType[net.Error](err)
	return ok && timeout.Timeout() || c.detached != nil && context.Cause(c.detached) == errTimeout
}

// sent reports whether the server needs all of the request, and has got it at once.
// Otherwise it may answer and hang up while the body is still on its way, and the answer
// is lost.
func (c *call) sent() bool { return c.body == nil || c.request.GetBody != nil && !c.basic }

// noAnswer reports whether the connection has ended instead of an answer.
func noAnswer(err error) bool {
	return slices.ContainsFunc([]error{io.EOF, net.ErrClosed, syscall.ECONNRESET, syscall.EPIPE}, func(end error) bool { return errors.Is(err, end) })
}
