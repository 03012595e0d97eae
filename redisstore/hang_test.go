package redisstore_test

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/internal/servertest"
	"github.com/adaptivethrottler/throttler/redisstore"
	"github.com/stretchr/testify/require"
)

// A machine may hang instead of dying: it accepts connections, and its kernel takes what is
// written to them, but nothing answers.

// openAtDefaults returns a store for the servers of url, with the Timeout that users have.
func openAtDefaults(t *testing.T, url string) *redisstore.Store {
	t.Helper()
	s := open(t, url)
	s.Timeout = 0
	return s
}

// awaitDecision returns how long after begun a call has been decided by a server.
func awaitDecision(t *testing.T, s *redisstore.Store, begun time.Time) time.Duration {
	t.Helper()
	th := throttler.New(s)
	for i := 0; ; i++ {
		d, err := th.Authorize(context.Background(), rule(fmt.Sprint("after", i), 5))
		require.NoError(t, err)
		if d.Err == nil {
			return time.Since(begun)
		}
		require.Less(t, time.Since(begun), time.Minute, d.Err)
		time.Sleep(time.Millisecond)
	}
}

// requireCloses requires that s closes within a second, though servers hang.
func requireCloses(t *testing.T, s *redisstore.Store) {
	t.Helper()
	late := lostMeanwhile(t)
	begun := time.Now()
	require.NoError(t, s.Close())
	require.Less(t, time.Since(begun), time.Second+late())
}

// The primary's machine hangs, and with it one of three Sentinels. Within a second after the
// other two know the new primary, it is used.
func TestAPrimaryThatHangsWithASentinelIsReplaced(t *testing.T) {
	t.Parallel()
	w := servertest.NewSentinels(t, 3)
	s := openAtDefaults(t, w.URL())
	c := gather(t, 1000, names(10), s)
	require.Eventually(t, func() bool { return c.count("v0") > 20 }, 30*time.Second, time.Millisecond)
	w.Sentinel.Pause()
	w.Primary.Pause()
	for _, other := range w.Sentinels[1:] {
		other.Command("SENTINEL", "SET", "mymaster", "down-after-milliseconds", "1000", "failover-timeout", "5000")
	}
	for _, other := range w.Sentinels[1:] { // an election may be lost on a busy machine
		require.Eventually(t, func() bool { return other.PrimaryAddr() == w.Replica.Addr }, 2*time.Minute, time.Millisecond)
	}
	known, late := time.Now(), pingMeanwhile(t, w.Replica)
	took := awaitDecision(t, s, known)
	t.Logf("decided %v after two Sentinels knew the new primary", took)
	require.Less(t, took, time.Second+late())
	c.disperse()
	c.requireUnavailable(t)
	requireCloses(t, s)
}

// One Sentinel that is left is believed, and a store that finds none closes.
func TestAStoreStartsThoughSentinelsHang(t *testing.T) {
	t.Parallel()
	w := servertest.NewSentinels(t, 3)
	for _, hangs := range w.Sentinels[:2] {
		hangs.Pause()
		s := openAtDefaults(t, w.URL())
		begun, late := time.Now(), pingMeanwhile(t, w.Primary)
		took := awaitDecision(t, s, begun)
		t.Logf("decided after %v", took)
		require.Less(t, took, time.Second+late())
		requireCloses(t, s)
	}
	w.Sentinels[2].Pause()
	s := openAtDefaults(t, w.URL())
	d := decide(t, s, "a")
	require.ErrorIs(t, d.Err, throttler.ErrUnavailable)
	requireCloses(t, s)
}

// A Sentinel that was frozen, or cut off, may be the first to answer, with what it knew before.
func TestTheNewestOpinionOfMoreThanHalfOfTheSentinelsCounts(t *testing.T) {
	t.Parallel()
	before, after := servertest.NewRedis(t), servertest.NewRedis(t)
	var asked atomic.Int64
	sentinel := func(primary *servertest.Redis, epoch int, late time.Duration) string {
		host, port := split(t, primary.Addr)
		return scripted(t, func(args []string) string {
			if args[0] == "PING" {
				return "+PONG"
			}
			switch strings.ToUpper(args[1]) {
			case "GET-MASTER-ADDR-BY-NAME":
				asked.Add(1)
				time.Sleep(late)
				if args[2] != "mymaster" {
					return "*-1"
				}
				return fmt.Sprintf("*2\r\n$%d\r\n%s\r\n$%d\r\n%s", len(host), host, len(port), port)
			case "MASTER":
				return fmt.Sprintf("%%1\r\n$12\r\nconfig-epoch\r\n$1\r\n%d", epoch)
			}
			return "*0"
		})
	}
	url := fmt.Sprintf("redis://%s?addr=%s&addr=%s&master_set=", sentinel(before, 7, 0), sentinel(after, 8, 20*time.Millisecond), sentinel(after, 8, 20*time.Millisecond))
	s := open(t, url+"mymaster")
	require.NoError(t, decide(t, s, "a").Err)
	require.Equal(t, "test#ip#a", after.Command("KEYS", "*"))
	for begun := asked.Load(); asked.Load() < begun+9; time.Sleep(time.Millisecond) { // it is asked again and again
		require.NoError(t, decide(t, s, "b").Err)
	}
	require.Empty(t, before.Command("KEYS", "*"))
	require.ErrorContains(t, decide(t, open(t, url+"other"), "a").Err, `the Sentinel knows no "other"`)
}

// A replica that Sentinel names, as it does for a moment, may be behind.
func TestAReplicaThatSentinelNamesIsNotUsed(t *testing.T) {
	t.Parallel()
	w := servertest.NewSentinel(t)
	host, port := split(t, w.Replica.Addr)
	s := open(t, "redis://"+scripted(t, func(args []string) string {
		if args[0] == "PING" {
			return "+PONG"
		}
		if strings.EqualFold(args[1], "SENTINELS") || strings.EqualFold(args[1], "MASTER") {
			return "-NOPERM this user has no permissions to run the command"
		}
		return fmt.Sprintf("*2\r\n$%d\r\n%s\r\n$%d\r\n%s", len(host), host, len(port), port)
	})+"?master_set=mymaster")
	d, err := throttler.New(s).Peek(context.Background(), rule("a", 5))
	require.NoError(t, err)
	require.ErrorIs(t, d.Err, throttler.ErrUnavailable)
	require.ErrorContains(t, d.Err, "it is a slave")
}

// A primary of a Cluster hangs. Within a second after its replica has its place, it is used. As
// is Redis' default, all nodes refuse all calls until then.
func TestAPrimaryOfAClusterThatHangsIsReplaced(t *testing.T) {
	t.Parallel()
	nodes := servertest.NewRedisCluster(t, "--cluster-require-full-coverage", "yes")
	s := openAtDefaults(t, fmt.Sprintf("redis://%s?addr=%s&addr=%s", nodes[0].Addr, nodes[1].Addr, nodes[2].Addr))
	values := names(30)
	c := gather(t, 1000, values, s)
	require.Eventually(t, func() bool { return c.total() > 1000 }, 30*time.Second, time.Millisecond)
	for _, n := range nodes {
		n.Command("CONFIG", "SET", "cluster-node-timeout", "2000")
	}
	nodes[0].Pause()
	for _, n := range nodes[1:3] { // both others know it
		require.Eventually(t, func() bool {
			return n.FirstSlotAt() == nodes[3].Addr
		}, 2*time.Minute, time.Millisecond)
	}
	promoted, late := time.Now(), pingMeanwhile(t, nodes[3])
	value := "" // of the node that hangs
	for i := 0; value == ""; i++ {
		if v := fmt.Sprint("mine", i); int(redisstore.Slot("test#ip#"+v))*3/16384 == 0 {
			value = v
		}
	}
	th := throttler.New(s)
	for {
		d, err := th.Authorize(context.Background(), rule(value, 1000))
		require.NoError(t, err)
		if d.Err == nil {
			break
		}
		require.Less(t, time.Since(promoted), time.Minute, d.Err)
		time.Sleep(time.Millisecond)
	}
	took := time.Since(promoted)
	t.Logf("decided %v after the replica had its place", took)
	require.Less(t, took, time.Second+late())
	c.disperse()
	requireCloses(t, s)
}

// The keys of the other nodes are decided at once.
func TestAStoreOfAClusterStartsThoughANodeHangs(t *testing.T) {
	t.Parallel()
	nodes := servertest.NewRedisCluster(t)
	nodes[0].Pause()
	s := openAtDefaults(t, fmt.Sprintf("redis://%s?addr=%s&addr=%s", nodes[0].Addr, nodes[1].Addr, nodes[2].Addr))
	begun, late := time.Now(), pingMeanwhile(t, nodes[1])
	require.Eventually(t, func() bool { return writeIn(s, false) == nil }, time.Minute, time.Millisecond)
	took := time.Since(begun)
	t.Logf("decided after %v", took)
	require.Less(t, took, time.Second+late())
	requireCloses(t, s)
}

func TestAStoreThatConnectsToAServerThatHangsCloses(t *testing.T) {
	t.Parallel()
	server := servertest.NewRedis(t)
	server.Pause()
	s := openAtDefaults(t, "redis://"+server.Addr)
	require.ErrorIs(t, decide(t, s, "a").Err, throttler.ErrUnavailable)
	requireCloses(t, s)
}
