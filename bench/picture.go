package main

import (
	"fmt"
	"strings"

	"github.com/adaptivethrottler/throttler/bench/internal/draw"
)

// picture draws the times of decisions and the admitted calls.
func picture(scenes map[string][][]result, crowds []admissions) []byte {
	p := draw.Bars{
		Title:   "The time of a decision, and what is admitted of a limit of 50, beside other rate limiters",
		Columns: 2,
		Keys: []draw.Key{
			{Name: "throttler", Note: "with records in memcached"},
			{Name: "On Redis", Note: "rueidis with scripts of this benchmark, redis_rate"},
			{Name: "On memcached", Note: "envoyproxy/ratelimit, mennanov/limiters"},
		},
	}
	titles := map[string]string{"spread": "4,000 values", "new": "New values", "hot": "One value, not full", "full": "One value that is full"}
	p.Panels = append(p.Panels, timePanel(titles[spread.name], scenes[spread.name], 0))
	for _, w := range works {
		p.Panels = append(p.Panels, timePanel(titles[w.name], scenes[w.name], len(callerCounts)-1))
	}
	admitted := draw.Panel{Title: "Admitted of a limit of 50", Subtitle: fmt.Sprintf("%d callers of %d instances, as of %d processes; the worst run", maxCallers, manyInstances, manyInstances)}
	for _, a := range crowds {
		if !pictured(a.system) {
			continue
		}
		_, most := extremes(a.many)
		admitted.Bars = append(admitted.Bars, bar(a.system, float64(most), fmt.Sprint(most)))
	}
	p.Panels = append(p.Panels, admitted)
	return p.SVG()
}

// timePanel shows the scene of the n-th number of callers.
func timePanel(title string, scenes [][]result, n int) draw.Panel {
	panel := draw.Panel{Title: title + ", " + callersText(callerCounts[n]), Subtitle: "µs a decision"}
	for _, r := range scenes[n] {
		if !pictured(r.system) {
			continue
		}
		each := r.median(round.each)
		panel.Bars = append(panel.Bars, bar(r.system, float64(each), inMicros(each)))
	}
	return panel
}

// pictured reports whether s is in the picture. Our buckets are not: they take
// about as long as our windows.
func pictured(s system) bool { return s.how != poolBucket.how }

func bar(s system, value float64, figure string) draw.Bar {
	key := 2
	switch {
	case strings.HasPrefix(s.name, "throttler"):
		key = 0
	case s.backend == onRedis:
		key = 1
	}
	return draw.Bar{Name: s.name + ": " + s.how, Key: key, Value: value, Figure: figure}
}
