package login_test

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"net/netip"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/login"
	"github.com/adaptivethrottler/throttler/memstore"
)

// slow says to run the simulations in full.
var slow = os.Getenv("THROTTLER_SLOW") != ""

// A site is a guard at which people log in and attackers fail, each time with another
// name from another network. It notes how long the alarm rings.
type site struct {
	watch
	random *rand.Rand
	on     time.Time // when the alarm that rings began
	rung   time.Duration
}

func siteOn(t *testing.T) *site {
	store := memstore.New()
	store.MaxItems = 1 << 20
	s := &site{watch: watch{try: on(t, store)}, random: rand.New(rand.NewPCG(5, 6))}
	s.Alarm = func(_ context.Context, found login.Siege) {
		switch {
		case found.Network.IsValid():
		case found.On:
			s.on = time.Now()
		default:
			s.rung += time.Since(s.on)
			s.on = time.Time{}
		}
	}
	return s
}

// rings returns for how long the alarm has rung.
func (s *site) rings() time.Duration {
	if s.on.IsZero() {
		return s.rung
	}
	return s.rung + time.Since(s.on)
}

// tries are how many people try to log in for one who fails for good. The others get in.
const tries = 7

// live has people try to log in for a time, at random, so that rate of them an hour fail
// for good, and attackers make attack guesses an hour. The rate depends on the time
// since the beginning.
func (s *site) live(length time.Duration, rate func(since time.Duration) float64, attack float64) {
	s.t.Helper()
	begin := time.Now()
	for {
		since := time.Since(begin)
		all := tries*rate(since) + attack
		pause := min(s.random.ExpFloat64()/max(all, 0.1), 1) // hours; asks at least once an hour
		if since+time.Duration(pause*float64(time.Hour)) > length {
			return
		}
		time.Sleep(time.Duration(pause * float64(time.Hour)))
		name, from := fmt.Sprint("user", s.random.IntN(1_000_000)), netip.AddrFrom4([4]byte{byte(1 + s.random.IntN(200)), byte(s.random.IntN(200)), 7, byte(s.random.IntN(200))})
		if s.random.Float64()*all < attack || s.random.IntN(tries) == 0 {
			s.failed++
			require.Equal(s.t, 1, s.fails(1, name, from))
		} else {
			s.succeeds(name, from)
		}
	}
}

// The rates of a site with n failures an hour, on average.
func steady(n float64) func(time.Duration) float64 {
	return func(time.Duration) float64 { return n }
}

// dayAndNight begins at night, when there is next to nothing, and is twice as
// busy by day.
func dayAndNight(n float64) func(time.Duration) float64 {
	return func(since time.Duration) float64 { return n * (1 - 0.95*math.Cos(2*math.Pi*since.Hours()/24)) }
}

// grows has a site grow tenfold within a month, evenly or by so much a day.
func grows(rate func(time.Duration) float64, factor func(month float64) float64) func(time.Duration) float64 {
	return func(since time.Duration) float64 { return rate(since) * factor(min(since.Hours()/24/30, 1)) }
}

// growths are how much larger a site is after part of a month.
var growths = map[string]func(month float64) float64{
	"":                       func(float64) float64 { return 1 },
	", growing evenly":       func(month float64) float64 { return 1 + 9*month },
	", growing by 8 % a day": func(month float64) float64 { return math.Pow(10, month) },
}

// A site of any size is quiet while nobody attacks it, also in an hour in which a
// newsletter brings six times as many people, and notices within the hour an attack of
// five times the usual failures. By default a few sites are tried; with THROTTLER_SLOW=1
// all.
func TestBusySitesAreQuietAndNoticeAnAttack(t *testing.T) {
	takesLong(t)
	type months struct {
		name   string
		rate   func(float64) func(time.Duration) float64
		peak   float64 // in a busy hour, of the average
		grows  string
		atEnd  float64 // failures an hour
		days   int
		always bool // not only if all is to be run
	}
	cases := []months{
		{"steady", steady, 1, "", 150, 1, true},
		{"by day and night", dayAndNight, 1.95, "", 100, 2, true},
	}
	for _, n := range []float64{50, 150, 300, 600} {
		for grows := range growths {
			days := 10
			if grows != "" {
				days = 35
			}
			cases = append(cases, months{"steady", steady, 1, grows, n, days, false},
				months{"by day and night", dayAndNight, 1.95, grows, n, days, false})
		}
	}
	for _, c := range cases {
		if !c.always && !slow {
			continue
		}
		t.Run(fmt.Sprint(c.atEnd, " an hour ", c.name, c.grows, " for ", c.days, " days"), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, began, factor := siteOn(t), time.Now(), growths[c.grows]
				honest := grows(c.rate(c.atEnd/factor(1)), factor)
				now := func(factor float64) func(time.Duration) float64 {
					since := time.Since(began)
					return func(further time.Duration) float64 { return factor * honest(since+further) }
				}
				s.live(time.Duration(c.days)*24*time.Hour, honest, 0)
				require.Zero(t, s.rings())
				s.live(time.Hour, now(6), 0)
				s.live(2*time.Hour, now(1), 0)
				require.Zero(t, s.rings(), "a newsletter")

				s.live(time.Hour, now(1), 5*c.peak*c.atEnd)
				require.NotZero(t, s.rings(), "an attack")
			})
		})
	}
}

// An attack that goes on for days is none that becomes usual, and processes that begin
// with empty records in the middle of it notice it within minutes.
func TestAnAttackNeverBecomesUsual(t *testing.T) {
	takesLong(t)
	attack := 4 * time.Hour
	if slow {
		attack = 100 * time.Hour
	}
	for _, quiet := range []time.Duration{6 * time.Hour, 0} {
		synctest.Test(t, func(t *testing.T) {
			s := siteOn(t)
			s.live(quiet, steady(20), 0)
			require.Zero(t, s.rings())
			began := time.Now()
			s.live(attack, steady(20), 4000)
			require.Greater(t, s.rings(), time.Since(began)-5*time.Minute)
		})
	}
}

// Many processes, each of which makes an attempt every ten minutes.
func TestProcessesWithFewAttemptsNoticeToo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := siteOn(t)
		store := memstore.New()
		var all []*site
		for range 25 {
			one := siteOn(t)
			one.try.Guard = login.New(throttler.New(store))
			one.Alarm = s.Alarm
			all = append(all, one)
		}
		s.try.Guard = all[0].try.Guard
		next := 0
		turn := func(rate float64) func(time.Duration) float64 {
			return func(time.Duration) float64 {
				next++
				s.try.Guard = all[next%len(all)].try.Guard
				return rate
			}
		}
		rang := 0
		for _, one := range all {
			on := false
			one.Guard.Alarm = func(_ context.Context, found login.Siege) {
				on = found.On
				if on {
					rang++
				}
			}
		}
		s.live(12*time.Hour, turn(20), 0)
		require.Zero(t, rang)
		s.live(90*time.Minute, turn(20), 5*150)
		require.Equal(t, len(all), rang, "each process learns of an attack")
	})
}
