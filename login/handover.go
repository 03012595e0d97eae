package login

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/adaptivethrottler/throttler"
)

// ErrNotOpen is the error of [Attempt.HandOver] for an attempt that was
// blocked, has ended, or was handed over already.
var ErrNotOpen = errors.New("login: the attempt was blocked, has ended or was handed over")

// ErrHandover is the error of [Guard.TakeOver] for bytes that do not come from
// [Attempt.HandOver].
var ErrHandover = errors.New("login: not a handed-over attempt: pass the bytes of HandOver unchanged")

// handover is the encoding of an attempt that is handed over.
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

// HandOver encodes the attempt, so that another process can end it by
// [Guard.TakeOver]. After that it cannot be ended here: Succeed and Cancel
// return [ErrSettled], and Fail does nothing. The error is [ErrNotOpen].
//
// The bytes hold the name (or its HMAC) and the address in clear text. Anyone
// who can forge them can take failures back. So encrypt or authenticate them if
// they leave the program, and take each over once.
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
	a.state = failed // in this process: only the other one may cancel the hits
	return text, nil
}

// TakeOver returns an attempt that another process has handed over. g must have
// the same options and servers as the Guard that began it. The error is
// [ErrHandover].
//
// The Attempt's Decision has no Outcomes. Its Succeed gives back no earlier
// failures that another process counted.
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

// plan returns the plan by which the attempt was counted.
func (h *handover) plan(g *Guard, p party) plan {
	switch {
	case !h.Known:
		return p.anybody(g)
	case h.FromDevice:
		return p.known(g, p.device, h.AddressFull)
	}
	return p.known(g, p.address, h.AddressFull)
}
