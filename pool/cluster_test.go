package pool_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
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

// dialing returns a Pool that connects by dial.
func dialing(t *testing.T, dial func(ctx context.Context, network, addr string) (net.Conn, error)) *pool.Pool {
	p, err := pool.New(one)
	require.NoError(t, err)
	t.Cleanup(func() { p.Close() })
	p.DialContext = dial
	return p
}

// A node may be late, and the name of the endpoint be moved to another cluster, whose versions began
// anew, and back.
func TestServersAreFoundByAClustersConfiguration(t *testing.T) {
	var first, second node
	asked := &first
	p := dialing(t, func(ctx context.Context, network, addr string) (net.Conn, error) {
		return asked.DialContext(ctx, network, addr)
	})
	const a, b, c, d = "a.example.com|10.0.0.1|11211 ", "b.example.com|10.0.0.2|11211 ", "c.example.com|10.0.1.1|11211 ", "d.example.com|10.0.1.2|11211 "
	for i, step := range []struct {
		asked   *node
		version int
		nodes   string
		want    []string
	}{
		{&first, 12, b + a, []string{"a.example.com:11211", "b.example.com:11211"}},
		{&first, 13, "a.example.com|10.0.0.9|11211 |10.0.0.3|11212", []string{"10.0.0.3:11212", "a.example.com:11211"}},
		{&first, 12, b, []string{"10.0.0.3:11212", "a.example.com:11211"}}, // another node, that is late
		{&first, 14, a + b, []string{"a.example.com:11211", "b.example.com:11211"}},
		{&second, 3, "", []string{"a.example.com:11211", "b.example.com:11211"}}, // it has no nodes yet
		{&second, 3, c + d, []string{"c.example.com:11211", "d.example.com:11211"}},
		{&second, 2, c, []string{"c.example.com:11211", "d.example.com:11211"}}, // late
		{&second, 4, d, []string{"d.example.com:11211"}},
		{&first, 14, a + b, []string{"a.example.com:11211", "b.example.com:11211"}},
		{&second, 5, d, []string{"d.example.com:11211"}}, // and back
	} {
		asked = step.asked
		asked.says(step.version, step.nodes)
		servers, err := p.ClusterServers(t.Context(), "limits.cfg.example.com:11211")
		require.NoError(t, err)
		require.Equal(t, step.want, servers, "step %d", i)
	}
}

func TestWhatIsNoClustersConfiguration(t *testing.T) {
	for _, answer := range []string{
		"", "END\r\n", "ERROR\r\n", "STORED\r\n", "CONFIG cluster 0 -1\r\n", "CONFIG cluster 0 9999999999\r\n",
		"CONFIG cluster 0 3\r\nno\n\r\nEND\r\n", "CONFIG cluster 0 9\r\n1\nonlyone\r\nEND\r\n",
		"CONFIG cluster 0 4\r\n1\n||\r\nEND\r\n", "CONFIG cluster 0 5\r\n1\na|b\r\nEND\r\n", "CONFIG cluster 0 2\r\n1\n\r\nSTORED\r\n",
	} {
		var n node
		n.answers(answer)
		p := dialing(t, n.DialContext)
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		servers, err := p.ClusterServers(ctx, one)
		cancel()
		assert.ErrorContains(t, err, one, "%q", answer)
		assert.Empty(t, servers)
	}
	refused := dialing(t, func(context.Context, string, string) (net.Conn, error) {
		return nil, errors.New("connection refused")
	})
	_, err := refused.ClusterServers(t.Context(), one)
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
	p, err := pool.New(first.Addr)
	require.NoError(t, err)
	defer p.Close()
	_, err = p.ClusterServers(t.Context(), first.Addr)
	require.ErrorContains(t, err, "not a node of a cluster")

	set(1, first)
	look := func() {
		servers, err := p.ClusterServers(t.Context(), first.Addr)
		require.NoError(t, err)
		require.NoError(t, p.SetServers(servers...))
	}
	look()
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
