package throttler_test

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/internal/record"
	"github.com/adaptivethrottler/throttler/internal/servertest"
	"github.com/adaptivethrottler/throttler/memstore"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// A naive limiter decides as Rule and Condition say, in the plainest way: it keeps every hit, and
// computes each answer from all of them.
type naive map[string]naiveRecord // by the name and the value of a condition

type naiveRecord struct {
	hits   []naiveHit
	banned time.Time // the end of the last ban
	bans   int       // in a row
}

type naiveHit struct {
	at   time.Time
	cost int
	call int // which call counted it
}

// until returns the time until there is room for n hits in r if nothing else is counted.
func (r naiveRecord) until(c throttler.Condition, n int, now time.Time) (wait time.Duration) {
	if c.Algorithm == throttler.LeakyBucket {
		unit := time.Duration(c.Max) // a hit leaks in TTL units of 1/Max ns
		var level time.Duration
		for i, h := range r.hits {
			next := now
			if i+1 < len(r.hits) {
				next = r.hits[i+1].at
			}
			level = max(0, level+time.Duration(h.cost)*c.TTL-next.Sub(h.at)*unit)
		}
		over := level + time.Duration(n-c.Max)*c.TTL
		return (max(0, over) + unit - 1) / unit
	}
	expiry := func(h naiveHit) time.Time {
		if c.Algorithm == throttler.Calendar { // of days in UTC
			return h.at.UTC().Truncate(24 * time.Hour).Add(24 * time.Hour)
		}
		return h.at.Add(c.TTL)
	}
	hits := slices.DeleteFunc(slices.Clone(r.hits), func(h naiveHit) bool { return !expiry(h).After(now) })
	for _, h := range hits {
		n += h.cost
	}
	for i := 0; n > c.Max; i++ {
		n -= hits[i].cost
		wait = expiry(hits[i]).Sub(now)
	}
	return wait
}

// room returns for how many hits there is room.
func (r naiveRecord) room(c throttler.Condition, now time.Time) int {
	n := c.Max
	for n > 0 && r.until(c, n, now) > 0 {
		n--
	}
	return n
}

// bansAt reports whether a call for need hits, which finds r full, bans its value.
func (r naiveRecord) bansAt(rule throttler.Rule, c throttler.Condition, need int, now time.Time) bool {
	if c.Lockout < 0 || c.Lockout == 0 && rule.Lockout == 0 || c.Algorithm == throttler.InFlight || r.room(c, now) > 0 {
		return false
	}
	if c.Algorithm != throttler.LeakyBucket || !assesses(rule) {
		return true
	}
	// A hit that is given back may leave in a bucket what leaked meanwhile: that bans nobody.
	parts := func(n int) time.Duration {
		return (time.Duration(n)*c.TTL + time.Duration(c.Max) - 1) / time.Duration(c.Max)
	}
	return r.until(c, need, now) > parts(need-1)+min(parts(1)/2, time.Second)
}

// ban bans r until now+d, unless a longer ban holds.
func (r naiveRecord) ban(c throttler.Condition, now time.Time, d time.Duration) naiveRecord {
	if !now.Before(r.banned.Add(record.LockoutMemory)) {
		r.bans = 0
	}
	if end := now.Add(d); end.After(r.banned) {
		r.banned = end
	}
	if c.Algorithm != throttler.InFlight {
		r.hits = nil
	}
	return r
}

// ask decides a call of one condition, and returns the record that follows.
func (r naiveRecord) ask(rule throttler.Rule, c throttler.Condition, now time.Time, call int) (naiveRecord, throttler.Outcome) {
	o := throttler.Outcome{Name: c.Name, Limit: c.Max}
	cost := max(c.Cost, 1)
	need := cost
	if c.Least > 0 {
		need = c.Least
	}
	if !r.banned.After(now) {
		room := r.room(c, now)
		switch {
		case room >= need:
			o.Cost, o.Remaining = min(cost, room), room-min(cost, room)
			r.hits = append(slices.Clone(r.hits), naiveHit{now, o.Cost, call})
			o.RetryAfter, o.ResetAfter = r.until(c, 1, now), r.until(c, c.Max, now)
			return r, o
		case !r.bansAt(rule, c, need, now):
			o.Blocked, o.Remaining = true, room
			o.RetryAfter, o.ResetAfter = r.until(c, need, now), r.until(c, c.Max, now)
			return r, o
		}
		r = r.ban(c, now, 0)
		r.banned, o.NewBan = now.Add(lengthOfBan(rule, c, r.bans)), true
		r.bans++
	}
	o.Blocked, o.Banned = true, true
	o.RetryAfter, o.ResetAfter = max(r.banned.Sub(now), r.until(c, need, now)), max(r.banned.Sub(now), r.until(c, c.Max, now))
	return r, o
}

// lengthOfBan returns how long a ban of c is after that many others in a row.
func lengthOfBan(rule throttler.Rule, c throttler.Condition, others int) time.Duration {
	length, longest := rule.Lockout, rule.MaxLockout
	if c.Lockout > 0 {
		length = c.Lockout
	}
	if rule.LockoutGrowth == 0 {
		return length
	}
	if longest == 0 {
		longest = 24 * time.Hour
	}
	return time.Duration(min(float64(max(length, longest)), float64(length)*math.Pow(rule.LockoutGrowth, float64(others))))
}

// assesses reports whether a call of rule counts only if no condition refuses it.
func assesses(rule throttler.Rule) bool {
	return rule.CountAuthorizedOnly && rule.First == nil && len(rule.Conditions()) > 1
}

// key returns where the record of c is.
func (naive) key(c throttler.Condition) string { return c.Name + "#" + c.Value }

// cancel takes back what a call has counted.
func (m naive) cancel(call int) {
	for key, r := range m {
		r.hits = slices.DeleteFunc(slices.Clone(r.hits), func(h naiveHit) bool { return h.call == call })
		m[key] = r
	}
}

// decide decides a call of rule, and counts it. The Decision has no RetryAfter.
func (m naive) decide(rule throttler.Rule, now time.Time, call int) (d throttler.Decision) {
	before := maps.Clone(m)
	blocked, counted := 0, false
	for _, c := range rule.Conditions() {
		o := unasked(c.Name, c.Max)
		if rule.First == nil || !counted {
			m[m.key(c)], o = m[m.key(c)].ask(rule, c, now, call)
		}
		d.Outcomes = append(d.Outcomes, o)
		if counted = !o.Blocked; o.Blocked {
			blocked++
			d.Messages = append(d.Messages, c.Message)
		}
	}
	d.WouldBlock = blocked == len(d.Outcomes) || rule.Either != nil && blocked > 0
	for i, c := range rule.Conditions() {
		if o := &d.Outcomes[i]; d.WouldBlock && assesses(rule) && !o.Blocked {
			r := before[m.key(c)]
			m[m.key(c)] = r
			*o = throttler.Outcome{Name: c.Name, Limit: c.Max, Remaining: r.room(c, now), ResetAfter: r.until(c, c.Max, now)}
		}
	}
	if !d.WouldBlock || rule.Shadow {
		d.Status, d.Messages = throttler.Authorized, nil
	}
	return d
}

// check checks a property under synctest.
func check(t *testing.T, property func(*rapid.T)) {
	t.Helper()
	rapid.Check(t, func(t *rapid.T) { rapid.SyncTest(t, property) })
}

// drawLimiter draws a condition that takes few hits. Its TTL is any number of
// nanoseconds, so that an interval of a bucket need not be a whole one.
func drawLimiter(t *rapid.T, algorithm throttler.Algorithm) throttler.Condition {
	return throttler.Condition{
		Name:      "limiter",
		Max:       rapid.IntRange(1, 12).Draw(t, "Max"),
		TTL:       time.Duration(rapid.Int64Range(int64(time.Millisecond), int64(10*time.Minute)).Draw(t, "TTL")),
		Algorithm: algorithm,
	}
}

// drawRule draws a rule of any kind, with conditions of any kind.
func drawRule(t *rapid.T) throttler.Rule {
	rule := throttler.Rule{
		Identifier:          "test",
		CountAuthorizedOnly: rapid.Bool().Draw(t, "CountAuthorizedOnly"),
		Shadow:              rapid.IntRange(0, 9).Draw(t, "Shadow") == 0,
		Lockout:             rapid.SampledFrom([]time.Duration{0, 0, 1, 7 * time.Second, 2 * time.Hour, 36 * time.Hour}).Draw(t, "Lockout"),
	}
	if rule.Lockout > 0 {
		rule.LockoutGrowth = rapid.SampledFrom([]float64{0, 1, 1.5, 40}).Draw(t, "LockoutGrowth")
		rule.MaxLockout = rapid.SampledFrom([]time.Duration{0, rule.Lockout, 3 * rule.Lockout}).Draw(t, "MaxLockout")
	}
	var conditions []throttler.Condition
	for i := range rapid.IntRange(1, 3).Draw(t, "conditions") {
		c := drawLimiter(t, rapid.SampledFrom([]throttler.Algorithm{
			throttler.SlidingWindow, throttler.LeakyBucket, throttler.Calendar, throttler.InFlight,
		}).Draw(t, "Algorithm"))
		c.Name, c.Message = fmt.Sprint("c", i), fmt.Sprint("c", i, " is full")
		switch c.Algorithm {
		case throttler.Calendar:
			c.TTL = 0
		case throttler.InFlight:
			c.TTL = max(c.TTL, 100*time.Millisecond)
		}
		c.Lockout = rapid.SampledFrom([]time.Duration{0, 0, -1, 5 * time.Second}).Draw(t, "own Lockout")
		conditions = append(conditions, c)
	}
	switch rapid.SampledFrom([]string{"either", "all", "first"}).Draw(t, "mode") {
	case "either":
		rule.Either = conditions
	case "all":
		rule.All = conditions
	default:
		rule.First = conditions
	}
	return rule
}

// drawCall draws for whom and for how much a call of rule is.
func drawCall(t *rapid.T, rule throttler.Rule) {
	for i := range rule.Conditions() {
		c := &rule.Conditions()[i]
		c.Value = rapid.SampledFrom([]string{"a", "a", "b"}).Draw(t, "Value")
		c.Cost = rapid.IntRange(0, c.Max).Draw(t, "Cost")
		c.Least = 0
		if rapid.Bool().Draw(t, "Least?") {
			c.Least = rapid.IntRange(0, max(c.Cost, 1)).Draw(t, "Least")
		}
	}
}

// A way is a Throttler, and what it has decided.
type way struct {
	*throttler.Throttler
	decisions []throttler.Decision
}

// askWays makes random calls in all ways, and does random things to what they have counted. They
// must decide each call as the naive limiter does. What cannot cancel ends with the first Cancel, Reset
// or Ban.
func askWays(t *rapid.T, clients map[string]throttler.Client) {
	rule := drawRule(t)
	require.NoError(t, rule.Validate())
	ways := make(map[string]*way)
	for name, client := range clients {
		ways[name] = &way{Throttler: throttler.New(client)}
	}
	for name, client := range map[string]throttler.Client{
		"block cache": newFaulty(), "block cache of an Exchanger": newExchanger(),
	} {
		cached := &way{Throttler: throttler.New(client)}
		cached.BlockCache = 100
		ways[name] = cached
	}
	simulation := new(throttler.Simulation)
	model := naive{}
	takes := map[string]*throttler.Throttler{
		"memory, Take": throttler.New(memstore.New()), "plain, Take": throttler.New(newFaulty()),
	}
	var last throttler.Decision
	var made []time.Time // when each call was made
	for range rapid.IntRange(1, 60).Draw(t, "calls") {
		shortest := 10 * time.Minute
		for _, c := range rule.Conditions() {
			if c.TTL > 0 {
				shortest = min(shortest, c.TTL/time.Duration(c.Max))
			}
		}
		time.Sleep(rapid.SampledFrom([]time.Duration{
			0, 0, time.Duration(rapid.Int64Range(0, int64(shortest)).Draw(t, "pause")),
			last.RetryAfter, max(0, last.RetryAfter-1), record.LockoutMemory,
		}).Draw(t, "sleep"))
		drawCall(t, rule)
		now := time.Now()
		switch rapid.IntRange(0, 11).Draw(t, "meanwhile") {
		case 0:
			// What a bucket has counted has leaked in part later.
			at := rapid.IntRange(0, max(0, len(made)-1)).Draw(t, "which")
			buckets := slices.ContainsFunc(rule.Conditions(), func(c throttler.Condition) bool { return c.Algorithm == throttler.LeakyBucket })
			if len(made) == 0 || buckets && (at < len(made)-1 || made[at].Before(now)) {
				break
			}
			for name, w := range ways {
				for range 2 { // twice is once
					require.NoError(t, w.Cancel(t.Context(), w.decisions[at]), name)
				}
			}
			model.cancel(at)
			simulation = nil
		case 1:
			for name, w := range ways {
				require.NoError(t, w.Reset(t.Context(), rule), name)
			}
			for _, c := range rule.Conditions() {
				delete(model, model.key(c))
			}
			time.Sleep(time.Nanosecond) // a hit of the same instant would be taken for one that was forgotten
			now, simulation = time.Now(), nil
		case 2:
			d := time.Duration(rapid.Int64Range(1, int64(time.Hour)).Draw(t, "ban"))
			for name, w := range ways {
				require.NoError(t, w.Ban(t.Context(), rule, d), name)
			}
			for _, c := range rule.Conditions() {
				model[model.key(c)] = model[model.key(c)].ban(c, now, d)
			}
			simulation = nil
		}
		want := model.decide(rule, now, len(made))
		agrees := func(name string, got throttler.Decision, err error) {
			require.NoError(t, err, name)
			require.NoError(t, got.Err, name)
			require.Equal(t, want.Outcomes, got.Outcomes, name)
			require.Equal(t, want.Status, got.Status, name)
			require.Equal(t, want.WouldBlock, got.WouldBlock, name)
			require.Equal(t, want.Messages, got.Messages, name)
			require.Equal(t, got.Status == throttler.Blocked, got.RetryAfter > 0, name)
			if got.Status == throttler.Blocked {
				at := func(wait time.Duration) throttler.Status {
					return maps.Clone(model).decide(rule, now.Add(wait), 0).Status
				}
				require.Equal(t, throttler.Blocked, at(got.RetryAfter-1), name)
				require.Equal(t, throttler.Authorized, at(got.RetryAfter), name)
			}
			last = got
		}
		for name, w := range ways {
			plain, ok := clients[name].(*faulty)
			if ok {
				plain.took()
			}
			d, err := w.Peek(t.Context(), rule)
			agrees(name+", Peek", d, err)
			if ok {
				ops := plain.took()
				require.NotContains(t, ops, "add", "Peek writes nothing")
				require.NotContains(t, ops, "cas", "Peek writes nothing")
			}
			d, err = w.Authorize(t.Context(), rule)
			agrees(name+", Authorize", d, err)
			w.decisions = append(w.decisions, d)
		}
		made = append(made, now)
		if simulation != nil {
			d, err := simulation.Authorize(now, rule)
			agrees("simulation", d, err)
			for name, th := range takes {
				if c := rule.Conditions(); len(c) == 1 && c[0].Algorithm != throttler.InFlight {
					limit, err := th.Limit(rule)
					require.NoError(t, err, name)
					o := want.Outcomes[0]
					o.Blocked = o.Blocked && !rule.Shadow
					require.Equal(t, o, limit.Take(t.Context(), c[0].Value), name)
				}
			}
		}
	}
}

// Every way to decide answers as the naive limiter, for any rule and any calls, some of which are
// cancelled, among resets and bans: Peek and Authorize, over process memory, an Exchanger and a
// plain client, and from a block cache, a Limit and a Simulation. RetryAfter is, to the nanosecond, when
// the same call is authorized.
func TestEveryWayDecidesAsANaiveLimiter(t *testing.T) {
	check(t, func(t *rapid.T) {
		clients := make(map[string]throttler.Client)
		for name, client := range storesInMemory {
			clients[name] = client()
		}
		askWays(t, clients)
	})
}

func TestAServerDecidesAsANaiveLimiter(t *testing.T) {
	t.Parallel()
	server := servertest.NewMemcached(t)
	client := clientOf(t, server.Addr)
	check(t, func(t *rapid.T) {
		require.NoError(t, client.FlushAll())
		askWays(t, map[string]throttler.Client{"memcached": client})
	})
}
