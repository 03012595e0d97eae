package pool_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/adaptivethrottler/throttler/internal/memcachedtest"
	"github.com/adaptivethrottler/throttler/pool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/net/dns/dnsmessage"
)

func TestAListIsFollowedUntilCtxEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, err := pool.New(one)
		require.NoError(t, err)
		defer p.Close()
		var mu sync.Mutex // guards told
		var told []string
		p.LookupFailed = func(err error) {
			mu.Lock()
			defer mu.Unlock()
			told = append(told, err.Error())
		}
		failures := func() []string {
			mu.Lock()
			defer mu.Unlock()
			return slices.Clone(told)
		}
		answers := []struct {
			list []string
			err  error
		}{
			{list: []string{one, two}},
			{err: errors.New("no such name")},
			{},
			{list: []string{one, "no port"}},
			{list: []string{three}},
		}
		var asked atomic.Int64
		lookup := func(ctx context.Context) ([]string, error) {
			n := int(asked.Add(1))
			if n > len(answers) { // and hangs from then on
				<-ctx.Done()
				return nil, ctx.Err()
			}
			return answers[n-1].list, answers[n-1].err
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- p.Follow(ctx, lookup, time.Minute) }()
		for i, want := range [][]string{{one, two}, {one, two}, {one, two}, {one, two}, {three}} {
			synctest.Wait()
			require.EqualValues(t, i+1, asked.Load())
			require.Equal(t, want, listed(p))
			time.Sleep(time.Minute)
		}
		require.Len(t, failures(), 3)
		require.Equal(t, "no such name", failures()[0])
		require.Equal(t, "pool: no servers: give at least one", failures()[1])
		require.Contains(t, failures()[2], "no port")

		time.Sleep(2*time.Minute - 1)
		synctest.Wait()
		require.EqualValues(t, 6, asked.Load())
		require.Len(t, failures(), 4, "a lookup that hangs is given up, and is a failure")
		require.Equal(t, []string{three}, listed(p))
		time.Sleep(time.Nanosecond)
		cancel()
		require.ErrorIs(t, <-ended, context.Canceled)
		require.Len(t, failures(), 4, "that ctx ends is none")
	})
}

func TestNothingIsFollowedForAPoolThatIsClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, err := pool.New(one)
		require.NoError(t, err)
		p.LookupFailed = func(err error) { t.Error(err) }
		var asked atomic.Int64
		ended := make(chan error)
		go func() {
			ended <- p.Follow(context.Background(), func(context.Context) ([]string, error) {
				asked.Add(1)
				return []string{two}, nil
			}, 0)
		}()
		time.Sleep(pool.DefaultFollowEvery + 1)
		require.NoError(t, p.Close())
		require.ErrorIs(t, <-ended, pool.ErrClosed)
		require.Equal(t, int64(2), asked.Load())
	})
}

// A name server has SRV records for one name. It answers by TCP, on pipes.
type nameServer struct {
	mu      sync.Mutex
	records []dnsmessage.SRVResource
}

func (s *nameServer) resolver() *net.Resolver {
	return &net.Resolver{PreferGo: true, Dial: func(context.Context, string, string) (net.Conn, error) {
		here, there := net.Pipe()
		go s.serve(there)
		return here, nil
	}}
}

func (s *nameServer) serve(conn net.Conn) {
	defer conn.Close()
	var size [2]byte
	for {
		if _, err := io.ReadFull(conn, size[:]); err != nil {
			return
		}
		query := make([]byte, int(size[0])<<8|int(size[1]))
		var m dnsmessage.Message
		if _, err := io.ReadFull(conn, query); err != nil || m.Unpack(query) != nil {
			return
		}
		answer := s.answer(m)
		conn.Write(append([]byte{byte(len(answer) >> 8), byte(len(answer))}, answer...))
	}
}

func (s *nameServer) answer(query dnsmessage.Message) []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	m := dnsmessage.Message{Header: dnsmessage.Header{ID: query.ID, Response: true, Authoritative: true}, Questions: query.Questions}
	if q := query.Questions[0]; q.Type == dnsmessage.TypeSRV && q.Name.String() == "_memcached._tcp.cache.example.com." {
		for _, r := range s.records {
			m.Answers = append(m.Answers, dnsmessage.Resource{Header: dnsmessage.ResourceHeader{Name: q.Name, Class: q.Class}, Body: &r})
		}
	} else {
		m.RCode = dnsmessage.RCodeNameError
	}
	answer, err := m.Pack()
	if err != nil {
		panic(err)
	}
	return answer
}

func TestServersAreFoundBySRVRecords(t *testing.T) {
	record := func(host string, port, weight uint16) dnsmessage.SRVResource {
		return dnsmessage.SRVResource{Target: dnsmessage.MustNewName(host), Port: port, Weight: weight}
	}
	names := &nameServer{records: []dnsmessage.SRVResource{
		record("b.cache.example.com.", 11211, 1), record("a.cache.example.com.", 11212, 7),
		record("a.cache.example.com.", 11211, 3), record("b.cache.example.com.", 11211, 5),
	}}
	srv := &pool.SRV{Name: "_memcached._tcp.cache.example.com", Resolver: names.resolver()}
	for range 20 { // their order is by chance, weighted
		servers, err := srv.Servers(t.Context())
		require.NoError(t, err)
		require.Equal(t, []string{"a.cache.example.com:11211", "a.cache.example.com:11212", "b.cache.example.com:11211"}, servers)
	}
	srv.Name = "_memcached._tcp.elsewhere.example.com"
	_, err := srv.Servers(t.Context())
	require.ErrorContains(t, err, srv.Name)
	var notFound *net.DNSError
	require.ErrorAs(t, err, &notFound)
	require.True(t, notFound.IsNotFound)
}

// A node answers "config get cluster" as those of ElastiCache do.
type node struct {
	mu     sync.Mutex
	answer string
}

func (n *node) says(version int, nodes string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	config := fmt.Sprintf("%d\n%s\n", version, nodes)
	n.answer = fmt.Sprintf("CONFIG cluster 0 %d\r\n%s\r\nEND\r\n", len(config), config)
}

func (n *node) dial(context.Context, string, string) (net.Conn, error) {
	here, there := net.Pipe()
	go func() {
		defer there.Close()
		r := bufio.NewReader(there)
		for {
			command, err := r.ReadString('\n')
			if err != nil {
				return
			}
			n.mu.Lock()
			answer := n.answer
			n.mu.Unlock()
			if strings.TrimSpace(command) != "config get cluster" {
				answer = "ERROR\r\n"
			}
			io.WriteString(there, answer)
		}
	}()
	return here, nil
}

func TestServersAreFoundByAClustersConfiguration(t *testing.T) {
	var n node
	cluster := &pool.Cluster{Endpoint: "limits.cfg.example.com:11211", DialContext: n.dial}
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
			return after.dial(ctx, network, addr)
		}
		return before.dial(ctx, network, addr)
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
		n := node{answer: answer}
		cluster := &pool.Cluster{Endpoint: one, DialContext: n.dial}
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
	first, second := memcachedtest.Process(t), memcachedtest.Process(t)
	set := func(version int, servers ...*memcachedtest.Server) {
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
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- p.Follow(ctx, cluster.Servers, 10*time.Millisecond) }()
	set(2, first, second)
	require.Eventually(t, func() bool { return len(p.Stats()) == 2 }, 30*time.Second, 10*time.Millisecond)
	set(1, second)
	set(3, second)
	require.Eventually(t, func() bool { return len(p.Stats()) == 1 }, 30*time.Second, 10*time.Millisecond)
	require.Equal(t, second.Addr, p.Stats()[0].Server)
	require.Equal(t, uint64(2), p.Changes())
	cancel()
	require.ErrorIs(t, <-ended, context.Canceled)
}
