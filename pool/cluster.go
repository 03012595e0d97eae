package pool

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/adaptivethrottler/throttler/internal/memcached"
)

// A Cluster finds the nodes of a cluster by the auto discovery of Amazon ElastiCache
// and Google Memorystore: its answer to "config get cluster". The exported fields
// are options, to be set before the first call.
//
//	cluster := &pool.Cluster{Endpoint: "limits.cfg.cache.amazonaws.com:11211"}
//	list, err := cluster.Servers(ctx)
//	…
//	servers, err := pool.New(list...)
//	…
//	for range time.Tick(time.Minute) { // on a goroutine of its own
//		list, err := cluster.Servers(ctx)
//		if err == nil {
//			err = servers.SetServers(list...) // keeps the list if this one is empty or malformed
//		}
//		if err != nil {
//			log.Print(err)
//		}
//	}
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
// it the keys of the node would move.
//
// A node may have an older list than another one that was asked before. Then the
// newer list is returned once more. But if none of its nodes was listed before, the name
// of Endpoint now stands for another cluster, whose versions are its own.
func (c *Cluster) Servers(ctx context.Context) ([]string, error) {
	version, nodes, err := c.ask(ctx)
	if err != nil {
		return nil, serverError(c.Endpoint, err)
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
