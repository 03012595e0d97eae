package redisstore

import (
	"net"
	"time"

	"github.com/redis/rueidis"
)

// What the zero values of the options stand for.
const (
	DefaultTimeout         = defaultTimeout
	DefaultBreakerFailures = defaultBreakerFailures
)

// Slot returns the slot of a key.
var Slot = slot

// Chart draws the map of a Cluster.
func Chart(s *Store) { s.drawMap(*s.link.client.Load()) }

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
