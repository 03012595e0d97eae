package pool

import (
	"errors"
	"net"
	"strings"

	"github.com/cespare/xxhash/v2"
	"github.com/dgryski/go-rendezvous"
)

// An address is where a server is, with the name as it was given. The dialer
// resolves it each time, and so follows a name that is moved to another machine.
type address struct {
	network, text string
}

// parseAddress returns the address of a server as given to New. unresolved is why
// its name does not resolve now, if it does not.
func parseAddress(name string) (addr address, unresolved, err error) {
	path, isSocket := strings.CutPrefix(name, "unix:")
	if isSocket && path == "" {
		return address{}, nil, errors.New("no path, want unix:/path/to/socket")
	}
	if isSocket || strings.Contains(name, "/") {
		return address{"unix", path}, nil, nil
	}
	host, port, err := net.SplitHostPort(name)
	if err != nil {
		return address{}, nil, err
	}
	if number, err := net.LookupPort("tcp", port); err != nil {
		return address{}, nil, err
	} else if host == "" || number == 0 {
		// They would mean this machine and any port: most likely a variable
		// that is not set.
		return address{}, nil, errors.New("no host or no port, want host:port")
	}
	_, unresolved = net.ResolveTCPAddr("tcp", name)
	return address{"tcp", name}, unresolved, nil
}

// A placement says which server a key belongs to. It is a function of the key
// and the set of the servers' names: their order does not matter.
//
// It is rendezvous hashing: a key belongs to the server whose name, hashed
// together with the key, comes out highest. So a server more or less moves no
// key between the others, and there are no points on a ring to be tuned. The
// time grows with the number of servers, by about a nanosecond for each.
type placement struct {
	all    []*server
	byName map[string]*server
	hash   *rendezvous.Rendezvous
}

func place(all []*server) *placement {
	names := make([]string, len(all))
	byName := make(map[string]*server, len(all))
	for i, s := range all {
		names[i] = s.name
		byName[s.name] = s
	}
	return &placement{all: all, byName: byName, hash: rendezvous.New(names, xxhash.Sum64String)}
}

func (p *placement) of(key string) *server {
	if len(p.all) == 1 {
		return p.all[0]
	}
	return p.byName[p.hash.Lookup(key)]
}
