package main

import (
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/adaptivethrottler/throttler"
)

// A comparison is scenes whose results stand in one table.
type comparison struct {
	part    string // its name for -only
	title   string
	note    string
	scenes  []scene
	callers []int
	columns []column
	long    bool // in slices of a second
}

var (
	callerCounts = []int{1, 16, maxCallers}
	fewAndMany   = []int{1, maxCallers}
)

// besideScripts is the note on ratios to the scripts.
const besideScripts = "The ratio is that of the times to those of the faster script by rueidis: median of the rounds (quartiles). Below 1, ours is faster."

// comparisons returns all, in the order of their tables.
func comparisons() []comparison {
	return []comparison{{
		part: "works", title: "Over a network", note: besideScripts,
		scenes:  everyWork(),
		callers: callerCounts, columns: []column{timeColumn, tailColumn, cpuColumn, tripsColumn, ratioColumn, spreadColumn},
	}, {
		part: "ctx", title: "A ctx that can end",
		note: "In all tables, each call over a network has a ctx of its own that can end, as an HTTP request has. " +
			"Here, the ratio is to calls with context.Background() by callers that make a ctx as well: median of the rounds (quartiles). The work is spread.",
		scenes:  []scene{endingCtx(poolWindow), endingCtx(redisWindow), endingCtx(rueidisBucket)},
		callers: fewAndMany, columns: []column{timeColumn, cpuColumn, ratioColumn},
	}, {
		part: "conditions", title: "Several conditions in a call",
		note:    "The work is spread, and each condition has a record of its own for each value. The script has all keys of a call; the ratio is to it.",
		scenes:  []scene{severalBesideScript(2), severalBesideScript(8), severalBesideScript(32)},
		callers: fewAndMany, columns: []column{timeColumn, allocsColumn, ratioColumn},
	}, {
		part: "fleet", title: "Clients that share values",
		note: fmt.Sprintf("Of %d clients, each with its own connections and %d callers, as in %d processes. ", fleetClients, fleetCallers, fleetClients) + besideScripts,
		scenes: []scene{
			{work: spreadWork, systems: fleets(ourWindowsAndScripts...), beside: rueidisBoth},
			{work: hotWork, systems: fleets(ourWindowsAndScripts...), beside: rueidisBoth},
			{work: fullWork, systems: fleets(ourWindowsAndScripts...), beside: rueidisBoth},
		},
		callers: []int{fleetClients * fleetCallers}, columns: []column{timeColumn, tailColumn, cpuColumn, tripsColumn, ratioColumn},
	}, {
		part: "open", title: "Open loop",
		note: "Calls come at a steady rate, whether those before them have been answered or not, for values of the work spread, or of that below with windows of 10 s. " +
			"Milliseconds from the time at which a call was due to its answer, that half, 99 % and 99.9 % of the calls took at most: medians of the rounds.",
		scenes: []scene{
			{work: spreadWork.named("10,000 a second"), systems: ourWindowsAndScripts, turn: inTime(arriving(10_000))},
			{work: spreadWork.named("20,000 a second"), systems: ourWindowsAndScripts, turn: inTime(arriving(20_000))},
			{work: aheadSpread.named("20,000 a second, windows of 10 s"), systems: []system{poolAhead, poolWindow}, turn: inTime(arriving(20_000))},
		},
		callers: []int{512}, columns: latencyColumn, long: true,
	}, {
		part: "ahead", title: "Hits taken ahead", note: "The ratio is to throttler without Prefetch: median of the rounds (quartiles).",
		scenes: []scene{
			{work: aheadSpread, systems: []system{poolAhead, poolWindow}, beside: []system{poolWindow}},
			{work: aheadHot, systems: []system{poolAhead, poolWindow}, beside: []system{poolWindow}},
		},
		callers: []int{maxCallers}, columns: []column{timeColumn, tailColumn, cpuColumn, inTripColumn, ratioColumn}, long: true,
	}, {
		part: "long", title: "Windows by the hits that they hold",
		note: fmt.Sprintf("%d values at random, with a limit of %d an hour that none comes near. The ratio is to GCRA by rueidis, "+
			"which stores one number: median of the rounds (quartiles).", len(longNames), longLimit.Max),
		scenes:  []scene{longWindows(50), longWindows(10_000)},
		callers: fewAndMany, columns: []column{timeColumn, tailColumn, ratioColumn},
	}, {
		part: "admitted", title: "Admitted of a limit of 50",
		note: fmt.Sprintf("Of %d clients, as of %d processes. All call %d times at once for one value that has a limit of %d a day: "+
			"the least and the most that was admitted in a round, and the time of all calls divided by their number.", fleetClients, fleetClients, crowdCalls, crowded.limit.Max),
		scenes:  []scene{{work: crowded, systems: fleets(networked...), turn: (*crowd).rush}},
		callers: []int{maxCallers}, columns: []column{admitColumn, timeColumn},
	}, {
		part: "memory", title: "In process memory", note: "The ratio is to go-limiter: median of the rounds (quartiles).",
		scenes: []scene{
			{work: spreadWork, systems: inMemory, beside: []system{goLimiter}},
			{work: fullWork, systems: inMemory, beside: []system{goLimiter}},
		},
		callers: fewAndMany, columns: []column{timeColumn, allocsColumn, ratioColumn, spreadColumn},
	}, {
		part: "http", title: "HTTP middleware in process memory", note: "The ratio is to httprate: median of the rounds (quartiles).",
		scenes: []scene{
			{work: allowedRequests, systems: middlewares, beside: []system{httpRate}},
			{work: refusedRequests, systems: middlewares, beside: []system{httpRate}},
		},
		callers: fewAndMany, columns: []column{timeColumn, allocsColumn, ratioColumn, spreadColumn},
	}}
}

// The systems of several tables.
var (
	networked            = []system{poolWindow, poolBucket, plainWindow, redisWindow, redisBucket, rueidisBucket, rueidisLog, increx, redisRate, envoy}
	ourWindowsAndScripts = []system{poolWindow, redisWindow, rueidisBucket, rueidisLog}
	inMemory             = []system{storeWindow, storeBucket, takeWindow, takeBucket, goLimiter}
)

// everyWork returns a scene for each of works.
func everyWork() (scenes []scene) {
	for _, w := range []work{spreadWork, newWork, hotWork, fullWork} {
		sc := scene{work: w, systems: networked, beside: rueidisBoth}
		if w.name == fullWork.name {
			sc.systems = slices.Insert(slices.Clone(networked), 1, poolCached)
		}
		scenes = append(scenes, sc)
	}
	return scenes
}

// endingCtx compares calls with a ctx of their own with those that have none.
func endingCtx(s system) scene {
	return scene{work: spreadWork.named("spread"), systems: []system{s, s.inBackground()}, beside: []system{s.inBackground()}}
}

func severalBesideScript(n int) scene {
	script := severalKeys(n)
	return scene{work: spreadWork.named(fmt.Sprintf("%d conditions", n)), systems: []system{several(n), script}, beside: []system{script}}
}

// Hits are taken ahead in windows of 10 s, so that each may be spent within a second.
var (
	aheadSpread = work{
		name: "spread", about: "4,000 values at random, none of which comes near its limit of 20,000 in 10 s",
		limit: limit{20_000, 10 * time.Second}, values: anyOf(spreadNames),
	}
	aheadHot = work{
		name: "hot", about: fmt.Sprintf("one value for all callers that never reaches its limit of %d in 100 ms", throttler.MaxHits),
		limit: limit{throttler.MaxHits, 100 * time.Millisecond}, values: one("hot"),
	}
)

// longWindows is decisions on windows that hold so many hits.
func longWindows(hits int) scene {
	w := work{name: strconv.Itoa(hits) + " hits", limit: longLimit, values: anyOf(longNames)}
	return scene{work: w, systems: []system{filled(poolWindow, hits), rueidisBucket}, beside: []system{rueidisBucket}}
}
