package main

import (
	"context"
	"net"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestEverySystemAllowsItsLimitAndNoMore(t *testing.T) {
	st := staged(t)
	for _, c := range comparisons() {
		for _, sc := range c.scenes {
			require.NoError(t, st.verify(sc.systems))
		}
	}
}

func TestSystemThatCountsAllValuesTogetherIsNotMeasured(t *testing.T) {
	together := system{name: "together", open: func(_ env, l limit) (limiter, error) {
		return (&slow{allow: func(call int64) (bool, error) { return call <= int64(l.Max), nil }}).limiter(), nil
	}}
	st := &stage{}
	require.ErrorContains(t, st.verify([]system{together}), "does not limit: call 1 at a limit of 5")
}

// Two instances share their records, as two processes would, and nothing with
// those of another space.
func TestInstancesOfASystemCountTogether(t *testing.T) {
	st := staged(t)
	for _, s := range st.playable(networked) {
		e := st.env(s, nil)
		var instances []limiter
		for _, e := range []env{e, e, st.env(s, nil)} {
			l, err := s.open(e, limit{2, day})
			require.NoError(t, err)
			defer l.close()
			instances = append(instances, l)
		}
		for i, want := range []bool{true, true, false, true} {
			l := instances[[]int{0, 1, 0, 2}[i]]
			allowed, err := l.caller()(t.Context(), "a")
			require.NoError(t, err)
			l.flush()
			require.Equal(t, want, allowed, "%s (%s), call %d", s.name, s.how, i+1)
		}
	}
}

func TestExactSystemsAdmitTheLimitOfACrowd(t *testing.T) {
	st := staged(t)
	exact := slices.DeleteFunc(slices.Clone(networked), func(s system) bool { return s.how == "fixed window" })
	exact = append(exact, poolAhead)
	for _, systems := range [][]system{exact, fleets(exact...)} {
		results, err := st.play(t.Context(), scene{work: crowded, systems: systems, turn: (*crowd).rush}, maxCallers, false)
		require.NoError(t, err)
		require.Len(t, results, len(exact))
		for _, r := range results {
			if r.system.name != poolAhead.name {
				require.Equal(t, "50", r.admitted(), "%s (%s)", r.system.name, r.system.how)
			}
			for _, one := range r.rounds {
				require.LessOrEqual(t, one.admitted, 50, "%s (%s)", r.system.name, r.system.how)
			}
		}
	}
}

// A known number of round trips: a fresh record is read and written, or less.
func TestRoundTripsOfALoneCallerAreCounted(t *testing.T) {
	st := staged(t)
	st.slice = 400 * time.Millisecond
	for _, c := range []struct {
		system      system
		work        work
		least, most float64
	}{
		{rueidisLog, spreadWork, 1, 1.01},
		{redisRate, hotWork, 1, 1.01},
		{redisWindow, spreadWork, 1, 1.01},
		{redisWindow, fullWork, 1, 1.01},
		{redisWindow, newWork, 1, 1.01},
		{plainWindow, fullWork, 1, 1.01},
		{plainWindow, newWork, 2, 2.01},
		{poolCached, fullWork, 0, 0.01},
	} {
		trips, err := st.countTrips(t.Context(), c.system, scene{work: c.work, turn: (*crowd).run}, 1)
		require.NoError(t, err)
		require.GreaterOrEqual(t, trips, c.least-0.01, "%s: %s", c.system.name, c.work.name)
		require.LessOrEqual(t, trips, c.most, "%s: %s", c.system.name, c.work.name)
	}
}

func TestLimitsKeepTheirRate(t *testing.T) {
	require.Equal(t, limit{4_000_000, time.Second}, hotWork.limit.bucket())
	require.Equal(t, limit{10_000, time.Second}, spreadWork.limit.bucket())
	require.Equal(t, fullWork.limit, fullWork.limit.bucket())
	require.Equal(t, uint32(50), perDay(fullWork.limit))
	require.Equal(t, uint32(864_000_000), perDay(spreadWork.limit))
	require.Equal(t, ^uint32(0), perDay(hotWork.limit), "as many as fit")
}

func TestInterruptedStageStops(t *testing.T) {
	st := &stage{servers: map[backend]*server{}, rounds: 1000, slice: time.Minute, report: t.Logf}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := st.play(ctx, scene{work: spreadWork, systems: []system{storeWindow}}, 2, false)
	require.ErrorIs(t, err, context.Canceled)
}

func TestRoundTripsAreTurnsFromReadingToSending(t *testing.T) {
	ours, theirs := net.Pipe()
	defer ours.Close()
	defer theirs.Close()
	go func() { // answers each byte but a dot
		for b := make([]byte, 1); ; {
			if _, err := theirs.Read(b); err != nil {
				return
			}
			if b[0] == '.' {
				continue
			}
			if _, err := theirs.Write(b); err != nil {
				return
			}
		}
	}()
	var trips counter
	conn := &countedConn{Conn: ours, trips: &trips}
	send := func(s string) {
		n, err := conn.Write([]byte(s))
		require.NoError(t, err)
		require.Equal(t, len(s), n)
	}
	receive := func(want string) {
		b := make([]byte, 1)
		_, err := conn.Read(b)
		require.NoError(t, err)
		require.Equal(t, want, string(b))
	}
	for _, step := range []struct {
		do   func()
		want int64
	}{
		{func() { send("a") }, 1},
		{func() { receive("a") }, 1},
		{func() { send(".") }, 2},
		{func() { send(".") }, 2}, // in the same packet, as it were
		{func() { send("b") }, 2},
		{func() { receive("b") }, 2},
		{func() { send("c") }, 3},
	} {
		step.do()
		assert.Equal(t, step.want, trips.Load())
	}
	require.NoError(t, theirs.Close())
	_, err := conn.Read(make([]byte, 1))
	require.Error(t, err)
	_, err = conn.Write([]byte("d"))
	require.Error(t, err)
	require.Equal(t, int64(3), trips.Load(), "an error is no answer")
}
