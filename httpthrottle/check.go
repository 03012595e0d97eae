package httpthrottle

import (
	"fmt"
	"net/http"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/internal/gate"
)

// Unlimited returns the rule of a request that is not limited: the request
// passes at once, nothing is counted, and its context has no Decision. The zero
// Rule is a mistake instead, and answered with 500. For a Throttler this rule is
// invalid.
func Unlimited() throttler.Rule { return gate.UnlimitedRule() }

// Check returns an error if the rule of r is invalid. It counts nothing and asks
// no backend. Call it when the program starts, with a request of each kind, to
// find mistakes that Handler would answer with 500:
//
//	r, _ := http.NewRequest("GET", "/search", nil)
//	r.RemoteAddr = "192.0.2.1:1"
//	if err := limit.Check(r); err != nil {
//		log.Fatal(err)
//	}
func (m *Middleware) Check(r *http.Request) error {
	rule := m.rule(r)
	if gate.IsUnlimited(&rule) {
		return nil
	}
	if err := gate.Validate(&rule); err != nil {
		return fmt.Errorf("httpthrottle: %w", err)
	}
	return nil
}
