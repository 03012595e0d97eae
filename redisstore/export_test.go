package redisstore

import (
	"io"
	"net"
	"time"

	"github.com/redis/rueidis"
)

// Slot returns the slot of a key.
var Slot = slot

// Outages returns functions that begin and end an outage of a server, which tell changed.
func Outages(changed func(server string, down bool, err error)) (begin, end func()) {
	s := newStore()
	s.StateChanged, s.BreakerFailures = changed, 1
	s.closed = true // no probes
	n := newNode(s, "server")
	return func() { n.fails(1, io.EOF) }, n.answers
}

// Chart draws the map of a Cluster.
func Chart(s *Store) { s.chart(*s.link.client.Load()) }

// Bounded returns the dialer of connections that may take so long to be made.
func Bounded(timeout time.Duration) *net.Dialer { return bounded(new(net.Dialer), timeout) }

// CloseClient has the node of a Cluster at addr keep a client that is closed.
func CloseClient(s *Store, addr string) error {
	client, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{addr}, ForceSingleClient: true, DisableCache: true})
	if err != nil {
		return err
	}
	client.Close()
	s.routes.Load().nodes[addr].client.Store(&client)
	return nil
}
