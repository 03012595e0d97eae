package httpthrottle

import (
	"fmt"
	"math"
	"net/http"
	"net/netip"
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
	checkLimit("PerAddress", identifier, max, ttl)
	return s.per(identifier, throttler.Condition{
		Name: "address", Max: max, TTL: ttl, Message: "Too many requests from this address.",
	}, s.key)
}

// PerRobot returns a rule function that allows max requests in ttl from each
// robot, by [Source.RobotKey]. It sets no bans. Its only condition is "robot".
// Rules with the same identifier count together.
//
// Robots and people behind one address each have their own share. That is all it
// does: a robot has a share for each address that it comes from, and another for
// each name that it makes up, and a forged Googlebot is Googlebot. Package robots
// counts by names that it knows and verifies.
//
// Panics and peers without an address are as for [Source.PerAddress].
func (s Source) PerRobot(identifier string, max int, ttl time.Duration) func(*http.Request) throttler.Rule {
	checkLimit("PerRobot", identifier, max, ttl)
	return s.per(identifier, throttler.Condition{
		Name: "robot", Max: max, TTL: ttl, Message: "Too many requests from this robot.",
	}, s.robotKey)
}

// checkLimit panics if function was called with an invalid limit.
func checkLimit(function, identifier string, max int, ttl time.Duration) {
	var problem string
	switch {
	case identifier == "":
		problem = `identifier is "", want a name`
	case max < 1 || max > throttler.MaxHits:
		problem = fmt.Sprintf("max is %d, want 1 to %d", max, throttler.MaxHits)
	case ttl < time.Millisecond:
		problem = fmt.Sprintf("ttl is %v, want 1ms or more", ttl)
	default:
		return
	}
	panic("httpthrottle: " + function + ": " + problem)
}

// per returns a rule function with the condition c, whose Value is the result
// of value.
func (s Source) per(identifier string, c throttler.Condition, value func(*http.Request, netip.Addr) string) func(*http.Request) throttler.Rule {
	return func(r *http.Request) throttler.Rule {
		addr, ok := s.addr(r)
		if !ok {
			return gate.NoAddress()
		}
		conditions := []throttler.Condition{c} // a copy for this request
		conditions[0].Value = value(r, addr)
		return throttler.Rule{Identifier: identifier, Either: conditions}
	}
}

// maxAgent is the number of bytes of a User-Agent that are counted, to bound
// the cost of hashing it.
const maxAgent = 512

// RobotKey returns the text to count a robot by: the client's Key, a blank, and
// the first 512 bytes of the request's User-Agent.
func (s Source) RobotKey(r *http.Request) string { return s.robotKey(r, s.Addr(r)) }

func (s *Source) robotKey(r *http.Request, addr netip.Addr) string {
	agent := r.UserAgent()
	if len(agent) > maxAgent {
		agent = agent[:maxAgent]
	}
	return s.key(r, addr) + " " + agent
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
