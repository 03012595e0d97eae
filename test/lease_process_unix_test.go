//go:build unix

package throttler_test

import (
	"bufio"
	"cmp"
	"context"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/internal/servertest"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const (
	holderVariable = "THROTTLER_TEST_HOLDER" // the address of the server, in a process that holds
	holderLease    = 500 * time.Millisecond
	holderMax      = 3
)

// A span is the time in which a holder worked by its context.
type span struct{ from, to int64 }

// TestHoldersThatDieOrStopNeverOverlap has more processes than Max hold hits in flight.
// Some are killed, and others are stopped for longer than their lease. Of those that work
// while their context lasts, no more than Max do at any time, and all places are free again.
func TestHoldersThatDieOrStopNeverOverlap(t *testing.T) {
	if addr := os.Getenv(holderVariable); addr != "" {
		holdAndReport(t, addr)
		return
	}
	t.Parallel()
	server := servertest.NewMemcached(t)
	const processes = 6
	var mu sync.Mutex
	spans := make(map[string]span)
	var readers sync.WaitGroup
	cmds := make([]*exec.Cmd, processes)
	for i := range cmds {
		cmd := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$")
		cmd.Env = append(os.Environ(), holderVariable+"="+server.Addr)
		out, err := cmd.StdoutPipe()
		require.NoError(t, err)
		require.NoError(t, cmd.Start())
		cmds[i] = cmd
		readers.Go(func() {
			for lines := bufio.NewScanner(out); lines.Scan(); {
				var lease string
				var at int64
				if n, _ := fmt.Sscanf(lines.Text(), "works %s %d", &lease, &at); n != 2 {
					continue
				}
				mu.Lock()
				s, ok := spans[lease]
				if !ok {
					s.from = at
				}
				s.to = max(s.to, at)
				spans[lease] = s
				mu.Unlock()
			}
		})
	}
	require.Eventually(t, func() bool { // all have begun to take turns
		mu.Lock()
		defer mu.Unlock()
		return len(spans) > 3*holderMax && mostAtOnce(spans) == holderMax
	}, time.Minute, 10*time.Millisecond)
	for range 2 { // twice, as a stopped process may just have held nothing
		for _, stopped := range cmds[:3] {
			require.NoError(t, stopped.Process.Signal(syscall.SIGSTOP))
		}
		time.Sleep(2 * holderLease)
		for _, stopped := range cmds[:3] {
			require.NoError(t, stopped.Process.Signal(syscall.SIGCONT))
		}
		time.Sleep(holderLease)
	}
	for _, killed := range cmds[1:] {
		require.NoError(t, killed.Process.Kill())
	}
	killed := time.Now()
	th := throttler.New(overPool(t, server))
	for {
		asked := time.Now()
		d := authorize(t, th, holderRule())
		require.NoError(t, d.Err)
		if d.Status == throttler.Authorized && d.Outcomes[0].Remaining > 0 {
			break // the process that goes on holds one at a time
		}
		require.NoError(t, th.Cancel(t.Context(), d))
		require.Less(t, asked.Sub(killed), holderLease+holderLease/10, "free after the TTL, with the margin for clocks")
		time.Sleep(5 * time.Millisecond)
	}
	require.NoError(t, cmds[0].Process.Kill())
	readers.Wait()
	for _, cmd := range cmds {
		_ = cmd.Wait() // killed
	}
	require.Greater(t, len(spans), 3*holderMax)
	require.LessOrEqual(t, mostAtOnce(spans), holderMax)
	require.Equal(t, holderMax, mostAtOnce(spans), "all places were used")
}

func holderRule() throttler.Rule {
	return one("holders", throttler.Condition{Name: "c", Max: holderMax, TTL: holderLease, Algorithm: throttler.InFlight})
}

// holdAndReport takes a hit in flight again and again, and writes down when it worked.
func holdAndReport(t *testing.T, addr string) {
	th := throttler.New(overPool(t, servertest.MemcachedAt(t, addr, nil)))
	for i := 0; ; i++ {
		ctx := context.Background()
		d, err := th.Wait(ctx, holderRule())
		if !assert.NoError(t, err) || !assert.NoError(t, d.Err) {
			return
		}
		lease := th.Hold(ctx, d)
		for begun := time.Now(); time.Since(begun) < holderLease/2; time.Sleep(time.Millisecond) {
			at := time.Now().UnixNano()
			if lease.Context().Err() != nil {
				break
			}
			fmt.Printf("works %d-%d %d\n", os.Getpid(), i, at)
		}
		_ = lease.Release(ctx)
	}
}

// mostAtOnce returns how many spans have a moment in common.
func mostAtOnce(spans map[string]span) int {
	type edge struct {
		at    int64
		delta int
	}
	var edges []edge
	for _, s := range spans {
		edges = append(edges, edge{s.from, 1}, edge{s.to, -1})
	}
	slices.SortFunc(edges, func(a, b edge) int { return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.delta, b.delta)) })
	n, most := 0, 0
	for _, e := range edges {
		n += e.delta
		most = max(most, n)
	}
	return most
}
