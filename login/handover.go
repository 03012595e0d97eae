package login

import (
	"cmp"
	"context"
	"crypto/cipher"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/internal/seal"
)

var errHandover = errors.New("login: not a handed-over attempt: pass the bytes of HandOver unchanged")

// endedRule returns the rule that is full once an attempt that was handed over
// has ended.
func (g *Guard) endedRule(id string) throttler.Rule {
	return throttler.Rule{
		Identifier: g.identifier() + "-handover",
		Either:     []throttler.Condition{{Name: "ended", Value: id, Max: 1, TTL: 2 * handoverLasts}},
	}
}

// handoverLasts is the time within which an attempt that is handed over must be
// ended.
const handoverLasts = 10 * time.Minute

// handover is the encoding of an attempt that is handed over.
type handover struct {
	ID          string     `json:"id"` // one end is made of it
	At          time.Time  `json:"at"` // it was begun
	identity               // under the key that it is sealed with
	Former      []identity `json:"former,omitempty"` // under the other keys
	Addr        netip.Addr `json:"addr"`
	Known       bool       `json:"known,omitempty"`
	FromDevice  bool       `json:"from_device,omitempty"`  // it is known by its device
	AddressFull bool       `json:"address_full,omitempty"` // see party.known
	HalfUsed    bool       `json:"half_used,omitempty"`
	Siege       bool       `json:"siege,omitempty"`
	WouldBlock  bool       `json:"would_block,omitempty"` // in Shadow
	Receipt     []byte     `json:"receipt,omitempty"`
}

// HandOver encodes the attempt, so that another process can end it by
// [Guard.TakeOver], within 10 minutes and once. After that it cannot be ended
// here: Succeed and Cancel return [ErrSettled], and Fail does nothing. The error
// is [ErrSettled].
//
// With [Guard.Keys] the bytes are encrypted and authenticated (AES-256-GCM).
// Without it they hold the name and the address in clear text, and TakeOver
// accepts whatever has their form: anyone who can write them can take failures
// back. Then encrypt and authenticate them if they leave the program.
func (a *Attempt) HandOver() ([]byte, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.state != pending || a.decided.Status != throttler.Authorized {
		return nil, ErrSettled
	}
	p := a.party
	id := cmp.Or(a.handed, rand.Text())
	a.guard.siege.handOver(a, id)
	h := handover{
		ID: id, At: a.begun,
		identity: identity{[]byte(p.name), p.variant, p.device.value}, Former: p.former, Addr: p.addr,
		Known: a.Known, FromDevice: a.plan.from.pair == byNameDevice,
		AddressFull: slices.ContainsFunc(a.plan.limits, func(c throttler.Condition) bool { return c.Name == byAddressKnown }),
		HalfUsed:    a.HalfUsed, Siege: a.Siege, WouldBlock: a.decided.WouldBlock,
		Receipt: a.decided.Receipt(),
	}
	text, err := json.Marshal(h)
	if err != nil {
		return nil, err
	}
	a.state = closed // in this process: only the other one may cancel the hits
	return sealed(a.key, text), nil
}

// TakeOver returns an attempt that another process has handed over. g must have
// the same options and servers as the Guard that began it, whose key may be a
// former one here. If there is a key here, one must have been there too: anyone can
// write clear text. The error says that the bytes are not from [Attempt.HandOver], or
// that the attempt was begun more than 10 minutes ago. Of several attempts that were taken over from
// the same bytes, one can be ended: the others' Succeed, Cancel and Challenge
// return [ErrSettled], and their Fail does nothing.
//
// The Attempt's Decision has no Outcomes. Its Succeed gives back no earlier
// failures that another process counted. Its end waits for the backend twice, for
// 5 seconds at most each time.
func (g *Guard) TakeOver(text []byte) (*Attempt, error) {
	h, key, err := g.unseal(text)
	if err != nil {
		return nil, fmt.Errorf("%w: %v", errHandover, err)
	}
	switch age := time.Since(h.At).Abs(); {
	case !h.Addr.IsValid():
		return nil, fmt.Errorf("%w: no address", errHandover)
	case h.ID == "" || age > handoverLasts:
		return nil, fmt.Errorf("%w: it was begun %v ago, want at most %v", errHandover, age, handoverLasts)
	}
	d, err := g.throttler.Redeem(h.Receipt)
	if err != nil {
		return nil, fmt.Errorf("%w: %v", errHandover, err)
	}
	d.Status, d.WouldBlock = throttler.Authorized, h.WouldBlock
	p := g.party("", h.Addr, "").as(h.identity)
	p.former = h.Former
	a := &Attempt{
		Decision: d, Known: h.Known, HalfUsed: h.HalfUsed, Siege: h.Siege,
		guard: g, key: key, party: p, plan: h.plan(g, p), decided: d, handed: h.ID, begun: h.At,
	}
	if g.alarmed(a) {
		g.siege.takeOver(a)
	}
	return a, nil
}

// claim makes a the one that ends an attempt that was handed over. The error is
// [ErrSettled] if another one has ended it, or the backend's.
func (a *Attempt) claim(ctx context.Context) error {
	if a.handed == "" || a.claimed {
		return nil
	}
	ctx, cancel := detach(ctx)
	defer cancel()
	d, err := a.guard.throttler.Authorize(ctx, a.guard.endedRule(a.handed))
	switch {
	case err != nil:
		return err
	case d.Status == throttler.Blocked:
		return ErrSettled
	case !a.guard.answered(d.Err):
		return d.Err
	}
	a.claimed = true
	return nil
}

// sealed encrypts and authenticates text if there is a key.
func sealed(key, text []byte) []byte {
	if len(key) == 0 {
		return text
	}
	return sealer(key).Seal(nil, nil, text, nil)
}

// unseal decodes what sealed has returned, with one of Keys, and returns
// the key. With a current key, what is not sealed does not count.
func (g *Guard) unseal(text []byte) (h handover, key []byte, err error) {
	for _, key := range g.Keys {
		if len(key) == 0 {
			continue
		}
		if plain, err := sealer(key).Open(nil, nil, text, nil); err == nil {
			return h, key, json.Unmarshal(plain, &h)
		}
	}
	if current, _ := g.keys(); len(current) > 0 {
		return h, nil, errors.New("it was not sealed with a key of Keys")
	}
	return h, nil, json.Unmarshal(text, &h)
}

// sealer returns the cipher of key.
func sealer(key []byte) cipher.AEAD {
	aead, err := seal.New(key, "login handover")
	if err != nil {
		panic(err) // only for a short key, and with GODEBUG=fips140=only
	}
	return aead
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
