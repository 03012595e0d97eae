package engine

import (
	"cmp"
	"encoding/binary"
	"errors"
	"time"

	"github.com/adaptivethrottler/throttler/internal/legal"
	"github.com/adaptivethrottler/throttler/internal/record"
)

var errInvalidReceipt = errors.New("throttler: not a receipt: pass the bytes of Decision.Receipt unchanged")

// # The written receipt
//
// It is its version (1 byte), flags (1 byte), and the number of reservations. Each
// reservation follows: its key, its name, the algorithm, Max, TTL, the period if it is a
// calendar, its total, the number of its hits, and the numbers of each. A period is its
// bounds, unit and anchor, the name of its zone, and how many seconds east that is. Texts
// have their length before them. All other numbers are varints, signed but for lengths.
const (
	receiptVersion = 1

	shadowFlag  = 1 // of a rule with Shadow
	settledFlag = 2 // a Settle has had its turn
)

// Append returns r as bytes, or nil if it has counted nothing and was not settled. It leaves
// out what only this process has, and what is being changed.
func (r *Receipt) Append() []byte {
	if r.unused() {
		return nil
	}
	in := r.open()
	in.mu.Lock()
	defer in.mu.Unlock()
	var written []*reservation
	worth := in.settled
	for _, of := range in.all {
		if of.home == of.home.engine.main && !of.busy && len(of.left) == 0 {
			written = append(written, of)
			worth = worth || len(of.hits) > 0
		}
	}
	if !worth || len(written) == 0 {
		return nil
	}
	var flags byte
	if in.shadow {
		flags |= shadowFlag
	}
	if in.settled {
		flags |= settledFlag
	}
	b := binary.AppendUvarint([]byte{receiptVersion, flags}, uint64(len(written)))
	for _, of := range written {
		b = of.append(b)
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
		for _, n := range h.Numbers() {
			b = binary.AppendVarint(b, n)
		}
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
	_, east := time.Unix(0, int64(bounds.Start)).In(zone).Zone()
	for _, n := range []int64{int64(bounds.Start), int64(bounds.End), int64(p.Unit), int64(p.Anchor)} {
		b = binary.AppendVarint(b, n)
	}
	return binary.AppendVarint(appendText(b, zone.String()), int64(east))
}

func appendText(b []byte, text string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(text))), text...)
}

// isKey reports whether a record may have that key.
func isKey(key string) bool {
	return key != "" && len(key) <= record.MaxKey && legal.Text(key)
}
