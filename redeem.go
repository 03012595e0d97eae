package throttler

import (
	"encoding/binary"
	"time"

	"github.com/adaptivethrottler/throttler/internal/record"
)

// Redeem lets another process end what one has begun: it returns a Decision for
// [Throttler.Cancel], [Throttler.CancelOnly], [Throttler.Settle] and [Throttler.Renew], of
// what [Decision.Receipt] has from a Throttler on the same servers. A receipt of a release
// before Settle can be cancelled and renewed only. The error is [ErrInvalidReceipt]. The
// Decision has no other use. An empty receipt has no hits.
//
// It need not know the time zone of a [Calendar]. If it does not, and the period of the
// receipt is over, Settle takes the next ones to begin at the same offset from UTC.
func (t *Throttler) Redeem(receipt []byte) (Decision, error) {
	if len(receipt) == 0 {
		return Decision{}, nil
	}
	reading := reader{left: receipt[1:], ok: true}
	r := &redeemed{backend: t.backend()}
	switch receipt[0] {
	case receiptVersion1:
		r.readVersion1(&reading)
	case receiptVersion:
		r.read(&reading)
	default:
		reading.ok = false
	}
	if !reading.ok || len(reading.left) > 0 || len(r.contents.all) == 0 {
		return Decision{}, ErrInvalidReceipt
	}
	r.in.Store(&r.contents)
	return Decision{receipt: &r.receipt}, nil
}

// A redeemed is a receipt that is being read.
type redeemed struct {
	receipt
	contents
	backend *backend
}

func (r *redeemed) read(from *reader) {
	flags := from.byte()
	r.shadow, r.settled = flags&shadowFlag != 0, flags&settledFlag != 0
	from.require(flags&^(shadowFlag|settledFlag) == 0)
	for n := from.length(); n > 0 && from.ok; n-- {
		r.all = append(r.all, from.reservation(r.backend))
	}
}

func (r *redeemed) readVersion1(from *reader) {
	for len(from.left) > 0 && from.ok {
		of := &reservation{backend: r.backend, key: from.key()}
		h := from.hit()
		of.limit.Algorithm = h.Kind
		of.total, of.hits = h.Cost, []record.Hit{h}
		r.all = append(r.all, of)
	}
}

// A reader reads a receipt. Once something is wrong, ok is false, and it reads zeros.
type reader struct {
	left []byte
	ok   bool
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
	r.require(key != "" && len(key) <= record.MaxKey && record.Legal([]byte(key)))
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

func (r *reader) reservation(b *backend) *reservation {
	of := &reservation{backend: b, key: r.key(), name: r.text()}
	of.message = of.name
	c := Condition{Name: of.name, Algorithm: Algorithm(r.int()), Max: r.int(), TTL: time.Duration(r.number())}
	if c.Algorithm == Calendar {
		of.bounds, c.Period = r.period()
	}
	field, _, _ := c.problem()
	r.require(field == "")
	of.limit = c.limit()
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

// period reads one period of a Calendar, and returns what the others are by all that is
// known.
func (r *reader) period() (*record.Bounds, Period) {
	b := &record.Bounds{Start: record.Instant(r.number()), End: record.Instant(r.number())}
	p := Period{Unit: Unit(r.int()), Anchor: r.int()}
	name, east := r.text(), r.int()
	r.require(b.Start < b.End && -secondsOfDay < east && east < secondsOfDay)
	start := timeOf(b.Start)
	if zone, err := time.LoadLocation(name); err == nil {
		if _, offset := start.In(zone).Zone(); offset == east {
			p.Location = zone
			return b, p
		}
	}
	p.Location = time.FixedZone(name, east)
	return b, p
}

const secondsOfDay = 24 * 60 * 60
