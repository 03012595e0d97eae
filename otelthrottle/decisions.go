package otelthrottle

import (
	"context"
	"errors"
	"os"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/adaptivethrottler/throttler"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
)

// The attributes of metrics. other replaces a name beyond MaxNames.
const (
	ruleKey      = attribute.Key("throttler.rule")
	conditionKey = attribute.Key("throttler.condition")
	resultKey    = attribute.Key("throttler.result")
	outcomeKey   = attribute.Key("throttler.outcome")
	guessKey     = attribute.Key("throttler.guess")
	storeKey     = attribute.Key("throttler.store")
	errorTypeKey = attribute.Key("error.type")

	other = "_OTHER"
)

// decisions records decisions. The attributes of a name are made once, so a
// decision allocates none.
type decisions struct {
	decisions, outcomes, bans, failures, lostRaces metric.Int64Counter
	duration                                       metric.Float64Histogram

	rules  sync.Map // string to *ruleSeries
	left   atomic.Int64
	beyond *ruleSeries // of all rules for which no name is left
}

// seconds are the bounds of the duration histogram: from a decision in process
// memory (a microsecond) to the timeout of a server that hangs.
var seconds = []float64{.00001, .000025, .00005, .0001, .00025, .0005, .001, .0025, .005, .01, .02, .05, .1, .25, .5, 1, 10, 60}

func newDecisions(meter metric.Meter, maxNames int) (*decisions, error) {
	var errs []error
	counter := func(name, unit, description string) metric.Int64Counter {
		c, err := meter.Int64Counter(name, metric.WithUnit(unit), metric.WithDescription(description))
		errs = append(errs, err)
		return c
	}
	d := &decisions{
		decisions: counter("throttler.decisions", "{decision}", "Decisions made."),
		outcomes:  counter("throttler.outcomes", "{condition}", "Conditions decided."),
		bans:      counter("throttler.bans", "{ban}", "Bans set."),
		failures:  counter("throttler.failures", "{condition}", "Conditions whose backend failed."),
		lostRaces: counter("throttler.lost_races", "{race}", "Conditions decided again because another writer was faster."),
	}
	var err error
	d.duration, err = meter.Float64Histogram("throttler.decision.duration", metric.WithUnit("s"),
		metric.WithDescription("Duration of decisions."), metric.WithExplicitBucketBoundaries(seconds...))
	d.left.Store(int64(maxNames))
	d.beyond = newRuleSeries(other)
	return d, errors.Join(append(errs, err)...)
}

// observe records d.
func (ds *decisions) observe(ctx context.Context, rule *throttler.Rule, d *throttler.Decision) {
	series := ds.rule(rule.Identifier)
	ds.decisions.Add(ctx, 1, series.results[resultOf(d)])
	ds.duration.Record(ctx, d.Took().Seconds(), series.attributes)
	for i := range d.Outcomes {
		ds.outcome(ctx, ds.condition(series, d.Outcomes[i].Name), &d.Outcomes[i])
	}
}

func (ds *decisions) outcome(ctx context.Context, series *conditionSeries, o *throttler.Outcome) {
	ds.outcomes.Add(ctx, 1, series.outcomes[outcomeOf(o)])
	if o.NewBan {
		ds.bans.Add(ctx, 1, series.attributes)
	}
	if o.LostRaces > 0 {
		ds.lostRaces.Add(ctx, int64(o.LostRaces), series.attributes)
	}
	if o.Err != nil {
		ds.failures.Add(ctx, 1, series.failures[failureOf(o.Err)])
	}
}

// A result is how a call was decided.
type result int

const (
	authorized result = iota
	blocked
	wouldBlock
)

var resultNames = [...]string{"authorized", "blocked", "would_block"}

func resultOf(d *throttler.Decision) result {
	switch {
	case d.Status == throttler.Blocked:
		return blocked
	case d.WouldBlock:
		return wouldBlock
	}
	return authorized
}

var outcomeNames = [...]string{"accepted", "full", "banned"}

func outcomeOf(o *throttler.Outcome) int {
	switch {
	case o.Banned:
		return 2
	case o.Blocked:
		return 1
	}
	return 0
}

// failureNames are the values of error.type. They are a fixed set, whatever the
// errors say.
var failureNames = [...]string{"unavailable", "overloaded", "timeout", "canceled", other}

func failureOf(err error) int {
	switch {
	case errors.Is(err, throttler.ErrUnavailable):
		return 0
	case errors.Is(err, throttler.ErrOverloaded):
		return 1
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded):
		return 2
	case errors.Is(err, context.Canceled):
		return 3
	}
	return 4
}

// ruleSeries are the attributes of one rule.
type ruleSeries struct {
	name       attribute.KeyValue
	attributes metric.MeasurementOption
	results    [len(resultNames)]metric.MeasurementOption
	conditions sync.Map // string to *conditionSeries
	beyond     *conditionSeries
}

func newRuleSeries(name string) *ruleSeries {
	r := &ruleSeries{name: ruleKey.String(name)}
	r.attributes = attributes(r.name)
	for i, value := range resultNames {
		r.results[i] = attributes(r.name, resultKey.String(value))
	}
	r.beyond = newConditionSeries(r, other)
	return r
}

// conditionSeries are the attributes of one condition of a rule.
type conditionSeries struct {
	attributes metric.MeasurementOption
	outcomes   [len(outcomeNames)]metric.MeasurementOption
	failures   [len(failureNames)]metric.MeasurementOption
}

func newConditionSeries(r *ruleSeries, name string) *conditionSeries {
	condition := conditionKey.String(name)
	c := &conditionSeries{attributes: attributes(r.name, condition)}
	for i, value := range outcomeNames {
		c.outcomes[i] = attributes(r.name, condition, outcomeKey.String(value))
	}
	for i, value := range failureNames {
		c.failures[i] = attributes(r.name, condition, errorTypeKey.String(value))
	}
	return c
}

func attributes(kvs ...attribute.KeyValue) metric.MeasurementOption {
	return metric.WithAttributeSet(attribute.NewSet(kvs...))
}

// maxName is the longest name that is kept, in bytes.
const maxName = 256

// rule returns the attributes of a rule.
func (ds *decisions) rule(identifier string) *ruleSeries {
	if known, ok := ds.rules.Load(identifier); ok {
		return known.(*ruleSeries)
	}
	if !ds.takeName(identifier) {
		return ds.beyond
	}
	identifier = strings.Clone(identifier)
	known, loaded := ds.rules.LoadOrStore(identifier, newRuleSeries(strings.ToValidUTF8(identifier, "\uFFFD")))
	if loaded {
		ds.left.Add(1)
	}
	return known.(*ruleSeries)
}

// condition returns the attributes of a condition of r's rule.
func (ds *decisions) condition(r *ruleSeries, name string) *conditionSeries {
	if known, ok := r.conditions.Load(name); ok {
		return known.(*conditionSeries)
	}
	if r == ds.beyond || !ds.takeName(name) {
		return r.beyond
	}
	name = strings.Clone(name)
	known, loaded := r.conditions.LoadOrStore(name, newConditionSeries(r, strings.ToValidUTF8(name, "\uFFFD")))
	if loaded {
		ds.left.Add(1)
	}
	return known.(*conditionSeries)
}

// takeName reports whether there is room for one more name, and takes it.
func (ds *decisions) takeName(name string) bool {
	if len(name) > maxName {
		return false
	}
	if ds.left.Add(-1) < 0 {
		ds.left.Add(1)
		return false
	}
	return true
}
