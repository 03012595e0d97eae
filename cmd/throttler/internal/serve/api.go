package serve

import (
	"net"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/cmd/throttler/internal/api"
	"github.com/adaptivethrottler/throttler/cmd/throttler/internal/rulefile"
)

// API configures the JSON API.
type API struct {
	Listen string   // empty: no API
	Keys   []string // of callers
	Token  string   // the secret for tokens, the same in all replicas; empty: random
	TLS
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
	handler, err := api.New(api.Options{
		Rules: rules, Throttler: b.throttler, Guard: b.guard, Tokens: b.usedTokens(),
		Secret: o.API.Token, Keys: o.API.Keys, Turned: b.events.turnedAway, Released: func() { b.released.Add(1) }, Log: o.Log,
	})
	if err != nil {
		return nil, err
	}
	return all.add("-api", o.API.Listen, o.API.TLS, b.httpServer(handler, o.Log))
}

// usedTokens returns what counts used tokens: it fails where the store does.
func (b *backend) usedTokens() *throttler.Throttler {
	if b.store == nil {
		return b.logins
	}
	return throttler.New(b.store)
}
