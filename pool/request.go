package pool

import (
	"strconv"
	"sync/atomic"
	"time"

	"github.com/adaptivethrottler/throttler/exchange"
	"github.com/adaptivethrottler/throttler/internal/failure"
	"github.com/adaptivethrottler/throttler/internal/fanout"
	"github.com/bradfitz/gomemcache/memcache"
)

// A verb is the command that a request writes with.
type verb uint8

const (
	none verb = iota
	add
	cas
	del
)

// A step is what a request does when it is sent. An exchange takes one or two of them:
//
//	classic
//	metaSet, and readsAfterMeta if it is refused
//	readsFirst, and onRead if anything is then proposed
//
// If its answer is lost with the connection, it begins anew. Other requests are classic.
type step uint8

const (
	classic        step = iota // writes with verb, unless that is none, and then reads, if it reads
	metaSet                    // writes by a meta set, which needs no read; see meta.go
	readsAfterMeta             // reads the record that the meta set did not bring
	readsFirst                 // reads the record before anything is proposed
	onRead                     // writes what was proposed on that record, and reads it back
)

// A fate is what became of a request that was sent.
type fate uint8

const (
	awaited  fate = iota // its answer is to come, or it is not sent
	finished             // its answer has come, or never will
	givenUp              // it has ended, and its answer is still to come
)

// A request is what one server is asked for at a time: to write, to read, or to
// write and then to read. It belongs to its link's queue, then to the writer of
// a connection, and then to the requests that the connection has sent.
type request struct {
	latch *fanout.Latch // opens when it and others have ended; nil: nobody waits
	link  *link
	key   string
	item  *memcache.Item    // to be written with verb
	x     exchange.Exchange // proposes the item, and takes the result; nil: item is fixed
	probe bool              // it finds out whether a server that is down is back
	verb  verb
	reads bool
	fate  fate // guarded by link.mu; changes no more once r has ended

	// What attempts leave behind for later ones.
	retried  bool // sent anew, as its first connection was lost
	proposed bool // an item
	maybe    bool // the server may have carried out a write whose answer was lost, or may do it yet

	queued time.Time // when it began to wait for its turn
	sent   time.Time
	start  int64  // where it begins in what its connection has sent
	conn   uint64 // the Turn's

	attempt
	err error // how it ended; set before latch is told
}

// An attempt is what a request forgets when it is sent anew.
type attempt struct {
	step  step
	asks  *atomic.Bool // is told whether the server knows meta sets; nil: it is not asked
	group *group       // with which it shares a read; nil: none
	reply reply
}

// propose asks the exchange what is to be written, now that its turn has come.
// Where a token is good for one exchange alone, a guess is not allowed: there the
// record is read first, and proposeOnRead comes after it.
func (r *request) propose(conn uint64, now time.Time) {
	r.conn, r.step = conn, classic
	r.verb, r.item, r.reads = none, nil, true
	if conn == 0 {
		r.step = readsFirst
		return
	}
	r.setItem(r.x.Propose(exchange.Turn{Conn: conn, NotStored: r.notStored(), Now: now}))
}

// notStored reports whether what was proposed at earlier turns was not written and cannot
// be any more, see [exchange.Turn].
func (r *request) notStored() bool { return r.proposed && !r.maybe }

// halfDone reports whether r has read the record that is to be proposed on.
func (r *request) halfDone() bool {
	return r.step == readsFirst && r.reply.complaint == nil
}

// proposeOnRead asks the exchange what is to be written in place of the record that
// was read, and reports whether that is anything.
func (r *request) proposeOnRead() bool {
	r.setItem(r.x.Propose(exchange.Turn{Known: true, Found: r.reply.found, NotStored: r.notStored()}))
	if r.item == nil {
		return false
	}
	r.attempt = attempt{step: onRead}
	return true
}

// setItem sets the item that was proposed.
func (r *request) setItem(item *memcache.Item) {
	r.item = item
	r.proposed = r.proposed || item != nil
	switch {
	case item == nil:
		r.verb = none
	case item.CasID == 0:
		r.verb = add
	default:
		r.verb = cas
	}
}

// appendWrite appends the command that r writes with to b, if there is one.
func (r *request) appendWrite(b []byte) []byte {
	if r.asks != nil {
		b = append(b, question...)
	}
	if r.step == metaSet {
		return r.appendMetaSet(b)
	}
	switch r.verb {
	case add:
		b = r.appendItem(append(b, "add "...), 0)
	case cas:
		b = r.appendItem(append(b, "cas "...), r.item.CasID)
	case del:
		b = append(append(append(b, "delete "...), r.key...), "\r\n"...)
	}
	return b
}

// appendRead appends the command that r reads with to b, if it reads.
func (r *request) appendRead(b []byte) []byte {
	if !r.reads || r.step == metaSet {
		return b
	}
	return append(append(append(b, "gets "...), r.key...), "\r\n"...)
}

// appendItem appends the rest of an add, or of a cas if there is a token.
func (r *request) appendItem(b []byte, token uint64) []byte {
	b = append(b, r.key...)
	b = strconv.AppendUint(append(b, ' '), uint64(r.item.Flags), 10)
	b = strconv.AppendInt(append(b, ' '), int64(r.item.Expiration), 10)
	b = strconv.AppendInt(append(b, ' '), int64(len(r.item.Value)), 10)
	if token != 0 {
		b = strconv.AppendUint(append(b, ' '), token, 10)
	}
	b = append(b, "\r\n"...)
	return append(append(b, r.item.Value...), "\r\n"...)
}

// lost notes that the connection was lost before r had all of its answer. sent
// says that at least a part of r had been sent.
func (r *request) lost(sent bool) {
	if sent && r.verb != none && r.reply.status == unanswered {
		r.maybe = true
	}
}

// again makes r ready to be sent once more.
func (r *request) again() { r.retried, r.attempt = true, attempt{} }

// mayRetry reports whether r may be sent once more after its connection was
// lost. An add or a cas never takes effect twice. A delete may: then what was stored in
// between is deleted too. A write that is known to be stored is not repeated only
// because it could not be read back.
func (r *request) mayRetry() bool { return !r.retried && r.reply.status != stored }

// finish tells the latch of r that it has its answer, or has failed with err. It is
// the last that happens to r. No lock is held.
func (r *request) finish(err error) {
	if err == nil {
		err = r.reply.complaint
	}
	if err == nil && r.reply.uncas(r.verb) {
		err = failure.ErrNoCAS
	}
	r.conclude(err, exchange.Result{
		Stored:  r.reply.status == stored,
		Read:    r.reply.read,
		Found:   r.reply.found,
		Unknown: err != nil && r.maybe && r.reply.status != stored,
	})
}

// giveUp ends r, which has waited too long for an answer that may be being read
// right now, and will be dropped.
func (r *request) giveUp() {
	r.conclude(errOverloaded, exchange.Result{Unknown: r.maybe || r.verb != none})
}

func (r *request) conclude(err error, result exchange.Result) {
	r.err = r.link.server.ended(err, r.probe)
	if r.x != nil {
		result.Conn, result.Err = r.conn, r.err
		r.x.Done(result)
	}
	r.latch.Ended()
}
