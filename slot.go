package throttler

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/bradfitz/gomemcache/memcache"
)

// A slot is one record, as this process deals with it. All entries for the record
// that come while an exchange is under way wait for the next one: they are decided
// one after the other on one read of it, and stored by one write.
//
// A slot has one exchange under way at a time, and is that exchange: its Propose
// closes the batch and decides it, on the record as this process last saw it if
// the connection is still the one that it was seen on, and Done finds out
// whether the record was still so.
type slot struct {
	key     string
	backend *backend
	self    [1]Exchange // the slot itself

	mu     sync.Mutex // guards what follows, and the entries until they are settled
	queue  []*entry   // waiting for the next exchange, first come first served
	early  int        // how many of queue came before the exchange began to wait for its turn
	batch  []*entry   // decided by the exchange under way
	read   int        // how many of batch came before the record was read
	busy   bool       // an exchange is under way, or about to be
	leader *round     // whose goroutine carries out the exchanges; nil: the exchanger's
	held   bool       // the next exchange is left to the leader

	seen       sighting
	basis      sighting       // what a call has read to decide whether it is counted
	refused    sighting       // what the last write that was refused was to replace
	sent       bool           // Propose was called, and Done was not yet
	current    bool           // base was read by this very exchange
	base       sighting       // what the batch was decided on
	proposal   *memcache.Item // what is to be stored; nil: nothing
	lost       *memcache.Item // a proposal whose answer was lost
	lostBase   *memcache.Item // what that was to replace; nil: no record
	resets     uint64         // of the table, when the exchange was sent
	unreadable error          // why base cannot be read
	stalls     int            // how often in a row a write was refused though the record was as read

	users    int   // entries that are not settled; guarded by the shard
	neighbor links // in the list of those that are only remembered; guarded by the shard

	room [2][1]*entry // for a queue and a batch of one, the usual case
}

// A sighting is a record as it was once seen.
type sighting struct {
	known bool
	item  *memcache.Item // nil: there was none
	conn  uint64         // the connection that its token belongs to
	fresh bool           // seen since the slot is busy
}

const (
	// maxBatch is how many entries one exchange decides at most.
	maxBatch = 256

	// maxRemembered is the largest value that is remembered.
	maxRemembered = 1024

	// maxStalls is how often in a row a write may be refused although the
	// record is still as it was read. A sound backend does that only when a
	// record comes and goes between two reads.
	maxStalls = 10

	// maxLosses is how many races an entry may lose beyond the Max that are
	// others' hits. A sound backend comes nowhere near: that takes as many
	// others who each write between a read and a write of the entry, and take
	// back what they count. But one whose reads and writes go to different
	// copies of a record, each with tokens of its own, looks as if somebody
	// else were always faster.
	maxLosses = 1000
)

var (
	errStalled    = errors.New("throttler: the backend keeps refusing to store a record")
	errLostAnswer = errors.New("throttler: the answer to a write was lost, the hit may be counted twice")

	// ErrNoCAS matches the error of a condition whose record came without a
	// CAS token, so that nothing can be stored: memcached runs with -C, or
	// what answers in its place knows no tokens.
	ErrNoCAS = errors.New("throttler: the server gives no CAS tokens")
)

func newSlot(b *backend, key string) *slot {
	s := &slot{key: key, backend: b}
	s.self[0] = s
	s.rest()
	return s
}

// Key returns the key of the record.
func (s *slot) Key() string { return s.key }

// setLeader has r carry out the exchanges, as long as one of its entries needs
// them.
func (s *slot) setLeader(r *round) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.leader = r
}

// leadsAgain reports whether r is to carry out the next exchange too. If not, it
// leads no longer.
func (s *slot) leadsAgain(r *round) bool {
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

// abandonedBy notes that r leaves, and reports whether an exchange that was left
// to it is to be started.
func (s *slot) abandonedBy(r *round) bool {
	if s.leader != r {
		return false
	}
	s.leader = nil
	if !s.held {
		return false
	}
	s.held = false
	s.busy = len(s.queue) > 0
	if !s.busy {
		s.rest()
	}
	return s.busy
}

// withdraw removes e from the queue, and reports whether it was there.
func (s *slot) withdraw(e *entry) bool {
	i := slices.Index(s.queue, e)
	if i < 0 {
		return false
	}
	s.queue = slices.Delete(s.queue, i, i+1)
	if i < s.early {
		s.early--
	}
	e.settled = true
	return true
}

// wasRead returns the record as a call that is to be counted now has just read it,
// to decide whether.
func (s *slot) wasRead() (item *memcache.Item, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.basis.item, s.basis.known
}

// Propose closes the batch, and decides it on what is known of the record.
func (s *slot) Propose(turn Turn) *memcache.Item {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.sent {
		// The answer was lost. Whether the first try was carried out shows in
		// the record.
		if s.proposal != nil {
			s.lost, s.lostBase, s.proposal = s.proposal, s.base.item, nil
		}
		s.base, s.current, s.read = sighting{}, false, len(s.batch)
		return nil
	}
	s.sent = true
	s.close(min(len(s.queue), maxBatch))
	if turn.Known {
		s.read = min(s.read, s.early)
	}
	s.base, s.current = s.believed(turn), turn.Known && !s.basis.known
	s.basis = sighting{}
	s.proposal = s.decide(instantOf(time.Now()))
	return s.proposal
}

// close makes the first n of the queue the batch.
func (s *slot) close(n int) {
	s.batch = append(s.batch, s.queue[:n]...)
	s.queue = slices.Delete(s.queue, 0, n)
	s.read = n
}

// believed returns the record as it most likely is. Where nothing is known it is
// taken to be absent: an add does no harm if it is not.
func (s *slot) believed(turn Turn) sighting {
	switch {
	case turn.Known:
		return sighting{known: true, item: turn.Found, conn: turn.Conn, fresh: true}
	case s.basis.known && (s.basis.item == nil || s.basis.conn == turn.Conn):
		return s.basis
	case s.seen.known && (s.seen.item == nil || s.seen.conn == turn.Conn):
		if !s.seen.fresh {
			s.backend.t.stats.guesses.Add(1)
		}
		return s.seen
	}
	return sighting{}
}

// decide decides the batch, each entry on what the one before it leaves, and
// returns the item that is to be stored, nil if there is nothing to store.
func (s *slot) decide(now instant) *memcache.Item {
	var r record
	if r, s.unreadable = stored(s.base.item); s.unreadable != nil {
		return nil
	}
	changed := false
	for _, e := range s.batch {
		var next record
		if next, e.writes = e.apply(now, r); e.writes {
			r, changed = next, true
		}
	}
	if s.base.item != nil && s.base.item.CasID == 0 && changed {
		s.unreadable = ErrNoCAS
		return nil
	}
	if !changed {
		return nil
	}
	item := newItem(s.key, r, now)
	item.Flags = rand.Uint32() | 1 // tells this write from all others
	if s.base.item != nil {
		item.CasID = s.base.item.CasID
	}
	return item
}

// newItem returns the item to store r in.
func newItem(key string, r record, now instant) *memcache.Item {
	return &memcache.Item{Key: key, Value: r.encode(), Expiration: expiration(now, r.end())}
}

// stored returns the record in item. A value that does not decode is treated as
// absent, except one of a later version.
func stored(item *memcache.Item) (record, error) {
	if item == nil {
		return record{}, nil
	}
	r, err := decode(item.Value)
	if errors.Is(err, ErrNewerRecord) {
		return record{}, err
	}
	return r, nil
}

// Done settles the entries whose decision stands, and goes on with the others.
func (s *slot) Done(r Result) {
	s.mu.Lock()
	s.backend.t.stats.exchanges.Add(1)
	users := len(s.batch) + len(s.queue)
	if !s.sent {
		// Its turn never came: it fails those that have waited all the time.
		s.close(s.early)
		s.base, s.current = sighting{}, false
	}
	s.sent = false
	s.take(r)
	users -= len(s.batch) + len(s.queue)
	if len(s.batch) > 0 {
		s.queue = append(s.batch, s.queue...)
		s.batch = nil
	}
	start := s.goOn()
	s.mu.Unlock()
	if start {
		s.backend.exchanger.Start(s)
	}
	s.backend.slots.release(s, users)
}

// goOn reports whether the next exchange is to be started. It is left to the
// leader if that needs it too.
func (s *slot) goOn() bool {
	s.resets = s.backend.slots.resetsOf(s.key)
	s.early = len(s.queue)
	if len(s.queue) == 0 {
		s.busy = false
		s.rest()
		return false
	}
	if s.leader != nil && slices.ContainsFunc(s.queue, func(e *entry) bool { return e.round == s.leader }) {
		s.held = true
		return false
	}
	s.leader = nil
	return true
}

// rest makes s remember what may be remembered, and nothing else.
func (s *slot) rest() {
	s.seen.fresh = false
	if s.seen.conn == 0 || s.seen.item != nil && len(s.seen.item.Value) > maxRemembered {
		s.seen = sighting{} // of a plain client or one behind a proxy, or too large
	}
	s.base, s.basis, s.refused, s.stalls = sighting{}, sighting{}, sighting{}, 0
	s.lostBase = nil
	s.room = [2][1]*entry{}
	s.queue, s.batch = s.room[0][:0], s.room[1][:0]
}

// take draws the consequences of r. Entries that are not settled stay in the
// batch.
func (s *slot) take(r Result) {
	proposal, lost := s.proposal, s.lost
	s.proposal, s.lost = nil, nil
	switch {
	case r.Stored:
		s.accept(proposal, r)
	case r.Read && lost != nil && sameWrite(r.Found, lost):
		s.accept(lost, r)
	case r.Err != nil && !r.Read:
		s.fail(r.Err, r.Unknown)
	case r.Read:
		if lost != nil {
			s.suspect(r.Found == nil || sameWrite(r.Found, s.lostBase))
		}
		s.find(r, proposal != nil && r.Err == nil)
	default:
		s.lose(s.base)
	}
}

// sameWrite reports whether item was stored by the write of other.
func sameWrite(item, other *memcache.Item) bool {
	return item != nil && other != nil && item.Flags == other.Flags && bytes.Equal(item.Value, other.Value)
}

// accept settles the batch as it was decided: item was stored.
func (s *slot) accept(item *memcache.Item, r Result) {
	s.seen = sighting{known: r.Read, item: r.Found, conn: r.Conn, fresh: true}
	s.stalls = 0
	if s.base.known && !s.base.fresh {
		s.backend.t.stats.rightGuesses.Add(1)
	}
	s.uncache()
	s.acceptAll(item)
}

// acceptAll settles the batch as it was decided: on the record, or so that item
// is the record now.
func (s *slot) acceptAll(item *memcache.Item) {
	for _, e := range s.batch {
		s.keep(e, item)
		s.settle(e)
	}
	s.empty()
}

// uncache forgets a record that has changed.
func (s *slot) uncache() {
	if cache := s.backend.cache(); cache != nil {
		cache.remove(s.key)
	}
}

// find decides the batch anew on the record as it was found, and settles the
// entries that need not change it: nothing but that they came before it was read
// says that their answer is not out of date. refused says that a write was, as the record
// had changed.
func (s *slot) find(r Result, refused bool) {
	now := instantOf(time.Now())
	decided := s.current && !refused && r.Err == nil
	if refused && s.base.fresh {
		s.stall(sameToken(s.base.item, r.Found))
	}
	base := s.base
	s.seen = sighting{known: true, item: r.Found, conn: r.Conn, fresh: true}
	if decided && s.unreadable == nil && s.read == len(s.batch) {
		s.acceptAll(r.Found)
		return
	}
	found, err := stored(r.Found)
	undecided := s.batch[:0]
	for i, e := range s.batch {
		if err != nil {
			e.fail(err)
			s.settle(e)
			continue
		}
		if refused && e.late {
			e.doubt()
		}
		_, e.writes = e.apply(now, found)
		switch {
		case !e.writes && i >= s.read: // the record may have changed before e came
			undecided = append(undecided, e)
		case !e.writes:
			s.keep(e, r.Found)
			s.settle(e)
		case r.Err != nil:
			s.failAt(e, r.Err, found)
		case r.Found != nil && r.Found.CasID == 0:
			s.failAt(e, ErrNoCAS, found)
		case refused && base.fresh && s.loses(e):
		case e.unsure && (e.op == opRefund || e.op == opWithdraw):
			e.fail(errLostAnswer)
			s.settle(e)
		default:
			undecided = append(undecided, e)
		}
	}
	clear(s.batch[len(undecided):])
	s.batch = undecided
}

// lose goes on after a write was refused, and nobody has read the record since.
func (s *slot) lose(base sighting) {
	s.stall(s.refused.known && sameToken(base.item, s.refused.item))
	s.refused, s.seen = base, sighting{}
	s.batch = slices.DeleteFunc(s.batch, s.loses)
}

// stall counts how often in a row a write was refused although the record is
// unchanged.
func (s *slot) stall(unchanged bool) {
	if unchanged {
		s.stalls++
	} else {
		s.stalls = 0
	}
}

func sameToken(a, b *memcache.Item) bool {
	if a == nil || b == nil {
		return a == b
	}
	return a.CasID == b.CasID
}

// loses notes that e has lost a race, and reports whether that was one too many.
func (s *slot) loses(e *entry) bool {
	if e.late {
		e.doubt()
	}
	e.lostRaces++
	s.backend.t.stats.lostRaces.Add(1)
	if e.lostRaces == 1 {
		e.since = time.Now()
	}
	limit := maxLosses + e.condition.Max
	switch waited := s.backend.t.queueTimeout(); {
	case s.stalls >= maxStalls || e.lostRaces > limit:
		e.fail(errStalled)
	case time.Since(e.since) > waited:
		e.fail(fmt.Errorf("%w: the record of %q changed %d times in %v", ErrOverloaded, s.key, e.lostRaces, waited))
	default:
		return false
	}
	s.settle(e)
	return true
}

// suspect notes that a write of the batch was lost. If the record is still as it
// was to be replaced, the write was not carried out, unless it arrives yet: a
// server reads its connections in no order. Else it may have been.
func (s *slot) suspect(unchanged bool) {
	for _, e := range s.batch {
		switch {
		case !e.writes:
		case unchanged:
			e.late = true
		default:
			e.doubt()
		}
	}
}

// doubt notes that an earlier write of e may have been carried out.
func (e *entry) doubt() {
	if !e.unsure {
		e.unsure, e.note = true, errLostAnswer
	}
}

// fail settles all entries that wait for a server which does not answer: those
// that came later too, or they would all wait for it in turn.
func (s *slot) fail(err error, unknown bool) {
	s.seen = sighting{}
	if unknown {
		s.uncache()
	}
	known := s.base.fresh
	r, unreadable := stored(s.base.item)
	for _, e := range s.batch {
		e.unknown = unknown && e.writes
		if known && unreadable == nil {
			s.failAt(e, err, r)
			continue
		}
		e.fail(err)
		s.settle(e)
	}
	s.empty()
	if errors.Is(err, ErrOverloaded) {
		return
	}
	for _, e := range s.queue {
		e.fail(err)
		s.settle(e)
	}
	clear(s.queue)
	s.queue = s.queue[:0]
}

// empty forgets the batch, which is settled.
func (s *slot) empty() {
	clear(s.batch)
	s.batch = s.batch[:0]
}

// failAt settles e after its write failed, though the record was read: what is
// full is full, even if it could not be banned.
func (s *slot) failAt(e *entry, err error, r record) {
	e.failAt(err, r)
	s.settle(e)
}

// settle makes e's result known. The caller must not touch it any more.
func (s *slot) settle(e *entry) {
	e.settled = true
	if e.op == opAssess {
		e.seen = s.seen
	}
	if e.round != nil {
		e.round.settle()
	}
}

// keep remembers what blocks e, to answer the next call from memory.
func (s *slot) keep(e *entry, item *memcache.Item) {
	if e.op > opAssess || !e.outcome.Blocked || item == nil {
		return
	}
	s.backend.keep(e, item.Value, s.resets)
}
