package coalesce

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/adaptivethrottler/throttler/exchange"
	"github.com/adaptivethrottler/throttler/internal/failure"
	"github.com/adaptivethrottler/throttler/internal/record"
	"github.com/bradfitz/gomemcache/memcache"
)

// What becomes of a batch when its exchange is done.

// conclude ends those entries of the batch that r decides. The others stay in it.
func (s *coalescer) conclude(r exchange.Result) {
	proposal, lost := s.proposal, s.lost
	s.proposal, s.lost = nil, nil
	switch {
	case r.Stored:
		s.accept(proposal, r)
	case r.Read && lost != nil && sameWrite(r.Found, lost):
		s.accept(lost, r)
	case r.Err != nil && !r.Read:
		for _, e := range s.batch {
			e.refused = r.Refused
		}
		s.failAll(r.Err, r.Unknown)
	case r.Read:
		if lost != nil {
			s.suspect(r.Found == nil || sameWrite(r.Found, s.lostBase))
		}
		s.decideAnew(r, proposal != nil && r.Err == nil)
	default:
		s.retry()
	}
}

// sameWrite reports whether item was stored by the write of other.
func sameWrite(item, other *memcache.Item) bool {
	return item != nil && other != nil && item.Flags == other.Flags && bytes.Equal(item.Value, other.Value)
}

// accept ends the batch as it was decided: item was stored.
func (s *coalescer) accept(item *memcache.Item, r exchange.Result) {
	s.seen = sighting{known: r.Read, item: r.Found, conn: r.Conn, fresh: true}
	if !r.Read {
		s.seen = s.outlast(item)
	}
	s.stalls = 0
	s.raceWon()
	if s.base.known && !s.base.fresh {
		s.table.counts.RightGuesses.Add(1)
	}
	s.uncache()
	s.acceptAll(item)
}

// acceptAll ends the batch as it was decided: on the record, or so that item
// is the record now.
func (s *coalescer) acceptAll(item *memcache.Item) {
	for _, e := range s.batch {
		s.cache(e, item)
		s.end(e)
	}
	s.empty()
}

// uncache forgets a record that has changed.
func (s *coalescer) uncache() {
	if blocks := s.table.blocks; blocks != nil {
		blocks.remove(s.key)
	}
}

// decideAnew decides the batch on the record as it was found. It ends the entries
// that leave the record as it is and came before it was read: for a later one the
// answer might be out of date. refused says that the record had changed, so that the
// batch was not stored.
func (s *coalescer) decideAnew(r exchange.Result, refused bool) {
	stands := s.current && !refused && r.Err == nil && s.unreadable == nil && s.beforeRead == len(s.batch)
	lostRace := refused && s.base.fresh
	if lostRace {
		s.raceLost()
		s.stall(sameToken(s.base.item, r.Found))
	}
	s.seen = sighting{known: true, item: r.Found, conn: r.Conn, fresh: true}
	if stands {
		s.acceptAll(r.Found)
		return
	}
	now := record.InstantOf(time.Now())
	found, err := recordIn(r.Found)
	undecided := s.batch[:0]
	for i, e := range s.batch {
		if err != nil {
			e.Err = err
			s.end(e)
			continue
		}
		if refused && e.arriving {
			e.doubt()
		}
		e.apply(now, &found)
		switch {
		case e.store && s.giveUp(e, r, &found, lostRace):
		case !e.store && i < s.beforeRead:
			s.cache(e, r.Found)
			s.end(e)
		default:
			undecided = append(undecided, e)
		}
	}
	clear(s.batch[len(undecided):])
	s.batch = undecided
}

// giveUp ends e, which changes the record found, if it is not to be tried again, and
// reports whether it did.
func (s *coalescer) giveUp(e *Entry, r exchange.Result, found *record.Record, lostRace bool) bool {
	switch {
	case r.Err != nil:
		e.Unknown, e.refused = r.Unknown, r.Refused
		s.failUnstored(e, r.Err, found)
	case r.Found != nil && r.Found.CasID == 0:
		s.failUnstored(e, failure.ErrNoCAS, found)
	case lostRace && s.lostTooOften(e):
	case e.hopeless:
		e.Err = ErrLostAnswer
		s.end(e)
	default:
		return false
	}
	return true
}

// retry keeps the batch for the next exchange: its write was refused, and the record
// has not been read since. Entries that have lost too many races end.
func (s *coalescer) retry() {
	s.raceLost()
	s.stall(s.refusedBase.known && sameToken(s.base.item, s.refusedBase.item))
	s.refusedBase, s.seen = s.base, s.outlastFailure()
	s.batch = slices.DeleteFunc(s.batch, s.lostTooOften)
}

// stall counts how often in a row a write was refused although the record is
// unchanged.
func (s *coalescer) stall(unchanged bool) {
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

// lostTooOften notes that e has lost a race, and reports whether that was one too
// many. Then e ends.
func (s *coalescer) lostTooOften(e *Entry) bool {
	if e.arriving {
		e.doubt()
	}
	e.LostRaces++
	s.table.counts.LostRaces.Add(1)
	now, timeout := time.Now(), s.table.timeout
	if e.LostRaces > 1 {
		e.contended += min(now.Sub(e.lostAt), timeout/racesInTimeout)
	}
	e.lostAt = now
	switch {
	case s.stalls >= MaxStalls || e.LostRaces > MaxLosses+e.Patience:
		e.Err = ErrStalled
	case e.contended >= timeout:
		e.Err = fmt.Errorf("%w: the record of %q changed %d times in %v", failure.ErrOverloaded, s.key, e.LostRaces, timeout)
	default:
		return false
	}
	s.end(e)
	return true
}

// suspect notes that the answer to a write of the batch was lost. If the record is
// unchanged, the write was not carried out, but may still arrive: a server reads its
// connections in any order. Otherwise it may have been carried out.
func (s *coalescer) suspect(unchanged bool) {
	for _, e := range s.batch {
		switch {
		case !e.store:
		case unchanged:
			e.arriving = true
		default:
			e.doubt()
		}
	}
}

// failAll ends all entries that wait for a server that does not answer. It ends
// later ones too, or each of them would wait for the server in turn.
func (s *coalescer) failAll(err error, unknown bool) {
	s.seen = s.outlastFailure()
	if unknown {
		s.uncache()
	}
	abandoned := len(s.batch) == 0 // by those whom the exchange was for
	known := s.base.fresh
	r, unreadable := recordIn(s.base.item)
	for _, e := range s.batch {
		e.Unknown = unknown && e.store
		if known && unreadable == nil {
			s.failUnstored(e, err, &r)
			continue
		}
		e.Err = err
		s.end(e)
	}
	s.empty()
	if abandoned || errors.Is(err, failure.ErrOverloaded) {
		return
	}
	for _, e := range s.queue {
		e.Err = err
		s.end(e)
	}
	clear(s.queue)
	s.queue = s.queue[:0]
}

// failUnstored ends e, which could not be stored, though r was read. What is blocked by r is so
// all the same. What others have added to r in the same batch was not stored either, and does not
// block e.
func (s *coalescer) failUnstored(e *Entry, err error, r *record.Record) {
	e.Change.Doubt() // what could not be stored bans nobody
	e.apply(e.decided, r)
	if e.Change.Stands() {
		e.Note = err
	} else {
		e.Err = err
	}
	s.end(e)
}

// empty forgets the batch, which has ended.
func (s *coalescer) empty() {
	clear(s.batch)
	s.batch = s.batch[:0]
}

// cache has the Blocks answer the next call from memory, if e stands on the record in item.
func (s *coalescer) cache(e *Entry, item *memcache.Item) {
	if e.Cached && item != nil && e.Change.Stands() {
		s.table.cache(e, item.Value, s.resets)
	}
}

// end makes e's result known. Only the caller uses e from then on.
func (s *coalescer) end(e *Entry) {
	e.ended = true
	if e.Precedes && s.seen.conn != noConn {
		e.assessed = s.seen
	}
	if e.round != nil {
		e.round.ended()
	}
}
