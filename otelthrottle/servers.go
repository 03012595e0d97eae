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

// statsTimeout is the time that a collection of metrics waits for the servers.
// All are asked at once.
const statsTimeout = time.Second

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
	ahead := in.counter("throttler.clock.ahead", "{record}", "Records found that a clock more than a second ahead had written.")
	right, wrong := attributes(guessKey.String("right")), attributes(guessKey.String("wrong"))
	return in.register(func(_ context.Context, o metric.Observer) error {
		s := t.Stats()
		o.ObserveInt64(exchanges, int64(s.Exchanges))
		o.ObserveInt64(guesses, int64(s.RightGuesses), right)
		// A guess may be counted as right between the two readings.
		o.ObserveInt64(guesses, int64(s.Guesses-min(s.RightGuesses, s.Guesses)), wrong)
		o.ObserveInt64(hits, int64(s.CacheHits))
		o.ObserveInt64(ahead, int64(s.ClockAhead))
		return nil
	})
}

// servers is what [Parts] has as Servers.
type servers interface {
	Check(ctx context.Context) error // asks each server for its statistics
	Stats() []pool.ServerStats
}

// observeServers reports about the servers of store.
func observeServers(meter metric.Meter, store servers) (metric.Registration, error) {
	type stats = pool.ServerStats
	in := &instruments{meter: meter}
	always := []struct {
		as metric.Int64Observable
		of func(*stats) int64
	}{
		{in.gauge("throttler.server.up", "{server}", "1, or 0 while the circuit breaker is open."), up},
		{in.counter("throttler.server.calls", "{call}", "Calls of the server."), func(s *stats) int64 { return int64(s.Calls) }},
		{in.counter("throttler.server.failures", "{call}", "Calls that failed."), func(s *stats) int64 { return int64(s.Failures) }},
		{in.counter("throttler.server.refusals", "{call}", "Calls not made because the circuit breaker is open."), func(s *stats) int64 { return int64(s.Refusals) }},
		{in.counter("throttler.server.retries", "{call}", "Calls made again over a new connection."), func(s *stats) int64 { return int64(s.Retries) }},
		{in.counter("throttler.server.overloads", "{call}", "Calls not sent and answered in time, although the server answers."), func(s *stats) int64 { return int64(s.Overloads) }},
		{in.upDown("throttler.server.requests.active", "{request}", "Requests that were sent and not yet answered."), func(s *stats) int64 { return int64(s.InFlight) }},
		{in.upDown("throttler.server.requests.queued", "{request}", "Requests that wait for their turn."), func(s *stats) int64 { return int64(s.Queued) }},
		{in.counter("throttler.server.restarts", "{restart}", "Restarts that were noticed."), func(s *stats) int64 { return int64(s.Loss.Restarts) }},
		{in.counter("throttler.server.flushes", "{flush}", "Flushes that were noticed."), func(s *stats) int64 { return int64(s.Loss.Flushes) }},
		{in.counter("throttler.server.evictions", "{item}", "Items evicted to make room."), func(s *stats) int64 { return int64(s.Loss.Evictions) }},
		{in.upDown("throttler.server.connections", "{connection}", "Open connections to the server."), func(s *stats) int64 { return int64(s.Conns) }},
	}
	memoryUsed := in.upDown("throttler.server.memory.usage", "By", "Bytes stored.")
	memoryMost := in.upDown("throttler.server.memory.limit", "By", "Bytes that may be stored.")
	changes := in.counter("throttler.server.changes", "{change}", "Changes of the list of servers.")
	listed := in.upDown("throttler.server.listed", "{server}", "Servers in the list.")
	return in.register(func(ctx context.Context, o metric.Observer) error {
		ctx, cancel := context.WithTimeout(ctx, statsTimeout)
		defer cancel()
		_ = store.Check(ctx) // throttler.server.up shows a server that does not answer
		all := store.Stats()
		for i := range all {
			s, at := &all[i], attributes(serverAttributes(all[i].Server)...)
			for _, one := range always {
				o.ObserveInt64(one.as, one.of(s), at)
			}
			if s.Bytes > 0 || s.MaxBytes > 0 {
				o.ObserveInt64(memoryUsed, s.Bytes, at)
			}
			if s.MaxBytes > 0 {
				o.ObserveInt64(memoryMost, s.MaxBytes, at)
			}
		}
		if p, ok := store.(*pool.Pool); ok {
			o.ObserveInt64(changes, int64(p.Changes()))
		}
		o.ObserveInt64(listed, int64(len(all)))
		return nil
	})
}

func up(s *pool.ServerStats) int64 {
	if s.Down {
		return 0
	}
	return 1
}

// serverAttributes returns the attributes that name a server.
func serverAttributes(server string) []attribute.KeyValue {
	host, port, err := net.SplitHostPort(server)
	number, err1 := strconv.Atoi(port)
	if err != nil || err1 != nil { // a Unix socket
		return []attribute.KeyValue{attribute.String("server.address", server)}
	}
	return []attribute.KeyValue{attribute.String("server.address", host), attribute.Int("server.port", number)}
}
