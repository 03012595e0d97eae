package redisstore

import (
	"context"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/rueidis"
)

const slots = 16384 // of a Cluster

// routes tell which node has a key.
type routes struct {
	first *node            // of all keys, if there is no Cluster; else of those of no known node
	nodes map[string]*node // of a Cluster, by address
	slots []*node          // by slot; nil if there is no Cluster
}

// of returns the node of key.
func (r *routes) of(key string) *node {
	if r.slots == nil {
		return r.first
	}
	if n := r.slots[slot(key)]; n != nil {
		return n
	}
	return r.first
}

// all returns all nodes.
func (r *routes) all() []*node {
	all := []*node{r.first}
	for _, n := range r.nodes {
		all = append(all, n)
	}
	return all
}

// slot returns the slot of key: the CRC16 (XMODEM) of the key, or of what is between
// its first braces.
func slot(key string) uint16 {
	if open := strings.IndexByte(key, '{'); open >= 0 {
		if tag, _, closed := strings.Cut(key[open+1:], "}"); closed && tag != "" {
			key = tag
		}
	}
	crc := uint16(0)
	for i := range len(key) {
		crc = crc<<8 ^ crcTable[byte(crc>>8)^key[i]]
	}
	return crc % slots
}

var crcTable = func() (table [256]uint16) {
	for i := range table {
		crc := uint16(i) << 8
		for range 8 {
			if crc&0x8000 != 0 {
				crc = crc<<1 ^ 0x1021
			} else {
				crc <<= 1
			}
		}
		table[i] = crc
	}
	return table
}()

// Doubts are in nodes that have complained: their own slots may be another's by now.
type doubts struct {
	mu    sync.Mutex
	last  map[string]time.Time // when each of them did last
	drawn time.Time            // when the map was drawn for one
}

// doubtful is how long a node that has complained is doubted, in BreakerPauses.
const doubtful = 20

// complained notes that n has complained, and has the map of its Cluster drawn again.
// Complaints come as fast as calls, so it does that once in a BreakerPause.
func (s *Store) complained(n *node) {
	d, now := &s.doubts, time.Now()
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.last == nil {
		d.last = make(map[string]time.Time)
	}
	if n != s.routes.Load().first { // that may be any of them
		d.last[n.Name] = now
	}
	if now.Sub(d.drawn) < s.breakerPause() {
		return
	}
	maps.DeleteFunc(d.last, func(_ string, last time.Time) bool { return now.Sub(last) >= doubtful*s.breakerPause() })
	if s.refreshTopology() { // otherwise what is drawn may be older: so again for the next one
		d.drawn = now
	}
}

// doubted reports whether a node has complained lately.
func (s *Store) doubted(node string) bool {
	s.doubts.mu.Lock()
	defer s.doubts.mu.Unlock()
	last, ok := s.doubts.last[node]
	return ok && time.Since(last) < doubtful*s.breakerPause()
}

// refreshTopology asks Sentinel for the primary, or the nodes of a Cluster for their slots. It
// reports false if that was under way.
func (s *Store) refreshTopology() bool {
	c := s.link.client.Load()
	cluster := c != nil && (*c).Mode() == rueidis.ClientModeCluster
	if !cluster && s.link.watch == nil {
		return true
	}
	if !s.refreshing.CompareAndSwap(false, true) {
		return false
	}
	s.work(func() {
		defer s.refreshing.Store(false)
		if cluster {
			s.drawMap(*c)
		} else {
			_, _ = s.link.ask() // one that knows better may answer the next time
		}
	})
	return true
}

// sentinelEvery is how often Sentinel is asked while all is well: often enough to follow it
// within a second.
const sentinelEvery = 500 * time.Millisecond

// watchSentinels asks Sentinel for the primary until the Store is closed: one that is cut off
// from the others may go on to answer.
func (s *Store) watchSentinels() {
	every := time.NewTicker(sentinelEvery)
	defer every.Stop()
	for {
		select {
		case <-every.C:
			s.refreshTopology()
		case <-s.over:
			return
		}
	}
}

// A claim is what a node of a Cluster says of the slots of all.
type claim struct {
	from    string
	entries []rueidis.RedisMessage
}

// rank returns how far to believe c: the more, the better.
func (s *Store) rank(c claim) int {
	switch {
	case len(c.entries) == 0:
		return 0
	case s.doubted(c.from):
		return 1
	}
	for _, entry := range c.entries {
		if _, _, address := slotRange(entry, c.from); s.doubted(address) {
			return 2 // it may be cut off too, and not know of a failover
		}
	}
	return trusted
}

// trusted is the most that rank returns.
const trusted = 3

// drawMap asks all nodes of a Cluster which of them has which slots, and believes the
// first that answers, unless it is doubted or gives slots to one that is: then others come
// first. If it is wrong, the nodes say so by MOVED or CLUSTERDOWN.
func (s *Store) drawMap(c rueidis.Client) {
	nodes := c.Nodes()
	claims := make(chan claim, len(nodes))
	for address, n := range nodes {
		go func() {
			// To end a dial early would end it for all who wait for it.
			ctx, cancel := context.WithTimeout(context.Background(), s.timeout())
			defer cancel()
			entries, _ := n.Do(ctx, n.B().ClusterSlots().Build()).ToArray()
			claims <- claim{address, entries}
		}()
	}
	timeout := time.NewTimer(s.timeout()) // that of ctx does not bound a handshake which others wait for
	defer timeout.Stop()
	var believed claim
	most := 0
	for asked := len(nodes); asked > 0 && most < trusted; asked-- {
		select {
		case next := <-claims:
			if rank := s.rank(next); rank > most {
				believed, most = next, rank
			}
		case <-timeout.C:
			asked = 0
		}
	}
	if most == 0 {
		return
	}
	if s.link.owned() {
		s.connectAll(believed, nodes)
	}
	s.route(believed.entries, believed.from, nodes)
}

// connectAll adds to clients one for each node of a claim that has none, if it can be connected
// to within Timeout: rueidis learns of a node that has taken over only when its connections to
// the one before have ended, which may hang.
func (s *Store) connectAll(c claim, clients map[string]rueidis.Client) {
	type made struct {
		address string
		client  rueidis.Client
	}
	var missing []string
	for _, entry := range c.entries {
		if _, _, address := slotRange(entry, c.from); address != "" && clients[address] == nil && !slices.Contains(missing, address) {
			missing = append(missing, address)
		}
	}
	all := make(chan made, len(missing))
	for _, address := range missing {
		s.work(func() { all <- made{address, s.link.connectTo(address)} })
	}
	timeout := time.NewTimer(s.timeout())
	defer timeout.Stop()
	for range missing {
		select {
		case m := <-all:
			if m.client != nil {
				clients[m.address] = m.client
			}
		case <-timeout.C:
			return
		case <-s.over:
			return
		}
	}
}

// route replaces the routes by those of an answer to CLUSTER SLOTS. A node that has none of
// clients is asked by the store's.
func (s *Store) route(entries []rueidis.RedisMessage, from string, clients map[string]rueidis.Client) {
	s.routing.Lock()
	defer s.routing.Unlock()
	before := s.routes.Load()
	after := &routes{first: before.first, nodes: make(map[string]*node), slots: make([]*node, slots)}
	for _, entry := range entries {
		first, last, address := slotRange(entry, from)
		if address == "" {
			continue
		}
		n := after.nodes[address]
		if n == nil {
			if n = before.nodes[address]; n == nil {
				n = newNode(s, address)
			}
			if client := clients[address]; client != nil { // the one before may be closed
				n.client.Store(&client)
			}
			after.nodes[address] = n
		}
		for i := first; i <= last; i++ {
			after.slots[i] = n
		}
	}
	s.routes.Store(after)
	for address, n := range before.nodes {
		if after.nodes[address] != n {
			n.Leave(true)
		}
	}
	s.link.disconnect(func(address string, own rueidis.Client) bool {
		return clients[address] == own && after.nodes[address] != nil
	})
}

// slotRange returns the slots of an entry of CLUSTER SLOTS, and the address of their
// primary, or "" if the entry makes no sense.
func slotRange(entry rueidis.RedisMessage, from string) (first, last int64, address string) {
	fields, err := entry.ToArray()
	if err != nil || len(fields) < 3 {
		return 0, 0, ""
	}
	first, err1 := fields[0].AsInt64()
	last, err2 := fields[1].AsInt64()
	primary, err3 := fields[2].ToArray()
	if err1 != nil || err2 != nil || err3 != nil || len(primary) < 2 || first < 0 || first > last || last >= slots {
		return 0, 0, ""
	}
	host, _ := primary[0].ToString()
	port, err := primary[1].AsInt64()
	if err != nil {
		return 0, 0, ""
	}
	if host == "" || host == "?" { // the one that was asked
		host, _, _ = net.SplitHostPort(from)
	}
	return first, last, net.JoinHostPort(host, strconv.FormatInt(port, 10))
}
