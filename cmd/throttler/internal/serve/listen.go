package serve

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/adaptivethrottler/throttler/cmd/throttler/internal/envoy"
	"github.com/adaptivethrottler/throttler/cmd/throttler/internal/rulefile"
	"github.com/adaptivethrottler/throttler/robots"
	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
)

// A server serves one address.
type server struct {
	listener net.Listener
	serve    func(net.Listener) error
	shutdown func(context.Context) error
	log      *slog.Logger
}

// servers are all servers of a service.
type servers []server

// listen starts all listeners.
func (b *backend) listen(o Options, rules *rulefile.Source) (all servers, err error) {
	watching, endWatching := context.WithCancel(context.Background())
	grpc, health := envoy.New(rules, b.throttler, o.Log).Server(watching)
	b.health = health
	service := New(rules, b.throttler, o.Log)
	service.seen = func(who robots.Identity) {
		b.events.seen(who)
		b.counts.ObserveRobot(who.Group, who.Standing.String())
	}
	listen, err1 := all.add("-listen", o.Listen, o.ListenTLS, b.httpServer(service.Handler(), o.Log))
	o.AdminTLS.probed = true
	admin, err2 := all.add("-admin", o.Admin, o.AdminTLS, b.httpServer(b.admin(o.AdminTLS), o.Log))
	api, err3 := all.addAPI(o, rules, b)
	asked, err4 := all.add("-envoy", o.Envoy, o.EnvoyTLS, server{serve: grpc.Serve, log: o.Log, shutdown: func(ctx context.Context) error {
		endWatching() // a client that watches the health would not
		defer context.AfterFunc(ctx, grpc.Stop)()
		grpc.GracefulStop()
		return nil
	}})
	guarded, err5 := all.addProxy(o, rules, b)
	if err := errors.Join(err1, err2, err3, err4, err5); err != nil {
		for _, s := range all {
			s.listener.Close()
		}
		return nil, err
	}
	o.Log.Info("serving", told("listen", listen, "admin", admin, "envoy", asked, "api", api, "proxy", guarded)...)
	if o.Ready != nil {
		o.Ready(listen, admin, asked, api, guarded)
	}
	return all, nil
}

// told returns the names and values of a line of the log without those that are nil.
func told(named ...any) (there []any) {
	for i := 0; i < len(named); i += 2 {
		if named[i+1] != nil {
			there = append(there, named[i], named[i+1])
		}
	}
	return there
}

func (b *backend) httpServer(handler http.Handler, log *slog.Logger) server {
	s := b.newHTTPServer(handler, log)
	return server{serve: s.Serve, shutdown: s.Shutdown, log: log}
}

func (b *backend) newHTTPServer(handler http.Handler, log *slog.Logger) *http.Server {
	return &http.Server{
		Handler:           b.closing(handler),
		ReadHeaderTimeout: headerTimeout,
		ReadTimeout:       readTimeout,
		WriteTimeout:      writeTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeader,
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelWarn),
	}
}

// add makes s listen at the address of a flag, by TLS if there is a certificate, and returns the
// address in use, or nil if address is empty.
func (all *servers) add(flag, address string, files TLS, s server) (net.Addr, error) {
	if address == "" {
		return nil, nil
	}
	secured, err := files.config(flag, s.log)
	if err != nil {
		return nil, err
	}
	l, err := net.Listen("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", flag, address, err)
	}
	s.listener = l
	if secured != nil {
		s.listener = tls.NewListener(l, secured)
	}
	*all = append(*all, s)
	return l.Addr(), nil
}

// serve serves until ctx ends, and then while drain runs, or until a server fails. Then all
// servers shut down at once.
func (all servers) serve(ctx context.Context, drain func()) error {
	failed := make(chan error, len(all))
	for _, s := range all {
		go func() { failed <- s.serve(s.listener) }()
	}
	var err error
	select {
	case <-ctx.Done():
		drain()
	case err = <-failed:
	}
	ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), grace)
	defer cancel()
	errs := make([]error, len(all))
	var ends sync.WaitGroup
	for i, s := range all {
		ends.Go(func() { errs[i] = s.shutdown(ending) })
	}
	ends.Wait()
	return errors.Join(err, errors.Join(errs...))
}

// closing asks callers, while the service ends, to close their connections
// after the answer. A connection that the server closes may carry a request
// already, which would be lost.
func (b *backend) closing(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if b.ending.Load() {
			w.Header().Set("Connection", "close")
		}
		next.ServeHTTP(w, r)
	})
}

// drain asks callers to go elsewhere, for as long as length.
func (b *backend) drain(length time.Duration) {
	b.ending.Store(true)
	b.health.Shutdown()
	drained(length)
}

// drained returns when a drain is over. Tests replace it.
var drained = time.Sleep

// tellHealth tells gRPC clients whether the service is ready, until ctx ends.
func (b *backend) tellHealth(ctx context.Context) {
	look := time.NewTicker(time.Second)
	defer look.Stop()
	for {
		status := healthpb.HealthCheckResponse_SERVING
		if b.unready() != nil {
			status = healthpb.HealthCheckResponse_NOT_SERVING
		}
		b.health.SetServingStatus("", status)
		b.health.SetServingStatus(rls.RateLimitService_ServiceDesc.ServiceName, status)
		select {
		case <-ctx.Done():
			return
		case <-look.C:
		}
	}
}
