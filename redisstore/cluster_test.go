package redisstore_test

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/internal/redistest"
	"github.com/adaptivethrottler/throttler/redisstore"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestTheSlotOfAKeyIsThatOfTheServer(t *testing.T) {
	t.Parallel()
	server := redistest.Process(t, "--cluster-enabled", "yes")
	for _, key := range []string{"", "a", "login#ip#10.0.0.1", "{tag}more", "a{b}c", "a{}b", "a{b", "a}{b", "{{x}}", "über"} {
		want, err := strconv.Atoi(server.Command("CLUSTER", "KEYSLOT", key))
		require.NoError(t, err)
		require.EqualValues(t, want, redisstore.Slot(key), key)
	}
}

// A primary of a Cluster is killed under load. Its values fail open until its replica
// has its place; those of the others never fail.
func TestAPrimaryOfAClusterIsKilled(t *testing.T) {
	t.Parallel()
	nodes := redistest.Cluster(t)
	s := open(t, fmt.Sprintf("redis://%s?addr=%s&addr=%s", nodes[0].Addr, nodes[1].Addr, nodes[2].Addr))
	th := throttler.New(s)

	// Values are full before, so that nothing may be admitted after.
	var values [3][]string // by node
	for i := 0; len(values[0]) < 20 || len(values[1]) < 20 || len(values[2]) < 20; i++ {
		value := strconv.Itoa(i)
		node := int(redisstore.Slot("test#ip#"+value)) * 3 / 16384
		values[node] = append(values[node], value)
	}
	full := func(value string) (throttler.Decision, error) {
		return th.Authorize(context.Background(), rule(value, 2))
	}
	for _, list := range values {
		for _, value := range list {
			for range 2 {
				d, err := full(value)
				require.NoError(t, err)
				require.NoError(t, d.Err)
				require.Equal(t, throttler.Authorized, d.Status)
			}
		}
	}
	for i := range 3 {
		redistest.AwaitReplica(nodes[i], nodes[i+3])
	}
	require.Len(t, s.Stats(), 3)

	nodes[0].Kill()
	killed := time.Now()
	var promoted, back time.Time
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for node := 1; node < 3; node++ {
		wg.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				default:
				}
				d, err := full(values[node][i%len(values[node])])
				if !assert.NoError(t, err) || !assert.NoError(t, d.Err) || !assert.Equal(t, throttler.Blocked, d.Status) {
					return
				}
			}
		})
	}
	slowest := time.Duration(0)
	for back.IsZero() && time.Since(killed) < 20*time.Second {
		begun := time.Now()
		d, err := full(values[0][0])
		slowest = max(slowest, time.Since(begun))
		require.NoError(t, err)
		if promoted.IsZero() {
			if role, err := nodes[3].Try("ROLE"); err == nil && role[:6] == "master" {
				promoted = time.Now()
			}
		}
		if d.Err == nil {
			require.Equal(t, throttler.Blocked, d.Status, "what was replicated is kept")
			back = time.Now()
			break
		}
		require.ErrorIs(t, d.Err, throttler.ErrUnavailable)
		time.Sleep(5 * time.Millisecond)
	}
	close(stop)
	wg.Wait()
	require.False(t, back.IsZero(), "the values of the node that was killed are never decided again")
	t.Logf("promoted %v after the kill, back %v later, the slowest call %v", promoted.Sub(killed), back.Sub(promoted), slowest)
	require.Less(t, back.Sub(promoted), 2*time.Second)
	require.Less(t, slowest, 2*time.Second)
	for _, value := range values[0] {
		d, err := full(value)
		require.NoError(t, err)
		require.NoError(t, d.Err)
		require.Equal(t, throttler.Blocked, d.Status)
	}
}

func TestManyCallersOfAClusterAreAdmittedExactlyMax(t *testing.T) {
	t.Parallel()
	nodes := redistest.Cluster(t)
	a, b := open(t, "redis://"+nodes[1].Addr), open(t, "redis://"+nodes[4].Addr)
	r := throttler.Rule{Identifier: "test"}
	for i := range 6 { // on all nodes
		r.All = append(r.All, throttler.Condition{Name: "c" + strconv.Itoa(i), Value: "v", Max: 50, TTL: time.Hour})
	}
	require.GreaterOrEqual(t, admitted(t, r, 20, a, b), 50)
	for i := range 6 { // a condition by itself has taken exactly its hits
		one := throttler.Rule{Identifier: "test", Either: r.All[i : i+1 : i+1]}
		d, err := throttler.New(a).Peek(context.Background(), one)
		require.NoError(t, err)
		require.NoError(t, d.Err)
		require.Equal(t, throttler.Blocked, d.Status)
		one.Either[0].Max++
		d, err = throttler.New(b).Peek(context.Background(), one)
		require.NoError(t, err)
		require.Equal(t, throttler.Authorized, d.Status, "one hit more than Max was stored")
	}
	for i := range 6 {
		require.Equal(t, 50, admitted(t, rule("v"+strconv.Itoa(i), 50), 5, a, b))
	}
	for _, n := range nodes[:3] {
		require.NotEqual(t, "0", n.Command("DBSIZE"))
	}
	for _, n := range nodes {
		n.Command("SCRIPT", "FLUSH")
	}
	require.Equal(t, 0, admitted(t, rule("v0", 50), 2, a, b))
}

// A slot moves while its values are counted.
func TestASlotMovesUnderLoad(t *testing.T) {
	t.Parallel()
	nodes := redistest.Cluster(t)
	s := open(t, "redis://"+nodes[0].Addr)
	value := ""
	for i := 0; ; i++ {
		value = strconv.Itoa(i)
		if redisstore.Slot("test#ip#"+value)*3/16384 == 0 {
			break
		}
	}
	slot := strconv.Itoa(int(redisstore.Slot("test#ip#" + value)))
	from, to := nodes[0].Command("CLUSTER", "MYID"), nodes[1].Command("CLUSTER", "MYID")
	done := make(chan int)
	go func() { done <- admitted(t, rule(value, 2000), 200, s) }()
	time.Sleep(20 * time.Millisecond)
	nodes[1].Command("CLUSTER", "SETSLOT", slot, "IMPORTING", from)
	nodes[0].Command("CLUSTER", "SETSLOT", slot, "MIGRATING", to)
	host, port := split(t, nodes[1].Addr)
	nodes[0].Command("MIGRATE", host, port, "test#ip#"+value, "0", "5000")
	time.Sleep(20 * time.Millisecond)
	for _, n := range nodes[:3] {
		n.Command("CLUSTER", "SETSLOT", slot, "NODE", to)
	}
	require.Equal(t, 2000, <-done)
}
