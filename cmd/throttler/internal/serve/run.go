package serve

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"time"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/cmd/throttler/internal/envoy"
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
)

// Options configure the service.
type Options struct {
	Rules    string   // path of the rule file
	Servers  []string // of memcached; none: those of the rule file, or else process memory
	User     string   // of a memcached with -Y
	Password string
	Listen   string // address for proxies
	Admin    string // address for operators; empty: none
	Envoy    string // address for Envoy, by gRPC; empty: none
	API      API
	Log      *slog.Logger
	Hangup   <-chan os.Signal // reads the rule file again
	Ready    func(listen, admin, envoy, api net.Addr)
}

// The bounds of a request, and of the service's end.
const (
	headerTimeout = 5 * time.Second
	readTimeout   = 10 * time.Second
	writeTimeout  = 30 * time.Second
	idleTimeout   = 2 * time.Minute
	maxHeader     = 64 << 10
	grace         = 10 * time.Second
)

// Run serves until ctx ends and the requests under way are answered.
func Run(ctx context.Context, o Options) error {
	rules, err := rulefile.Open(o.Rules)
	if err != nil {
		return err
	}
	b, err := newBackend(o, rules.File())
	if err != nil {
		return err
	}
	defer b.close()
	servers, err := b.listen(o, rules)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	b.watch(ctx)
	go rules.Watch(ctx, o.Hangup, func(file *rulefile.File, err error) {
		if err != nil {
			o.Log.Error("the rule file cannot be used: the rules stay as they are", "err", err)
			return
		}
		o.Log.Info("rules read", "rules", len(file.Rules))
		b.follow(o, file)
	})
	return servers.serve(ctx)
}

// guardRule is the identifier under which attempts to log in are counted.
const guardRule = rulefile.Reserved + "login"

// A backend keeps the records and reports about them.
type backend struct {
	pool      *pool.Pool // nil: in the process
	client    throttler.Client
	throttler *throttler.Throttler
	guard     *login.Guard
	counts    *tally.Tally
	metrics   http.Handler
	reporting *otelthrottle.Reporting
}

func newBackend(o Options, file *rulefile.File) (*backend, error) {
	b := &backend{counts: tally.New()}
	servers := o.Servers
	if len(servers) == 0 {
		servers = file.Servers
	}
	if len(servers) == 0 {
		b.client = memstore.New()
		b.throttler = throttler.New(b.client)
	} else {
		var err error
		if b.pool, err = pool.New(servers...); err != nil {
			return nil, err
		}
		b.pool.User, b.pool.Password = o.User, o.Password
		tell(b.pool, o.Log)
		b.client = b.pool
		b.throttler = throttler.New(b.client)
		if !file.Closed {
			b.throttler.Fallback = memstore.New()
		}
	}
	b.throttler.Observe = b.counts.Observe
	b.guard = login.New(b.throttler)
	b.guard.Identifier = guardRule
	b.guard.Observe = b.counts.ObserveLogin
	if err := b.report(o.Log); err != nil {
		b.close()
		return nil, err
	}
	return b, nil
}

// report starts the metrics and the log of decisions.
func (b *backend) report(log *slog.Logger) error {
	registry := prometheus.NewRegistry()
	reader, err := exporter.New(exporter.WithRegisterer(registry))
	if err != nil {
		return err
	}
	b.metrics = promhttp.HandlerFor(registry, promhttp.HandlerOpts{})
	b.reporting, err = otelthrottle.Attach(metric.NewMeterProvider(metric.WithReader(reader)), otelthrottle.Parts{
		Throttler: b.throttler, Pool: b.pool, Guard: b.guard, Log: &otelthrottle.Log{Logger: log},
	})
	return err
}

func (b *backend) close() {
	if b.reporting != nil {
		b.reporting.Close()
	}
	if b.pool != nil {
		b.pool.Close()
	}
}

// admin returns the handler for operators. It has no access control.
func (b *backend) admin() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("/metrics", b.metrics)
	mux.Handle("/tally", b.counts)
	mux.HandleFunc("/healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	mux.HandleFunc("/readyz", b.ready)
	return mux
}

// ready answers 503 while all servers are down, so that requests go to another
// replica.
func (b *backend) ready(w http.ResponseWriter, _ *http.Request) {
	if b.pool != nil {
		up := 0
		for _, s := range b.pool.Stats() {
			if !s.Down {
				up++
			}
		}
		if up == 0 {
			http.Error(w, "all servers are down", http.StatusServiceUnavailable)
			return
		}
	}
	fmt.Fprintln(w, "ready")
}

// A server serves one address.
type server struct {
	listener net.Listener
	serve    func(net.Listener) error
	shutdown func(context.Context) error
}

// servers are all servers of a service.
type servers []server

// listen starts all listeners.
func (b *backend) listen(o Options, rules *rulefile.Source) (all servers, err error) {
	grpc := envoy.New(rules, b.throttler, o.Log).Server()
	listen, err1 := all.add(o.Listen, httpServer(New(rules, b.throttler, o.Log).Handler(), o.Log))
	admin, err2 := all.add(o.Admin, httpServer(b.admin(), o.Log))
	api, err4 := all.addAPI(o, rules, b)
	asked, err3 := all.add(o.Envoy, server{serve: grpc.Serve, shutdown: func(ctx context.Context) error {
		defer context.AfterFunc(ctx, grpc.Stop)()
		grpc.GracefulStop()
		return nil
	}})
	if err := errors.Join(err1, err2, err3, err4); err != nil {
		for _, s := range all {
			s.listener.Close()
		}
		return nil, err
	}
	o.Log.Info("serving", "listen", listen, "admin", admin, "envoy", asked, "api", api)
	if o.Ready != nil {
		o.Ready(listen, admin, asked, api)
	}
	return all, nil
}

func httpServer(handler http.Handler, log *slog.Logger) server {
	s := newHTTPServer(handler, log)
	return server{serve: s.Serve, shutdown: s.Shutdown}
}

func newHTTPServer(handler http.Handler, log *slog.Logger) *http.Server {
	return &http.Server{
		Handler:           handler,
		ReadHeaderTimeout: headerTimeout,
		ReadTimeout:       readTimeout,
		WriteTimeout:      writeTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeader,
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelWarn),
	}
}

// add makes s listen at address and returns the address in use, or nil if
// address is empty.
func (all *servers) add(address string, s server) (net.Addr, error) {
	if address == "" {
		return nil, nil
	}
	l, err := net.Listen("tcp", address)
	if err != nil {
		return nil, err
	}
	s.listener = l
	*all = append(*all, s)
	return l.Addr(), nil
}

// serve serves until ctx ends or a server fails.
func (all servers) serve(ctx context.Context) error {
	failed := make(chan error, len(all))
	for _, s := range all {
		go func() { failed <- s.serve(s.listener) }()
	}
	var err error
	select {
	case <-ctx.Done():
	case err = <-failed:
	}
	ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), grace)
	defer cancel()
	for _, s := range all {
		err = errors.Join(err, s.shutdown(ending))
	}
	return err
}
