package otelthrottle

import (
	"context"
	"strings"
	"sync"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/internal/counts"
	"github.com/adaptivethrottler/throttler/login"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
)

// The attributes of metrics.
const (
	ruleKey      = attribute.Key("throttler.rule")
	conditionKey = attribute.Key("throttler.condition")
	resultKey    = attribute.Key("throttler.result")
	outcomeKey   = attribute.Key("throttler.outcome")
	guessKey     = attribute.Key("throttler.guess")
	storeKey     = attribute.Key("throttler.store")
	errorTypeKey = attribute.Key("error.type")
	loginKey     = attribute.Key("throttler.login.result")
	knownKey     = attribute.Key("throttler.login.known")
)

// resultNames are the values of throttler.result.
var resultNames = [...]string{counts.Authorized: "authorized", counts.Blocked: "blocked", counts.WouldBlock: "would_block"}

// seconds are the bounds of the duration histogram: from a decision in process
// memory (a microsecond) to the timeout of a server that hangs.
var seconds = []float64{.00001, .000025, .00005, .0001, .00025, .0005, .001, .0025, .005, .01, .02, .05, .1, .25, .5, 1, 10, 60}

// decisions counts the decisions of a Throttler in a table, which is reported at
// each collection, and records their durations.
type decisions struct {
	table    counts.Table
	maxNames int
	duration metric.Float64Histogram
	rules    sync.Map // *counts.Rule to the attributes of its durations
}

func newDecisions(meter metric.Meter, maxNames int) (*decisions, metric.Registration, error) {
	ds := &decisions{maxNames: maxNames}
	var err error
	ds.duration, err = meter.Float64Histogram("throttler.decision.duration", metric.WithUnit("s"),
		metric.WithDescription("Duration of decisions."), metric.WithExplicitBucketBoundaries(seconds...))
	if err != nil {
		return nil, nil, err
	}
	in := &instruments{meter: meter}
	made := in.counter("throttler.decisions", "{decision}", "Decisions made.")
	outcomes := in.counter("throttler.outcomes", "{condition}", "Conditions decided.")
	bans := in.counter("throttler.bans", "{ban}", "Bans set.")
	failures := in.counter("throttler.failures", "{condition}", "Conditions whose backend failed.")
	lostRaces := in.counter("throttler.lost_races", "{race}", "Conditions decided again because another writer was faster.")
	registration, err := in.register(func(_ context.Context, o metric.Observer) error {
		for _, r := range append(ds.table.Rules(), ds.table.Other()) {
			rule := ruleKey.String(label(r.Name))
			report := func(of metric.Int64Observable, n uint64, kvs ...attribute.KeyValue) {
				if n > 0 {
					o.ObserveInt64(of, int64(n), attributes(append(kvs, rule)...))
				}
			}
			for result, name := range resultNames {
				report(made, r.Calls[result].Load(), resultKey.String(name))
			}
			for _, n := range append(r.Conditions(), r.Other()) {
				condition := conditionKey.String(label(n.Name))
				report(outcomes, n.Calls[counts.Authorized][0].Load(), condition, outcomeKey.String("accepted"))
				var full, banned uint64
				for result := range n.Calls {
					if result != int(counts.Authorized) {
						full += n.Calls[result][0].Load()
					}
					banned += n.Calls[result][1].Load()
				}
				report(outcomes, full, condition, outcomeKey.String("full"))
				report(outcomes, banned, condition, outcomeKey.String("banned"))
				report(bans, n.NewBans.Load(), condition)
				report(lostRaces, n.LostRaces.Load(), condition)
				for kind, name := range counts.Failures {
					report(failures, n.Failed[kind].Load(), condition, errorTypeKey.String(name))
				}
			}
		}
		return nil
	})
	return ds, registration, err
}

// label returns the name of a rule or condition as an attribute.
func label(name string) string {
	if name == "" {
		return counts.Other
	}
	return strings.ToValidUTF8(name, "\uFFFD")
}

// observe records d.
func (ds *decisions) observe(ctx context.Context, rule *throttler.Rule, d *throttler.Decision) {
	r := ds.table.Observe(rule, d, ds.maxNames, nil)
	of, ok := ds.rules.Load(r)
	if !ok {
		of, _ = ds.rules.LoadOrStore(r, attributes(ruleKey.String(label(r.Name))))
	}
	ds.duration.Record(ctx, d.Took().Seconds(), of.(metric.MeasurementOption))
}

func attributes(kvs ...attribute.KeyValue) metric.MeasurementOption {
	return metric.WithAttributeSet(attribute.NewSet(kvs...))
}

// observeGuard counts the attempts of g.
func observeGuard(meter metric.Meter, g *login.Guard) (metric.Registration, error) {
	table := new(counts.Table)
	in := &instruments{meter: meter}
	attempts := in.counter("throttler.login.attempts", "{attempt}", "Attempts to log in.")
	registration, err := in.register(func(_ context.Context, o metric.Observer) error {
		for result := range table.Logins.Results {
			for known := range table.Logins.Results[result] {
				if n := table.Logins.Results[result][known].Load(); n > 0 {
					o.ObserveInt64(attempts, int64(n), attributes(loginKey.String(login.Result(result).String()), knownKey.Bool(known == 1)))
				}
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	before := g.Observe
	g.Observe = func(ctx context.Context, e login.Event) {
		table.ObserveLogin(&e)
		if before != nil {
			before(ctx, e)
		}
	}
	return registration, nil
}
