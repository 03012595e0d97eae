package otelthrottle

import (
	"context"
	"errors"
	"net"
	"strconv"
	"sync"
	"time"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/internal/memcached"
	"github.com/adaptivethrottler/throttler/pool"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
)

// StatsTimeout is how long servers are waited for when metrics are collected.
// All are asked at once.
const StatsTimeout = time.Second

// instruments makes what is read when metrics are collected, and keeps all
// errors.
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

// register has observe called with each collection.
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

// servers reports about the servers of a pool.
type servers struct {
	pool *pool.Pool

	up                                  metric.Int64ObservableGauge
	overloads                           metric.Int64ObservableCounter
	active, queued                      metric.Int64ObservableUpDownCounter
	calls, failures, refusals, retries  metric.Int64ObservableCounter
	restarts, flushes, evictions        metric.Int64ObservableCounter
	connections, memoryUsed, memoryMost metric.Int64ObservableUpDownCounter

	mu    sync.Mutex
	known map[string]*history // by server; guarded by mu
}

func observePool(meter metric.Meter, p *pool.Pool) (metric.Registration, error) {
	in := &instruments{meter: meter}
	s := &servers{
		pool:        p,
		up:          in.gauge("throttler.server.up", "{server}", "1, or 0 while the circuit breaker is open."),
		calls:       in.counter("throttler.server.calls", "{call}", "Calls of the server."),
		failures:    in.counter("throttler.server.failures", "{call}", "Calls that failed."),
		refusals:    in.counter("throttler.server.refusals", "{call}", "Calls not made since the circuit breaker is open."),
		retries:     in.counter("throttler.server.retries", "{call}", "Calls made again over a new connection."),
		overloads:   in.counter("throttler.server.overloads", "{call}", "Calls not sent and answered in time although the server answers."),
		active:      in.upDown("throttler.server.requests.active", "{request}", "Requests that were sent and not yet answered."),
		queued:      in.upDown("throttler.server.requests.queued", "{request}", "Requests that wait for their turn."),
		restarts:    in.counter("throttler.server.restarts", "{restart}", "Restarts that were noticed."),
		flushes:     in.counter("throttler.server.flushes", "{flush}", "Flushes that were noticed."),
		evictions:   in.counter("throttler.server.evictions", "{item}", "Items evicted to make room."),
		connections: in.upDown("throttler.server.connections", "{connection}", "Open connections to the server."),
		memoryUsed:  in.upDown("throttler.server.memory.usage", "By", "Bytes stored."),
		memoryMost:  in.upDown("throttler.server.memory.limit", "By", "Bytes that may be stored."),
		known:       make(map[string]*history),
	}
	return in.register(s.observe)
}

func (s *servers) observe(ctx context.Context, o metric.Observer) error {
	stats := s.pool.Stats()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ask(ctx, stats)
	for i := range stats {
		at := attributes(serverAttributes(stats[i].Server)...)
		s.observeCalls(o, &stats[i], at)
		if h := s.known[stats[i].Server]; h != nil {
			s.observeMemory(o, h, at)
		}
	}
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

func (s *servers) observeMemory(o metric.Observer, h *history, at metric.MeasurementOption) {
	o.ObserveInt64(s.restarts, h.restarts, at)
	o.ObserveInt64(s.flushes, h.flushes, at)
	o.ObserveInt64(s.evictions, h.evictions, at)
	if h.answered {
		o.ObserveInt64(s.memoryUsed, h.last["bytes"], at)
		o.ObserveInt64(s.memoryMost, h.last["limit_maxbytes"], at)
	}
}

// ask asks all servers for their statistics, at once, except those that are down.
// s.mu is held.
func (s *servers) ask(ctx context.Context, stats []pool.ServerStats) {
	ctx, cancel := context.WithTimeout(ctx, StatsTimeout)
	defer cancel()
	answers := make([]map[string]string, len(stats))
	var all sync.WaitGroup
	for i := range stats {
		if !stats[i].Down {
			all.Go(func() { answers[i] = serverStats(ctx, stats[i].Server, s.dialer()) })
		}
	}
	all.Wait()
	for i := range stats {
		h := s.known[stats[i].Server]
		if h == nil {
			h = new(history)
			s.known[stats[i].Server] = h
		}
		h.add(answers[i])
	}
}

// dialer connects as the pool does.
func (s *servers) dialer() memcached.Dialer {
	return memcached.Dialer{DialContext: s.pool.DialContext, User: s.pool.User, Password: s.pool.Password}
}

// serverStats returns the statistics of a server, nil if it does not answer.
func serverStats(ctx context.Context, server string, dialer memcached.Dialer) map[string]string {
	conn, err := dialer.Dial(ctx, server)
	if err != nil {
		return nil
	}
	defer conn.Close()
	stats, err := conn.Stats()
	if err != nil {
		return nil
	}
	return stats
}

// A history is what was noticed of one server.
type history struct {
	restarts, flushes, evictions int64

	answered bool             // the last time it was asked
	last     map[string]int64 // statistics when it last answered; nil: it never has
}

// add compares what a server says of itself with what it said before. A nil
// answer is none.
func (h *history) add(answer map[string]string) {
	h.answered = answer != nil
	if answer == nil {
		return
	}
	now := make(map[string]int64)
	for name, value := range answer {
		if n, err := strconv.ParseInt(value, 10, 64); err == nil {
			now[name] = n
		}
	}
	before := h.last
	h.last = now
	if before == nil {
		return
	}
	if started(now) != started(before) || now["pid"] != before["pid"] {
		h.restarts++
		before = map[string]int64{} // it counts from 0 again
	}
	h.flushes += max(now["cmd_flush"]-before["cmd_flush"], 0)
	h.evictions += max(now["evictions"]-before["evictions"], 0)
}

// started returns when a server was started, by its own clock. memcached reckons
// its time as the start and its uptime, so that this does not waver.
func started(stats map[string]int64) int64 { return stats["time"] - stats["uptime"] }

// serverAttributes returns the attributes that name a server.
func serverAttributes(server string) []attribute.KeyValue {
	host, port, err := net.SplitHostPort(server)
	if err != nil { // a socket
		return []attribute.KeyValue{attribute.String("server.address", server)}
	}
	number, err := strconv.Atoi(port)
	if err != nil {
		return []attribute.KeyValue{attribute.String("server.address", server)}
	}
	return []attribute.KeyValue{attribute.String("server.address", host), attribute.Int("server.port", number)}
}
