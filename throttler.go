// Package throttler limits how often things happen, across any number of
// processes and machines, with its records in memcached. It protects login forms
// against brute force, throttles robots, and rations any resource.
//
// It began as a port of Schedule::AdaptiveThrottler, a Perl module by David
// Morel: a list of timestamps for each condition, in memcached, without locks.
//
// # Use
//
// A program makes one [Throttler] and asks it, with a [Rule], before it does
// what is to be limited:
//
//	th := throttler.New(memcache.New("127.0.0.1:11211"))
//
//	d, err := th.Authorize(ctx, throttler.Rule{
//		Identifier: "login",
//		Either: []throttler.Condition{
//			{Name: "ip", Value: addr, Max: 50, TTL: 5 * time.Minute},
//			{Name: "login", Value: user, Max: 5, TTL: time.Minute},
//		},
//		Lockout: 10 * time.Minute,
//	})
//	if err != nil {
//		return err // the rule is wrong
//	}
//	if d.Status == throttler.Blocked {
//		// d.Messages says why, d.RetryAfter when to come back
//	}
//
// A rule names conditions, and each condition what it counts: the Value, of
// which there may be Max hits in any window of TTL. With Either the call is
// blocked if any condition is full, with All if every one is. A condition that
// is found full can be banned for a while, its Lockout.
//
// Rules are plain values and may be built anew for each call. Records are kept
// under the rule's Identifier, the condition's Name and its Value, so all
// programs that use the same names on the same servers count together.
//
// # Methods
//
// [Throttler.Authorize] counts and answers. [Throttler.Peek] answers and changes
// nothing. [Throttler.Wait] waits until the call is authorized.
// [Throttler.Cancel] takes back what a decision has counted, so that only
// failures count. [Throttler.Reset] forgets hits and lifts bans.
//
// # What it promises
//
// Exactness: however many goroutines, processes and machines call at once, no
// more than Max hits are authorized in any window of TTL (or what a
// [LeakyBucket] says of itself). There is no lock: a record is replaced only if
// it is still as it was read, and otherwise read and decided again.
//
// Precision: hits and bans end at their own time, though memcached keeps whole
// seconds: to the nanosecond, or for windows of more than 32 hits to a tenth of
// a millisecond.
//
// Safety: a Value is any bytes of any length. Two different values never share
// a record, and none becomes an illegal key or a command.
//
// Speed: a call takes two round trips, however many conditions it has, or one if
// there is nothing to count, as all of them are full or
// [Rule.CountAuthorizedOnly] is set.
//
// # When the backend fails
//
// A failure of the backend is not an error of Authorize: the conditions that it
// concerns do not block, so that an outage of memcached is no outage of the
// login page. [Decision.Err] says what failed. A program that would rather fail
// closed tests it; one that would rather go on counting in each process sets
// [Throttler.Fallback]. A ctx that is done ends the call at once, in the same
// way.
//
// # Clocks
//
// Times are those of the callers' clocks, so callers on several machines should
// have theirs set by NTP: as far as two clocks differ, so much shorter or longer
// may a window seem. One that is ahead by hours does no lasting harm: a hit
// counts for TTL at most, and a ban for its length, from when it is first met by
// a caller whose clock is right. One that is behind ends hits and bans early for
// the values that it is asked about.
//
// # Stored records
//
// Records begin with a version. Every later version of this package reads what
// every earlier one has written. Bytes that are no record of this package count
// as none, and are replaced.
package throttler

import (
	"context"
	"errors"
	"reflect"
	"sync"
	"time"
)

// A Throttler authorizes or blocks calls by rules, with its records in the
// backend that it was made with. All throttlers that use the same servers, in
// however many processes and machines, count together.
//
// The exported fields are options. They must be set before the first use, and a
// Throttler must not be copied after it. All methods are safe for concurrent
// use. No goroutine outlives a call, except that a call which is left at the end
// of its ctx leaves behind the operations that the client has not given up yet.
type Throttler struct {
	// Fallback decides the conditions whose backend failed, instead of
	// letting them pass; usually a memstore, with which each process counts
	// on its own while the outage lasts. It is asked even when the call's ctx
	// is done, so it should answer at once. [Outcome.Err] still says what
	// failed. nil: such conditions do not block.
	Fallback Client

	// BlockCache is how many records that block are kept in process memory:
	// bans, and windows and buckets that are full. A condition that one of
	// them blocks takes no round trip; the others of a rule are counted as
	// ever. Each is kept until it may open, and for at most BlockCacheTTL.
	// When there are more, the least recently used are forgotten. Records of
	// more than 64 KiB are not kept. Default: none.
	BlockCache int

	// BlockCacheTTL is how long such a record is believed before the backend
	// is asked again, and so how long a Cancel, Reset or Ban by another
	// process may go unnoticed. Default: 5 s.
	BlockCacheTTL time.Duration

	// RecordCache is how many records are remembered as they were last seen,
	// so that one round trip is enough to change a record that nobody else has
	// changed since. It saves round trips and decides nothing. Records of more
	// than 1 KiB are not remembered, and none are over a client that is no
	// [Exchanger]. Default: 16,384. Negative: none.
	RecordCache int

	// QueueTimeout is how long a call waits for its turn at most, where this
	// process asks more than the backend can carry, or others keep changing
	// the same record. Then the condition fails with an error that matches
	// [ErrOverloaded]. Package pool has an option of its own for its queue.
	// Default: 1 s.
	QueueTimeout time.Duration

	// Observe, if not nil, is called after every decision of Authorize and
	// at the end of every Wait, whether it is authorized or gives up, with
	// the rule and the Decision that the caller is about to get. It must not
	// change their slices. It is called on the caller's goroutine, so on many
	// of them at once.
	Observe func(ctx context.Context, rule Rule, d Decision)

	// Conflict, if not nil, is called when this process asks for the same
	// record, which is that of an Identifier, a Name and a Value, with another
	// Max, TTL or Algorithm than before. Most often two rules share an
	// Identifier by mistake. It changes no decision. It is called once for each
	// Identifier and Name, with the later rule and an error for people to read,
	// on the caller's goroutine. The latest 4,096 records are compared. Default:
	// nil, and nothing is remembered.
	Conflict func(rule Rule, err error)

	client    Client
	main      lazy[backend]
	second    lazy[backend] // of Fallback
	blocks    lazy[blockCache]
	stats     counters
	queue     waitQueue // of the calls of Wait
	conflicts conflicts
}

// DefaultQueueTimeout is what [Throttler.QueueTimeout] is if it is not set.
const DefaultQueueTimeout = time.Second

// New returns a Throttler that keeps its records in client. It panics if client
// is nil, or a nil pointer.
func New(client Client) *Throttler {
	v := reflect.ValueOf(client)
	if client == nil || v.Kind() == reflect.Pointer && v.IsNil() {
		panic("throttler: New with a nil Client")
	}
	return &Throttler{client: client}
}

// Authorize decides whether what rule describes may happen now, and counts it.
//
// Every condition of the rule is looked at. One that is banned, or has no room
// for another hit, is full: it blocks, and is counted no further. With a lockout
// it is banned from now on, unless it is already. Every other condition counts
// the call, even if the call as a whole is blocked by another; see
// [Rule.CountAuthorizedOnly] for the alternative.
//
// The error is for the programmer: rule is invalid, errors.Is(err,
// [ErrInvalidRule]), and the Decision is the zero one, which is Blocked. A
// failure of the backend is not an error: the conditions that it concerns do
// not block, and [Decision.Err] says why. It is the same when ctx is done
// before the answer is known: Authorize returns at once, and the conditions
// still undecided do not block.
func (t *Throttler) Authorize(ctx context.Context, rule Rule) (Decision, error) {
	if err := rule.Validate(); err != nil {
		return Decision{}, err
	}
	start := t.startObserving()
	d := t.newCall(rule).decide(ctx)
	t.observe(ctx, rule, &d, start)
	return d, nil
}

// Peek returns the Decision that [Throttler.Authorize] would return now, down to
// what would remain after the call, and changes nothing: no hit is counted and
// no ban is set.
func (t *Throttler) Peek(ctx context.Context, rule Rule) (Decision, error) {
	if err := rule.Validate(); err != nil {
		return Decision{}, err
	}
	c := t.newCall(rule)
	c.dry = true
	return c.decide(ctx), nil
}

// Cancel takes back the hits that d counted, for work that was refused for
// another reason or a login that succeeded. It is safe to call it twice, from
// anywhere, or after the hits have expired: each is taken back once, and only
// as long as it counts. A ban stays, even one that d has set.
//
// A hit of a [LeakyBucket] leaves behind no more than what leaks between
// Authorize and Cancel, in whatever order hits are taken back.
//
// So only failures count, without the race of looking first and counting later:
// however many calls run at once, no more than Max of them are between
// Authorize and Cancel.
//
// The error says what the backend failed at. What could not be looked up may be
// tried again with d. A hit whose removal failed may have been taken back or
// not, and expires in its time.
func (t *Throttler) Cancel(ctx context.Context, d Decision) error {
	if d.receipt == nil {
		return nil
	}
	return d.receipt.takeBack(ctx)
}

// CancelOnly takes back the hits that d counted for the conditions of rule, as
// [Throttler.Cancel] does. What d counted for others stays, and may be taken back
// later. The error may also be that rule is invalid, as errors.Is(err,
// [ErrInvalidRule]).
func (t *Throttler) CancelOnly(ctx context.Context, d Decision, rule Rule) error {
	if err := rule.Validate(); err != nil || d.receipt == nil {
		return err
	}
	var keys []string
	for _, c := range rule.conditions() {
		keys = append(keys, key(rule.Identifier, c.Name, c.Value))
	}
	part, err := d.receipt.only(ctx, keys)
	if err != nil {
		return err
	}
	err = part.takeBack(ctx)
	d.receipt.keep(part)
	return err
}

// Reset forgets the hits and lifts the bans of all conditions of rule, for the
// values that they have in it, in the fallback too. The error says that rule is
// invalid, as errors.Is(err, [ErrInvalidRule]), or what the backend failed at;
// the records that it does not concern are gone all the same.
func (t *Throttler) Reset(ctx context.Context, rule Rule) error {
	if err := rule.Validate(); err != nil {
		return err
	}
	err := t.backend().reset(ctx, rule)
	if fallback := t.fallback(); fallback != nil {
		// Even if ctx has ended over a backend that hangs, as when it decides.
		err = errors.Join(err, fallback.reset(context.WithoutCancel(ctx), rule))
	}
	return err
}

// Ban bans the values of all conditions of rule until d from now, whatever they
// have counted. A ban that ends later stays. Other processes notice it within
// their [Throttler.BlockCacheTTL]. [Throttler.Reset] lifts it. The fallback is
// told too.
//
// The error says that rule is invalid or d not positive, as errors.Is(err,
// [ErrInvalidRule]), or what the backend failed at; the values that it does not
// concern are banned all the same.
func (t *Throttler) Ban(ctx context.Context, rule Rule, d time.Duration) error {
	if err := rule.Validate(); err != nil {
		return err
	}
	if d <= 0 {
		return invalid("the length of a Ban", d, "more than 0")
	}
	err := t.backend().ban(ctx, rule, d)
	if fallback := t.fallback(); fallback != nil {
		err = errors.Join(err, fallback.ban(context.WithoutCancel(ctx), rule, d))
	}
	return err
}

// A lazy value is made at the first call that needs it, when the options are set.
type lazy[T any] struct {
	once  sync.Once
	value *T
}

func (l *lazy[T]) get(make func() *T) *T {
	l.once.Do(func() { l.value = make() })
	return l.value
}

// backend returns what t asks first.
func (t *Throttler) backend() *backend {
	return t.main.get(func() *backend { return newBackend(t.client, t) })
}

// fallback returns what t asks where that fails, nil if there is nothing.
func (t *Throttler) fallback() *backend {
	if t.Fallback == nil {
		return nil
	}
	return t.second.get(func() *backend { return newBackend(t.Fallback, t) })
}

// blockCache returns where records that block are kept, nil for nowhere.
func (t *Throttler) blockCache() *blockCache {
	if t.BlockCache <= 0 {
		return nil
	}
	return t.blocks.get(func() *blockCache { return newBlockCache(t.BlockCache, t.BlockCacheTTL) })
}

func (t *Throttler) queueTimeout() time.Duration {
	if t.QueueTimeout <= 0 {
		return DefaultQueueTimeout
	}
	return t.QueueTimeout
}

func (t *Throttler) recordCache() int {
	if t.RecordCache == 0 {
		return DefaultRecordCache
	}
	return t.RecordCache
}

// startObserving returns when an observed call begins. Others need no clock.
func (t *Throttler) startObserving() (start time.Time) {
	if t.Observe != nil {
		start = time.Now()
	}
	return start
}

func (t *Throttler) observe(ctx context.Context, rule Rule, d *Decision, start time.Time) {
	if t.Observe != nil {
		d.took = time.Since(start)
		t.Observe(ctx, rule, *d)
	}
}
