package pool

import (
	"net"
	"time"
)

// Place returns the name of the server that key belongs to.
func (p *Pool) Place(key string) string { return p.servers.Load().of(key).Name }

// Dialer returns what connects to the server of key.
func (p *Pool) Dialer(key string) *net.Dialer {
	p.init()
	return p.servers.Load().of(key).dialer()
}

// What the zero values of the options stand for.
const (
	DefaultTimeout         = defaultTimeout
	DefaultDialTimeout     = defaultDialTimeout
	DefaultQueueTimeout    = defaultQueueTimeout
	DefaultBreakerFailures = defaultBreakerFailures
	DefaultBreakerPause    = defaultBreakerPause
)

// MaxInFlight is how many requests a connection has in flight at most.
const MaxInFlight = maxInFlight

// ProbeKey is the key that is read to find out whether a server answers.
const ProbeKey = probeKey

// TrustWrites has the connections that p has now take all writes for stored lately, so
// that they write by meta sets if their servers know them.
func (p *Pool) TrustWrites() {
	for _, s := range p.servers.Load().all {
		for _, l := range s.links {
			l.mu.Lock()
			if l.conn != nil {
				l.conn.metas.trust.Store(fullTrust)
			}
			l.mu.Unlock()
		}
	}
}

// ResolveBy has r resolve the names that SetServers adds to p, for so long. 0: as ever.
func (p *Pool) ResolveBy(r *net.Resolver, within time.Duration) {
	p.resolver, p.resolveFor = r, within
}
