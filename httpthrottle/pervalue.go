package httpthrottle

import (
	"net/http"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/internal/gate"
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

// serveTaken is serve by the Outcome of one condition, without a Decision.
func (m *Middleware) serveTaken(w http.ResponseWriter, r *http.Request, next http.Handler) {
	var o throttler.Outcome
	action := gate.Take(r.Context(), m.limit, &m.limitRule, m.value(r), &o, gate.Options{RefuseOverloaded: m.RefuseOverloaded})
	if action != gate.Pass {
		rule := m.limitRule
		m.reject(w, r, action, &rule, gate.Refusal(&rule, &o))
		return
	}
	if len(m.Public) > 0 {
		m.publish(w, &m.limitRule, &throttler.Decision{Status: throttler.Authorized, Outcomes: []throttler.Outcome{o}})
	}
	next.ServeHTTP(w, r)
}
