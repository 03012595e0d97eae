package envoy

import (
	"time"

	"github.com/adaptivethrottler/throttler"
	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/protobuf/types/known/durationpb"
)

const day = 24 * time.Hour

// units are the lengths of the protocol's units. A month is 30 days and a year
// 365, since sliding windows have no calendar.
var units = map[rls.RateLimitResponse_RateLimit_Unit]time.Duration{
	rls.RateLimitResponse_RateLimit_SECOND: time.Second,
	rls.RateLimitResponse_RateLimit_MINUTE: time.Minute,
	rls.RateLimitResponse_RateLimit_HOUR:   time.Hour,
	rls.RateLimitResponse_RateLimit_DAY:    day,
	rls.RateLimitResponse_RateLimit_WEEK:   7 * day,
	rls.RateLimitResponse_RateLimit_MONTH:  30 * day,
	rls.RateLimitResponse_RateLimit_YEAR:   365 * day,
}

// length returns the length of a unit, or 0 for an unknown one.
func length(u rls.RateLimitResponse_RateLimit_Unit) time.Duration { return units[u] }

// calendarUnits are the protocol's units of a calendar's periods.
var calendarUnits = map[throttler.Unit]rls.RateLimitResponse_RateLimit_Unit{
	throttler.Day: rls.RateLimitResponse_RateLimit_DAY, throttler.Week: rls.RateLimitResponse_RateLimit_WEEK,
	throttler.Month: rls.RateLimitResponse_RateLimit_MONTH,
}

// unit returns the unit of a condition, or UNKNOWN.
func unit(c *throttler.Condition) rls.RateLimitResponse_RateLimit_Unit {
	if c.Algorithm == throttler.Calendar {
		return calendarUnits[c.Period.Unit]
	}
	for u, length := range units {
		if length == c.TTL {
			return u
		}
	}
	return rls.RateLimitResponse_RateLimit_UNKNOWN
}

func durationOf(d time.Duration) *durationpb.Duration { return durationpb.New(d) }
