package login_test

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bradfitz/gomemcache/memcache"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/internal/servertest"
	"github.com/adaptivethrottler/throttler/internal/skiptest"
	"github.com/adaptivethrottler/throttler/login"
	"github.com/adaptivethrottler/throttler/memstore"
)

// limits are set in Guard.Limits.
type limits = map[string]login.Limit

// refusal is the message of all refused attempts.
const refusal = "Too many attempts. Please try again later."

var (
	home   = netip.MustParseAddr("203.0.113.7")
	away   = netip.MustParseAddr("198.51.100.9")
	office = netip.MustParseAddr("192.0.2.1")
)

// addr returns the i-th of many addresses.
func addr(i int) netip.Addr {
	return netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)})
}

// A scene is what happens at a guard, in steps that are separated by semicolons or
// lines. A step is one of these:
//
//	wait 10m                 time passes
//	keys new old             the guard has these keys; -: none
//	lift address 192.0.2.1   LiftRecord
//	pending succeed          those who have begun succeed, fail or cancel
//	pending handOver         another process takes them over
//	alice@home/phone in      alice logs in from home with the device phone
//
// @home and no device are the defaults, and a blank of a name is written as _. In place of a name or of an address, * is
// another one each time. What somebody does:
//
//	in, in 20          logs in, once or so many times
//	in as tablet       and gets the device tablet; as -: none
//	fails 5            guesses, and all guesses are verified
//	fails 5/9          makes 9 guesses, of which 5 are verified
//	begins 5/6         as fails, but ends no attempt
//	keeps, challenges or cancels 5/9   as fails, but ends attempts so
//	passes             begins, and cancels
//	refused            begins, and is refused
//	refused 10m        for 10 minutes; <1m: for a minute at most, and without a ban
//	secondStep         is refused, and asked for a second step
//	halfUsed, fresh    begins, with a limit that is half used or with none, and cancels
//	counts by name address    is counted by these limits
//	left name 21       the limit has room for 21; ~21: about
//
// What others do:
//
//	full               strangers use up the name, from many addresses
//	banned             strangers have the address banned
//	recognized, lifted, forgotten, confirmed: Recognize, Lift, Forget, ConfirmDevice
type scene struct {
	what    string
	options func(*login.Guard) // may be nil
	steps   string
}

// play plays scenes on the embedded store, in bubbles of held time.
func play(t *testing.T, scenes []scene) {
	for _, s := range scenes {
		t.Run(s.what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { on(t, memstore.New()).play(s) })
		})
	}
}

// playOnEachBackend plays scenes on a real server too.
func playOnEachBackend(t *testing.T, scenes []scene) {
	for _, s := range scenes {
		t.Run(s.what, func(t *testing.T) {
			eachBackend(t, func(t *testing.T, client throttler.Client) { on(t, client).play(s) })
		})
	}
}

// eachBackend runs test on the embedded store, in a bubble of its own time, and
// on a real server.
func eachBackend(t *testing.T, test func(*testing.T, throttler.Client)) {
	t.Run("memstore", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) { test(t, memstore.New()) })
	})
	t.Run("memcached", func(t *testing.T) {
		client := memcache.New(servertest.AnyMemcached(t, "-c", "8192").Addr)
		client.Timeout = 5 * time.Second
		t.Cleanup(func() { assert.NoError(t, client.Close()) })
		client.MaxIdleConns = 64
		test(t, client)
	})
}

// try is a guard with the steps of a test.
type try struct {
	*login.Guard
	t *testing.T
}

// on returns a guard over client. A busy machine must not make it fail open.
func on(t *testing.T, client throttler.Client) try {
	limits := throttler.New(client)
	limits.QueueTimeout = 20 * time.Second
	return try{login.New(limits), t}
}

// A stage is where a scene is played.
type stage struct {
	try
	since   time.Time // when the scene began
	others  int       // who have come so far
	pending []*login.Attempt
}

func (g try) play(s scene) {
	g.t.Helper()
	if s.options != nil {
		s.options(g.Guard)
	}
	here := &stage{try: g, since: time.Now()}
	for i, step := range strings.FieldsFunc(s.steps, func(r rune) bool { return r == ';' || r == '\n' }) {
		if words := strings.Fields(step); len(words) > 0 {
			here.step(fmt.Sprintf("step %d: %s", i+1, strings.TrimSpace(step)), words)
		}
	}
}

// ends are the ways to end an attempt.
var ends = map[string]func(*login.Attempt, context.Context) error{
	"succeed": (*login.Attempt).Succeed, "fail": (*login.Attempt).Fail, "cancel": (*login.Attempt).Cancel,
	"keep": (*login.Attempt).Keep, "challenge": (*login.Attempt).Challenge,
	"begin": func(*login.Attempt, context.Context) error { return nil },
}

// step plays one step.
func (g *stage) step(where string, words []string) {
	g.t.Helper()
	ctx, verb := g.t.Context(), words[1]
	switch words[0] {
	case "wait":
		time.Sleep(span(g.t, words[1]))
		return
	case "keys":
		g.Keys = nil
		for _, key := range words[1:] {
			g.Keys = append(g.Keys, []byte(strings.Trim(key, "-")))
		}
		return
	case "lift":
		require.NoError(g.t, g.LiftRecord(ctx, words[1], words[2]), where)
		return
	case "pending":
		for i, a := range g.pending {
			if verb == "handOver" {
				g.pending[i] = handOver(g.t, a, g.Guard)
				continue
			}
			require.NoError(g.t, ends[verb](a, withNext(ctx, words[2:])), where)
		}
		return
	}
	who, device, _ := strings.Cut(words[0], "/")
	name, place, _ := strings.Cut(who, "@")
	p := person{g, where, strings.ReplaceAll(name, "_", " "), place, device}
	if !p.tries(verb, words[2:]) {
		p.meets(verb)
	}
}

// A person is who takes a step.
type person struct {
	*stage
	where, name, place, device string
}

// next returns the name and the address of the next attempt.
func (p person) next() (string, netip.Addr) {
	p.others++
	if p.name == "*" {
		return fmt.Sprint("other", p.others), p.at(p.place, p.others)
	}
	return p.name, p.at(p.place, p.others)
}

// begins begins an attempt, which is let pass or not.
func (p person) begins(want throttler.Status) *login.Attempt {
	p.t.Helper()
	name, from := p.next()
	a := p.beginDevice(name, from, p.device)
	require.Equal(p.t, want, a.Decision.Status, p.where)
	return a
}

// tries makes the attempts of verb, if it is one of these.
func (p person) tries(verb string, arguments []string) bool {
	p.t.Helper()
	ctx, argument := p.t.Context(), strings.Join(arguments, " ")
	switch verb {
	case "in":
		times := 1
		if len(arguments) == 1 {
			times = count(p.t, argument)
		}
		for range times {
			require.NoError(p.t, p.begins(throttler.Authorized).Succeed(withNext(ctx, arguments)), p.where)
		}
	case "fails", "begins", "keeps", "challenges", "cancels":
		verified, of, found := strings.Cut(argument, "/")
		if !found {
			of = verified
		}
		passed := 0
		for range count(p.t, of) {
			name, from := p.next()
			if a := p.beginDevice(name, from, p.device); a.Decision.Status == throttler.Authorized {
				passed++
				require.NoError(p.t, ends[strings.TrimSuffix(verb, "s")](a, ctx), p.where)
				if verb == "begins" {
					p.pending = append(p.pending, a)
				}
			}
		}
		require.Equal(p.t, count(p.t, verified), passed, p.where)
	case "passes", "halfUsed", "fresh":
		a := p.begins(throttler.Authorized)
		require.False(p.t, a.SecondStep, p.where)
		if verb != "passes" {
			require.Equal(p.t, verb == "halfUsed", a.HalfUsed, p.where)
		}
		require.NoError(p.t, a.Cancel(ctx), p.where)
	case "secondStep":
		require.True(p.t, p.begins(throttler.Blocked).SecondStep, p.where)
	case "counts":
		var limits []string
		a := p.begins(throttler.Authorized)
		for _, o := range a.Decision.Outcomes {
			limits = append(limits, o.Name)
		}
		require.NoError(p.t, a.Cancel(ctx), p.where)
		require.Equal(p.t, arguments[1:], limits, p.where)
	case "refused":
		p.refused(p.where, p.begins(throttler.Blocked), p.since, argument)
	case "left":
		name, from := p.next()
		d, err := p.Peek(ctx, name, from)
		require.NoError(p.t, err, p.where)
		i := slices.IndexFunc(d.Outcomes, func(o throttler.Outcome) bool { return o.Name == arguments[0] })
		require.GreaterOrEqual(p.t, i, 0, p.where)
		left, about := strings.CutPrefix(arguments[1], "~")
		delta := 0.0
		if about {
			delta = 1
		}
		require.InDelta(p.t, count(p.t, left), d.Outcomes[i].Remaining+1, delta, p.where)
	default:
		return false
	}
	return true
}

// meets has others do what verb says.
func (p person) meets(verb string) {
	p.t.Helper()
	ctx, from := p.t.Context(), p.at(p.place, 0)
	switch verb {
	case "full":
		p.fill(p.name)
	case "banned":
		p.banAddress(from)
	case "recognized":
		require.NoError(p.t, p.Recognize(ctx, p.name, from, p.device), p.where)
	case "lifted":
		if p.place == "" {
			from = netip.Addr{}
		}
		require.NoError(p.t, p.Lift(ctx, p.name, from), p.where)
	case "forgotten":
		require.NoError(p.t, p.Forget(ctx, p.name, p.device), p.where)
	case "confirmed":
		require.NoError(p.t, p.ConfirmDevice(ctx, p.name, p.device), p.where)
	default:
		require.Fail(p.t, "no such step", p.where)
	}
}

// withNext returns ctx with the device of "as tablet", if that is said.
func withNext(ctx context.Context, words []string) context.Context {
	if len(words) < 2 {
		return ctx
	}
	return login.WithDevice(ctx, strings.Trim(words[1], "-"))
}

// refused requires that a was refused for so long, from begun on at the earliest.
func (g try) refused(where string, a *login.Attempt, begun time.Time, length string) {
	g.t.Helper()
	require.Equal(g.t, throttler.Blocked, a.Decision.Status, where)
	most, bounded := strings.CutPrefix(length, "<")
	switch {
	case length == "":
		return
	case bounded:
		require.Positive(g.t, a.Decision.RetryAfter, where)
		for _, o := range a.Decision.Outcomes {
			require.False(g.t, o.Banned, "%s: %s", where, o.Name)
		}
	default:
		require.GreaterOrEqual(g.t, a.Decision.RetryAfter, span(g.t, length)-time.Second-time.Since(begun), where)
	}
	require.LessOrEqual(g.t, a.Decision.RetryAfter, span(g.t, most)+time.Second, where)
}

// at returns the address of a place, home by default. i tells those of "*" apart.
func (g try) at(name string, i int) netip.Addr {
	g.t.Helper()
	switch name {
	case "", "home":
		return home
	case "away":
		return away
	case "office":
		return office
	case "*":
		return addr(1<<16 + i)
	}
	from, err := netip.ParseAddr(name)
	require.NoError(g.t, err)
	return from
}

func count(t *testing.T, text string) int {
	t.Helper()
	n, err := strconv.Atoi(text)
	require.NoError(t, err)
	return n
}

func span(t *testing.T, text string) time.Duration {
	t.Helper()
	d, err := time.ParseDuration(text)
	require.NoError(t, err)
	return d
}

func (g try) begin(name string, addr netip.Addr) *login.Attempt {
	g.t.Helper()
	return g.beginDevice(name, addr, "")
}

func (g try) beginDevice(name string, addr netip.Addr, device string) *login.Attempt {
	g.t.Helper()
	a, err := g.Begin(login.WithDevice(g.t.Context(), device), name, addr)
	require.NoError(g.t, err)
	require.NoError(g.t, a.Decision.Err)
	return a
}

// fails makes n wrong guesses and returns how many of them were verified.
func (g try) fails(n int, name string, addr netip.Addr) (verified int) {
	g.t.Helper()
	for range n {
		a := g.begin(name, addr)
		if a.Decision.Status == throttler.Authorized {
			verified++
			require.NoError(g.t, a.Fail(g.t.Context()))
		}
	}
	return verified
}

func (g try) succeeds(name string, addr netip.Addr) {
	g.t.Helper()
	a := g.begin(name, addr)
	require.Equal(g.t, throttler.Authorized, a.Decision.Status, "%s from %s", name, addr)
	require.NoError(g.t, a.Succeed(g.t.Context()))
}

func (g try) isBlocked(name string, addr netip.Addr, retryAfter time.Duration) {
	g.t.Helper()
	g.refused(name, g.begin(name, addr), time.Now(), retryAfter.String())
}

// fill has strangers use up the budget of name, from many addresses.
func (g try) fill(name string) {
	g.t.Helper()
	for i := range 30 {
		g.fails(1, name, addr(1000+i))
	}
	require.Equal(g.t, throttler.Blocked, g.begin(name, away).Decision.Status)
}

// banAddress has strangers get addr banned.
func (g try) banAddress(addr netip.Addr) {
	g.t.Helper()
	for i := range 51 {
		g.fails(1, fmt.Sprint("victim", i), addr)
	}
	require.Equal(g.t, throttler.Blocked, g.begin("stranger", addr).Decision.Status)
}

// TestMain says at the end what was skipped.
func TestMain(m *testing.M) { os.Exit(skiptest.Run(m)) }

// takesLong skips a test with -short. The race detector makes it five times as long, and
// would find little: at any time hardly more than one of its goroutines runs.
func takesLong(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("takes a while; run it without -short")
	}
}
