package engine

import (
	"encoding/binary"
	"time"

	"github.com/adaptivethrottler/throttler/internal/record"
)

// Redeem returns the Receipt that b was written of. valid reports whether a rule may have such
// a limit.
func (e *Engine) Redeem(b []byte, valid func(name string, limit record.Limit) bool) (*Receipt, error) {
	from := reader{left: b, ok: true, valid: valid}
	from.require(from.byte() == receiptVersion)
	flags := from.byte()
	from.require(flags&^(shadowFlag|settledFlag) == 0)
	in := &contents{shadow: flags&shadowFlag != 0, settled: flags&settledFlag != 0}
	for n := from.length(); n > 0 && from.ok; n-- {
		in.all = append(in.all, from.reservation(e.main))
	}
	if !from.ok || len(from.left) > 0 || len(in.all) == 0 {
		return nil, errInvalidReceipt
	}
	r := new(Receipt)
	r.in.Store(in)
	return r, nil
}

// A reader reads a receipt. Once something is wrong, ok is false, and it reads zeros.
type reader struct {
	left  []byte
	ok    bool
	valid func(name string, limit record.Limit) bool
}

// require notes whether what was read may be.
func (r *reader) require(ok bool) {
	if !ok {
		r.ok, r.left = false, nil
	}
}

func (r *reader) byte() (b byte) {
	if r.require(len(r.left) > 0); r.ok {
		b, r.left = r.left[0], r.left[1:]
	}
	return b
}

func (r *reader) number() int64 {
	i, n := binary.Varint(r.left)
	if r.require(n > 0); !r.ok {
		return 0
	}
	r.left = r.left[n:]
	return i
}

// int reads a number that is an int on every machine that has written it.
func (r *reader) int() int {
	n := r.number()
	r.require(int64(int(n)) == n)
	return int(n)
}

// length reads how much follows, of which each part takes a byte at least.
func (r *reader) length() int {
	i, n := binary.Uvarint(r.left)
	if r.require(n > 0 && i <= uint64(len(r.left)-n)); !r.ok {
		return 0
	}
	r.left = r.left[n:]
	return int(i)
}

func (r *reader) text() (text string) {
	n := r.length()
	text, r.left = string(r.left[:n]), r.left[n:]
	return text
}

func (r *reader) key() string {
	key := r.text()
	r.require(isKey(key))
	return key
}

func (r *reader) hit() record.Hit {
	var numbers [record.NumbersOfHit]int64
	for i := range numbers {
		numbers[i] = r.number()
	}
	h := record.HitOf(numbers)
	r.require(h.Cost >= 1 && h.Numbers() == numbers)
	return h
}

func (r *reader) reservation(home *backend) *reservation {
	of := &reservation{home: home, key: r.key(), name: r.text()}
	of.message = of.name
	of.limit = record.Limit{Algorithm: record.Algorithm(r.int()), Max: r.int(), TTL: time.Duration(r.number())}
	if of.limit.Algorithm == record.Calendar {
		of.bounds, of.limit.Period = r.period()
	}
	r.require(r.ok && r.valid(of.name, of.limit))
	of.total = r.int()
	r.require(of.total >= 0 && of.total <= of.limit.Most())
	left := of.total
	for n := r.length(); n > 0 && r.ok; n-- {
		h := r.hit()
		r.require(h.Cost <= left && h.IsOf(of.limit.Algorithm))
		left -= h.Cost
		of.hits = append(of.hits, h)
	}
	return of
}

// period reads one period of a calendar, and returns what the others are by all that is
// known.
func (r *reader) period() (*record.Bounds, *record.Period) {
	b := &record.Bounds{Start: record.Instant(r.number()), End: record.Instant(r.number())}
	unit, anchor := r.int(), r.int()
	name, east := r.text(), r.int()
	r.require(b.Start < b.End && -secondsOfDay < east && east < secondsOfDay)
	r.require(0 <= unit && unit <= 255 && 0 <= anchor && anchor <= 255)
	p := &record.Period{Unit: record.Unit(unit), Anchor: uint8(anchor)}
	if zone, err := time.LoadLocation(name); err == nil {
		if _, offset := time.Unix(0, int64(b.Start)).In(zone).Zone(); offset == east {
			p.Location = zone
			return b, p
		}
	}
	p.Location = time.FixedZone(name, east)
	return b, p
}

const secondsOfDay = 24 * 60 * 60
