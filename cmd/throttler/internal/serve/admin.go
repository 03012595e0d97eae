package serve

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"time"

	"github.com/adaptivethrottler/throttler"
)

// admin returns the handler for operators. Its only access control is that of files: probes, as
// of Kubernetes, have no certificate.
func (b *backend) admin(files TLS) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("/metrics", files.onlyCertified(b.metrics))
	mux.Handle("/tally", files.onlyCertified(onlyByAddress(b.counts)))
	mux.HandleFunc("/healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	mux.HandleFunc("/readyz", b.ready)
	return mux
}

// ready answers 503 while requests should go to another replica. It names the servers that do
// not answer, and says what decides meanwhile.
func (b *backend) ready(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	if err := b.unready(); err != nil {
		w.WriteHeader(http.StatusServiceUnavailable)
		fmt.Fprintln(w, err)
	} else {
		fmt.Fprintln(w, "ready")
	}
	for _, warning := range b.rules.File().OldLists() {
		fmt.Fprintln(w, warning)
	}
	if b.store == nil {
		return
	}
	for _, s := range b.store.Stats() {
		if s.Down {
			fmt.Fprintf(w, "%s does not answer: %s\n", s.Server, b.meanwhile())
		}
	}
}

// meanwhile says what happens to the limits of a server that does not answer.
func (b *backend) meanwhile() string {
	if b.closed.Load() {
		return "calls for its values are refused"
	}
	return "each process counts its values by itself"
}

// unready returns why requests should go to another replica, or nil: all servers
// are down, or the service ends.
func (b *backend) unready() error {
	if b.ending.Load() {
		return errors.New("the service ends")
	}
	if b.store == nil {
		return nil
	}
	for _, s := range b.store.Stats() {
		if !s.Down {
			return nil
		}
	}
	return errors.New("all servers are down")
}

// showBans has the tally show the bans of rules and logins, and lift them for who has one of the
// keys.
func (b *backend) showBans(keys []string) {
	b.logins.Observe = func(ctx context.Context, rule throttler.Rule, d throttler.Decision) {
		if rule.Identifier == guardRule { // and not what the guard keeps beside
			b.counts.ObserveBans(ctx, rule, d)
		}
	}
	b.counts.Look = func(ctx context.Context, rule throttler.Rule) (throttler.Decision, error) {
		if rule.Identifier == guardRule {
			return b.logins.Peek(ctx, rule)
		}
		return b.throttler.Peek(ctx, rule)
	}
	b.counts.Lift = func(ctx context.Context, rule throttler.Rule) error {
		if rule.Identifier != guardRule {
			return b.throttler.Reset(ctx, rule)
		}
		err := b.logins.Reset(ctx, rule)
		for _, c := range rule.Conditions() { // or the next failure would ban again
			err = errors.Join(err, b.guard.LiftRecord(ctx, c.Name, c.Value))
		}
		return err
	}
	b.counts.LiftKeys = keys
}

// onlyByAddress answers requests whose Host is an address or a name without a
// dot, such as localhost. A web page could point a name of its own at this
// service and read it in a visitor's browser (DNS rebinding). Such a name has a
// dot.
func onlyByAddress(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !isAddressOrLocal(r.Host) {
			http.Error(w, "Ask by the address of this service, not by a name.", http.StatusMisdirectedRequest)
			return
		}
		next.ServeHTTP(w, r)
	})
}

func isAddressOrLocal(host string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	host = strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
	_, err := netip.ParseAddr(host)
	return err == nil || !strings.Contains(host, ".")
}

// Healthy returns nil if a service answers at its address for operators, by TLS if secured. An
// address without a host is of this machine.
func Healthy(ctx context.Context, admin string, secured bool) error {
	host, port, err := net.SplitHostPort(admin)
	if err != nil {
		return err
	}
	if host == "" {
		host = "127.0.0.1"
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	scheme := "http://"
	if secured {
		scheme = "https://"
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, scheme+net.JoinHostPort(host, port)+"/healthz", nil)
	if err != nil {
		return err
	}
	// Whether somebody answers is asked, and nothing told: any certificate will do.
	transport := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}
	defer transport.CloseIdleConnections()
	answer, err := transport.RoundTrip(r)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return fmt.Errorf("%s answers %s", r.URL, answer.Status)
	}
	return nil
}
