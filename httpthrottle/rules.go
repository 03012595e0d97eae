package httpthrottle

import (
	"net/http"
	"time"

	"github.com/adaptivethrottler/throttler"
)

// PerAddress returns a rule function that allows max requests in ttl from each
// client address, by [Source.Key], and bans nobody. Its only condition is
// "address". Rules with the same identifier count together.
func (s Source) PerAddress(identifier string, max int, ttl time.Duration) func(*http.Request) throttler.Rule {
	return s.per(identifier, s.Key, throttler.Condition{
		Name: "address", Max: max, TTL: ttl, Message: "Too many requests from this address.",
	})
}

// PerRobot returns a rule function that allows max requests in ttl from each
// robot, by [Source.RobotKey], and bans nobody. Its only condition is "robot".
// Rules with the same identifier count together.
//
// Robots behind one address each have their own share, and people there theirs.
// But a client may name itself as it likes, so one that means ill gets another
// share with another name: a wider limit per address belongs beside this one,
// as a second condition or a second Middleware.
func (s Source) PerRobot(identifier string, max int, ttl time.Duration) func(*http.Request) throttler.Rule {
	return s.per(identifier, s.RobotKey, throttler.Condition{
		Name: "robot", Max: max, TTL: ttl, Message: "Too many requests from this robot.",
	})
}

// per returns a rule function with the condition c, whose Value is key's.
func (s Source) per(identifier string, key func(*http.Request) string, c throttler.Condition) func(*http.Request) throttler.Rule {
	return func(r *http.Request) throttler.Rule {
		c := c // one for each request
		c.Value = key(r)
		return throttler.Rule{Identifier: identifier, Either: []throttler.Condition{c}}
	}
}

// maxAgent is how much of a User-Agent tells robots apart. Hashing all of a huge
// one would cost more than the rest of a decision.
const maxAgent = 512

// RobotKey returns what to count a robot by: the client's Key, a blank and the
// request's User-Agent, of which the first 512 bytes count.
func (s Source) RobotKey(r *http.Request) string {
	agent := r.UserAgent()
	if len(agent) > maxAgent {
		agent = agent[:maxAgent]
	}
	return s.Key(r) + " " + agent
}
