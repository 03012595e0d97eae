package rulefile

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
	_ "time/tzdata" // zones, also in an image that has no others

	"github.com/adaptivethrottler/throttler"
)

// periods are the units of a calendar by their names in a file.
var periods = map[string]throttler.Unit{"day": throttler.Day, "week": throttler.Week, "month": throttler.Month}

// period returns the period of a calendar.
func (p *parsing) period(path string, raw *conditionYAML) throttler.Period {
	unit, ok := periods[raw.Per]
	if !ok {
		p.problem(path+".per", "%q is no period of a calendar: want %s", raw.Per, strings.Join(slices.Sorted(maps.Keys(periods)), ", "))
	}
	zone, err := parseZone(raw.Zone)
	if err != nil {
		p.problem(path+".zone", "%v", err)
	}
	return throttler.Period{Unit: unit, Anchor: raw.Anchor, Location: zone}
}

// parseZone returns the time zone of a name, or nil for UTC. The machine's own zone
// is none: several machines count together.
func parseZone(name string) (*time.Location, error) {
	if name == "" || name == "UTC" {
		return nil, nil
	}
	zone, err := time.LoadLocation(name)
	if err != nil || name == "Local" {
		return nil, fmt.Errorf("%q is no time zone: want a name as Europe/Berlin", name)
	}
	return zone, nil
}
