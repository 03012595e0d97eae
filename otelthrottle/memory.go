package otelthrottle

import (
	"context"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/memstore"
	"go.opentelemetry.io/otel/metric"
)

// An unwrapper is a Client around another one.
type unwrapper interface{ Unwrap() throttler.Client }

// inMemory returns the Store that client is, or is around, or nil.
func inMemory(client throttler.Client) *memstore.Store {
	for {
		switch c := client.(type) {
		case *memstore.Store:
			return c
		case unwrapper:
			client = c.Unwrap()
		default:
			return nil
		}
	}
}

// observeMemory reports about the records of t that are in process memory: those of its
// Client and of its Fallback.
func observeMemory(meter metric.Meter, t *throttler.Throttler) (metric.Registration, error) {
	in := &instruments{meter: meter}
	items := in.upDown("throttler.memory.items", "{item}", "Records in process memory, some of them expired.")
	usage := in.upDown("throttler.memory.usage", "By", "Bytes of their keys and values.")
	evictions := in.counter("throttler.memory.evictions", "{item}", "Records evicted from process memory before they expired.")
	main, fallback := attributes(storeKey.String("client")), attributes(storeKey.String("fallback"))
	return in.register(func(_ context.Context, o metric.Observer) error {
		report := func(client throttler.Client, of metric.MeasurementOption) {
			if store := inMemory(client); store != nil {
				s := store.Stats()
				o.ObserveInt64(items, int64(s.Items), of)
				o.ObserveInt64(usage, int64(s.Bytes), of)
				o.ObserveInt64(evictions, int64(s.Evictions), of)
			}
		}
		report(t.Client(), main)
		report(t.Fallback, fallback)
		return nil
	})
}
