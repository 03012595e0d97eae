package throttler_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/memstore"
	"github.com/stretchr/testify/require"
)

// The sessions that the authors of other limiters have published, reproduced
// call by call. Times are in seconds since the session began.

// session is a throttler in time that is held, so it belongs under synctest.
type session struct {
	*testing.T
	throttler *throttler.Throttler
	start     time.Time
}

func newSession(t *testing.T) *session {
	return &session{T: t, throttler: throttler.New(memstore.New()), start: time.Now()}
}

// sleepUntil returns at so many seconds.
func (s *session) sleepUntil(seconds float64) {
	s.Helper()
	at := s.start.Add(time.Duration(seconds * float64(time.Second)))
	require.False(s, at.Before(time.Now()), "%v s has passed", seconds)
	time.Sleep(time.Until(at))
}

func (s *session) authorize(rule throttler.Rule) throttler.Decision {
	s.Helper()
	d, err := s.throttler.Authorize(s.Context(), rule)
	require.NoError(s, err)
	require.NoError(s, d.Err)
	return d
}

// lineRule is the example of Algorithm::FloodControl: at most 2 equal lines in 10
// seconds ("local") and 5 lines in a minute ("global"). The module leaves it to
// its caller to count a line in both; a line that one of them refuses is not
// counted in the other.
func lineRule(line string) throttler.Rule {
	return throttler.Rule{
		Identifier: "flood",
		Either: []throttler.Condition{
			{Name: "local", Value: line, Max: 2, TTL: 10 * time.Second},
			{Name: "global", Max: 5, TTL: time.Minute},
		},
		CountAuthorizedOnly: true,
	}
}

func TestPublishedSessionOfFloodControl(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSession(t)
		for _, call := range []struct {
			at            float64
			line          string
			local, global time.Duration // to wait; 0: it would pass
		}{
			{35, "hello", 0, 0},
			{38, "hello", 0, 0},
			{40, "hello", 5 * time.Second, 0},
			{43, "bye", 0, 0},
			{45, "hello", 0, 0},
			{48, "see you", 0, 0},
			{52, "next time", 0, 43 * time.Second},
			{69, "one more try?", 0, 26 * time.Second},
			{91, "free again", 0, 4 * time.Second},
			{102, "free again", 0, 0},
		} {
			s.sleepUntil(call.at)
			d := s.authorize(lineRule(call.line))
			wait := max(call.local, call.global)
			require.Equal(t, wait == 0, d.Status == throttler.Authorized, "at %v", call.at)
			require.Equal(t, wait, d.RetryAfter, "at %v", call.at)
			for i, want := range []time.Duration{call.local, call.global} {
				o := d.Outcomes[i]
				require.Equal(t, want > 0, o.Blocked, "%s at %v", o.Name, call.at)
				if d.Status == throttler.Blocked {
					require.Equal(t, want, o.RetryAfter, "%s at %v", o.Name, call.at)
				}
			}
		}
	})
}

// The module's answer is a promise: who comes back after the wait gets through,
// and a nanosecond before it does not.
func TestWaitOfFloodControlIsExact(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSession(t)
		for i := range 20 {
			line := fmt.Sprint(i % 3)
			d := s.authorize(lineRule(line))
			if d.Status == throttler.Authorized {
				time.Sleep(1100 * time.Millisecond)
				continue
			}
			time.Sleep(d.RetryAfter - 1)
			require.Equal(t, throttler.Blocked, s.authorize(lineRule(line)).Status)
			time.Sleep(time.Nanosecond)
			require.Equal(t, throttler.Authorized, s.authorize(lineRule(line)).Status)
		}
	})
}

// chatRule is the chat bot of the article about the module: 2 requests a minute
// for each user, and 10 in 2 minutes for all.
func chatRule(user string) throttler.Rule {
	return throttler.Rule{
		Identifier: "chat",
		Either: []throttler.Condition{
			{Name: "user", Value: user, Max: 2, TTL: time.Minute},
			{Name: "everybody", Max: 10, TTL: 2 * time.Minute},
		},
		CountAuthorizedOnly: true,
	}
}

func TestRequestThatTheLimitForAllRefusesLeavesTheUsersBudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSession(t)
		for i := range 10 {
			d := s.authorize(chatRule(fmt.Sprintf("user %d", i)))
			require.Equal(t, throttler.Authorized, d.Status)
		}
		// As often as she likes: her own budget stays whole, in every answer.
		for range 5 {
			d := s.authorize(chatRule("alice"))
			require.Equal(t, throttler.Blocked, d.Status)
			require.Equal(t, []string{"everybody"}, d.Messages)
			require.Equal(t, 2*time.Minute, d.RetryAfter+time.Since(s.start))
			require.Equal(t, throttler.Outcome{Name: "user", Limit: 2, Remaining: 2}, d.Outcomes[0])
			time.Sleep(time.Second)
		}
		s.sleepUntil(120)
		require.Equal(t, throttler.Authorized, s.authorize(chatRule("alice")).Status)
		require.Equal(t, throttler.Authorized, s.authorize(chatRule("alice")).Status)
		d := s.authorize(chatRule("alice"))
		require.Equal(t, []string{"user"}, d.Messages)
	})
}

// What the author of the bot had, and wished to be rid of.
func TestWithoutCountAuthorizedOnlySuchARequestEatsTheUsersBudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSession(t)
		rule := func(user string) throttler.Rule {
			r := chatRule(user)
			r.CountAuthorizedOnly = false
			return r
		}
		for i := range 10 {
			s.authorize(rule(fmt.Sprintf("user %d", i)))
		}
		s.sleepUntil(119)
		require.Equal(t, []string{"everybody"}, s.authorize(rule("alice")).Messages)
		require.Equal(t, []string{"everybody"}, s.authorize(rule("alice")).Messages)
		s.sleepUntil(120)
		require.Equal(t, []string{"user"}, s.authorize(rule("alice")).Messages)
	})
}

func TestRequestThatTheUsersLimitRefusesLeavesTheBudgetOfAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSession(t)
		for range 100 {
			s.authorize(chatRule("mallory"))
		}
		d := s.authorize(chatRule("alice"))
		require.Equal(t, throttler.Authorized, d.Status)
		require.Equal(t, 7, d.Outcomes[1].Remaining)
	})
}

// The simple cooldown, 3 in 60 seconds: a key's score is a time that each hit
// puts 20 seconds further ahead, and a hit is rejected while it is more than
// 60 - 20 = 40 seconds ahead already.
func TestPublishedSessionOfSimpleCooldown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSession(t)
		rule := throttler.Rule{Identifier: "cooldown", Either: []throttler.Condition{
			{Name: "key", Value: "k", Max: 3, TTL: time.Minute, Algorithm: throttler.LeakyBucket},
		}}
		for _, call := range []struct {
			at       float64
			rejected bool
			score    float64 // how many seconds it is ahead, after the call
		}{
			{at: 0, score: 20},
			{at: 0, score: 40},
			{at: 0, score: 60},
			{at: 0, rejected: true, score: 60},
			{at: 10, rejected: true, score: 50},
			{at: 19.999, rejected: true, score: 40.001},
			{at: 20, score: 60}, // 40 ahead is not more than 40
			{at: 20, rejected: true, score: 60},
			{at: 39, rejected: true, score: 41},
			{at: 41, score: 59}, // late, which leaves a second for the next one
			{at: 60, score: 60},
			{at: 100, score: 40}, // two intervals later, two
			{at: 100, score: 60},
			{at: 100, rejected: true, score: 60},
			{at: 160, score: 20}, // empty again: a burst of 3
			{at: 160, score: 40},
			{at: 160, score: 60},
			{at: 160, rejected: true, score: 60},
			{at: 1000, score: 20}, // it never saves more than a burst
			{at: 1000, score: 40},
			{at: 1000, score: 60},
			{at: 1000, rejected: true, score: 60},
		} {
			s.sleepUntil(call.at)
			o := s.authorize(rule).Outcomes[0]
			require.Equal(t, call.rejected, o.Blocked, "at %v", call.at)
			require.InDelta(t, call.score, o.ResetAfter.Seconds(), 1e-9, "at %v", call.at)
			require.InDelta(t, max(0, call.score-40), o.RetryAfter.Seconds(), 1e-9, "at %v", call.at)
			require.Equal(t, int(60-call.score)/20, o.Remaining, "at %v", call.at)
		}
	})
}

func TestSimpleCooldownLetsOneThroughEveryIntervalOnceFull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSession(t)
		rule := throttler.Rule{Identifier: "cooldown", Either: []throttler.Condition{
			{Name: "key", Max: 3, TTL: time.Minute, Algorithm: throttler.LeakyBucket},
		}}
		var authorized []float64
		for second := range 121 { // tried every second
			s.sleepUntil(float64(second))
			for s.authorize(rule).Status == throttler.Authorized {
				authorized = append(authorized, float64(second))
			}
		}
		require.Equal(t, []float64{0, 0, 0, 20, 40, 60, 80, 100, 120}, authorized)
	})
}
