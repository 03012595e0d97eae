package coalesce

import (
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/adaptivethrottler/throttler/exchange"
	"github.com/adaptivethrottler/throttler/internal/failure"
	"github.com/adaptivethrottler/throttler/internal/record"
	"github.com/bradfitz/gomemcache/memcache"
)

// A coalescer is one record, as this process deals with it. All entries for the record
// that come while an exchange is under way wait for the next one. They are decided
// one after the other on one read of the record, and stored by one write.
//
// A coalescer has one exchange under way at a time, and is that exchange: its Propose
// closes the batch and decides it on the record as this process last saw it, if the
// connection is still the same. Done finds out whether the record was still so.
//
// When nobody uses the record any more, the shard's memory keeps what was seen of it, and
// the coalescer is used for another one.
type coalescer struct {
	key   string
	table *Table
	shard *shard

	mu         sync.Mutex // guards what follows, and the entries until they have ended
	queue      []*Entry   // waiting for the next exchange, first come first served
	early      int        // how many of queue came before the exchange began to wait for its turn
	batch      []*Entry   // decided by the exchange under way
	beforeRead int        // how many of batch came before the record was read
	busy       bool       // an exchange is under way, or about to be
	leader     *Round     // whose goroutine carries out the exchanges; nil: the exchanger's
	held       bool       // the next exchange is left to the leader

	seen        sighting
	assessed    sighting       // the record as the call to be counted has just assessed it
	refusedBase sighting       // what the last write that was refused was to replace
	sent        bool           // Propose was called, and Done was not yet
	current     bool           // base was read by this very exchange
	base        sighting       // what the batch was decided on
	proposal    *memcache.Item // what is to be stored; nil: nothing
	lost        *memcache.Item // a proposal whose answer was lost
	lostBase    *memcache.Item // what that was to replace; nil: no record
	resets      uint64         // of the table, when the exchange was sent
	unreadable  error          // why base cannot be read
	stalls      int            // how often in a row a write was refused though the record was as read
	pace        *pace          // nil: no race was lost lately

	users int           // entries that have not ended; guarded by the shard
	place uint32        // of the record in the shard's memory, 0: at no record; guarded by the shard
	woken memcache.Item // the record as it was remembered

	ones [2][1]*Entry // for a queue and a batch of one, the usual case
}

// outlast returns what is remembered of a record that was last as in item, when it is unknown
// how it is now. Nothing is decided on it: see [Table.LastSeen].
func (s *coalescer) outlast(item *memcache.Item) sighting {
	if !s.table.outlasts || item == nil {
		return sighting{}
	}
	return sighting{known: true, item: item, conn: noConn}
}

// outlastFailure is outlast when the exchange under way has failed.
func (s *coalescer) outlastFailure() sighting {
	if s.base.known && s.base.fresh {
		return s.outlast(s.base.item)
	}
	return s.outlast(s.seen.item)
}

// noConn is the connection of what is no longer believed.
const noConn = math.MaxUint64

// A sighting is a record as it was once seen.
type sighting struct {
	known bool
	item  *memcache.Item // nil: there was none
	conn  uint64         // the connection that its token belongs to
	fresh bool           // seen since the coalescer is busy
}

const (
	// maxBatch is how many entries one exchange decides at most.
	maxBatch = 256

	// maxRemembered is the largest value that is remembered.
	maxRemembered = 64 << 10

	// outlives is how much longer than its content a record is stored, most often. See
	// [record.Expiration].
	outlives = record.Instant(3 * time.Second)

	// MaxStalls is how often in a row a write may be refused although the
	// record is still as it was read. A sound backend does that only when a
	// record comes and goes between two reads.
	MaxStalls = 10

	// MaxLosses is how many races an entry may lose, beyond one for each hit up
	// to Max. A sound backend comes nowhere near: as many other processes would
	// each have to write between a read and a write of the entry, and take back
	// what they count. A backend that reads one copy of a record and writes
	// another loses every race.
	MaxLosses = 1000

	// racesInTimeout is how many lost races use up the timeout of a Table at least: each
	// counts for a part of it at most. A process that is short of processor time, or was
	// stopped, takes long between two of them. That is no reason to give up.
	racesInTimeout = 10
)

func newCoalescer(t *Table, sh *shard) *coalescer {
	s := &coalescer{table: t, shard: sh}
	s.rest()
	return s
}

// Key returns the key of the record.
func (s *coalescer) Key() string { return s.key }

// setLeader makes r carry out the exchanges, as long as one of its entries needs
// them.
func (s *coalescer) setLeader(r *Round) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.leader = r
}

// leadsAgain reports whether r is to carry out the next exchange too. If not, it
// leads no longer.
func (s *coalescer) leadsAgain(r *Round) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.leader != r {
		return false
	}
	if s.held {
		s.held = false
		return true
	}
	s.leader = nil
	return false
}

// unqueue removes e from the queue, and reports whether it was there.
func (s *coalescer) unqueue(e *Entry) bool {
	i := slices.Index(s.queue, e)
	if i < 0 {
		return false
	}
	s.queue = slices.Delete(s.queue, i, i+1)
	if i < s.early {
		s.early--
	}
	e.ended = true
	return true
}

// WasRead returns the record that the call to be counted has just read, to assess
// whether to count. Package adapter asks for it by this method, which is no part of an Exchange.
func (s *coalescer) WasRead() (item *memcache.Item, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.assessed.item, s.assessed.known
}

// Propose closes the batch, and decides it on what is known of the record. The client calls it when
// the exchange may be sent: pool's request.propose, or package adapter.
func (s *coalescer) Propose(turn exchange.Turn) *memcache.Item {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.sent {
		// The answer was lost. Whether the first try was carried out shows in
		// the record.
		if s.proposal != nil && !turn.NotStored {
			s.lost, s.lostBase = s.proposal, s.base.item
		}
		s.proposal = nil
		s.base, s.current, s.beforeRead = sighting{}, false, len(s.batch)
		return nil
	}
	s.sent = true
	n := min(len(s.queue), maxBatch)
	if n > s.early {
		turn.Now = time.Time{} // the others may have come since
	}
	s.close(n)
	if turn.Known {
		s.beforeRead = min(s.beforeRead, s.early)
	}
	s.base, s.current = s.believed(turn), turn.Known && !s.assessed.known
	s.assessed = sighting{}
	s.proposal = s.decideBatch(timeOf(turn))
	return s.proposal
}

// close makes the first n of the queue the batch.
func (s *coalescer) close(n int) {
	s.batch = append(s.batch, s.queue[:n]...)
	s.queue = slices.Delete(s.queue, 0, n)
	s.beforeRead = n
}

// believed returns the record as it most likely is. Where nothing is known it is
// taken to be absent: an add does no harm if it is not.
func (s *coalescer) believed(turn exchange.Turn) sighting {
	switch {
	case turn.Known:
		return sighting{known: true, item: turn.Found, conn: turn.Conn, fresh: true}
	case s.assessed.known && (s.assessed.item == nil || s.assessed.conn == turn.Conn):
		return s.assessed
	case s.seen.known && (s.seen.item == nil || s.seen.conn == turn.Conn):
		if !s.seen.fresh {
			s.table.counts.Guesses.Add(1)
		}
		return s.seen
	}
	return sighting{}
}

// decideBatch decides each entry of the batch on what the one before it leaves, and
// returns the item that is to be stored, nil if there is nothing to store.
func (s *coalescer) decideBatch(now record.Instant) *memcache.Item {
	base, err := recordIn(s.base.item)
	if s.unreadable = err; err != nil {
		return nil
	}
	if end := base.End(); !s.base.fresh && end != 0 && now > end+outlives {
		s.base.item, base = nil, record.Record{} // most likely: a compare-and-swap would find nothing
	}
	r, changed := &base, false
	for _, e := range s.batch {
		if e.apply(now, r); e.store {
			r, changed = &e.record, true
		}
	}
	if s.base.item != nil && s.base.item.CasID == 0 && changed {
		s.unreadable = failure.ErrNoCAS
		return nil
	}
	if !changed {
		return nil
	}
	item := newItem(s.key, r, now)
	item.Flags = rand.Uint32()>>1 | 1 // tells this write from all others
	if r.HoldsBan(now) {
		item.Flags |= exchange.BanFlag
	}
	if s.base.item != nil {
		item.CasID = s.base.item.CasID
	}
	return item
}

// newItem returns the item to store r in. Records have up to 50 hits, most of them, and many
// only a few.
func newItem(key string, r *record.Record, now record.Instant) *memcache.Item {
	item := memcache.Item{Key: key, Expiration: record.Expiration(now, r.End())}
	switch size := r.Size(); {
	case size <= 40:
		small := &struct {
			memcache.Item
			value [40]byte
		}{Item: item}
		small.Value = r.Append(small.value[:0:size])
		return &small.Item
	case size <= 168:
		medium := &struct {
			memcache.Item
			value [168]byte
		}{Item: item}
		medium.Value = r.Append(medium.value[:0:size])
		return &medium.Item
	default:
		large := item // item itself must not escape from the usual cases
		large.Value = r.Encode()
		return &large
	}
}

// timeOf returns when turn came.
func timeOf(turn exchange.Turn) record.Instant {
	if turn.Now.IsZero() {
		return record.InstantOf(time.Now())
	}
	return record.InstantOf(turn.Now)
}

// recordIn returns the record in item, which is nil if there is none. A value that does not decode
// is treated as absent, except one of a later version.
func recordIn(item *memcache.Item) (r record.Record, err error) {
	if item == nil {
		return r, nil
	}
	if err = r.Decode(item.Value); err == record.ErrForeign {
		err = nil
	}
	return r, err
}

// Done ends the entries whose decision stands, and goes on with the others. The client calls it with
// what became of the exchange.
func (s *coalescer) Done(r exchange.Result) {
	s.mu.Lock()
	s.table.counts.Exchanges.Add(1)
	users := len(s.batch) + len(s.queue)
	if !s.sent {
		// Its turn never came. r is for the entries that were queued before it
		// began to wait.
		s.close(s.early)
		s.base, s.current = sighting{}, false
		s.assessed = sighting{} // those that came since must not be decided on it
	}
	s.sent = false
	s.conclude(r)
	users -= len(s.batch) + len(s.queue)
	if len(s.batch) > 0 {
		s.queue = append(s.batch, s.queue...)
		s.batch = nil
	}
	start := s.goOn()
	idle := !s.busy
	s.mu.Unlock()
	if start {
		s.table.exchanger.Start(s)
	}
	if users > 0 || idle { // idle without users: all have left
		s.release(users)
	}
}

// goOn reports whether to start the next exchange now. If the leader needs it too, the
// leader does.
func (s *coalescer) goOn() bool {
	if !s.startsNext() {
		return false
	}
	if s.pauses() {
		s.leader = nil
		return false
	}
	if s.leader != nil && slices.ContainsFunc(s.queue, func(e *Entry) bool { return e.round == s.leader }) {
		s.held = true
		return false
	}
	s.leader = nil
	return true
}

// startsNext prepares the next exchange, and reports whether there is to be one.
func (s *coalescer) startsNext() bool {
	s.resets = s.shard.resets.Load()
	s.early = len(s.queue)
	if len(s.queue) == 0 {
		s.busy = false
		s.rest()
	}
	return s.busy
}

// rest drops all that s need not remember.
func (s *coalescer) rest() {
	s.seen.fresh = false
	if s.seen.conn == 0 { // of a plain client or one behind a proxy
		s.seen = s.outlast(s.seen.item)
	}
	if s.seen.item != nil && len(s.seen.item.Value) > maxRemembered {
		s.seen = sighting{} // too large
	}
	s.base, s.assessed, s.refusedBase, s.stalls = sighting{}, sighting{}, sighting{}, 0
	s.lostBase = nil
	if s.pace != nil && s.pace.losses > 0 {
		s.pace = nil // there is nothing to write any more
	}
	s.ones = [2][1]*Entry{}
	s.queue, s.batch = s.ones[0][:0], s.ones[1][:0]
}
