package login

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/adaptivethrottler/throttler"
)

// ErrNotOpen is the error of an attempt that cannot be handed over: it was blocked,
// has ended, or was handed over already.
var ErrNotOpen = errors.New("login: the attempt is not open")

// ErrHandover is the error of [Guard.TakeOver] for bytes that [Attempt.HandOver]
// has not written.
var ErrHandover = errors.New("login: not an attempt that was handed over")

// handover is an attempt on its way to another process.
type handover struct {
	Name        []byte     `json:"name,omitempty"` // as it is counted
	Variant     string     `json:"variant,omitempty"`
	Addr        netip.Addr `json:"addr"`
	Device      string     `json:"device,omitempty"` // as it is counted
	Known       bool       `json:"known,omitempty"`
	FromDevice  bool       `json:"from_device,omitempty"`  // it is known by its device
	AddressFull bool       `json:"address_full,omitempty"` // see party.known
	HalfUsed    bool       `json:"half_used,omitempty"`
	WouldBlock  bool       `json:"would_block,omitempty"` // in Shadow
	Receipt     []byte     `json:"receipt,omitempty"`
}

// HandOver returns the attempt as bytes, for another process to end it by
// [Guard.TakeOver]. From then on, a cannot be taken back here: Succeed and Cancel
// return [ErrSettled], Fail does nothing.
//
// The bytes hold the name and the address in clear text. Whoever can write them
// can take back failures, so they must be encrypted or authenticated where they
// leave the program's hands, and taken over once. The error is [ErrNotOpen].
func (a *Attempt) HandOver() ([]byte, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.state != open || a.decided.Status != throttler.Authorized {
		return nil, ErrNotOpen
	}
	h := handover{
		Name: []byte(a.party.name), Variant: a.party.variant, Addr: a.party.addr, Device: a.party.device.value,
		Known: a.Known, FromDevice: a.plan.from.pair == byNameDevice,
		AddressFull: slices.ContainsFunc(a.plan.limits, func(c throttler.Condition) bool { return c.Name == byAddressKnown }),
		HalfUsed:    a.HalfUsed, WouldBlock: a.decided.WouldBlock,
		Receipt: a.decided.Receipt(),
	}
	text, err := json.Marshal(h)
	if err != nil {
		return nil, err
	}
	a.state = failed // here: what was counted is the other's to take back
	return text, nil
}

// TakeOver returns an attempt that another process has handed over. g must have the
// same options as the Guard that began it, and the same servers. Its Decision has no
// Outcomes. Failures just before it that were counted elsewhere are not given back
// by Succeed. The error is [ErrHandover].
func (g *Guard) TakeOver(text []byte) (*Attempt, error) {
	var h handover
	if err := json.Unmarshal(text, &h); err != nil {
		return nil, fmt.Errorf("%w: %v", ErrHandover, err)
	}
	if !h.Addr.IsValid() {
		return nil, fmt.Errorf("%w: no address", ErrHandover)
	}
	d, err := g.throttler.Redeem(h.Receipt)
	if err != nil {
		return nil, fmt.Errorf("%w: %v", ErrHandover, err)
	}
	d.Status, d.WouldBlock = throttler.Authorized, h.WouldBlock
	p := g.party("", h.Addr, "")
	p.name, p.variant = string(h.Name), h.Variant
	if h.Device != "" {
		p.device = origin{byNameDevice, h.Device}
	}
	a := &Attempt{Decision: d, Known: h.Known, HalfUsed: h.HalfUsed, guard: g, party: p, plan: h.plan(g, p), decided: d}
	return a, nil
}

// plan returns what the attempt was counted by.
func (h *handover) plan(g *Guard, p party) plan {
	switch {
	case !h.Known:
		return p.anybody(g)
	case h.FromDevice:
		return p.known(g, p.device, h.AddressFull)
	}
	return p.known(g, p.address, h.AddressFull)
}
