package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"
)

// A stage has the servers and the settings of all scenes.
type stage struct {
	servers map[backend]*server // those that are installed
	rounds  int
	slice   time.Duration // how long a system is measured in a round
	short   bool          // no slices of a second
	spaces  int           // the number of spaces in use
	report  func(format string, args ...any)
}

// A scene is one work for several systems. All systems are open at once and
// measured in turn, with a number of callers. So a machine that is slow for a
// while is slow for all of them.
type scene struct {
	work    work
	systems []system
	beside  []system // the others are compared with the faster of these
	turn    turn     // nil: run
}

// A result is the measurement of one system in a scene. The rounds of a scene's
// results have the same order.
type result struct {
	system system
	rounds []round
	trips  float64 // round trips for each decision
	beside []round // of the system that it is compared with
}

// playable returns the systems whose server runs.
func (st *stage) playable(systems []system) []system {
	var all []system
	for _, s := range systems {
		if s.backend == inProcess || st.servers[s.backend] != nil {
			all = append(all, s)
		}
	}
	return all
}

// play returns the results of sc's systems, in their order.
func (st *stage) play(ctx context.Context, sc scene, callers int, countTrips bool) (results []result, err error) {
	if sc.turn == nil {
		sc.turn = (*crowd).run
	}
	systems := st.playable(sc.systems)
	crowds := make([]*crowd, len(systems))
	results = make([]result, len(systems))
	for i, s := range systems {
		results[i].system = s
		if countTrips {
			results[i].trips, err = st.countTrips(ctx, s, sc, callers)
		}
		if err == nil {
			crowds[i], err = st.gather(ctx, s, sc, callers, nil)
		}
		if err != nil {
			return nil, failed(s, sc, callers, err)
		}
		defer crowds[i].limiter.close()
	}
	for range st.rounds {
		for _, i := range rand.Perm(len(systems)) {
			r, err := sc.turn(crowds[i], ctx, st.slice)
			if err != nil {
				return nil, failed(systems[i], sc, callers, err)
			}
			results[i].rounds = append(results[i].rounds, r)
		}
	}
	beside := better(results, sc.beside)
	for i := range results {
		results[i].beside = beside
	}
	return results, nil
}

func failed(s system, sc scene, callers int, err error) error {
	return fmt.Errorf("%s (%s), %s, %d callers: %w", s.name, s.how, sc.work.name, callers, err)
}

// gather opens s and lets callers warm it up. trips, unless it is nil, counts
// their round trips.
func (st *stage) gather(ctx context.Context, s system, sc scene, callers int, trips *counter) (*crowd, error) {
	l, err := s.open(st.env(s, trips), sc.work.limit)
	if err != nil {
		return nil, err
	}
	if sc.work.used != "" {
		err = use(l, sc.work.used, sc.work.limit.Max)
	}
	c := newCrowd(l, s, sc.work, callers)
	if err == nil {
		_, err = sc.turn(c, ctx, st.slice/2)
	}
	if err != nil {
		l.close()
		return nil, err
	}
	return c, nil
}

// countTrips returns the round trips of s for a decision. It counts them on
// separate connections, so that counting does not slow the measurement.
func (st *stage) countTrips(ctx context.Context, s system, sc scene, callers int) (float64, error) {
	var trips counter
	c, err := st.gather(ctx, s, sc, callers, &trips)
	if err != nil {
		return 0, err
	}
	defer c.limiter.close()
	trips.Store(0)
	r, err := sc.turn(c, ctx, st.slice/2)
	return float64(trips.Load()) / float64(max(1, r.decisions)), err
}

// env returns an unused environment for s.
func (st *stage) env(s system, trips *counter) env {
	st.spaces++
	e := env{server: st.servers[s.backend], space: fmt.Sprintf("bench%d", st.spaces)}
	if e.server != nil {
		e.dial = e.server.dialer(trips)
	}
	return e
}

// verify returns an error unless each system allows exactly 5 calls of 5 for
// each of two values.
func (st *stage) verify(systems []system) error {
	for _, s := range st.playable(systems) {
		l, err := s.open(st.env(s, nil), limit{5, day})
		if err == nil {
			err = errors.Join(use(l, addressNames[0], 5), use(l, addressNames[1], 5))
			l.close()
		}
		if err != nil {
			return fmt.Errorf("%s (%s) does not limit: %w", s.name, s.how, err)
		}
	}
	return nil
}
