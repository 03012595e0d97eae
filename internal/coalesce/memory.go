package coalesce

import (
	"slices"

	"github.com/adaptivethrottler/throttler/internal/record"
	"github.com/bradfitz/gomemcache/memcache"
)

// A memory is the records of a shard: those with a coalescer, and those that are only
// remembered. Of these it keeps the bytes alone: one whose key and value have 60 bytes takes
// about 145.
//
// It is a hash table whose chains go through numbered places, without a gap. The records
// that are only remembered go in the order of their places, except those that were used
// since it was last their turn.
type memory struct {
	pages   []*[pagePlaces]place
	n       uint32           // places are numbered from 1 to n
	chains  []uint32         // the first place of each, 0: none; a power of two of them, more than places
	hand    uint32           // whose turn to go it was last
	weight  int              // of what is only remembered
	most    int              // of weight
	paces   map[string]*pace // of what is only remembered, by key
	perByte int              // a record weighs one more for each so many bytes of its value
}

// A place is where a memory has one record.
type place struct {
	coalescer *coalescer // while the record is in use; nil: it is only remembered
	text      []byte     // the key and the value, if it is only remembered; else memory for them
	token     uint64     // the item's CasID
	conn      uint64
	hash      uint32 // of the key
	next      uint32 // of the chain
	flags     uint32
	keyLen    uint8 // of text
	absent    bool  // there was no record
	used      bool  // since it was last looked at to be evicted
	paced     bool  // paces has one for it
}

const (
	pagePlaces = 16
	minChains  = 8

	// slack is how much memory the text of a place may have beyond what it needs.
	slack = 64
)

func (m *memory) at(i uint32) *place { return &m.pages[i/pagePlaces][i%pagePlaces] }

// find returns the place of a key with that hash, or 0.
func (m *memory) find(hash uint32, key string) uint32 {
	if m.n == 0 {
		return 0
	}
	i := *m.chain(hash)
	for i != 0 {
		p := m.at(i)
		if p.hash == hash && p.is(key) {
			return i
		}
		i = p.next
	}
	return 0
}

// is reports whether p has the record of key.
func (p *place) is(key string) bool {
	if p.coalescer != nil {
		return p.coalescer.key == key
	}
	return string(p.text[:p.keyLen]) == key
}

// chain returns where the chain for a hash begins.
func (m *memory) chain(hash uint32) *uint32 { return &m.chains[hash&uint32(len(m.chains)-1)] }

// add gives s a place. Its key, which has that hash, has none yet.
func (m *memory) add(s *coalescer, hash uint32) {
	if 4*int(m.n) >= 3*len(m.chains) {
		m.chains = make([]uint32, max(minChains, 2*len(m.chains)))
		for i := uint32(1); i <= m.n; i++ {
			m.link(i)
		}
	}
	m.n++
	if int(m.n/pagePlaces) == len(m.pages) {
		m.pages = append(m.pages, new([pagePlaces]place))
	}
	*m.at(m.n) = place{coalescer: s, hash: hash}
	s.place = m.n
	m.link(m.n)
}

// link puts place i into its chain.
func (m *memory) link(i uint32) {
	p := m.at(i)
	first := m.chain(p.hash)
	p.next, *first = *first, i
}

// refer makes what refers to place i in its chain refer to place to.
func (m *memory) refer(i, to uint32) {
	at := m.chain(m.at(i).hash)
	for *at != i {
		at = &m.at(*at).next
	}
	*at = to
}

// remove removes the record at place i, to which the last one moves.
func (m *memory) remove(i uint32) {
	m.refer(i, m.at(i).next)
	if last := m.n; last != i {
		m.refer(last, i)
		p := m.at(i)
		if *p = *m.at(last); p.coalescer != nil {
			p.coalescer.place = i
		}
	}
	*m.at(m.n) = place{}
	m.n--
}

// rest makes the record of s only remembered, as s has seen it and at its pace, or removes it
// if there is nothing to remember or no room for it. s has no place afterwards.
func (m *memory) rest(s *coalescer, seen sighting, pace *pace) {
	weight := m.weigh(seen)
	if weight == 0 || weight > m.most || len(s.key) > record.MaxKey {
		m.remove(s.place)
	} else {
		for m.weight+weight > m.most {
			m.forgetOne()
		}
		m.weight += weight
		p := m.at(s.place)
		p.keep(s.key, seen)
		m.keepPace(p, pace)
	}
	s.place = 0
}

// keepPace keeps the pace of the record at p, if it has one.
func (m *memory) keepPace(p *place, of *pace) {
	if of == nil {
		return
	}
	if m.paces == nil {
		m.paces = make(map[string]*pace)
	}
	m.paces[string(p.text[:p.keyLen])], p.paced = of, true
}

// takePace takes the pace of the record at p, which is only remembered.
func (m *memory) takePace(p *place) (of *pace) {
	if p.paced {
		key := p.text[:p.keyLen]
		of, p.paced = m.paces[string(key)], false
		delete(m.paces, string(key))
	}
	return of
}

// weigh returns what a record weighs that was seen like that: 0 if it was not seen.
func (m *memory) weigh(seen sighting) int {
	switch {
	case !seen.known:
		return 0
	case seen.item == nil:
		return 1
	}
	return 1 + len(seen.item.Value)/m.perByte
}

// weightOf returns what p weighs, which is only remembered.
func (m *memory) weightOf(p *place) int { return 1 + (len(p.text)-int(p.keyLen))/m.perByte }

// keep makes the record of key at p only remembered, as it was seen.
func (p *place) keep(key string, seen sighting) {
	p.coalescer, p.conn, p.absent = nil, seen.conn, seen.item == nil
	var value []byte
	if seen.item != nil {
		value, p.token, p.flags = seen.item.Value, seen.item.CasID, seen.item.Flags
	}
	size := len(key) + len(value)
	if cap(p.text) < size || cap(p.text) > 2*size+slack {
		p.text = slices.Grow([]byte(nil), size)
	}
	if p.keyLen == 0 || len(p.text) == 0 {
		p.text = append(p.text[:0], key...)
		p.keyLen = uint8(len(key))
	}
	p.text = append(p.text[:p.keyLen], value...)
}

// wake gives the record at place i, which is only remembered, to s.
func (m *memory) wake(i uint32, s *coalescer) {
	p := m.at(i)
	m.weight -= m.weightOf(p)
	s.seen = sighting{known: true, conn: p.conn}
	if !p.absent {
		s.woken = memcache.Item{Key: s.key, Value: p.text[p.keyLen:], Flags: p.flags, CasID: p.token}
		s.seen.item = &s.woken
	}
	s.pace = m.takePace(p)
	p.coalescer, s.place = s, i
}

// forgetOne forgets the record whose turn it is, of which there is one.
func (m *memory) forgetOne() {
	for {
		if m.hand++; m.hand > m.n {
			m.hand = 1
		}
		p := m.at(m.hand)
		switch {
		case p.coalescer != nil:
		case p.used:
			p.used = false
		default:
			m.forget(m.hand)
			return
		}
	}
}

// forget forgets the record at place i, which is only remembered.
func (m *memory) forget(i uint32) {
	p := m.at(i)
	m.weight -= m.weightOf(p)
	m.takePace(p)
	m.remove(i)
}
