package servertest

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// A Watched is a primary with a replica that Sentinels watch.
type Watched struct {
	Primary, Replica *Redis
	Sentinel         *Redis // the first one, which watches Primary as "mymaster"
	Sentinels        []*Redis
}

// NewSentinel starts a primary, a replica, and a Sentinel that takes the primary to be
// down after 10 s: no busy machine is silent for so long. args are those of the primary and
// the replica.
func NewSentinel(tb testing.TB, args ...string) *Watched {
	tb.Helper()
	return NewSentinels(tb, 1, args...)
}

// NewSentinels is [NewSentinel] with so many of them, of which more than half decide.
func NewSentinels(tb testing.TB, count int, args ...string) *Watched {
	tb.Helper()
	w := &Watched{Primary: NewRedis(tb, args...)}
	host, port, _ := net.SplitHostPort(w.Primary.Addr)
	w.Replica = NewRedis(tb, append([]string{"--replicaof", host + " " + port}, args...)...)
	w.Replica.await(func() bool {
		return strings.Contains(w.Replica.Command("INFO", "replication"), "master_link_status:up")
	})
	for range count {
		addr, own := freePort(tb, redisPorts)
		dir := directory(tb)
		config := filepath.Join(dir, "sentinel.conf")
		text := fmt.Sprintf("bind 127.0.0.1\nport %s\ndir %s\nsentinel monitor mymaster %s %s %d\n"+
			"sentinel down-after-milliseconds mymaster 10000\nsentinel failover-timeout mymaster 20000\n", own, dir, host, port, count/2+1)
		if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
			tb.Fatalf("servertest: %v", err)
		}
		s, err := startRedis(tb, addr, dir, config, "--sentinel")
		if err != nil {
			tb.Fatalf("servertest: %v", err)
		}
		w.Sentinels = append(w.Sentinels, s)
	}
	w.Sentinel = w.Sentinels[0]
	for _, s := range w.Sentinels {
		s.await(func() bool {
			return strings.Contains(s.Command("SENTINEL", "replicas", "mymaster"), w.Replica.Addr) &&
				strings.Count(s.Command("SENTINEL", "sentinels", "mymaster"), "runid") == count-1
		})
	}
	return w
}

// PrimaryAddr returns the address that Sentinel gives for the primary.
func (w *Watched) PrimaryAddr() string { return w.Sentinel.PrimaryAddr() }

// PrimaryAddr returns the address that a Sentinel gives for the primary.
func (r *Redis) PrimaryAddr() string {
	r.tb.Helper()
	host, port, _ := strings.Cut(r.Command("SENTINEL", "get-master-addr-by-name", "mymaster"), "\n")
	return net.JoinHostPort(host, port)
}

// URL returns that of redisstore.Open.
func (w *Watched) URL() string {
	url := "redis://" + w.Sentinel.Addr + "?master_set=mymaster"
	for _, s := range w.Sentinels[1:] {
		url += "&addr=" + s.Addr
	}
	return url
}

// NewRedisCluster starts a Cluster of three primaries, which come first, and three replicas. A node
// that is silent for 10 s, longer than one on a busy machine, is taken to be down: see args.
func NewRedisCluster(tb testing.TB, args ...string) []*Redis {
	tb.Helper()
	nodes := make([]*Redis, 6)
	for i := range nodes {
		nodes[i] = NewRedis(tb, append([]string{"--cluster-enabled", "yes", "--cluster-node-timeout", "10000",
			"--cluster-replica-validity-factor", "0", "--cluster-require-full-coverage", "no"}, args...)...)
	}
	for i, n := range nodes {
		n.Command("CLUSTER", "SET-CONFIG-EPOCH", strconv.Itoa(i+1))
		host, port, _ := net.SplitHostPort(n.Addr)
		nodes[0].Command("CLUSTER", "MEET", host, port)
	}
	for i, n := range nodes[:3] {
		first, last := i*16384/3, (i+1)*16384/3-1
		n.Command("CLUSTER", "ADDSLOTSRANGE", strconv.Itoa(first), strconv.Itoa(last))
	}
	for i, n := range nodes[3:] {
		primary := nodes[i].Command("CLUSTER", "MYID")
		n.await(func() bool {
			_, err := n.Try("CLUSTER", "REPLICATE", primary)
			return err == nil
		})
	}
	for _, n := range nodes {
		n.await(func() bool {
			return strings.Contains(n.Command("CLUSTER", "INFO"), "cluster_state:ok") &&
				strings.Count(n.Command("CLUSTER", "NODES"), "slave ") == 3
		})
	}
	for _, n := range nodes[3:] {
		n.await(func() bool { return strings.Contains(n.Command("INFO", "replication"), "master_link_status:up") })
	}
	return nodes
}

// AwaitReplica returns when replica has all that was written to primary so far.
func AwaitReplica(primary, replica *Redis) {
	primary.tb.Helper()
	written := offset(primary.Command("INFO", "replication"), "master_repl_offset:")
	replica.await(func() bool {
		return offset(replica.Command("INFO", "replication"), "slave_repl_offset:") >= written
	})
}

// offset returns a number of an INFO.
func offset(info, name string) int {
	_, text, _ := strings.Cut(info, name)
	text, _, _ = strings.Cut(text, "\r")
	n, _ := strconv.Atoi(text)
	return n
}

// await returns when done does.
func (r *Redis) await(done func() bool) {
	r.tb.Helper()
	for deadline := time.Now().Add(3 * patience); !done(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			r.tb.Fatalf("servertest: %s does not come to be as it should", r.Addr)
		}
	}
}

// FirstSlotAt returns the address of the primary of slot 0, as a node of a Cluster knows it.
func (r *Redis) FirstSlotAt() string {
	r.tb.Helper()
	for line := range strings.Lines(r.Command("CLUSTER", "NODES")) {
		if fields := strings.Fields(line); strings.HasPrefix(fields[len(fields)-1], "0-") {
			addr, _, _ := strings.Cut(fields[1], "@")
			return addr
		}
	}
	return ""
}
