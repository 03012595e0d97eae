package main

import (
	"strings"

	"github.com/adaptivethrottler/throttler/bench/internal/draw"
)

// panels are what the picture shows of the tables of two parts: of a scene, for one of the
// numbers of callers.
var panels = []struct {
	title, subtitle, part string
	scene, callers        int
	of                    func(result) float64
}{
	{"4,000 values, 1 caller", "µs a decision", "works", 0, 0, result.micros},
	{"4,000 values, 64 callers", "µs a decision", "works", 0, 2, result.micros},
	{"New values, 64 callers", "µs a decision", "works", 1, 2, result.micros},
	{"One value, not full, 64 callers", "µs a decision", "works", 2, 2, result.micros},
	{"One value that is full, 64 callers", "µs a decision", "works", 3, 2, result.micros},
	{"Admitted of a limit of 50", "64 callers of 8 instances, as of 8 processes; the worst round", "admitted", 0, 0, result.most},
}

func (r result) micros() float64 {
	return r.median(func(one round) float64 { return float64(one.each()) / 1e3 })
}

// most returns the most that was admitted.
func (r result) most() (most float64) {
	for _, one := range r.rounds {
		most = max(most, float64(one.admitted))
	}
	return most
}

// picture draws the times of decisions and the admitted calls. Our buckets are not in it:
// they take about as long as our windows.
func picture(played map[string][][][]result) []byte {
	p := draw.Bars{
		Title:   "The time of a decision, and what is admitted of a limit of 50, beside other rate limiters",
		Columns: 2,
		Keys: []draw.Key{
			{Name: "throttler", Note: "with records in memcached or Redis"},
			{Name: "On Redis", Note: "rueidis with scripts of this benchmark, redis_rate"},
			{Name: "On memcached", Note: "envoyproxy/ratelimit"},
		},
	}
	for _, shown := range panels {
		panel := draw.Panel{Title: shown.title, Subtitle: shown.subtitle}
		if scenes := played[shown.part]; len(scenes) > 0 {
			for _, r := range scenes[shown.scene][shown.callers] {
				if r.system.how != hows[bucket] {
					panel.Bars = append(panel.Bars, bar(r.system, shown.of(r)))
				}
			}
		}
		p.Panels = append(p.Panels, panel)
	}
	return p.SVG()
}

func bar(s system, value float64) draw.Bar {
	key := 2
	switch {
	case strings.HasPrefix(s.name, "throttler"):
		key = 0
	case s.backend == onRedis:
		key = 1
	}
	return draw.Bar{Name: s.name + ": " + s.how, Key: key, Value: value, Figure: short(value)}
}
