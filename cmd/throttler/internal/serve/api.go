package serve

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/cmd/throttler/internal/api"
	"github.com/adaptivethrottler/throttler/cmd/throttler/internal/rulefile"
)

// API configures the JSON API.
type API struct {
	Listen   string   // empty: no API
	Keys     []string // of callers
	Token    string   // the secret for tokens, the same in all replicas; empty: random
	Cert     string   // path of the certificate; empty: plain text
	CertKey  string   // path of its key
	ClientCA string   // path of the CA of callers' certificates; empty: callers need none
}

// addAPI adds the API, if callers can be authenticated.
func (all *servers) addAPI(o Options, rules *rulefile.Source, b *backend) (net.Addr, error) {
	if o.API.Listen == "" {
		return nil, nil
	}
	if len(o.API.Keys) == 0 && o.API.ClientCA == "" {
		o.Log.Info("no JSON API: set THROTTLER_API_KEYS, or give -api-client-ca")
		return nil, nil
	}
	if o.API.Token == "" && b.store != nil {
		o.Log.Warn("tokens of the JSON API work in this process only: set the same THROTTLER_TOKEN_KEY in all replicas")
	}
	secured, err := o.API.tls(o.Log)
	if err != nil {
		return nil, err
	}
	handler, err := api.New(api.Options{
		Rules: rules, Throttler: b.throttler, Guard: b.guard, Tokens: b.usedTokens(),
		Secret: o.API.Token, Keys: o.API.Keys, Turned: b.events.turnedAway, Log: o.Log,
	})
	if err != nil {
		return nil, err
	}
	s := b.newHTTPServer(handler, o.Log)
	return all.add("-api", o.API.Listen, server{serve: serving(s, secured), shutdown: s.Shutdown})
}

// usedTokens returns what counts used tokens: it fails where the store does.
func (b *backend) usedTokens() *throttler.Throttler {
	if b.store == nil {
		return b.logins
	}
	return throttler.New(b.store)
}

// tls returns the TLS configuration, or nil for plain text.
func (a *API) tls(log *slog.Logger) (*tls.Config, error) {
	if a.Cert == "" {
		if a.ClientCA != "" {
			return nil, errors.New("-api-client-ca needs -api-cert and -api-cert-key")
		}
		return nil, nil
	}
	config, err := tlsOf(a.Cert, a.CertKey, log)
	if err != nil || a.ClientCA == "" {
		return config, err
	}
	text, err := os.ReadFile(a.ClientCA)
	if err != nil {
		return nil, err
	}
	config.ClientAuth, config.ClientCAs = tls.RequireAndVerifyClientCert, x509.NewCertPool()
	if !config.ClientCAs.AppendCertsFromPEM(text) {
		return nil, fmt.Errorf("-api-client-ca: %s holds no certificate in PEM", a.ClientCA)
	}
	return config, nil
}
