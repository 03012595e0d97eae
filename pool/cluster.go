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

// A cluster is what is known of the nodes that were found by auto discovery.
type cluster struct {
	mu      sync.Mutex
	version int64           // of the newest list; guarded by mu
	newest  []string        // guarded by mu
	listed  map[string]bool // all nodes of the cluster so far; guarded by mu
}

// ClusterServers returns the nodes of a cluster by the auto discovery of Amazon ElastiCache and
// Google Memorystore, its answer to "config get cluster", for [Pool.SetServers]. endpoint is the
// configuration endpoint, or discovery endpoint, with its port. Any node of it will do as well.
//
//	const endpoint = "limits.cfg.cache.amazonaws.com:11211"
//	servers, err := pool.New(endpoint)
//	…
//	list, err := servers.ClusterServers(ctx, endpoint)
//	if err == nil {
//		err = servers.SetServers(list...) // before the first call
//	}
//	…
//	for range time.Tick(time.Minute) { // on a goroutine of its own
//		list, err := servers.ClusterServers(ctx, endpoint)
//		if err == nil {
//			err = servers.SetServers(list...) // keeps the list if this one is empty or malformed
//		}
//		if err != nil {
//			log.Print(err)
//		}
//	}
//
// The nodes have their host names: an address may change, and with it the keys of the node would
// move.
//
// A node may have an older list than another one that was asked before. Then the newer list is
// returned once more. But if none of its nodes was listed before, the name of the endpoint now
// stands for another cluster, whose versions are its own.
func (p *Pool) ClusterServers(ctx context.Context, endpoint string) ([]string, error) {
	version, nodes, err := p.askCluster(ctx, endpoint)
	if err != nil {
		return nil, serverError(endpoint, err)
	}
	c := &p.cluster
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
func (c *cluster) isAnother(nodes []string) bool {
	return len(nodes) > 0 && !slices.ContainsFunc(nodes, func(node string) bool { return c.listed[node] })
}

func (p *Pool) askCluster(ctx context.Context, endpoint string) (version int64, nodes []string, err error) {
	dialer := memcached.Dialer{DialContext: p.DialContext, User: p.User, Password: p.Password}
	conn, err := dialer.Dial(ctx, endpoint)
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
