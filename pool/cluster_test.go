package pool_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/adaptivethrottler/throttler/internal/servertest"
	"github.com/adaptivethrottler/throttler/pool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A node answers "config get cluster" as those of ElastiCache do.
type node struct{ station }

func (n *node) says(version int, nodes string) {
	config := fmt.Sprintf("%d\n%s\n", version, nodes)
	n.answers(fmt.Sprintf("CONFIG cluster 0 %d\r\n%s\r\nEND\r\n", len(config), config))
}

func (n *node) answers(answer string) {
	n.now(func(conn net.Conn, request string) {
		if request != "config get cluster" {
			answer = "ERROR\r\n"
		}
		io.WriteString(conn, answer)
	})
}

func TestServersAreFoundByAClustersConfiguration(t *testing.T) {
	var n node
	cluster := &pool.Cluster{Endpoint: "limits.cfg.example.com:11211", DialContext: n.DialContext}
	finds := func(want ...string) {
		t.Helper()
		servers, err := cluster.Servers(t.Context())
		require.NoError(t, err)
		require.Equal(t, want, servers)
	}
	n.says(12, "b.example.com|10.0.0.2|11211 a.example.com|10.0.0.1|11211")
	finds("a.example.com:11211", "b.example.com:11211")
	n.says(13, "a.example.com|10.0.0.9|11211 |10.0.0.3|11212")
	finds("10.0.0.3:11212", "a.example.com:11211")
	n.says(12, "b.example.com|10.0.0.2|11211")
	finds("10.0.0.3:11212", "a.example.com:11211") // another node, that is late
	n.says(14, "c.example.com|10.0.0.4|11211")
	finds("c.example.com:11211")
}

// The name of the endpoint is moved to another cluster, whose versions began anew.
func TestAnEndpointThatMovesToAnotherClusterIsFollowed(t *testing.T) {
	var before, after node
	var moved atomic.Bool
	cluster := &pool.Cluster{Endpoint: "limits.cfg.example.com:11211", DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
		if moved.Load() {
			return after.DialContext(ctx, network, addr)
		}
		return before.DialContext(ctx, network, addr)
	}}
	finds := func(want ...string) {
		t.Helper()
		servers, err := cluster.Servers(t.Context())
		require.NoError(t, err)
		require.Equal(t, want, servers)
	}
	before.says(12, "a.example.com|10.0.0.1|11211 b.example.com|10.0.0.2|11211")
	finds("a.example.com:11211", "b.example.com:11211")
	moved.Store(true)
	after.says(3, "")
	finds("a.example.com:11211", "b.example.com:11211") // it has no nodes yet
	after.says(3, "c.example.com|10.0.1.1|11211 d.example.com|10.0.1.2|11211")
	finds("c.example.com:11211", "d.example.com:11211")
	after.says(2, "c.example.com|10.0.1.1|11211")
	finds("c.example.com:11211", "d.example.com:11211") // a node that is late
	after.says(4, "d.example.com|10.0.1.2|11211")
	finds("d.example.com:11211")
	moved.Store(false)
	finds("a.example.com:11211", "b.example.com:11211")
	after.says(5, "d.example.com|10.0.1.2|11211")
	moved.Store(true)
	finds("d.example.com:11211") // and back
}

func TestWhatIsNoClustersConfiguration(t *testing.T) {
	for _, answer := range []string{
		"", "END\r\n", "ERROR\r\n", "STORED\r\n", "CONFIG cluster 0 -1\r\n", "CONFIG cluster 0 9999999999\r\n",
		"CONFIG cluster 0 3\r\nno\n\r\nEND\r\n", "CONFIG cluster 0 9\r\n1\nonlyone\r\nEND\r\n",
		"CONFIG cluster 0 4\r\n1\n||\r\nEND\r\n", "CONFIG cluster 0 5\r\n1\na|b\r\nEND\r\n", "CONFIG cluster 0 2\r\n1\n\r\nSTORED\r\n",
	} {
		var n node
		n.answers(answer)
		cluster := &pool.Cluster{Endpoint: one, DialContext: n.DialContext}
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		servers, err := cluster.Servers(ctx)
		cancel()
		assert.ErrorContains(t, err, one, "%q", answer)
		assert.Empty(t, servers)
	}
	refused := &pool.Cluster{Endpoint: one, DialContext: func(context.Context, string, string) (net.Conn, error) {
		return nil, errors.New("connection refused")
	}}
	_, err := refused.Servers(t.Context())
	require.ErrorContains(t, err, "connection refused")
}

// Before 1.4.14 the configuration was an item. So a real memcached can hold one.
func TestAClusterOfOldIsFoundAndFollowed(t *testing.T) {
	first, second := servertest.NewMemcached(t), servertest.NewMemcached(t)
	set := func(version int, servers ...*servertest.Memcached) {
		config := fmt.Sprintln(version)
		for _, s := range servers {
			host, port, err := net.SplitHostPort(s.Addr)
			require.NoError(t, err)
			config += fmt.Sprintf("|%s|%s ", host, port)
		}
		first.Command(t, fmt.Sprintf("set AmazonElastiCache:cluster 0 0 %d\r\n%s", len(config), config))
	}
	cluster := &pool.Cluster{Endpoint: first.Addr}
	_, err := cluster.Servers(t.Context())
	require.ErrorContains(t, err, "not a node of a cluster")

	set(1, first)
	servers, err := cluster.Servers(t.Context())
	require.NoError(t, err)
	p, err := pool.New(servers...)
	require.NoError(t, err)
	defer p.Close()
	look := func() {
		servers, err := cluster.Servers(t.Context())
		require.NoError(t, err)
		require.NoError(t, p.SetServers(servers...))
	}
	set(2, first, second)
	look()
	require.Len(t, p.Stats(), 2)
	set(1, second)
	look()
	require.Len(t, p.Stats(), 2)
	set(3, second)
	look()
	require.Len(t, p.Stats(), 1)
	require.Equal(t, second.Addr, p.Stats()[0].Server)
	require.Equal(t, uint64(2), p.Changes())
}
