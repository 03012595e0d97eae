package envoy

import (
	"strings"
	"time"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/cmd/throttler/internal/rulefile"
	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
)

// windowUnits are the protocol's units of windows, by length.
var windowUnits = func() map[time.Duration]rls.RateLimitResponse_RateLimit_Unit {
	units := make(map[time.Duration]rls.RateLimitResponse_RateLimit_Unit)
	for name, length := range rulefile.Units {
		units[length] = rls.RateLimitResponse_RateLimit_Unit(rls.RateLimitResponse_RateLimit_Unit_value[strings.ToUpper(name)])
	}
	return units
}()

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
	return windowUnits[c.TTL]
}
