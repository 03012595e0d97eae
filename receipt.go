package throttler

import (
	"encoding/binary"
	"errors"
)

// ErrInvalidReceipt is the error of [Throttler.Redeem] for bytes that
// [Decision.Receipt] has not written.
var ErrInvalidReceipt = errors.New("throttler: not a receipt")

// receiptVersion is the first byte of a receipt. After it comes for each hit its
// key, with the length before it, and then its numbers, all as varints.
const receiptVersion = 1

// Receipt returns what another process needs to take back the hits that d counted:
// see [Throttler.Redeem]. It is nil if there are none.
//
// It leaves out hits that a [Throttler.Fallback] counted, since they are in this
// process alone, and hits of which it is not known yet whether they were counted.
//
// A receipt has keys, and so values, in clear text. Whoever can write one can take
// back hits of others: authenticate it where it leaves the program's hands. Use
// either the receipt or d, and the receipt once: what is taken back twice may be
// another's.
func (d Decision) Receipt() []byte {
	if d.receipt == nil {
		return nil
	}
	d.receipt.mu.Lock()
	defer d.receipt.mu.Unlock()
	var b []byte
	for _, c := range d.receipt.hits {
		if c.backend != c.backend.t.backend() {
			continue
		}
		if b == nil {
			b = []byte{receiptVersion}
		}
		b = binary.AppendUvarint(b, uint64(len(c.key)))
		b = append(b, c.key...)
		for _, n := range c.hit.numbers() {
			b = binary.AppendVarint(b, n)
		}
	}
	return b
}

// numbers returns h as it stands in a receipt.
func (h hit) numbers() [numbersOfHit]int64 {
	s := h.share
	return [...]int64{
		int64(h.cost), int64(h.expiry), int64(s.at), int64(s.until), int64(s.amount),
		int64(s.grain), int64(s.weight), int64(s.most), int64(s.cancels),
	}
}

const numbersOfHit = 9

// hitOf is the reverse of numbers.
func hitOf(n [numbersOfHit]int64) hit {
	return hit{cost: int(n[0]), expiry: instant(n[1]), share: share{
		at: instant(n[2]), until: instant(n[3]), amount: instant(n[4]), grain: instant(n[5]),
		weight: uint16(n[6]), most: uint16(n[7]), cancels: uint16(n[8]),
	}}
}

// Redeem returns a Decision with which [Throttler.Cancel] and [Throttler.CancelOnly]
// take back the hits of a receipt, which must come from a Throttler on the same
// servers. An empty receipt has none. The Decision is good for nothing else. The
// error is [ErrInvalidReceipt].
func (t *Throttler) Redeem(receipt []byte) (Decision, error) {
	if len(receipt) == 0 {
		return Decision{}, nil
	}
	hits, ok := readReceipt(receipt, t.backend())
	if !ok {
		return Decision{}, ErrInvalidReceipt
	}
	return Decision{receipt: hits}, nil
}

// readReceipt reads the hits of a receipt, all of which b has.
func readReceipt(text []byte, b *backend) (r *receipt, ok bool) {
	if text[0] != receiptVersion {
		return nil, false
	}
	r = new(receipt)
	for text = text[1:]; len(text) > 0; {
		length, n := binary.Uvarint(text)
		if n <= 0 || length == 0 || length > maxKey || length > uint64(len(text)-n) {
			return nil, false
		}
		c := counted{backend: b, key: string(text[n : n+int(length)])}
		text = text[n+int(length):]
		var numbers [numbersOfHit]int64
		for i := range numbers {
			if numbers[i], n = binary.Varint(text); n <= 0 {
				return nil, false
			}
			text = text[n:]
		}
		if c.hit = hitOf(numbers); !legal(c.key) || c.hit.cost < 1 || c.hit.numbers() != numbers {
			return nil, false
		}
		r.hits = append(r.hits, c)
	}
	return r, len(r.hits) > 0
}
