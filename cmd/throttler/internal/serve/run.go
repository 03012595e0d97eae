package serve

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"sync/atomic"
	"time"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/cmd/throttler/internal/rulefile"
	"github.com/adaptivethrottler/throttler/login"
	"github.com/adaptivethrottler/throttler/memstore"
	"github.com/adaptivethrottler/throttler/otelthrottle"
	"github.com/adaptivethrottler/throttler/pool"
	"github.com/adaptivethrottler/throttler/tally"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	exporter "go.opentelemetry.io/otel/exporters/prometheus"
	"go.opentelemetry.io/otel/sdk/metric"
	"google.golang.org/grpc/health"
)

// Options configure the service.
type Options struct {
	Rules    string   // path of the rule file
	Servers  []string // of memcached
	Store    string   // URL of Redis or Valkey, instead of Servers; neither: those of the rule file, or else process memory
	User     string   // of a memcached with -Y
	Password string
	Listen   string // address for proxies
	Admin    string // address for operators; empty: none
	Envoy    string // address for Envoy, by gRPC; empty: none
	API      API
	Proxy    Proxy

	ListenTLS, AdminTLS, EnvoyTLS TLS

	Drain  time.Duration // for which callers are asked to go elsewhere before the end
	Log    *slog.Logger
	Hangup <-chan os.Signal // reads the rule file again
	Ready  func(listen, admin, envoy, api, proxy net.Addr)
}

// The bounds of a request, and of the service's end.
const (
	idleTimeout = 2 * time.Minute
	maxHeader   = 64 << 10
	grace       = 10 * time.Second
)

// These a test replaces.
var (
	newMemory = memstore.New

	headerTimeout = 5 * time.Second
	readTimeout   = 10 * time.Second
	writeTimeout  = 30 * time.Second
)

// Run serves until ctx ends and the requests under way are answered.
func Run(ctx context.Context, o Options) error {
	rules, err := rulefile.Open(o.Rules)
	if err != nil {
		return err
	}
	warn(o.Log, rules.File())
	b, err := newBackend(o, rules.File())
	if err != nil {
		return err
	}
	defer b.close()
	b.rules = rules
	b.events.tellLists(rules)
	servers, err := b.listen(o, rules)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	b.watch(ctx, o.Log)
	go b.tellHealth(ctx)
	go rules.Watch(ctx, o.Hangup, func(file *rulefile.File, err error) {
		if err != nil && file != nil {
			o.Log.Error("a list of robots is refused: what was read of it before holds", "err", err)
			return
		}
		if err != nil {
			o.Log.Error("the rule file cannot be used: the rules stay as they are", "err", err)
			b.events.reloaded(err, false)
			return
		}
		o.Log.Info("rules read", "rules", len(file.Rules))
		warn(o.Log, file)
		b.events.reloaded(nil, b.follow(o, file))
	})
	err = servers.serve(ctx, func() { b.drain(o.Drain) })
	calls, blocked := b.decided()
	o.Log.Info("ended", told("by", context.Cause(ctx), "decided", calls, "blocked", blocked, "released", b.released.Load(), "err", err)...)
	return err
}

// decided returns how many calls the service has decided, and how many of them were blocked.
func (b *backend) decided() (calls, blocked uint64) {
	var counted struct {
		Rules []struct{ Calls, Blocked uint64 }
	}
	if text, err := b.counts.MarshalJSON(); err == nil {
		_ = json.Unmarshal(text, &counted) // it is its own
	}
	for _, r := range counted.Rules {
		calls, blocked = calls+r.Calls, blocked+r.Blocked
	}
	return calls, blocked
}

// warn logs the warnings of a rule file.
func warn(log *slog.Logger, file *rulefile.File) {
	for _, w := range file.Warnings {
		log.Warn("the rule file may not mean what it says", "at", fmt.Sprintf("%s:%d:%d", w.File, w.Line, w.Column), "warning", w.Message)
	}
}

// guardRule is the identifier under which attempts to log in are counted.
const guardRule = rulefile.Reserved + "login"

// A backend keeps the records and reports about them.
type backend struct {
	store       store      // nil: in the process
	pool        *pool.Pool // nil: the store is not memcached
	url         string     // of Redis or Valkey; "": the store is neither
	rules       *rulefile.Source
	throttler   *throttler.Throttler // of the rules
	logins      *throttler.Throttler // of the guard, and of used tokens
	closed      atomic.Bool          // refuse calls while the store fails: see [fallback]
	guard       *login.Guard
	counts      *tally.Tally
	events      *events
	released    atomic.Uint64 // leases that callers have given back
	proxied     bool          // the login proxy listens
	ending      atomic.Bool   // callers are asked to go elsewhere
	health      *health.Server
	metrics     http.Handler
	stopReports func() error
}

func newBackend(o Options, file *rulefile.File) (*backend, error) {
	b := &backend{counts: tally.New()}
	if err := b.open(o, file); err != nil {
		return nil, err
	}
	b.closed.Store(file.Closed)
	b.throttler, b.logins = b.newThrottler(), b.newThrottler()
	b.throttler.Observe = b.counts.Observe
	b.showBans(o.API.Keys)
	b.guard = login.New(b.logins)
	b.guard.Identifier = guardRule
	b.guard.Observe = b.counts.ObserveLogin
	b.guard.Alarm = func(ctx context.Context, s login.Siege) {
		o.Log.WarnContext(ctx, "a siege of logins", "on", s.On, "failures an hour", s.Failures, "threshold", s.Threshold, "network", s.Network)
	}
	b.guard.ClockSkew = func(ctx context.Context, ahead time.Duration) {
		o.Log.WarnContext(ctx, "the clock of another replica is ahead", "by", ahead)
	}
	if err := b.report(o.Log); err != nil {
		b.close()
		return nil, err
	}
	return b, nil
}

// newThrottler returns a Throttler over the store. What it keeps in process memory, without a
// store or while that fails, is its own: values that clients choose, such as header fields of
// which they send a million, push out no record of logins.
func (b *backend) newThrottler() *throttler.Throttler {
	if b.store == nil {
		return throttler.New(newMemory())
	}
	t := throttler.New(b.store)
	t.Fallback = &fallback{client: newMemory(), off: &b.closed}
	return t
}

// report starts the metrics and the log of decisions.
func (b *backend) report(log *slog.Logger) error {
	registry := prometheus.NewRegistry()
	reader, err := exporter.New(exporter.WithRegisterer(registry))
	if err != nil {
		return err
	}
	b.events = newEvents(registry)
	b.metrics = promhttp.HandlerFor(registry, promhttp.HandlerOpts{})
	provider := metric.NewMeterProvider(metric.WithReader(reader), metric.WithResource(identity()))
	b.stopReports, err = otelthrottle.Attach(provider, otelthrottle.Parts{
		Throttler: b.throttler, Servers: b.store, Guard: b.guard, Log: &otelthrottle.Log{Logger: log},
	})
	return err
}

func (b *backend) close() {
	if b.stopReports != nil {
		b.stopReports()
	}
	if b.store != nil {
		b.store.Close()
	}
}
