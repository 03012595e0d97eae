package otelthrottle

import (
	"context"

	"github.com/adaptivethrottler/throttler/login"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
)

// observeGuard counts the attempts of g.
func observeGuard(meter metric.Meter, g *login.Guard) error {
	attempts, err := meter.Int64Counter("throttler.login.attempts",
		metric.WithUnit("{attempt}"), metric.WithDescription("Attempts to log in."))
	if err != nil {
		return err
	}
	before := g.Observe
	g.Observe = func(ctx context.Context, e login.Event) {
		attempts.Add(ctx, 1, metric.WithAttributes(
			attribute.String("throttler.login.result", resultName(e.Result)),
			attribute.Bool("throttler.login.known", e.Known)))
		if before != nil {
			before(ctx, e)
		}
	}
	return nil
}

// resultName returns the name of r, or other for a result that this package
// does not know.
func resultName(r login.Result) string {
	switch r {
	case login.Refused, login.Succeeded, login.Failed, login.Canceled:
		return r.String()
	}
	return other
}
