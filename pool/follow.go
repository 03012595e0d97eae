package pool

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/adaptivethrottler/throttler/internal/memcached"
)

// DefaultFollowEvery is how often [Pool.Follow] looks for changes by default.
const DefaultFollowEvery = time.Minute

// A Lookup returns the servers that there are now, as [New] takes them.
type Lookup func(ctx context.Context) ([]string, error)

// Follow keeps the list of servers as lookup returns it: it asks at once, and then
// again after every pause, and calls [Pool.SetServers]. It returns when ctx ends,
// with its error, or when the pool is closed, with ErrClosed.
//
//	cluster := &pool.Cluster{Endpoint: "limits.cfg.cache.amazonaws.com:11211"}
//	list, err := cluster.Servers(ctx)
//	…
//	servers, err := pool.New(list...)
//	…
//	go servers.Follow(ctx, cluster.Servers, time.Minute)
//
// A lookup that fails, takes longer than every, or returns a list that SetServers
// does not accept, changes nothing, and Follow calls LookupFailed. An empty list is
// not accepted, so the last servers stay.
//
// Programs that share servers notice a change at different times, up to every
// apart. Until all have, the values that move are counted in two places. Zero or
// less means [DefaultFollowEvery].
func (p *Pool) Follow(ctx context.Context, lookup Lookup, every time.Duration) error {
	return p.repeat(ctx, positive(every, DefaultFollowEvery), func(bounded context.Context) {
		servers, err := lookup(bounded)
		if err == nil && bounded.Err() == nil {
			err = p.setServers(bounded, servers)
		}
		if err != nil && ctx.Err() == nil && !errors.Is(err, ErrClosed) && p.LookupFailed != nil {
			p.LookupFailed(err)
		}
	})
}

// SRV finds servers by the SRV records of a DNS name. Its fields are options, to be
// set before the first call.
type SRV struct {
	// Name has the records: "_memcached._tcp.cache.example.com".
	Name string

	// Resolver is asked. Default: net.DefaultResolver.
	Resolver *net.Resolver
}

// Servers returns the targets of all records, whatever their priority and weight,
// in the order of their names. It is a [Lookup].
func (s *SRV) Servers(ctx context.Context) ([]string, error) {
	resolver := s.Resolver
	if resolver == nil {
		resolver = net.DefaultResolver
	}
	_, records, err := resolver.LookupSRV(ctx, "", "", s.Name)
	if err != nil {
		return nil, fmt.Errorf("pool: %w", err)
	}
	servers := make([]string, len(records))
	for i, r := range records {
		servers[i] = net.JoinHostPort(strings.TrimSuffix(r.Target, "."), strconv.Itoa(int(r.Port)))
	}
	slices.Sort(servers)
	return slices.Compact(servers), nil
}

// A Cluster finds the nodes of a cluster by the auto discovery of Amazon ElastiCache
// and Google Memorystore: its answer to "config get cluster". The exported fields
// are options, to be set before the first call.
type Cluster struct {
	// Endpoint is the configuration endpoint, or discovery endpoint, of the
	// cluster, with its port. Any node of it will do as well.
	Endpoint string

	// User, Password and DialContext are as in [Pool].
	User, Password string
	DialContext    func(ctx context.Context, network, address string) (net.Conn, error)

	mu      sync.Mutex
	version int64           // of the newest list; guarded by mu
	newest  []string        // guarded by mu
	listed  map[string]bool // all nodes of the cluster so far; guarded by mu
}

// Servers returns the nodes, by their host names: an address may change, and with
// it the keys of the node would move. It is a [Lookup].
//
// A node may have an older list than another one that was asked before. Then the
// newer list is returned once more. But if none of its nodes was listed before, the name
// of Endpoint now stands for another cluster, whose versions are its own.
func (c *Cluster) Servers(ctx context.Context) ([]string, error) {
	version, nodes, err := c.ask(ctx)
	if err != nil {
		return nil, &ServerError{Server: c.Endpoint, Err: err}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	another := c.isAnother(nodes)
	if version >= c.version || another {
		c.version, c.newest = version, nodes
	}
	if another {
		c.listed = make(map[string]bool)
	}
	for _, node := range nodes {
		c.listed[node] = true
	}
	return slices.Clone(c.newest), nil
}

// isAnother reports whether nodes are those of another cluster, or of the first one.
func (c *Cluster) isAnother(nodes []string) bool {
	return len(nodes) > 0 && !slices.ContainsFunc(nodes, func(node string) bool { return c.listed[node] })
}

func (c *Cluster) ask(ctx context.Context) (version int64, nodes []string, err error) {
	dialer := memcached.Dialer{DialContext: c.DialContext, User: c.User, Password: c.Password}
	conn, err := dialer.Dial(ctx, c.Endpoint)
	if err != nil {
		return 0, nil, err
	}
	defer conn.Close()
	config, err := conn.ClusterConfig()
	if err != nil {
		return 0, nil, err
	}
	return parseCluster(config)
}

// parseCluster parses a version, and on the next line the nodes, with blanks
// between: "host|address|port". A node may have no host name.
func parseCluster(config string) (version int64, nodes []string, err error) {
	first, rest, _ := strings.Cut(config, "\n")
	version, err = strconv.ParseInt(strings.TrimSpace(first), 10, 64)
	if err != nil {
		return 0, nil, fmt.Errorf("the cluster's configuration has no version: %.80q", config)
	}
	for _, node := range strings.Fields(rest) {
		parts := strings.Split(node, "|")
		if len(parts) != 3 || parts[0]+parts[1] == "" {
			return 0, nil, fmt.Errorf("cluster node %.80q, want host|address|port", node)
		}
		host := parts[0]
		if host == "" {
			host = parts[1]
		}
		nodes = append(nodes, net.JoinHostPort(host, parts[2]))
	}
	slices.Sort(nodes)
	return version, nodes, nil
}
