// Package otelthrottle reports the decisions of a rate limiter to OpenTelemetry
// and to a log.
//
//	limits := throttler.New(servers)
//	stop, err := otelthrottle.Attach(otel.GetMeterProvider(), otelthrottle.Parts{
//		Throttler: limits,
//		Servers:   servers,
//		Guard:     guard,
//	})
//
// It is a module of its own, so the library itself does not need OpenTelemetry.
//
// # Metrics
//
// Names and units follow OpenTelemetry's conventions. A Prometheus exporter makes
// throttler_decisions_total of throttler.decisions, and so on.
//
//	throttler.decisions            counter    decisions, by throttler.rule and throttler.result:
//	                                          authorized, blocked, would_block (Shadow)
//	throttler.decision.duration    histogram  seconds that a decision took, by throttler.rule
//	throttler.outcomes             counter    conditions, by throttler.rule, throttler.condition and
//	                                          throttler.outcome: accepted, full, banned
//	throttler.bans                 counter    bans that were set, by throttler.rule, throttler.condition
//	throttler.failures             counter    conditions whose backend failed, by throttler.rule,
//	                                          throttler.condition and error.type: unavailable,
//	                                          overloaded, timeout, canceled, _OTHER
//	throttler.lost_races           counter    conditions decided again because another writer was
//	                                          faster, by throttler.rule and throttler.condition
//	throttler.exchanges            counter    records read, written or both in one request
//	throttler.guesses              counter    records written before they were read, by
//	                                          throttler.guess: right, wrong
//	throttler.cache.hits           counter    conditions blocked from process memory
//	throttler.clock.ahead          counter    records found that a clock more than a second ahead of
//	                                          this one's had written
//
// Of a memstore, by throttler.store: client, or fallback of the Throttler. A Client that
// wraps one needs a method Unwrap() throttler.Client:
//
//	throttler.memory.items         up-down    records, some of them expired
//	throttler.memory.usage         up-down    bytes of their keys and values
//	throttler.memory.evictions     counter    records evicted before they expired: counts and bans
//	                                          that were forgotten early, raise MaxItems
//
// Of a login Guard:
//
//	throttler.login.attempts       counter    attempts, by throttler.login.result: refused, succeeded,
//	                                          failed, canceled; and throttler.login.known: whether the
//	                                          name was known from there
//
// Of Servers, by server.address and server.port:
//
//	throttler.server.up            gauge      1, or 0 while the circuit breaker is open
//	throttler.server.calls         counter    calls
//	throttler.server.failures      counter    calls that failed
//	throttler.server.refusals      counter    calls not made because the breaker is open
//	throttler.server.retries       counter    calls made again over a new connection
//	throttler.server.connections   up-down    open connections
//	throttler.server.overloads     counter    calls not sent and answered in time although the server
//	                                          answers
//	throttler.server.requests.active  up-down  requests sent and not yet answered
//	throttler.server.requests.queued  up-down  requests that wait for their turn
//	throttler.server.restarts      counter    restarts that were noticed: its records are gone
//	throttler.server.flushes       counter    flushes that were noticed: its records are gone
//	throttler.server.evictions     counter    items evicted since the first look: records may be gone
//	throttler.server.memory.usage  up-down    bytes stored
//	throttler.server.memory.limit  up-down    bytes that may be stored
//
// Of a [pool.Pool] as a whole:
//
//	throttler.server.listed        up-down    servers in the list
//	throttler.server.changes       counter    times servers came or went: some records start again
//
// Values of conditions are never attributes. Names of rules and conditions are,
// up to [Parts.MaxNames]; any further name is counted as _OTHER.
package otelthrottle

import (
	"context"
	"errors"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/login"
	"github.com/adaptivethrottler/throttler/pool"
	"go.opentelemetry.io/otel/metric"
)

// scope is the name of the meter.
const scope = "github.com/adaptivethrottler/throttler/otelthrottle"

// Parts lists what to report about. A nil part is left out.
type Parts struct {
	// Throttler's decisions are counted. Attach sets its Observe; an Observe
	// that was set before is still called, after the counting. Call Attach
	// before the Throttler's first use.
	Throttler *throttler.Throttler

	// Servers are those of a *[pool.Pool] or a *redisstore.Store. At each collection every
	// server is asked for its statistics, over a connection of its own, for up to a second.
	Servers interface {
		Check(ctx context.Context) error
		Stats() []pool.ServerStats
	}

	// Guard's attempts are counted. Its Observe is handled like the
	// Throttler's.
	Guard *login.Guard

	// Log writes the decisions of Throttler.
	Log *Log

	// MaxNames is the number of rules and conditions, together, that have their
	// own names in metrics. Default: 256.
	MaxNames int
}

// A reporting is what [Attach] has started.
type reporting struct {
	registrations []metric.Registration
	log           *Log
}

// Attach starts to report about parts to provider. stop ends the reports, but for the duration of
// decisions, and closes the Log. It may be called twice. The errors are the provider's.
func Attach(provider metric.MeterProvider, parts Parts) (stop func() error, err error) {
	meter := provider.Meter(scope)
	reporting := &reporting{log: parts.Log}
	if parts.Throttler != nil {
		if err := reporting.throttler(meter, &parts); err != nil {
			return nil, err
		}
	}
	if parts.Guard != nil {
		if err := reporting.add(observeGuard(meter, parts.Guard)); err != nil {
			return nil, err
		}
	}
	if parts.Servers != nil {
		if err := reporting.add(observeServers(meter, parts.Servers)); err != nil {
			return nil, err
		}
	}
	return reporting.stop, nil
}

// add adds a registration, or closes r if there was an error.
func (r *reporting) add(registration metric.Registration, err error) error {
	if err != nil {
		return errors.Join(err, r.stop())
	}
	r.registrations = append(r.registrations, registration)
	return nil
}

// throttler starts to report about parts.Throttler.
func (r *reporting) throttler(meter metric.Meter, parts *Parts) error {
	decisions, registration, err := newDecisions(meter, parts.MaxNames)
	if err := r.add(registration, err); err != nil {
		return err
	}
	if err := r.add(observeStats(meter, parts.Throttler)); err != nil {
		return err
	}
	if err := r.add(observeMemory(meter, parts.Throttler)); err != nil {
		return err
	}
	before, log := parts.Throttler.Observe, parts.Log
	parts.Throttler.Observe = func(ctx context.Context, rule throttler.Rule, d throttler.Decision) {
		decisions.observe(ctx, &rule, &d)
		if log != nil {
			log.Observe(ctx, rule, d)
		}
		if before != nil {
			before(ctx, rule, d)
		}
	}
	return nil
}

// stop is that of Attach.
func (r *reporting) stop() error {
	var errs []error
	for _, registration := range r.registrations {
		errs = append(errs, registration.Unregister())
	}
	r.registrations = nil
	if r.log != nil {
		r.log.Close()
	}
	return errors.Join(errs...)
}
