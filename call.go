package throttler

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/bradfitz/gomemcache/memcache"
)

// A call is one rule on its way through the backend. Its conditions are read
// together, decided together and written together; those whose record somebody
// else wrote in between go round again.
type call struct {
	rule     Rule
	dry      bool      // writes nothing
	outcomes []Outcome // the answers, one for each condition, in the rule's order
	entries  []*entry  // the conditions, in the same order
	open     []*entry  // those that are going round

	bansAge uint64 // of the ban cache, when the call began

	refunds sync.Mutex // guards counted of all entries, once the call is decided

	// Room for the one condition that most calls have, to allocate all at once.
	one struct {
		entry         entry
		entries, open [1]*entry
	}
}

// newCall returns the call of rule, with all its conditions undecided.
func newCall(client Client, rule Rule) *call {
	c := &call{rule: rule}
	conditions := c.rule.conditions()
	n := len(conditions)
	c.outcomes = make([]Outcome, n)
	if n == 1 {
		c.one.entries[0] = &c.one.entry
		c.entries, c.open = c.one.entries[:], c.one.open[:0]
	} else {
		entries, pointers := make([]entry, n), make([]*entry, 2*n)
		for i := range entries {
			pointers[i] = &entries[i]
		}
		c.entries, c.open = pointers[:n:n], pointers[n:n]
	}
	for i, e := range c.entries {
		e.client = client
		e.condition = &conditions[i]
		e.lockout = c.rule.lockout(e.condition)
		e.key = key(rule.Identifier, e.condition.Name, e.condition.Value)
		e.outcome = &c.outcomes[i]
	}
	return c
}

// standIn has fallback decide the conditions whose backend failed, instead of
// leaving them open. They are new entries: an operation of the old ones may
// still be running.
func (c *call) standIn(ctx context.Context, fallback Client) {
	for i, e := range c.entries {
		if e.err == nil || e.outcome.Blocked {
			continue
		}
		c.entries[i] = &entry{
			client:    fallback,
			condition: e.condition,
			lockout:   e.lockout,
			key:       e.key,
			outcome:   e.outcome,
			lost:      e.lost,
			cause:     e.err,
		}
	}
	c.run(ctx)
}

// counted reports whether c has counted anything.
func (c *call) counted() bool {
	for _, e := range c.entries {
		if e.counted {
			return true
		}
	}
	return false
}

// shed returns c without the records that were read and written, which may be
// large, for as long as a Decision is kept. What an operation that was left
// still uses stays.
func (c *call) shed() *call {
	for _, e := range c.entries {
		if !e.left {
			e.item, e.next.hits.entries = nil, nil
		}
	}
	return c
}

// giveBack takes back what c has counted before it turned out to be refused.
func (c *call) giveBack(ctx context.Context) {
	counted := c.take()
	err := c.takeBack(ctx, counted)
	for _, e := range counted {
		if err == nil {
			// As it was found, with or without others' hits since.
			v := decide(e.now, e.condition, e.lockout, e.stored(), false)
			*e.outcome, e.again = v.outcome, v.again
		}
		e.annotate(join(e.cause, err))
	}
}

// run decides all conditions that are undecided, and stores what that changes.
//
// It ends: a condition stays undecided only because another call has written
// its record since it was read. Such a write is a hit, of which a window takes
// no more than Max before the next reader finds it full and has nothing to
// write, or it sets a ban, after which there is nothing to write either. A
// backend that refuses writes for no such reason is given up, see
// [entry.lostAgain].
func (c *call) run(ctx context.Context) {
	for c.next() {
		c.read(ctx)
		// Not before: what was read a moment ago holds no hit of a later
		// one than now, unless the clock of its writer is ahead of ours.
		c.decide(instantOf(time.Now()))
		c.write(ctx)
	}
}

// next opens the conditions for the next round, and reports whether there are
// any: those that are undecided, and those that were passed over for the sake
// of a condition that turned out not to block after all.
func (c *call) next() bool {
	blocked := false
	for _, e := range c.entries {
		blocked = blocked || (e.state == decided || e.state == recalled) && e.outcome.Blocked
	}
	c.open = c.open[:0]
	for _, e := range c.entries {
		if e.state == undecided || e.state == passed && !blocked {
			c.open = append(c.open, e)
		}
	}
	return len(c.open) > 0
}

// read reads the records of the open conditions, in one round trip as long as
// the backend is well.
func (c *call) read(ctx context.Context) {
	if len(c.open) == 1 {
		each(ctx, c.open, (*entry).get)
		return
	}
	keys := make([]string, len(c.open))
	for i, e := range c.open {
		keys[i] = e.key
	}
	items, err := getMulti(ctx, c.open[0].client, keys)
	var unknown []*entry
	for _, e := range c.open {
		item := items[e.key]
		known := true
		e.err = nil
		if item == nil && err != nil {
			known, e.err = keyError(err, e.key)
		}
		switch {
		case !known:
			unknown = append(unknown, e)
		case e.err == nil:
			e.found(item)
		}
	}
	each(ctx, unknown, (*entry).get)
}

// decide decides the open conditions on what was read, all at the same time.
func (c *call) decide(now instant) {
	for _, e := range c.open {
		e.decide(now, true)
	}
	if !c.refused() {
		return
	}
	for _, e := range c.open {
		if e.state == decided && e.store && !e.outcome.Blocked {
			e.decide(now, false)
			e.state = passed
		}
	}
}

// again returns how long until each condition takes the same call again, nil if
// that is the RetryAfter of its outcome.
func (c *call) again() []time.Duration {
	if !slices.ContainsFunc(c.entries, func(e *entry) bool { return e.condition.cost() > 1 }) {
		return nil
	}
	again := make([]time.Duration, len(c.entries))
	for i, e := range c.entries {
		again[i] = e.again
	}
	return again
}

// refused reports whether the call is blocked and therefore counted nowhere.
func (c *call) refused() bool {
	return c.rule.CountAuthorizedOnly && c.rule.blocks(c.outcomes)
}

// write stores what was decided, all at once.
func (c *call) write(ctx context.Context) {
	n := 0
	for _, e := range c.open {
		if e.store && !c.dry {
			c.open[n] = e
			n++
		}
	}
	c.open = c.open[:n]
	each(ctx, c.open, (*entry).put)
	for _, e := range c.open {
		e.settle()
	}
}

// An entry is one condition of a call, in one backend.
type entry struct {
	client    Client
	condition *Condition
	lockout   lockout
	key       string

	item *memcache.Item // the record as it was read; nil: there is none
	err  error          // of the last operation
	left bool           // the last operation was left, and may be running still

	now   instant       // when it was decided
	next  record        // the record that is to be stored
	hit   hit           // what it counts of this call
	again time.Duration // until it takes the same call again
	store bool          // whether it is
	state state

	counted bool // the record that was stored holds a hit of this call, not taken back

	lost   int    // how many times somebody else was faster
	raced  bool   // so the last time
	stalls int    // how many times in a row that was so and yet the record is as it was
	cause  error  // what another backend failed with, which this one stands in for
	refund *entry // whose hit is to be taken out of the record, if this one is for that

	outcome *Outcome
}

// state is how far an entry is.
type state int

const (
	undecided state = iota // to be read and decided
	decided                // and stored if need be
	passed                 // decided, but not counted since the call is refused
	recalled               // decided without the backend, from memory
)

// get reads the entry's record.
func (e *entry) get() error {
	item, err := e.client.Get(e.key)
	if errors.Is(err, memcache.ErrCacheMiss) {
		item, err = nil, nil
	}
	if err == nil {
		e.found(item)
	}
	return err
}

// found takes the record as it was read, nil if there is none.
func (e *entry) found(item *memcache.Item) {
	if e.raced && sameItem(e.item, item) {
		e.stalls++
	} else {
		e.stalls = 0
	}
	e.item, e.raced = item, false
}

func sameItem(a, b *memcache.Item) bool {
	if a == nil || b == nil {
		return a == b
	}
	return a.CasID == b.CasID
}

// stored returns the record that was read. What is no record counts as none,
// and is replaced like one.
func (e *entry) stored() record {
	if e.item == nil {
		return record{}
	}
	r, _ := decode(e.item.Value)
	return r
}

// decide decides the entry on what was read. count says whether a hit is to be
// counted if there is room.
func (e *entry) decide(now instant, count bool) {
	e.now, e.state = now, decided
	if e.err == nil && e.item != nil {
		if _, err := decode(e.item.Value); errors.Is(err, ErrNewerRecord) {
			e.err = err
		}
	}
	if e.err != nil {
		e.open()
		return
	}
	v := decide(now, e.condition, e.lockout, e.stored(), count)
	*e.outcome, e.again, e.next, e.store, e.hit = v.outcome, v.again, v.next, v.store, v.hit
	e.annotate(e.cause)
}

// open lets the call pass, as the backend failed with err.
func (e *entry) open() {
	e.store, e.again = false, 0
	*e.outcome = Outcome{Name: e.condition.Name, Limit: e.condition.Max, Remaining: e.condition.Max}
	e.annotate(join(e.cause, e.err))
}

// annotate completes an outcome.
func (e *entry) annotate(err error) {
	e.outcome.LostRaces = e.lost
	e.outcome.Err = err
}

// put stores what was decided if the record is still as it was read.
func (e *entry) put() error {
	item := &memcache.Item{Key: e.key, Value: e.next.encode(), Expiration: expiration(e.now, e.next.end())}
	if e.item == nil {
		return e.client.Add(item)
	}
	item.CasID = e.item.CasID
	return e.client.CompareAndSwap(item)
}

// maxStalls is how often in a row a write may lose a race that, going by the
// record, nobody has won. A sound backend does that only when a record comes
// and goes between two reads.
const maxStalls = 10

// maxLosses is how many races an entry may lose beyond the Max that are others'
// hits. A sound backend comes nowhere near: that takes as many others who each
// write between a read and a write of the entry, and take back what they count.
// But one whose reads and writes go to different copies of a record, each with
// tokens of its own, looks as if somebody else were always faster.
const maxLosses = 1000

var errStalled = errors.New("throttler: the backend keeps refusing to store a record")

// lostAgain reports whether put has lost a race, so that the entry must go round
// once more. If it keeps losing against nobody, err is errStalled.
func (e *entry) lostAgain() bool {
	switch {
	case e.err == nil || !lostRace(e.err):
		return false
	case e.stalls >= maxStalls || e.lost >= e.losses():
		e.err = errStalled
		return false
	}
	if maybeDone(e.err) {
		e.lockout.length = 0 // what is found next may be its own hit: no reason for a ban
	}
	e.lost++
	e.raced = true
	return true
}

// losses returns how many races e may lose.
func (e *entry) losses() int {
	if e.condition == nil { // it takes a hit back
		return maxLosses
	}
	return maxLosses + e.condition.Max
}

// settle takes the result of put.
func (e *entry) settle() {
	switch {
	case e.lostAgain():
		e.state = undecided
	case e.err == nil:
		e.counted = !e.outcome.Blocked
	case e.outcome.Blocked:
		// It is full, that much is known. Only the ban could not be set.
		v := decide(e.now, e.condition, lockout{}, e.stored(), false)
		*e.outcome, e.again = v.outcome, v.again
		e.annotate(join(e.cause, e.err))
	default:
		e.open()
	}
}

// remove deletes the entry's record.
func (e *entry) remove() error {
	err := e.client.Delete(e.key)
	if errors.Is(err, memcache.ErrCacheMiss) {
		return nil
	}
	return err
}
