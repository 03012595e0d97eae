package throttler

import (
	"cmp"
	"encoding/binary"
	"errors"
	"time"

	"github.com/adaptivethrottler/throttler/internal/record"
)

// ErrInvalidReceipt is the error of [Throttler.Redeem] for bytes that are not from
// [Decision.Receipt].
var ErrInvalidReceipt = errors.New("throttler: not a receipt: pass the bytes of Decision.Receipt unchanged")

// # The written receipt
//
// Version 2 is its version (1 byte), flags (1 byte), and the number of reservations. Each
// reservation follows: its key, its name, the algorithm, Max, TTL, the period if it is a
// calendar, its total, the number of its hits, and the numbers of each. A period is its
// bounds, unit and anchor, the name of its zone, and how many seconds east that is. Texts
// have their length before them. All other numbers are varints, signed but for lengths.
//
// Version 1 has keys and hits only, each key before the numbers of its hit, up to the end. It
// is written for what was redeemed from it.
const (
	receiptVersion1 = 1
	receiptVersion  = 2

	shadowFlag  = 1 // of a rule with Shadow
	settledFlag = 2 // a Settle has had its turn
)

// Receipt returns what another process needs to take back the hits that d counted, or to
// settle what they have cost, with [Throttler.Redeem]. It is nil if d counted none and was
// not settled. Releases before Settle refuse it: update what redeems first.
//
// Use either the receipt or d, and the receipt once: a second time may take back
// another call's hits. After Redeem and [Throttler.Settle], use the Receipt of the result.
// Anyone who can write a receipt can take back hits, so authenticate it if it leaves the
// program. It contains keys, and so values, in clear text.
//
// It leaves out hits that a [Throttler.Fallback] counted, because only this process
// has them, hits whose result is still unknown, and hits that a Cancel or Settle is
// changing. It does not wait for that.
func (d Decision) Receipt() []byte {
	if d.receipt == nil || d.receipt.empty() {
		return nil
	}
	in := d.receipt.open()
	in.mu.Lock()
	defer in.mu.Unlock()
	var written []*reservation
	worth, version := in.settled, byte(receiptVersion)
	for _, r := range in.all {
		if r.backend != r.backend.t.backend() || r.busy || len(r.left) > 0 {
			continue
		}
		written = append(written, r)
		worth = worth || len(r.hits) > 0
		if r.limit.Max == 0 {
			version = receiptVersion1
		}
	}
	switch {
	case !worth || len(written) == 0:
		return nil
	case version == receiptVersion1:
		return appendVersion1(written)
	}
	var flags byte
	if in.shadow {
		flags |= shadowFlag
	}
	if in.settled {
		flags |= settledFlag
	}
	b := binary.AppendUvarint([]byte{receiptVersion, flags}, uint64(len(written)))
	for _, r := range written {
		b = r.append(b)
	}
	return b
}

// append appends r as it is written.
func (r *reservation) append(b []byte) []byte {
	b = appendText(appendText(b, r.key), r.name)
	b = binary.AppendVarint(b, int64(r.limit.Algorithm))
	b = binary.AppendVarint(b, int64(r.limit.Max))
	b = binary.AppendVarint(b, int64(r.limit.TTL))
	if r.limit.Algorithm == record.Calendar {
		b = r.appendPeriod(b)
	}
	b = binary.AppendVarint(b, int64(r.total))
	b = binary.AppendUvarint(b, uint64(len(r.hits)))
	for _, h := range r.hits {
		b = appendHit(b, h)
	}
	return b
}

// appendPeriod appends the period of r.
func (r *reservation) appendPeriod(b []byte) []byte {
	p, bounds := r.limit.Period, r.bounds
	if bounds == nil {
		bounds = new(record.Bounds)
		*bounds = p.Around(record.InstantOf(time.Now()))
	}
	zone := cmp.Or(p.Location, time.UTC)
	_, east := timeOf(bounds.Start).In(zone).Zone()
	for _, n := range []int64{int64(bounds.Start), int64(bounds.End), int64(p.Unit), int64(p.Anchor)} {
		b = binary.AppendVarint(b, n)
	}
	return binary.AppendVarint(appendText(b, zone.String()), int64(east))
}

// appendVersion1 appends reservations that were read from version 1.
func appendVersion1(all []*reservation) []byte {
	b := []byte{receiptVersion1}
	for _, r := range all {
		for _, h := range r.hits {
			b = appendHit(appendText(b, r.key), h)
		}
	}
	return b
}

func appendText(b []byte, text string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(text))), text...)
}

func appendHit(b []byte, h record.Hit) []byte {
	for _, n := range h.Numbers() {
		b = binary.AppendVarint(b, n)
	}
	return b
}
