package otelthrottle

import (
	"context"
	"errors"
	"net"
	"strconv"
	"time"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/pool"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
)

// StatsTimeout is the time that a collection of metrics waits for the servers.
// All are asked at once.
const StatsTimeout = time.Second

// instruments creates the observable instruments and collects the errors.
type instruments struct {
	meter metric.Meter
	all   []metric.Observable
	errs  []error
}

func (in *instruments) counter(name, unit, description string) metric.Int64ObservableCounter {
	c, err := in.meter.Int64ObservableCounter(name, metric.WithUnit(unit), metric.WithDescription(description))
	in.all, in.errs = append(in.all, c), append(in.errs, err)
	return c
}

func (in *instruments) upDown(name, unit, description string) metric.Int64ObservableUpDownCounter {
	c, err := in.meter.Int64ObservableUpDownCounter(name, metric.WithUnit(unit), metric.WithDescription(description))
	in.all, in.errs = append(in.all, c), append(in.errs, err)
	return c
}

func (in *instruments) gauge(name, unit, description string) metric.Int64ObservableGauge {
	g, err := in.meter.Int64ObservableGauge(name, metric.WithUnit(unit), metric.WithDescription(description))
	in.all, in.errs = append(in.all, g), append(in.errs, err)
	return g
}

// register calls observe at each collection.
func (in *instruments) register(observe metric.Callback) (metric.Registration, error) {
	if err := errors.Join(in.errs...); err != nil {
		return nil, err
	}
	return in.meter.RegisterCallback(observe, in.all...)
}

// observeStats reports the counts of t.
func observeStats(meter metric.Meter, t *throttler.Throttler) (metric.Registration, error) {
	in := &instruments{meter: meter}
	exchanges := in.counter("throttler.exchanges", "{exchange}", "Records read, written or both in one request.")
	guesses := in.counter("throttler.guesses", "{exchange}", "Records written before they were read.")
	hits := in.counter("throttler.cache.hits", "{condition}", "Conditions blocked from process memory.")
	right, wrong := attributes(guessKey.String("right")), attributes(guessKey.String("wrong"))
	return in.register(func(_ context.Context, o metric.Observer) error {
		s := t.Stats()
		o.ObserveInt64(exchanges, int64(s.Exchanges))
		o.ObserveInt64(guesses, int64(s.RightGuesses), right)
		// A guess may be counted as right between the two readings.
		o.ObserveInt64(guesses, int64(s.Guesses-min(s.RightGuesses, s.Guesses)), wrong)
		o.ObserveInt64(hits, int64(s.CacheHits))
		return nil
	})
}

// Servers are the servers of a *pool.Pool or a *redisstore.Store.
type Servers interface {
	// Check asks each server for its statistics.
	Check(ctx context.Context) error

	// Stats returns what is known of each server.
	Stats() []pool.ServerStats
}

// servers reports about the servers of a store.
type servers struct {
	store Servers

	up                                  metric.Int64ObservableGauge
	overloads                           metric.Int64ObservableCounter
	active, queued                      metric.Int64ObservableUpDownCounter
	calls, failures, refusals, retries  metric.Int64ObservableCounter
	restarts, flushes, evictions        metric.Int64ObservableCounter
	connections, memoryUsed, memoryMost metric.Int64ObservableUpDownCounter

	changes metric.Int64ObservableCounter
	count   metric.Int64ObservableUpDownCounter
}

func observeServers(meter metric.Meter, store Servers) (metric.Registration, error) {
	in := &instruments{meter: meter}
	s := &servers{
		store:       store,
		up:          in.gauge("throttler.server.up", "{server}", "1, or 0 while the circuit breaker is open."),
		calls:       in.counter("throttler.server.calls", "{call}", "Calls of the server."),
		failures:    in.counter("throttler.server.failures", "{call}", "Calls that failed."),
		refusals:    in.counter("throttler.server.refusals", "{call}", "Calls not made because the circuit breaker is open."),
		retries:     in.counter("throttler.server.retries", "{call}", "Calls made again over a new connection."),
		overloads:   in.counter("throttler.server.overloads", "{call}", "Calls not sent and answered in time, although the server answers."),
		active:      in.upDown("throttler.server.requests.active", "{request}", "Requests that were sent and not yet answered."),
		queued:      in.upDown("throttler.server.requests.queued", "{request}", "Requests that wait for their turn."),
		restarts:    in.counter("throttler.server.restarts", "{restart}", "Restarts that were noticed."),
		flushes:     in.counter("throttler.server.flushes", "{flush}", "Flushes that were noticed."),
		evictions:   in.counter("throttler.server.evictions", "{item}", "Items evicted to make room."),
		connections: in.upDown("throttler.server.connections", "{connection}", "Open connections to the server."),
		memoryUsed:  in.upDown("throttler.server.memory.usage", "By", "Bytes stored."),
		memoryMost:  in.upDown("throttler.server.memory.limit", "By", "Bytes that may be stored."),
		changes:     in.counter("throttler.server.changes", "{change}", "Changes of the list of servers."),
		count:       in.upDown("throttler.server.listed", "{server}", "Servers in the list."),
	}
	return in.register(s.observe)
}

func (s *servers) observe(ctx context.Context, o metric.Observer) error {
	ctx, cancel := context.WithTimeout(ctx, StatsTimeout)
	defer cancel()
	_ = s.store.Check(ctx) // throttler.server.up shows a server that does not answer
	stats := s.store.Stats()
	for i := range stats {
		at := attributes(serverAttributes(stats[i].Server)...)
		s.observeCalls(o, &stats[i], at)
		s.observeMemory(o, &stats[i], at)
	}
	if p, ok := s.store.(*pool.Pool); ok {
		o.ObserveInt64(s.changes, int64(p.Changes()))
	}
	o.ObserveInt64(s.count, int64(len(stats)))
	return nil
}

func (s *servers) observeCalls(o metric.Observer, stats *pool.ServerStats, at metric.MeasurementOption) {
	up := int64(1)
	if stats.Down {
		up = 0
	}
	o.ObserveInt64(s.up, up, at)
	o.ObserveInt64(s.calls, int64(stats.Calls), at)
	o.ObserveInt64(s.failures, int64(stats.Failures), at)
	o.ObserveInt64(s.refusals, int64(stats.Refusals), at)
	o.ObserveInt64(s.retries, int64(stats.Retries), at)
	o.ObserveInt64(s.connections, int64(stats.Conns), at)
	o.ObserveInt64(s.overloads, int64(stats.Overloads), at)
	o.ObserveInt64(s.active, int64(stats.InFlight), at)
	o.ObserveInt64(s.queued, int64(stats.Queued), at)
}

func (s *servers) observeMemory(o metric.Observer, stats *pool.ServerStats, at metric.MeasurementOption) {
	o.ObserveInt64(s.restarts, int64(stats.Loss.Restarts), at)
	o.ObserveInt64(s.flushes, int64(stats.Loss.Flushes), at)
	o.ObserveInt64(s.evictions, int64(stats.Loss.Evictions), at)
	if stats.Bytes > 0 || stats.MaxBytes > 0 {
		o.ObserveInt64(s.memoryUsed, stats.Bytes, at)
	}
	if stats.MaxBytes > 0 {
		o.ObserveInt64(s.memoryMost, stats.MaxBytes, at)
	}
}

// serverAttributes returns the attributes that name a server.
func serverAttributes(server string) []attribute.KeyValue {
	host, port, err := net.SplitHostPort(server)
	if err != nil { // a Unix socket
		return []attribute.KeyValue{attribute.String("server.address", server)}
	}
	number, err := strconv.Atoi(port)
	if err != nil {
		return []attribute.KeyValue{attribute.String("server.address", server)}
	}
	return []attribute.KeyValue{attribute.String("server.address", host), attribute.Int("server.port", number)}
}
