package redisstore_test

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/internal/failure"
	"github.com/adaptivethrottler/throttler/internal/servertest"
	"github.com/adaptivethrottler/throttler/redisstore"
	"github.com/redis/rueidis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestTheSlotOfAKeyIsThatOfTheServer(t *testing.T) {
	t.Parallel()
	server := servertest.NewRedis(t, "--cluster-enabled", "yes")
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
	nodes := servertest.NewRedisCluster(t)
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
		servertest.AwaitReplica(nodes[i], nodes[i+3])
	}
	require.Len(t, s.Stats(), 3)

	for _, n := range nodes { // longer than a busy machine pauses, and no longer
		n.Command("CONFIG", "SET", "cluster-node-timeout", "5000")
	}
	nodes[0].Kill()
	killed, late := time.Now(), pingMeanwhile(t, nodes[3])
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
	for back.IsZero() && time.Since(killed) < 2*time.Minute { // an election may be lost
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
		require.NotContains(t, d.Err.Error(), nodes[3].Addr, "the new primary answers from the first call on")
		time.Sleep(5 * time.Millisecond)
	}
	lateness := late()
	close(stop)
	wg.Wait()
	require.False(t, back.IsZero(), "the values of the node that was killed are never decided again")
	t.Logf("promoted %v after the kill, back %v later, the slowest call %v", promoted.Sub(killed), back.Sub(promoted), slowest)
	require.Less(t, back.Sub(promoted), time.Second+lateness)
	require.Less(t, slowest, time.Second+lateness)
	for _, value := range values[0] {
		d, err := full(value)
		require.NoError(t, err)
		require.NoError(t, d.Err)
		require.Equal(t, throttler.Blocked, d.Status)
	}
}

// A slot moves while its values are counted.
func TestASlotMovesUnderLoad(t *testing.T) {
	t.Parallel()
	nodes := servertest.NewRedisCluster(t)
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

// slotsAt is the answer to CLUSTER SLOTS of a Cluster whose slots are shared out to addrs.
func slotsAt(t *testing.T, addrs ...string) string {
	text := fmt.Sprintf("*%d", len(addrs))
	for i, addr := range addrs {
		host, port := split(t, addr)
		first, last := 16384*i/len(addrs), 16384*(i+1)/len(addrs)-1
		text += fmt.Sprintf("\r\n*3\r\n:%d\r\n:%d\r\n*2\r\n$%d\r\n%s\r\n:%s", first, last, len(host), host, port)
	}
	return text
}

// shardsAt is the answer to CLUSTER SHARDS of a Cluster whose slots are shared out to addrs,
// of that health.
func shardsAt(t *testing.T, addrs []string, health ...string) string {
	text := fmt.Sprintf("*%d", len(addrs))
	for i, addr := range addrs {
		host, port := split(t, addr)
		first, last := 16384*i/len(addrs), 16384*(i+1)/len(addrs)-1
		text += fmt.Sprintf("\r\n%%2\r\n+slots\r\n*2\r\n:%d\r\n:%d\r\n+nodes\r\n*1\r\n", first, last) +
			fmt.Sprintf("%%4\r\n+endpoint\r\n+%s\r\n+port\r\n:%s\r\n+role\r\n+master\r\n+health\r\n+%s", host, port, health[i])
	}
	return text
}

// keyIn returns a key whose slot is among those.
func keyIn(among func(slot uint16) bool) string {
	for i := 0; ; i++ {
		if key := strconv.Itoa(i); among(redisstore.Slot(key)) {
			return key
		}
	}
}

// The first request goes where rueidis thinks, which gives the node the slots 100 to 16383, or 0
// to 100, if it draws that entry last.
func TestANodeOfSlotsThatCannotBeIsNone(t *testing.T) {
	t.Parallel()
	for slots, key := range map[string]string{
		":20000\r\n:100": keyIn(func(slot uint16) bool { return slot > 100 }),
		":100\r\n:20000": keyIn(func(slot uint16) bool { return slot < 100 }),
		":-1\r\n:100":    keyIn(func(slot uint16) bool { return slot > 100 }),
		"+a\r\n:100":     keyIn(func(slot uint16) bool { return slot > 100 }),
	} {
		var addr string
		addr = scripted(t, func(args []string) string {
			if args[0] == "CLUSTER" {
				return strings.Replace(slotsAt(t, addr), "*1", "*2\r\n*3\r\n"+slots+"\r\n*2\r\n+192.0.2.1\r\n:6379", 1)
			}
			return ":1"
		})
		s := open(t, "redis://"+addr)
		require.NoError(t, carryOut(s, newSingle(key, true)).Err, slots)
		require.Len(t, s.Stats(), 1, slots)
	}
}

// A slot has moved when a node is sent the script that it did not know.
func TestASlotThatMovesBeforeItsScriptComesIsFollowed(t *testing.T) {
	t.Parallel()
	to := scripted(t, func([]string) string { return ":1" })
	var from string
	from = scripted(t, func(args []string) string {
		switch args[0] {
		case "CLUSTER":
			return slotsAt(t, from)
		case "EVALSHA":
			return "-NOSCRIPT No matching script. Please use EVAL."
		}
		return "-MOVED 0 " + to
	})
	s := open(t, "redis://"+from)
	for range 2 { // first by rueidis, which has yet to say what nodes there are
		added, one, other := newSingle("new", true), newSwap("one"), newSwap("other")
		s.Exchange(context.Background(), added, one, other)
		for _, x := range []*single{added, one, other} {
			r := <-x.done
			require.NoError(t, r.Err)
			require.True(t, r.Stored)
		}
	}
	require.Equal(t, from, s.Stats()[0].Server)
}

// The old node is not asked for ever.
func TestASlotThatHasMovedIsAskedForAtItsNewNode(t *testing.T) {
	t.Parallel()
	var moved atomic.Bool
	var from, to string
	node := func(left bool) func(args []string) string {
		return func(args []string) string {
			switch {
			case args[0] == "CLUSTER" && moved.Load():
				return slotsAt(t, to)
			case args[0] == "CLUSTER":
				return slotsAt(t, from)
			case left && moved.Load():
				return "-MOVED 0 " + to
			}
			return ":1"
		}
	}
	from, to = scripted(t, node(true)), scripted(t, node(false))
	s := open(t, "redis://"+from)
	for _, after := range []bool{false, true} {
		moved.Store(after)
		require.NoError(t, carryOut(s, newSwap("k")).Err)
	}
	require.Eventually(t, func() bool { return s.Stats()[0].Server == to }, 20*time.Second, time.Millisecond)
}

// writeIn writes a key of the first or the second half of the slots.
func writeIn(s *redisstore.Store, first bool) error {
	return carryOut(s, newSingle(keyIn(func(slot uint16) bool { return slot < 8192 == first }), true)).Err
}

// A primary that has restarted without its slots says so for ever, after its replica has got
// them.
func TestANodeThatHasLostItsSlotsIsLeft(t *testing.T) {
	t.Parallel()
	for _, listsItself := range []bool{false, true} {
		var over atomic.Bool // the failover
		var addrs [2]string
		for i := range addrs {
			addrs[i] = scripted(t, func(args []string) string {
				switch {
				case args[0] != "CLUSTER" && i == 0 && over.Load():
					return "-CLUSTERDOWN Hash slot not served"
				case args[0] != "CLUSTER":
					return ":1"
				case i == 0 && over.Load() && !listsItself:
					return "*0"
				case i == 1 && over.Load():
					time.Sleep(50 * time.Millisecond) // the other one answers first
					return slotsAt(t, addrs[1])
				}
				return slotsAt(t, addrs[:]...)
			})
		}
		s := open(t, "redis://"+addrs[0])
		s.Timeout, s.BreakerPause = time.Minute, 2*time.Second // so the doubt lasts for 40 s
		require.NoError(t, writeIn(s, true))
		require.Len(t, s.Stats(), 2)
		over.Store(true)
		require.ErrorContains(t, writeIn(s, true), "CLUSTERDOWN")
		require.Eventually(t, func() bool { return writeIn(s, true) == nil }, 20*time.Second, time.Millisecond, "lists itself: %t", listsItself)
		for range 5 { // for other reasons
			redisstore.Chart(s)
			require.NoError(t, writeIn(s, true))
		}
	}
}

// Nodes that are cut off together believe in each other. They may be nearer than the others.
func TestTheMapOfACutOffNodeIsNotBelieved(t *testing.T) {
	t.Parallel()
	var over atomic.Bool // the failover
	var addrs [3]string
	for i := range addrs {
		addrs[i] = scripted(t, func(args []string) string {
			switch {
			case args[0] != "CLUSTER" && i < 2 && over.Load():
				return "-CLUSTERDOWN The cluster is down"
			case args[0] != "CLUSTER":
				return ":1"
			case i == 2 && over.Load():
				time.Sleep(50 * time.Millisecond)               // the others answer first
				return slotsAt(t, addrs[2], addrs[1], addrs[2]) // the second has no replica
			}
			return slotsAt(t, addrs[:]...)
		})
	}
	s := open(t, "redis://"+addrs[0])
	s.Timeout, s.BreakerPause = time.Minute, time.Second // so a doubt lasts for 20 s
	write := func(node int) error {
		return carryOut(s, newSingle(keyIn(func(slot uint16) bool { return 3*int(slot)/16384 == node }), true)).Err
	}
	require.NoError(t, write(0))
	over.Store(true)
	require.ErrorContains(t, write(0), "CLUSTERDOWN")
	require.Eventually(t, func() bool { return write(0) == nil }, 20*time.Second, time.Millisecond)
	for begin := time.Now(); time.Since(begin) < 3*s.BreakerPause; time.Sleep(time.Millisecond) {
		require.ErrorContains(t, write(1), "CLUSTERDOWN")
		require.NoError(t, write(0))
	}
}

// Complaints come as fast as calls. Each map is asked of all nodes.
func TestComplaintsHaveTheMapDrawnNowAndThen(t *testing.T) {
	t.Parallel()
	var drawn atomic.Int64
	var addr string
	addr = scripted(t, func(args []string) string {
		if args[0] == "CLUSTER" {
			drawn.Add(1)
			return slotsAt(t, addr)
		}
		return "-BUSY Redis is busy running a script"
	})
	s := open(t, "redis://"+addr)
	s.BreakerPause = time.Hour
	require.ErrorContains(t, writeIn(s, true), "BUSY")
	require.Eventually(t, func() bool { return drawn.Load() > 0 }, 20*time.Second, time.Millisecond)
	first := drawn.Load()
	for range 200 {
		require.ErrorContains(t, writeIn(s, true), "BUSY")
	}
	require.LessOrEqual(t, drawn.Load(), first+2, "that of the first complaint")
}

// Redis 8 tells rueidis which nodes are well. It closes its connections to the others.
func TestANodeThatRueidisHasForgottenIsUsedAgain(t *testing.T) {
	t.Parallel()
	var moved, away atomic.Bool
	var conns [2]atomic.Int64
	var addrs [2]string
	for i := range addrs {
		addrs[i] = servertest.Serve(t, func(nc net.Conn) {
			conns[i].Add(1)
			defer conns[i].Add(-1)
			converse(nc, "8.0.0", func(args []string) string {
				switch {
				case args[0] == "CLUSTER" && args[1] == "SHARDS" && away.Load():
					return shardsAt(t, addrs[:], "online", "fail")
				case args[0] == "CLUSTER" && args[1] == "SHARDS":
					return shardsAt(t, addrs[:], "online", "online")
				case args[0] == "CLUSTER":
					return slotsAt(t, addrs[:]...)
				case i == 0 && moved.Load():
					return "-MOVED 0 " + addrs[1]
				}
				return ":1"
			})
		})
	}
	s := open(t, "redis://"+addrs[0])
	require.NoError(t, writeIn(s, true))
	require.NoError(t, writeIn(s, false))
	require.Len(t, s.Stats(), 2)
	away.Store(true)
	moved.Store(true)
	require.NoError(t, writeIn(s, true))
	moved.Store(false)
	require.Eventually(t, func() bool { return conns[1].Load() == 0 }, 30*time.Second, 10*time.Millisecond)
	away.Store(false)
	require.Eventually(t, func() bool { return writeIn(s, false) == nil }, 20*time.Second, 10*time.Millisecond)
	require.NotZero(t, conns[1].Load())
}

// rueidis may know a node again before it has closed the client that the node has.
func TestAClientThatRueidisHasClosedIsNotUsed(t *testing.T) {
	t.Parallel()
	var addrs [2]string
	for i := range addrs {
		addrs[i] = scripted(t, func(args []string) string {
			switch args[0] {
			case "CLUSTER":
				return slotsAt(t, addrs[:]...)
			case "INFO":
				return "$8\r\nrun_id:1"
			}
			return ":1"
		})
	}
	s := open(t, "redis://"+addrs[0])
	require.NoError(t, writeIn(s, true))
	require.Len(t, s.Stats(), 2)
	require.NoError(t, redisstore.CloseClient(s, addrs[1]))
	require.NoError(t, writeIn(s, false))
	require.NoError(t, redisstore.CloseClient(s, addrs[1]))
	require.Eventually(t, func() bool { return s.Check(context.Background()) == nil }, 20*time.Second, time.Millisecond)
}

// What was given to a client that is closed may have been sent just before.
func TestAWriteOverAClientThatIsClosedIsInDoubt(t *testing.T) {
	t.Parallel()
	var addr string
	var covered atomic.Bool
	addr = scripted(t, func(args []string) string {
		switch {
		case args[0] == "CLUSTER":
			return slotsAt(t, addr)
		case covered.Load():
			return "$10\r\n12345678xx" // the record of another write
		}
		return ":1"
	})
	s := open(t, "redis://"+addr)
	require.NoError(t, writeIn(s, true))
	require.NoError(t, redisstore.CloseClient(s, addr))
	covered.Store(true)
	x := &stubborn{single: newSwap("k")}
	s.Exchange(context.Background(), x)
	require.NoError(t, (<-x.done).Err)
	require.Equal(t, 2, x.asked, "it is asked again what to write, now that its first write may be behind the other one")
}

// Until a client of New knows a node again, another one must not answer in its place.
func TestANodeThatRueidisDoesNotKnowIsNotTakenForAnother(t *testing.T) {
	t.Parallel()
	var loaded atomic.Bool
	var addrs [2]string
	for i := range addrs {
		addrs[i] = servertest.Serve(t, func(nc net.Conn) {
			converse(nc, "8.0.0", func(args []string) string {
				switch {
				case args[0] == "CLUSTER" && args[1] == "SHARDS" && !loaded.Load():
					return shardsAt(t, addrs[:], "online", "loading")
				case args[0] == "CLUSTER" && args[1] == "SHARDS":
					return shardsAt(t, addrs[:], "online", "online")
				case args[0] == "CLUSTER":
					return slotsAt(t, addrs[:]...)
				case args[0] == "INFO":
					return fmt.Sprintf("$8\r\nrun_id:%d", i)
				case args[0] == "SCAN":
					return fmt.Sprintf("*2\r\n$1\r\n0\r\n*1\r\n$1\r\n%d", i)
				}
				return ":1"
			})
		})
	}
	client, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: addrs[:1], DisableCache: true, DisableRetry: true})
	require.NoError(t, err)
	t.Cleanup(client.Close)
	s := redisstore.New(client)
	s.Timeout, s.QueueTimeout = 10*time.Second, 10*time.Second
	t.Cleanup(func() { s.Close() })
	s.BreakerPause = 10 * time.Millisecond
	require.NoError(t, writeIn(s, true))
	require.Eventually(t, func() bool { return len(s.Stats()) == 2 }, 20*time.Second, time.Millisecond)
	err = s.Check(context.Background())
	require.ErrorContains(t, err, addrs[1])
	require.NotContains(t, err.Error(), addrs[0])
	for _, err = range s.Keys(context.Background()) {
	}
	require.ErrorContains(t, err, addrs[1])
	loaded.Store(true)
	require.Eventually(t, func() bool { // calls have rueidis look for the node
		return writeIn(s, false) == nil && s.Check(context.Background()) == nil
	}, 20*time.Second, time.Millisecond)
	for range 20 {
		require.NoError(t, s.Check(context.Background()))
	}
	infos, err := s.Info(context.Background())
	require.NoError(t, err)
	for i, addr := range addrs {
		require.Equal(t, strconv.Itoa(i), infos[addr]["run_id"])
	}
	for _, server := range s.Stats() {
		require.Zero(t, server.Loss.Restarts, server.Server)
	}
}

// Nobody asks it any more, so nobody would notice that it is back.
func TestTheOutageOfANodeEndsWhenItLeaves(t *testing.T) {
	t.Parallel()
	var dead, left atomic.Bool
	var leaves, stays string
	node := func(dies bool) func(args []string) string {
		return func(args []string) string {
			switch {
			case dies && dead.Load():
				return ""
			case args[0] != "CLUSTER":
				return ":1"
			case left.Load():
				return slotsAt(t, stays)
			}
			return slotsAt(t, leaves, stays)
		}
	}
	leaves, stays = scripted(t, node(true)), scripted(t, node(false))
	s := open(t, "redis://"+stays)
	s.BreakerFailures, s.BreakerPause = 1, 10*time.Millisecond
	told := make(chan string, 100)
	s.StateChanged = func(server string, down bool, err error) { told <- fmt.Sprint(server, " ", down, " ", err != nil) }
	next := func() string {
		select {
		case change := <-told:
			return change
		case <-time.After(20 * time.Second):
			return "nothing"
		}
	}
	require.NoError(t, writeIn(s, true))
	require.Len(t, s.Stats(), 2)
	dead.Store(true)
	require.ErrorIs(t, writeIn(s, true), failure.ErrUnavailable)
	require.Equal(t, leaves+" true true", next())
	left.Store(true)
	require.Equal(t, leaves+" false false", next())
	require.Len(t, s.Stats(), 1)
	require.NoError(t, writeIn(s, true))
	require.Empty(t, told)
}
