package httpthrottle

import (
	"net/http"

	"github.com/adaptivethrottler/throttler"
)

// PerValue returns a Middleware for a rule of one condition, whose Value is what
// the function value returns, such as [Source.Key]. value is called from many
// goroutines at once. PerValue panics if limit or value is nil.
//
// With [Middleware.NoDecision] this is the cheapest Middleware:
//
//	perAddress, err := limits.Limit(rule)
//	if err != nil {
//		return err
//	}
//	limit := httpthrottle.PerValue(perAddress, source.Key)
//	limit.NoDecision = true
func PerValue(limit *throttler.Limit, value func(*http.Request) string) *Middleware {
	if limit == nil {
		panic("httpthrottle: PerValue with a nil Limit")
	}
	if value == nil {
		panic("httpthrottle: PerValue with a nil value")
	}
	m := New(limit.Throttler(), func(r *http.Request) throttler.Rule { return limit.Rule(value(r)) })
	m.limit, m.value, m.limitRule = limit, value, limit.Rule("")
	return m
}
