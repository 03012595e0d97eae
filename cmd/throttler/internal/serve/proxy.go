package serve

import (
	"context"
	"log/slog"
	"net"
	"net/http"

	"github.com/adaptivethrottler/throttler/cmd/throttler/internal/proxy"
	"github.com/adaptivethrottler/throttler/cmd/throttler/internal/rulefile"
)

// Proxy configures the proxy before a server whose logins are guarded.
type Proxy struct {
	Listen string // empty: no proxy
	TLS
}

// addProxy adds the proxy, if the rule file has one.
func (all *servers) addProxy(o Options, rules *rulefile.Source, b *backend) (net.Addr, error) {
	if o.Proxy.Listen == "" || rules.File().Proxy == nil {
		return nil, nil
	}
	if o.API.Token == "" && b.store != nil {
		o.Log.Warn("known devices of the proxy hold in this process only: set the same THROTTLER_TOKEN_KEY in all replicas")
	}
	s := b.newProxyServer(proxy.New(proxy.Options{
		Rules: rules, Throttler: b.throttler, Guard: b.guard, Secret: o.API.Token, Log: o.Log,
	}), o.Log)
	b.proxied = true
	return all.add("-proxy", o.Proxy.Listen, o.Proxy.TLS, server{serve: s.Serve, log: o.Log, shutdown: func(ctx context.Context) error {
		if s.Shutdown(ctx) != nil { // as while an answer is a stream
			return s.Close()
		}
		return nil
	}})
}

// newProxyServer returns a server without a time limit for bodies, which may be large, and
// for answers, which may be streams.
func (b *backend) newProxyServer(handler http.Handler, log *slog.Logger) *http.Server {
	s := b.newHTTPServer(handler, log)
	s.ReadTimeout, s.WriteTimeout = 0, 0
	s.Protocols = new(http.Protocols)
	s.Protocols.SetHTTP1(true)
	s.Protocols.SetHTTP2(true)
	s.Protocols.SetUnencryptedHTTP2(true)
	return s
}
