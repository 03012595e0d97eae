package serve

import (
	"github.com/adaptivethrottler/throttler/cmd/throttler/internal/api"
	"github.com/adaptivethrottler/throttler/cmd/throttler/internal/version"
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
}

// newEvents registers events, and the metrics of the process and of Go.
func newEvents(registry *prometheus.Registry) *events {
	e := &events{
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
	registry.MustRegister(e.turned, e.reloads, e.current,
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return e
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
