package serve

import (
	"time"

	"github.com/adaptivethrottler/throttler/cmd/throttler/internal/api"
	"github.com/adaptivethrottler/throttler/cmd/throttler/internal/rulefile"
	"github.com/adaptivethrottler/throttler/cmd/throttler/internal/version"
	"github.com/adaptivethrottler/throttler/robots"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/resource"
)

// identity names the service in its metrics, as target_info.
func identity() *resource.Resource {
	return resource.NewSchemaless(
		attribute.String("service.name", "throttler"),
		attribute.String("service.version", version.String()),
	)
}

// events are the metrics of the service itself, beside those of decisions.
type events struct {
	turned  *prometheus.CounterVec
	reloads *prometheus.CounterVec
	current prometheus.Gauge
	robots  *prometheus.CounterVec

	registry *prometheus.Registry
}

// newEvents registers events, and the metrics of the process and of Go.
func newEvents(registry *prometheus.Registry) *events {
	e := &events{
		registry: registry,
		robots: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "throttler_robots_requests_total", Help: "Requests of proxies by who sends them; not without a rule about robots.",
		}, []string{"group", "standing"}),
		turned: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "throttler_api_turned_away_total", Help: "Requests to the JSON API that were turned away.",
		}, []string{"reason"}),
		reloads: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "throttler_rules_reloads_total", Help: "Reads of a changed rule file.",
		}, []string{"result"}),
		current: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "throttler_rules_current", Help: "1 if the rule file as it is now is in use, 0 if all of it or a part is not.",
		}),
	}
	for _, reason := range []api.Reason{api.WrongKey, api.Overloaded} {
		e.turned.WithLabelValues(string(reason))
	}
	e.reloads.WithLabelValues("success")
	e.reloads.WithLabelValues("failure")
	e.current.Set(1)
	registry.MustRegister(e.turned, e.reloads, e.current, e.robots,
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return e
}

// seen counts a request. There are few groups and standings.
func (e *events) seen(who robots.Identity) {
	e.robots.WithLabelValues(who.Group, who.Standing.String()).Inc()
}

// tellLists has the metrics tell the age of each list of robots.
func (e *events) tellLists(rules *rulefile.Source) {
	e.registry.MustRegister(listAges{rules, prometheus.NewDesc("throttler_robots_list_age_seconds",
		"How long ago what holds of a list or table of robots was written.", []string{"file"}, nil)})
}

// listAges is a collector of the ages of lists.
type listAges struct {
	rules *rulefile.Source
	desc  *prometheus.Desc
}

func (l listAges) Describe(descs chan<- *prometheus.Desc) { descs <- l.desc }

func (l listAges) Collect(metrics chan<- prometheus.Metric) {
	directory := l.rules.File().Robots
	if directory == nil {
		return
	}
	for _, f := range directory.Files() {
		metrics <- prometheus.MustNewConstMetric(l.desc, prometheus.GaugeValue, time.Since(f.Modified).Seconds(), f.Path)
	}
}

func (e *events) turnedAway(why api.Reason) { e.turned.WithLabelValues(string(why)).Inc() }

// reloaded notes that the rule file was read again, or could not be, and whether all that it
// says is in use.
func (e *events) reloaded(err error, inUse bool) {
	result, current := "success", 0.0
	if err != nil {
		result = "failure"
	}
	if inUse {
		current = 1
	}
	e.reloads.WithLabelValues(result).Inc()
	e.current.Set(current)
}
