// Package coalesce lets all callers of one record in this process share its exchanges, and
// remembers the records that they asked about lately.
//
// Each record in use has a coalescer. All changes of the record that are asked for while an
// exchange is under way wait for the next one: they are decided one after the other on one
// read of the record, and stored by one write. When none is left, a memory keeps the bytes of
// the record as it was last seen, to propose the next write on it at once. Coalescers are used
// again, for other records.
//
// The package knows no condition and no rule, but the [Change] that somebody wants of a
// record. To follow one read [Table.Ask], [Table.lead], [coalescer.Propose], [coalescer.Done] and
// [coalescer.conclude], in this order.
//
// # An exchange
//
// The first record that a batch is decided on is the one that this process saw last, or
// none: a guess. The exchange writes the last of the records, by cas with the token that
// was seen or by add, and reads the record back, unless the server stores nearly all writes.
// If the write succeeds, all decisions stand. If it does not, each change is decided by itself
// on the record that was found. Those that do not change it, because it is full or banned, are
// answered at once. The others go into the next exchange, before those that came later.
//
// A token is sent only on the connection that gave it, and connection numbers are never
// used twice. An exchange that is sent again on another connection drops its guess and
// reads. Absence needs no token, and may be guessed on any connection. Behind a proxy, and
// over a plain client, nothing is remembered: each record is read first, and its token is
// used once.
//
// An answer is never older than its question: the moment of a decision is that of the write
// that contains it, or of a read that began after the call came. Over a plain client a change
// may join a batch between its read and its write. If nothing is then written, it goes into
// the next exchange.
//
// # Taking turns with other processes
//
// Only the writer of a record knows its new token at once. If several processes write one
// record all the time, the one that has just written wins again, and each of the others
// loses an exchange. So a coalescer that has lost races pauses after its own write. Changes that
// come meanwhile are stored by one write. The pause grows by a quarter of an exchange for
// each lost race, to 8 exchanges or 10 ms on average. It shrinks by a quarter with each write
// that lost none. A change that has lost a race never pauses.
//
// # A lost answer
//
// If a connection breaks after a write was sent, or a proxy gives the write up, it may have
// been carried out, or may be later. Each write has a random number in the item's flags. The
// exchange reads the record on a new connection and finds one of these:
//
//   - The number of the write: it was carried out, and the decisions stand.
//   - The record as before: it was not carried out, and the batch is decided again. If the
//     old write still arrives, the new one is refused, and the third case applies.
//   - Another record: the write may have been carried out or not. The hits are counted again
//     if there is room, Err says so, and they cause no ban. A hit that was to be taken back
//     is not taken back again. A lease is known by its ID, so it is there once whatever
//     became of the write, and Err is nil.
//
// # Why every call ends
//
// A change is decided again only if another process has written the same record since it
// was read. Such a write adds a hit or sets a ban; rarely it takes a hit back or corrects a
// time. While a call lasts less than TTL, hits that others add do not expire. So after Max
// of them the window is full, and the change has nothing to write.
//
// Each lost race counts for a tenth of QueueTimeout at most: a process that is short of
// processor time, or was stopped, does not give up sooner. A proxy that reads one copy of a
// record and writes another may refuse every write. So a back end is given up that refuses ten
// in a row although the record has not changed, or Max + 1,000 in all (101,000 at most).
//
// # Why nothing deadlocks
//
//   - A call that waits holds no connection and no place that another call needs. One
//     exception, over a plain client: a GetMulti that takes longer than 50 ms keeps its place
//     while its keys wait for places to be read one by one. It does not wait for them.
//   - A coalescer has one exchange at a time, which needs one turn at one server. It never waits
//     for another coalescer.
//   - An exchange that has its turn ends with an answer, or when the client gives up. Without
//     a turn in time it ends with ErrOverloaded. When it ends, it ends each change or
//     starts the next exchange.
//   - The next exchange is started by the coalescer's leader, if that is in its loop and still
//     needs one, by a timer after a pause, and otherwise by the client. A leader gives up its
//     role under the coalescer's lock, so there is always one that starts it.
//   - Locks are taken in one order: shard, coalescer, block cache. They are never held during I/O
//     or a function of the program's.
//   - A Cancel has its turn at a Decision's receipt; no exchange needs that turn. A second
//     Cancel of the same Decision waits for the first, until its own ctx ends.
package coalesce
