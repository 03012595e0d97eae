package main

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// The crowd of the admitted table: 64 callers at once, each with 4 calls for
// one value.
const (
	crowdLimit = 50
	crowdCalls = 4
)

// An admission is the result of a crowd's calls.
type admission struct {
	admitted int
	errors   int           // calls that were not decided
	wall     time.Duration // for all calls
}

// admit lets maxCallers callers call for one value with a limit of crowdLimit.
// They are spread over instances of s. Each instance has its own connections
// and memory, like a process.
func (st *stage) admit(ctx context.Context, s system, instances int) (admission, error) {
	shared := st.env(s, nil) // all have the same records
	var all []limiter
	for range instances {
		l, err := s.open(shared, limit{crowdLimit, day})
		if err != nil {
			return admission{}, err
		}
		defer l.close()
		all = append(all, l)
	}
	results := make([]admission, maxCallers)
	var ready, done sync.WaitGroup
	ready.Add(maxCallers)
	release := make(chan struct{})
	for i := range maxCallers {
		allow := all[i%instances].caller()
		done.Go(func() {
			ready.Done()
			<-release
			results[i] = rush(ctx, allow)
		})
	}
	ready.Wait()
	begin := time.Now()
	close(release)
	done.Wait()
	sum := admission{wall: time.Since(begin)}
	for _, r := range results {
		sum.admitted += r.admitted
		sum.errors += r.errors
	}
	return sum, ctx.Err()
}

// rush makes the calls of one caller.
func rush(ctx context.Context, allow func(string) (bool, error)) (a admission) {
	for range crowdCalls {
		if ctx.Err() != nil {
			return a
		}
		switch allowed, err := allow("crowd"); {
		case err != nil:
			a.errors++
		case allowed:
			a.admitted++
		}
	}
	return a
}

// admissions are the results of a system in several runs.
type admissions struct {
	system    system
	one, many []admission // by one instance, and by manyInstances
}

// manyInstances is the number of instances that stand for processes.
const manyInstances = 8

func (st *stage) admitAll(ctx context.Context, systems []system, runs int) ([]admissions, error) {
	var all []admissions
	for _, s := range st.playable(systems) {
		a := admissions{system: s}
		for range runs {
			for instances, to := range map[int]*[]admission{1: &a.one, manyInstances: &a.many} {
				r, err := st.admit(ctx, s, instances)
				if err != nil {
					return nil, fmt.Errorf("%s (%s): %w", s.name, s.how, err)
				}
				*to = append(*to, r)
			}
		}
		all = append(all, a)
	}
	return all, nil
}
