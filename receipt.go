package throttler

import (
	"encoding/binary"
	"errors"

	"github.com/adaptivethrottler/throttler/internal/record"
)

// ErrInvalidReceipt is the error of [Throttler.Redeem] for bytes that are not from
// [Decision.Receipt].
var ErrInvalidReceipt = errors.New("throttler: not a receipt: pass the bytes of Decision.Receipt unchanged")

// receiptVersion is the first byte of a receipt. Each hit follows: the length of its
// key, the key, and its numbers, all as varints.
const receiptVersion = 1

// Receipt returns what another process needs to take back the hits that d counted,
// with [Throttler.Redeem]. It is nil if d counted none.
//
// Use either the receipt or d, and the receipt once: a second time may take back
// another call's hits. Anyone who can write a receipt can take back hits, so
// authenticate it if it leaves the program. It contains keys, and so values, in clear
// text.
//
// It leaves out hits that a [Throttler.Fallback] counted, because only this process
// has them, hits whose result is still unknown, and hits that a Cancel is taking back.
// It does not wait for that Cancel.
func (d Decision) Receipt() []byte {
	if d.receipt == nil {
		return nil
	}
	d.receipt.mu.Lock()
	defer d.receipt.mu.Unlock()
	var b []byte
	for _, c := range d.receipt.unfold().hits {
		if c.backend != c.backend.t.backend() {
			continue
		}
		if b == nil {
			b = []byte{receiptVersion}
		}
		b = binary.AppendUvarint(b, uint64(len(c.key)))
		b = append(b, c.key...)
		for _, n := range c.hit.Numbers() {
			b = binary.AppendVarint(b, n)
		}
	}
	return b
}

// Redeem returns a Decision for [Throttler.Cancel] and [Throttler.CancelOnly], to take
// back the hits of a receipt from a Throttler on the same servers. The error is
// [ErrInvalidReceipt]. The Decision has no other use. An empty receipt has no hits.
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

// readReceipt reads the hits of a receipt, which are all in b.
func readReceipt(text []byte, b *backend) (r *receipt, ok bool) {
	if text[0] != receiptVersion {
		return nil, false
	}
	var hits []counted
	for text = text[1:]; len(text) > 0; {
		length, n := binary.Uvarint(text)
		if n <= 0 || length == 0 || length > record.MaxKey || length > uint64(len(text)-n) {
			return nil, false
		}
		key := text[n : n+int(length)]
		text = text[n+int(length):]
		var numbers [record.NumbersOfHit]int64
		for i := range numbers {
			if numbers[i], n = binary.Varint(text); n <= 0 {
				return nil, false
			}
			text = text[n:]
		}
		h := record.HitOf(numbers)
		if !record.Legal(key) || h.Cost < 1 || h.Numbers() != numbers {
			return nil, false
		}
		hits = append(hits, counted{b, string(key), h})
	}
	return &receipt{all: &contents{cancelable: cancelable{hits: hits}}}, len(hits) > 0
}
