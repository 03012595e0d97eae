package tally

import (
	"context"
	"net/netip"
	"sync"
	"sync/atomic"

	"github.com/adaptivethrottler/throttler/login"
)

// logins are the attempts to log in that were observed.
type logins struct {
	results    [4]atomic.Uint64 // by login.Result
	wouldBlock atomic.Uint64
	known      atomic.Uint64

	mu       sync.Mutex // guards what follows: those of attempts that failed
	names    summary
	addrs    summary
	networks summary
}

// ObserveLogin counts one attempt to log in. It fits login.Guard.Observe. The
// names, addresses and networks of attempts that failed are recorded as the values
// of conditions are: with HashKey as hashes.
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
	if e.Result != login.Failed || t.maxValues() == 0 {
		return
	}
	name, addr, network := t.kept(e.Name), t.kept(e.Addr.String()), t.kept(networkOf(e.Addr))
	l.mu.Lock()
	defer l.mu.Unlock()
	l.names.count(name, t.maxValues())
	l.addrs.count(addr, t.maxValues())
	l.networks.count(network, t.maxValues())
}

// networkOf returns the network that addr is counted in: an IPv4 /24 or an IPv6
// /48, what one attacker can easily have all of.
func networkOf(addr netip.Addr) string {
	bits := 48
	if addr.Is4() {
		bits = 24
	}
	network, err := addr.Prefix(bits)
	if err != nil {
		return addr.String() // none
	}
	return network.String()
}

// LoginCounts are attempts to log in.
type LoginCounts struct {
	// Attempts is the sum of the next four.
	Attempts uint64 `json:"attempts"`

	// Succeeded, Failed and Canceled count attempts that ended so. Refused
	// counts those whose password was not looked at. An attempt that the
	// application never ends is not counted.
	Succeeded uint64 `json:"succeeded"`
	Failed    uint64 `json:"failed"`
	Refused   uint64 `json:"refused"`
	Canceled  uint64 `json:"canceled"`

	// WouldBlock is how many of the others would have been refused, but for
	// Shadow.
	WouldBlock uint64 `json:"would_block"`

	// Known is how many of the Attempts were decided by the limits of those
	// who are known.
	Known uint64 `json:"known"`

	// FailedShare is Failed over Succeeded+Failed: of the passwords that were
	// looked at, the share that was wrong. 0 if none was.
	FailedShare float64 `json:"failed_share"`

	// Names, Addresses and Networks (IPv4 /24, IPv6 /48) are those that
	// failed most, as [ConditionCounts.Values].
	Names     []ValueCount `json:"names"`
	Addresses []ValueCount `json:"addresses"`
	Networks  []ValueCount `json:"networks"`
}

// snapshot returns the counts, nil if no attempt was observed.
func (l *logins) snapshot() *LoginCounts {
	s := &LoginCounts{
		Refused:    l.results[login.Refused].Load(),
		Succeeded:  l.results[login.Succeeded].Load(),
		Failed:     l.results[login.Failed].Load(),
		Canceled:   l.results[login.Canceled].Load(),
		WouldBlock: l.wouldBlock.Load(),
		Known:      l.known.Load(),
	}
	s.Attempts = s.Refused + s.Succeeded + s.Failed + s.Canceled
	if s.Attempts == 0 {
		return nil
	}
	if verified := s.Succeeded + s.Failed; verified > 0 {
		s.FailedShare = float64(s.Failed) / float64(verified)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	s.Names, s.Addresses, s.Networks = l.names.values(), l.addrs.values(), l.networks.values()
	return s
}
