package throttler

import (
	"context"
	"errors"
	"time"

	"github.com/bradfitz/gomemcache/memcache"
)

// maxStalls is how often in a row a condition's write may lose a race that,
// going by the record, nobody has won. A sound backend does that only when a
// record comes and goes between two reads.
const maxStalls = 10

var errStalled = errors.New("throttler: the backend keeps refusing to store a record that nobody changes")

// A call is one rule on its way through the backend. Its conditions are read
// together, decided together and written together; those whose record somebody
// else wrote in between go round again, and the others are done.
type call struct {
	client  Client
	rule    *Rule
	entries []entry  // one for each condition, in the rule's order
	open    []*entry // those that are not done

	// Room for the above in most calls, to allocate it all at once.
	fewEntries [2]entry
	fewOpen    [2]*entry
}

// An entry is one condition of a call.
type entry struct {
	client    Client
	condition *Condition
	key       string

	item   *memcache.Item // the record as it was read; nil: there is none
	write  *memcache.Item // what is to be stored in its place; nil: nothing
	err    error          // of the last operation
	stalls int            // how often in a row the write was refused, and the record is as it was

	outcome *Outcome // the answer
}

func newCall(client Client, rule *Rule, outcomes []Outcome) *call {
	c := &call{client: client, rule: rule}
	c.entries, c.open = c.fewEntries[:0], c.fewOpen[:0]
	conditions := rule.conditions()
	for i := range conditions {
		c.entries = append(c.entries, entry{
			client:    client,
			condition: &conditions[i],
			key:       key(rule.Identifier, conditions[i].Name, conditions[i].Value),
			outcome:   &outcomes[i],
		})
	}
	for i := range c.entries {
		c.open = append(c.open, &c.entries[i])
	}
	return c
}

// run decides every condition, and stores what that changes unless dry is set.
//
// It ends: an entry stays open only because another caller has written its
// record since it was read. Such a write is a hit, of which a window takes no
// more than Max before the next reader finds it full and has nothing to write,
// or it ends in a ban, after which there is nothing to write either. A backend
// that refuses writes for no such reason is given up, see [entry.settle].
func (c *call) run(ctx context.Context, dry bool) {
	for len(c.open) > 0 {
		c.read(ctx)
		// Only now: a record that was read before this moment holds no hit
		// of a later one, unless its writer's clock is ahead of ours.
		now := time.Now()
		c.step(func(e *entry) bool { return e.decide(now, c.rule, dry) })
		each(ctx, c.open, (*entry).put)
		c.step(func(e *entry) bool { return e.settle(now, c.rule) })
	}
}

// step keeps open the entries for which open returns true.
func (c *call) step(open func(*entry) bool) {
	n := 0
	for _, e := range c.open {
		if open(e) {
			c.open[n] = e
			n++
		}
	}
	c.open = c.open[:n]
}

// read reads the records of the open entries, in one round trip as long as the
// backend is well.
func (c *call) read(ctx context.Context) {
	if len(c.open) == 1 {
		each(ctx, c.open, (*entry).get)
		return
	}
	keys := make([]string, len(c.open))
	for i, e := range c.open {
		keys[i] = e.key
	}
	items, err := getMulti(ctx, c.client, keys)
	var unknown []*entry
	for _, e := range c.open {
		e.err = nil
		item := items[e.key]
		if item == nil && err != nil {
			var known bool
			if known, e.err = keyError(err, e.key); !known {
				unknown = append(unknown, e)
				continue
			}
		}
		e.found(item)
	}
	each(ctx, unknown, (*entry).get)
}

// get reads the entry's record.
func (e *entry) get() error {
	item, err := e.client.Get(e.key)
	if err != nil && !errors.Is(err, memcache.ErrCacheMiss) {
		return err
	}
	if err != nil {
		item = nil
	}
	e.found(item)
	return nil
}

// found takes the record as it was read, which is nil if there is none.
func (e *entry) found(item *memcache.Item) {
	if e.write != nil && sameItem(e.item, item) {
		e.stalls++
	} else {
		e.stalls = 0
	}
	e.item, e.write = item, nil
}

func sameItem(a, b *memcache.Item) bool {
	if a == nil || b == nil {
		return a == b
	}
	return a.CasID == b.CasID
}

// decide decides the entry on what was read, and reports whether that is to be
// stored.
func (e *entry) decide(now time.Time, rule *Rule, dry bool) bool {
	if e.err != nil {
		e.fail(e.err)
		return false
	}
	o, next, store := decide(now, e.condition, rule.lockout(e.condition), e.stored())
	*e.outcome = o
	if !store || dry {
		return false
	}
	e.write = &memcache.Item{Key: e.key, Value: next.encode(), Expiration: expiration(now, next.end())}
	if e.item != nil {
		e.write.CasID = e.item.CasID
	}
	return true
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

// put stores what was decided if the record is still as it was read.
func (e *entry) put() error {
	if e.item == nil {
		return e.client.Add(e.write)
	}
	return e.client.CompareAndSwap(e.write)
}

// settle takes the result of put, and reports whether the entry must go round
// again.
func (e *entry) settle(now time.Time, rule *Rule) bool {
	switch {
	case e.err == nil:
		return false
	case lostRace(e.err) && e.stalls < maxStalls:
		e.err = nil
		return true
	case lostRace(e.err):
		e.err = errStalled
	}
	if e.outcome.Blocked {
		// It is full, that much is known. Only its ban could not be set.
		*e.outcome, _, _ = decide(now, e.condition, 0, e.stored())
		e.outcome.Err = e.err
		return false
	}
	e.fail(e.err)
	return false
}

// fail opens the entry's condition, whose backend failed with err.
func (e *entry) fail(err error) {
	*e.outcome = Outcome{Name: e.condition.Name, Limit: e.condition.Max, Remaining: e.condition.Max, Err: err}
}

// remove deletes the entry's record.
func (e *entry) remove() error {
	if err := e.client.Delete(e.key); err != nil && !errors.Is(err, memcache.ErrCacheMiss) {
		return err
	}
	return nil
}
