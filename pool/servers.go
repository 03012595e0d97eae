package pool

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cespare/xxhash/v2"
	"github.com/dgryski/go-rendezvous"
)

// parseServers returns servers that are not yet connected, as [New] says, except that their
// names are not resolved.
func parseServers(names []string) ([]*server, error) {
	if len(names) == 0 {
		return nil, errors.New("pool: no servers: give at least one")
	}
	all := make([]*server, len(names))
	seen := make(map[address]bool, len(names))
	for i, name := range names {
		addr, err := parseAddress(name)
		if err == nil && seen[addr] {
			err = errors.New("given twice")
		}
		if err != nil {
			if scheme, _, isURL := strings.Cut(name, "://"); isURL {
				name = scheme + "://…" // it may have a password
			}
			return nil, serverError(name, err)
		}
		seen[addr] = true
		all[i] = newServer(addr)
	}
	return all, nil
}

// resolveFor is how long the addresses of names are waited for: two tries of a resolver with the
// usual settings.
const resolveFor = 10 * time.Second

// resolveAll finds out whether the names of all resolve now, except those that are known. It
// asks for all at the same time, until ctx ends. The error is that none does.
func resolveAll(ctx context.Context, resolver *net.Resolver, all []*server, known map[string]*server) error {
	failures := make([]error, len(all))
	var asked sync.WaitGroup
	for i, s := range all {
		if host := s.addr.host(); host != "" && known[s.Name] == nil {
			asked.Go(func() {
				if _, err := resolver.LookupNetIP(ctx, "ip", host); err != nil {
					if ctx.Err() != nil {
						err = fmt.Errorf("lookup %s: %w", host, errTimeout)
					}
					failures[i] = s.Wrap(err)
					s.Blame(err)
				}
			})
		}
	}
	asked.Wait()
	if slices.Contains(failures, nil) {
		return nil
	}
	return errors.Join(failures...)
}

// SetServers replaces the list of servers that was given to [New], while calls are
// made. Its errors are those of New, and ErrClosed; after an error the list is as
// before. Names that are new in the list have 10 s to resolve. The others are not
// resolved again.
//
// Only the keys of servers that come or go are concerned: a new server takes its
// share from all others, and the keys of one that goes are spread over the rest.
// These keys begin with empty records, so each of their values may have its limit
// once more, and bans that were kept there do not hold. All other keys, and the
// connections to their servers, stay. A server that comes back has the records
// that it had when it went, unless they have expired.
//
// Programs that share servers notice a change at different times. Until all have, the values that
// move are counted in two places.
//
// Calls that are under way end where they began. The connections to a server that
// goes are closed when they have. A program that calls Get and CompareAndSwap by
// itself may read from one server and swap on another: it must not do so while
// servers change.
func (p *Pool) SetServers(servers ...string) error {
	all, err := parseServers(servers)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), cmp.Or(p.resolveFor, resolveFor))
	defer cancel()
	if err := resolveAll(ctx, cmp.Or(p.resolver, net.DefaultResolver), all, p.servers.Load().byName); err != nil {
		return err
	}
	return p.replace(all)
}

// Changes returns how many times SetServers has added or removed servers. Each time
// the records of some values began anew.
func (p *Pool) Changes() uint64 { return p.changes.Load() }

// replace puts all in the place of the servers so far, except that those which are
// there already stay.
func (p *Pool) replace(all []*server) error {
	p.init()
	p.changing.Lock()
	defer p.changing.Unlock()
	if p.isClosed() {
		return ErrClosed
	}
	changed := false
	before := p.servers.Load()
	for i, s := range all {
		if old := before.byName[s.Name]; old != nil {
			all[i] = old
			continue
		}
		changed = true
		if old := p.leaving[s.Name]; old != nil {
			old.dismissal.Stop()
			delete(p.leaving, s.Name)
			all[i] = old
		} else {
			s.init(p)
		}
	}
	after := place(all)
	p.servers.Store(after)
	for _, s := range before.all {
		if after.byName[s.Name] == nil {
			changed = true
			p.leaving[s.Name] = s
			s.dismissal = time.AfterFunc(s.longest(), func() { p.dismiss(s) })
		}
	}
	if changed {
		p.changes.Add(1)
	}
	return nil
}

// dismiss closes the connections to a server that is still leaving, if its calls have
// ended. If not, it runs once more.
func (p *Pool) dismiss(s *server) {
	p.changing.Lock()
	defer p.changing.Unlock()
	switch {
	case p.leaving[s.Name] != s:
	case s.busy():
		s.dismissal.Reset(s.longest())
	default:
		delete(p.leaving, s.Name)
		s.close()
	}
}

// longest is how long a call may take in a process that has time for it.
func (s *server) longest() time.Duration {
	return s.queueTimeout + 2*(s.dialTimeout+s.timeout)
}

// busy reports whether calls are under way. While the server is down there are
// only probes.
func (s *server) busy() bool {
	return s.Down() == nil && slices.ContainsFunc(s.links, (*link).busy)
}

func (l *link) busy() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.queue.Len() > 0 || l.conn != nil && l.conn.sent.Len() > 0
}

// An address is where a server is, with the name as it was given. The dialer
// resolves it each time, and so follows a name that is moved to another machine.
type address struct {
	network, text string
}

// parseAddress returns the address of a server as given to New.
func parseAddress(name string) (address, error) {
	path, isSocket := strings.CutPrefix(name, "unix:")
	if isSocket && path == "" {
		return address{}, errors.New("no path, want unix:/path/to/socket")
	}
	if scheme, _, isURL := strings.Cut(name, "://"); isURL && !isSocket { // its slash is no socket's
		if slices.Contains([]string{"redis", "rediss", "valkey", "valkeys"}, scheme) {
			return address{}, errors.New("a URL of Redis: give it to redisstore.Open, or as store: in a file of rules")
		}
		return address{}, errors.New("a URL, want host:port or /path/to/socket")
	}
	if isSocket || strings.Contains(name, "/") {
		return address{"unix", path}, nil
	}
	host, port, err := net.SplitHostPort(name)
	if err != nil {
		return address{}, err
	}
	if number, err := net.LookupPort("tcp", port); err != nil {
		return address{}, err
	} else if host == "" || number == 0 {
		// They would mean this machine and any port: most likely a variable
		// that is not set.
		return address{}, errors.New("no host or no port, want host:port")
	}
	return address{"tcp", name}, nil
}

// host returns the name that is to be resolved, or "" if there is none.
func (a address) host() string {
	if a.network != "tcp" {
		return ""
	}
	host, _, _ := net.SplitHostPort(a.text)
	if _, err := netip.ParseAddr(host); err == nil {
		return ""
	}
	return host
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
		names[i] = s.Name
		byName[s.Name] = s
	}
	return &placement{all: all, byName: byName, hash: rendezvous.New(names, xxhash.Sum64String)}
}

func (p *placement) of(key string) *server {
	if len(p.all) == 1 {
		return p.all[0]
	}
	return p.byName[p.hash.Lookup(key)]
}
