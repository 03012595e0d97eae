package engine

import (
	"unsafe"

	"github.com/adaptivethrottler/throttler/internal/items"
	"github.com/adaptivethrottler/throttler/internal/legal"
	"github.com/adaptivethrottler/throttler/internal/record"
)

// Keys returns the keys of the records that a call asks about.
func (p *Plan) Keys(demands []Demand) []string {
	keys := make([]string, len(demands))
	for i := range demands {
		keys[i] = string(p.appendKey(nil, i, demands[i].Value))
	}
	return keys
}

// appendKey appends the key of a value of condition i to b.
func (p *Plan) appendKey(b []byte, i int, value string) []byte {
	own := &p.prepared[i]
	if own.prefix != "" && len(own.prefix)+len(value) <= record.MaxKey {
		if b := append(append(b, own.prefix...), value...); legal.Bytes(b[len(b)-len(value):]) {
			return b
		}
	}
	return record.AppendKey(b, p.Identifier, p.Conditions[i].Name, value)
}

// A hashRoom is memory for the tail of a key that is hashed.
type hashRoom [record.HashSize]byte

// place returns the key of a value of condition i in two parts, for a store in memory. tail is
// valid as long as value and room are.
func (p *Plan) place(i int, value string, room *hashRoom) (head items.Head, tail string) {
	own := &p.prepared[i]
	if own.prefix != "" && len(own.prefix)+len(value) <= record.MaxKey && legal.Text(value) {
		return own.head, value
	}
	record.AppendHash(room[:0], p.Identifier, p.Conditions[i].Name, value)
	return p.engine.main.hashed, unsafe.String(&room[0], len(room))
}
