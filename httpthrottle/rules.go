package httpthrottle

import (
	"fmt"
	"math"
	"net/http"
	"time"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/internal/gate"
)

// PerAddress returns a rule function that allows max requests in ttl from each
// client address, by [Source.Key]. It sets no bans. Its only condition is
// "address". Rules with the same identifier count together.
//
// It panics if identifier is empty, max is not 1 to [throttler.MaxHits], or ttl
// is less than 1 ms.
//
// A request whose peer has no address is answered with 500, unless
// [Source.TrustUnix] is set: otherwise all clients of a Unix socket would count
// as one.
func (s Source) PerAddress(identifier string, max int, ttl time.Duration) func(*http.Request) throttler.Rule {
	var problem string
	switch {
	case identifier == "":
		problem = `identifier is "", want a name`
	case max < 1 || max > throttler.MaxHits:
		problem = fmt.Sprintf("max is %d, want 1 to %d", max, throttler.MaxHits)
	case ttl < time.Millisecond:
		problem = fmt.Sprintf("ttl is %v, want 1ms or more", ttl)
	}
	if problem != "" {
		panic("httpthrottle: PerAddress: " + problem)
	}
	return func(r *http.Request) throttler.Rule {
		addr, ok := s.addr(r)
		if !ok {
			return gate.NoAddress()
		}
		return throttler.Rule{Identifier: identifier, Either: []throttler.Condition{
			{Name: "address", Value: s.key(r, addr), Max: max, TTL: ttl, Message: "Too many requests from this address."},
		}}
	}
}

// BodyCost returns the [throttler.Condition] Cost of a request whose body is
// counted in bytes: its Content-Length, and at least 1. A body of unknown length,
// as with chunked encoding, costs most: the most that the handler reads. So it
// cannot evade the limit.
//
// Have the server read no more than that, by http.MaxBytesHandler:
//
//	limit.Handler(http.MaxBytesHandler(mux, most))
//
// BodyCost panics if most is less than 1.
func BodyCost(r *http.Request, most int) int {
	if most < 1 {
		panic(fmt.Sprintf("httpthrottle: BodyCost: most is %d, want 1 or more", most))
	}
	if r.ContentLength < 0 {
		return most
	}
	return int(min(max(r.ContentLength, 1), math.MaxInt))
}
