package ops

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net/netip"
	"slices"

	"github.com/adaptivethrottler/throttler/cmd/throttler/internal/rulefile"
	"github.com/adaptivethrottler/throttler/internal/address"
	"github.com/adaptivethrottler/throttler/robots"
)

// Visitors are who came, by a log.
type Visitors struct {
	Replay

	Robots   []*Visitor `json:"robots"`   // most requests first; people are one without a name
	Networks []Network  `json:"networks"` // the heaviest

	rules, dns bool // were asked
}

// A Visitor is a robot, or all people.
type Visitor struct {
	Group     string `json:"group"` // empty: people; "unknown": no robot of the table
	Name      string `json:"name"`
	Requests  int    `json:"requests"`
	Addresses int    `json:"addresses"`
	Verified  int    `json:"verified"`            // requests, by a list or by DNS
	Impostors int    `json:"impostors"`           // requests
	Refused   int    `json:"refused"`             // requests that the rules would have blocked
	Undecided int    `json:"undecided,omitempty"` // requests whose name DNS did not settle

	addresses map[netip.Addr]int // requests of claims that no list settles, or 0
}

// A Network is the requests of a /24 or a /48.
type Network struct {
	Network  string `json:"network"`
	Requests int    `json:"requests"`
	Name     string `json:"name"` // of the heaviest robot in it
}

// heaviest is the number of networks shown.
const heaviest = 10

// Robots replays a log, and shows who came: by the robots of the rule file, if there is one, or else
// those that are known. With dns, claims that no list settles are checked by DNS, and the
// networks that it confirms are written as lists.
func (o *Operator) Robots(ctx context.Context, log io.Reader, size int64, dns *DNS) error {
	replaying := *o
	if o.Rules == nil {
		replaying.Rules = new(rulefile.File)
	}
	directory := replaying.Rules.Robots
	if directory == nil {
		var err error
		if directory, err = robots.Open(robots.Options{}); err != nil {
			return err
		}
	}
	v := &Visitors{rules: o.Rules != nil, dns: dns != nil}
	byName, networks := make(map[string]*Visitor), make(map[string]map[string]int)
	trial, _, err := replaying.replay(ctx, log, size, func(e *logged, blocked bool) {
		who := directory.Identify(e.request.Header.Get("User-Agent"), e.request.Addr)
		visitor := byName[who.Name]
		if visitor == nil {
			visitor = &Visitor{Group: who.Group, Name: who.Name, addresses: make(map[netip.Addr]int)}
			if who.Standing == robots.Unknown {
				visitor.Group = "unknown"
			}
			byName[who.Name] = visitor
		}
		visitor.count(&who, address.Plain(e.request.Addr), blocked)
		network := address.Network(e.request.Addr, 24, 48)
		if networks[network] == nil {
			networks[network] = make(map[string]int, 1)
		}
		networks[network][who.Name]++
	})
	if err != nil {
		return err
	}
	v.Replay = trial.Replay
	for _, visitor := range byName {
		visitor.Addresses = len(visitor.addresses)
		v.Robots = append(v.Robots, visitor)
	}
	slices.SortFunc(v.Robots, func(a, b *Visitor) int {
		return cmp.Or(cmp.Compare(b.Requests, a.Requests), cmp.Compare(a.Name, b.Name))
	})
	if dns != nil {
		if err := dns.settle(ctx, v.Robots, newProgress(o.Progress, "networks")); err != nil {
			return err
		}
	}
	v.Networks = heaviestOf(networks)
	if err := o.print(v, v.report); err != nil {
		return err
	}
	return v.unread()
}

// count counts a request.
func (v *Visitor) count(who *robots.Identity, addr netip.Addr, blocked bool) {
	v.Requests++
	if blocked {
		v.Refused++
	}
	n := v.addresses[addr]
	switch who.Standing {
	case robots.Verified:
		v.Verified++
	case robots.Impostor:
		v.Impostors++
	case robots.Claimed:
		n++
	}
	v.addresses[addr] = n
}

// heaviestOf returns the networks with the most requests.
func heaviestOf(networks map[string]map[string]int) (all []Network) {
	for network, names := range networks {
		n := Network{Network: network}
		most := 0
		for name, requests := range names {
			n.Requests += requests
			if requests > most || requests == most && name < n.Name {
				most, n.Name = requests, name
			}
		}
		all = append(all, n)
	}
	slices.SortFunc(all, func(a, b Network) int {
		return cmp.Or(cmp.Compare(b.Requests, a.Requests), cmp.Compare(a.Network, b.Network))
	})
	return all[:min(len(all), heaviest)]
}

// report writes v as text.
func (v *Visitors) report(w io.Writer) {
	v.Replay.report(w, "")
	fmt.Fprint(w, "\ngroup\tname\trequests\taddresses\tverified\timpostors")
	if v.rules {
		fmt.Fprint(w, "\trefused")
	}
	if v.dns {
		fmt.Fprint(w, "\tundecided")
	}
	fmt.Fprintln(w)
	for _, r := range v.Robots {
		fmt.Fprintf(w, "%s\t%s\t%d\t%d\t%d\t%d", cmp.Or(r.Group, "people"), cmp.Or(r.Name, "-"), r.Requests, r.Addresses, r.Verified, r.Impostors)
		if v.rules {
			fmt.Fprintf(w, "\t%d", r.Refused)
		}
		if v.dns {
			fmt.Fprintf(w, "\t%d", r.Undecided)
		}
		fmt.Fprintln(w)
	}
	fmt.Fprint(w, "\nnetwork\trequests\tmostly\n")
	for _, n := range v.Networks {
		fmt.Fprintf(w, "%s\t%d\t%s\n", n.Network, n.Requests, cmp.Or(n.Name, "people"))
	}
}
