package tally

import (
	"context"
	"sync"
	"sync/atomic"

	"github.com/adaptivethrottler/throttler/internal/address"
	"github.com/adaptivethrottler/throttler/login"
)

// logins counts attempts to log in.
type logins struct {
	results    [4]atomic.Uint64 // by login.Result
	wouldBlock atomic.Uint64
	known      atomic.Uint64
	errs       atomic.Uint64

	mu       sync.Mutex // guards names, addrs and networks, which are of failed attempts
	names    summary
	addrs    summary
	networks summary
}

// ObserveLogin counts one attempt to log in. It fits login.Guard.Observe. It
// keeps nothing else of e, and ignores the ctx. Names, addresses and networks
// of failed attempts are recorded like values of conditions: with HashKey as
// hashes. Attempts of several guards are counted together. To tell them apart,
// give each guard a Tally.
func (t *Tally) ObserveLogin(_ context.Context, e login.Event) {
	l := &t.counts.Load().logins
	if e.Result < login.Refused || e.Result > login.Canceled {
		return
	}
	l.results[e.Result].Add(1)
	if e.Result != login.Refused && e.Decision.WouldBlock {
		l.wouldBlock.Add(1)
	}
	if e.Known {
		l.known.Add(1)
	}
	if e.Decision.Err != nil {
		l.errs.Add(1)
	}
	if e.Result != login.Failed || t.maxValues() == 0 {
		return
	}
	name, addr, network := t.kept(e.Name), t.kept(address.Text(e.Addr, 64)), t.kept(address.Network(e.Addr, 24, 48))
	l.mu.Lock()
	defer l.mu.Unlock()
	l.names.count(name, t.maxValues())
	l.addrs.count(addr, t.maxValues())
	l.networks.count(network, t.maxValues())
}

// LoginCounts counts attempts to log in.
type LoginCounts struct {
	// Attempts is the sum of the next four.
	Attempts uint64 `json:"attempts"`

	// Succeeded, Failed and Canceled count attempts by how they ended. Refused
	// counts attempts whose password was not looked at. An attempt that the
	// application never ends is not counted.
	Succeeded uint64 `json:"succeeded"`
	Failed    uint64 `json:"failed"`
	Refused   uint64 `json:"refused"`
	Canceled  uint64 `json:"canceled"`

	// WouldBlock is the number of attempts that passed only because of Shadow.
	// They also count by how they ended.
	WouldBlock uint64 `json:"would_block"`

	// Known is the number of Attempts that were decided by the limits of a
	// known address or device.
	Known uint64 `json:"known"`

	// FailedShare is Failed/(Succeeded+Failed): the share of wrong passwords
	// among those looked at. 0 if there was none.
	FailedShare float64 `json:"failed_share"`

	// Errors is the number of Attempts during which the backend failed:
	// Decision.Err was set. They also count above.
	Errors uint64 `json:"errors"`

	// Names, Addresses and Networks are those with the most failures, most
	// first: see [ConditionCounts.Values]. An IPv6 address is its /64. Networks
	// are /24 of IPv4 and /48 of IPv6.
	Names     []ValueCount `json:"names"`
	Addresses []ValueCount `json:"addresses"`
	Networks  []ValueCount `json:"networks"`

	// Unlisted is an upper bound on the failures of a name, address or network
	// that is not in its list. It is 0 while all fit, and at most
	// Failed/MaxValues. If no values are kept it is Failed.
	Unlisted uint64 `json:"unlisted"`
}

// snapshot returns the counts, or nil if there were no attempts.
func (l *logins) snapshot(maxValues int) *LoginCounts {
	s := &LoginCounts{
		Refused:    l.results[login.Refused].Load(),
		Succeeded:  l.results[login.Succeeded].Load(),
		Failed:     l.results[login.Failed].Load(),
		Canceled:   l.results[login.Canceled].Load(),
		WouldBlock: l.wouldBlock.Load(),
		Known:      l.known.Load(),
		Errors:     l.errs.Load(),
	}
	s.Attempts = s.Refused + s.Succeeded + s.Failed + s.Canceled
	if s.Attempts == 0 {
		return nil
	}
	if verified := s.Succeeded + s.Failed; verified > 0 {
		s.FailedShare = float64(s.Failed) / float64(verified)
	}
	if maxValues == 0 {
		s.Unlisted = s.Failed
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, list := range []*summary{&l.names, &l.addrs, &l.networks} {
		s.Unlisted = max(s.Unlisted, list.min(maxValues))
	}
	s.Names, s.Addresses, s.Networks = l.names.values(), l.addrs.values(), l.networks.values()
	return s
}
