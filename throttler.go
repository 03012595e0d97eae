// Package throttler enforces rate limits, with its records in memcached, Redis or process
// memory: it protects logins, throttles robots and rations any resource, exactly, across
// any number of processes and machines.
//
// For a login form use package login, for HTTP requests package httpthrottle.
//
// # Use
//
// Make one [Throttler], and ask it with a [Rule] before each limited action:
//
//	limits := throttler.New(memstore.New()) // or a pool of memcached servers
//
//	err := limits.Allow(ctx, throttler.Rule{
//		Identifier: "api",
//		Either: []throttler.Condition{
//			{Name: "second", Value: customer, Max: 10, TTL: time.Second},
//			{Name: "day", Value: customer, Max: 10_000, TTL: 24 * time.Hour},
//		},
//	})
//	if err != nil {
//		return err // a BlockedError says why, and when to come back
//	}
//
// [Throttler.Authorize] is the general way: its [Decision] also says what is left, and can be
// given back.
//
// A condition counts one Value, and allows Max hits in any window of TTL. It is full
// while it has no room for another hit. With Either, a call is blocked if any condition
// is full. With All, it is blocked if every condition is. With First, it counts in the first
// condition that has room. With a Lockout, a call that
// finds a condition full bans its Value for a while.
//
// A rule is a plain value and may be built anew for each call. A record is stored
// under the rule's Identifier, the condition's Name and its Value. Programs that
// use the same names on the same servers count together.
//
// # By task
//
//   - Limit a function: [New], [Throttler.Allow], [Throttler.Authorize], [Rule],
//     [Condition]; rules from a configuration: [Rule.Validate], [RuleError].
//   - Choose how to count: [SlidingWindow], [LeakyBucket], [Calendar], [InFlight].
//   - Combine limits: [Rule.Either], [Rule.All], [Rule.First],
//     [Rule.CountAuthorizedOnly].
//   - Ban: [Rule.Lockout], [Rule.LockoutGrowth]; by hand [Throttler.Ban], [Throttler.Reset].
//   - Wait for a turn: [Throttler.Do], [Throttler.Wait].
//   - Give hits back: [Throttler.Cancel], [Throttler.CancelOnly], [Throttler.Refund]; from
//     another process [Decision.Receipt] and [Throttler.Redeem].
//   - Count bytes or items: [Condition.Cost], [Condition.Least].
//   - Settle a cost that is known only afterwards, as of tokens: [Throttler.Spend],
//     [Throttler.Settle].
//   - Limit what is in flight: [InFlight], [Throttler.Do], [Throttler.TryDo];
//     [Throttler.Hold], [Lease], [Throttler.Renew].
//   - Count by the calendar: [Calendar], [Period], [Unit].
//   - Show what is left: [Throttler.Peek], [Outcome].
//   - Try a limit out: [Rule.Shadow], [Simulation].
//   - Look at records: [RecordKey], [Inspect], [Record].
//   - Observe: [Throttler.Observe], [Throttler.Conflict], [Throttler.Stats]; packages tally
//     and otelthrottle.
//   - Choose a store: packages memstore, pool and redisstore; for your own [Client] and
//     exchange.Exchanger.
//   - Survive an outage: [Throttler.Fallback], [Throttler.FallbackShare], [Decision.Err], [ErrUnavailable],
//     [ErrOverloaded].
//
// # What it promises
//
// Exact: however many goroutines, processes and machines call at once, no more
// than Max hits are authorized in any window of TTL (for a bucket see
// [LeakyBucket]). There is no lock: records are written by compare-and-swap, and
// after a conflict the call is decided again.
//
// Precise: hits and bans end at their own time, though memcached keeps whole
// seconds. The resolution is a nanosecond. While a window holds more than 500 hits, each of
// them may count for TTL/1024 longer.
//
// Safe: a Value is any bytes of any length. Two different values never share a
// record, and none becomes an illegal key or a command.
//
// Fast: over package pool a decision takes one round trip, however many conditions it has.
// If another process has changed a record since this one saw it, it takes two, or three
// over a connection on which that has hardly ever happened. To count a call of several
// conditions, [Rule.CountAuthorizedOnly] takes one more. Over a Client that is no
// exchange.Exchanger, a decision takes two round trips, and one if it writes nothing. Callers of one process for
// one value share round trips. A condition in [Throttler.BlockCache] takes none.
//
// docs/exactness.md has the arguments, and the tests that guard each promise.
//
// # When the backend fails
//
// A failure of the backend is not an error of Authorize. The conditions that it
// affects fail open: they do not block, and [Decision.Err] holds the failure. So an
// outage of memcached is no outage of the login page. To fail closed, test Err. To
// count in each process meanwhile, set [Throttler.Fallback]. If ctx ends first, the
// undecided conditions fail open at once.
//
// Err matches [ErrUnavailable] if a server does not answer, [ErrOverloaded] if this
// process asks more than the servers can carry, and ctx's error if ctx has ended.
//
// # Clocks
//
// Windows use the callers' clocks: set them by NTP. If clocks differ by up to d, a window
// admits as one of TTL-d would, and a bucket at most Max + (T+d)*Max/TTL in any time T,
// however often each caller asks. After its last call, a clock that is ahead locks nobody out
// for longer than TTL or a minute, whichever is longer, or its Lockout. A
// debt by Settle stands. Nothing is promised for a window if clocks differ by its TTL or more.
//
// A hit of the clock that is ahead cannot be given back if the other one has counted in the
// same window within d after it, even if d is a millisecond: [Throttler.Cancel],
// [Throttler.Settle] and [Rule.CountAuthorizedOnly] then give back too little, never too much.
//
// # Stored records
//
// A record begins with a version. A value that does not decode is treated as absent and
// replaced. A record of a later version is left as it is: see [ErrNewerRecord].
//
// # Origin
//
// The semantics of rules are those of Schedule::AdaptiveThrottler 0.06, a Perl
// module by David Morel, which this package began as a port of.
package throttler

import (
	"context"
	"reflect"
	"sync"
	"time"

	"github.com/adaptivethrottler/throttler/internal/engine"
	"github.com/adaptivethrottler/throttler/internal/failure"
	"github.com/bradfitz/gomemcache/memcache"
)

// A Throttler authorizes or blocks calls by rules, with its records in the Client
// that it was made with: see [New]. All throttlers that use the same servers count together.
//
// The exported fields are options. Set them before the first use, and do not copy a
// Throttler after it. All methods are safe for concurrent use. No goroutine outlives
// a call, except these:
//
//   - [Throttler.Hold] renews leases until they are released.
//   - If ctx ends first, operations already begun run on until the client gives them up,
//     and a refused call gives back what it counted.
//   - Over a Client that is not an exchange.Exchanger, reads that were sent twice because
//     one was slow run on.
type Throttler struct {
	// Fallback decides the conditions whose backend failed. It is usually a
	// memstore: then each process counts by itself during an outage. It never allows
	// more than Max with what this process last saw of the record, if RecordCache has
	// it, so a full window stays full and a banned value banned. What it counts is not
	// carried back. It decides even if ctx has ended, so it should answer at once.
	// [Outcome.Err] still holds the failure. Default: none, such conditions fail open.
	Fallback Client

	// FallbackShare is the part of each Max that this process allows of its own in
	// the Fallback, at least one hit: with 1/8 in each of eight processes, they allow
	// no more than Max together. A call whose Cost is more than that is blocked: its
	// RetryAfter is until it fits into all of Max, and 1 s at least, when the backend may
	// answer again.
	// Default: all of Max. A value that is not in (0, 1] counts as 1.
	FallbackShare float64

	// BlockCache is the number of blocking records to keep in process memory:
	// bans, and full windows and buckets. A condition that such a record blocks
	// takes no round trip. The other conditions of the rule count as usual. A
	// record is used until it may open, and for at most BlockCacheTTL. Those that
	// were not used lately go first. Records of more than 64 KiB are not kept. Over a
	// memstore it changes nothing.
	// Default: none.
	BlockCache int

	// BlockCacheTTL is how long BlockCache uses a record. A Cancel, Reset or Ban
	// by another process goes unnoticed for up to that long. Those of this
	// Throttler are noticed at once. Default: 5 s.
	BlockCacheTTL time.Duration

	// RecordCache is the number of records to remember as they were last seen.
	// To change one that is still the same takes one round trip instead of two.
	// A remembered record alone decides nothing. A record counts once more for each
	// KiB of its size, or for each 256 bytes by default. Records of more than 64 KiB are
	// not remembered, nor are any over a Client that is not an exchange.Exchanger, unless
	// there is a Fallback.
	// Default: 131,072, which take 17 to 50 MB. Negative disables it.
	RecordCache int

	// QueueTimeout is the longest wait for a turn if this process asks more than
	// the backend can carry, or others keep changing the same record. After that
	// the condition fails with [ErrOverloaded]. Over a Client that is not an
	// exchange.Exchanger it is also the longest wait for a connection of a server that has
	// too many. Package pool has an option of its own for its queue. Default: 1 s.
	QueueTimeout time.Duration

	// Observe is called after every decision of Authorize, and at the end of
	// every Wait, authorized or not. It gets the rule and the Decision, and must
	// not change their slices. It runs on the caller's goroutine, so on many at
	// once. Default: none.
	Observe func(ctx context.Context, rule Rule, d Decision)

	// Conflict is called when this process uses the same record (the same
	// Identifier, Name and Value) with another Max, TTL or Algorithm than
	// before. Usually two rules share an Identifier by mistake. It is called
	// once for each Identifier and Name, on the caller's goroutine, with the
	// later rule and an error to log. It changes no decision. The latest 4,096
	// records are compared. Default: none.
	Conflict func(rule Rule, err error)

	client    Client
	once      sync.Once // makes decider, when the options are set
	decider   *engine.Engine
	plans     plans
	conflicts conflicts
}

// The defaults of options.
const (
	defaultQueueTimeout  = time.Second
	defaultBlockCacheTTL = 5 * time.Second

	// The records of the default take 130 bytes each of one hit, 17 MB in all, and up to 50 MB
	// if they are larger.
	defaultRecordCache = 131_072

	// defaultLarge is how many bytes of a record count once more, if RecordCache is not set.
	defaultLarge = 256
)

// New returns a Throttler that keeps its records in client: make one for a program. It
// panics if client is nil, or a nil pointer.
func New(client Client) *Throttler {
	v := reflect.ValueOf(client)
	if client == nil || v.Kind() == reflect.Pointer && v.IsNil() {
		panic("throttler: New with a nil Client")
	}
	return &Throttler{client: client}
}

// check panics if t or ctx cannot be used.
func (t *Throttler) check(ctx context.Context) {
	if t == nil || t.client == nil {
		panic("throttler: this Throttler has no store: make it by throttler.New, as in throttler.New(memstore.New())")
	}
	if ctx == nil {
		panic("throttler: nil ctx: pass that of the request, or context.Background()")
	}
}

// Authorize decides whether a call may happen now, and counts it: ask it before each
// limited action.
//
// The error matches [ErrInvalidRule]: the rule is wrong. The Decision is then the
// zero one, which is Blocked. A failure of the backend is not an error: the
// conditions that it affects fail open, and [Decision.Err] says why. If ctx ends
// first, Authorize returns at once, and the undecided conditions fail open.
//
// A condition that is banned, or has no room for the call, blocks the call and does
// not count it. With a Lockout, a full condition is banned from now on. Every other
// condition counts the call, even if another condition blocks it; see
// [Rule.CountAuthorizedOnly].
func (t *Throttler) Authorize(ctx context.Context, rule Rule) (d Decision, err error) {
	t.check(ctx)
	p, err := t.prepare(&rule)
	if err != nil {
		return Decision{}, err
	}
	t.authorize(ctx, p, &rule, &d)
	return d, nil
}

// authorize is Authorize of a rule that was prepared. d is zero.
func (t *Throttler) authorize(ctx context.Context, p *preparedRule, rule *Rule, d *Decision) {
	start := t.startObserving()
	var few [fewConditions]engine.Demand
	var told [fewConditions]engine.Outcome
	demands, out, many := p.room(few[:0], told[:])
	demands = p.demands(rule, demands)
	a := p.answer()
	t.findConflicts(p, rule, demands)
	p.plan.Authorize(ctx, demands, a.receipt, out)
	p.conclude(d, out, a.outcomes, a.messages)
	d.receipt = a.receipt
	many.release()
	t.observe(ctx, rule, d, start)
}

// Allow is [Throttler.Authorize] in one error: nil if the call may happen, or a
// [*BlockedError]. Another error matches [ErrInvalidRule]: the rule is wrong. If the backend
// fails, Allow fails open and returns nil. What it counts cannot be given back: for hits in
// flight use [Throttler.Do].
func (t *Throttler) Allow(ctx context.Context, rule Rule) error {
	d, err := t.Authorize(ctx, rule)
	if err == nil && d.Status == Blocked {
		err = &BlockedError{d}
	}
	return err
}

// Peek returns the Decision that [Throttler.Authorize] would return now, to show what is
// left. Remaining is what would remain after the call. It counts no hit and sets no ban.
// Its errors are those of Authorize.
func (t *Throttler) Peek(ctx context.Context, rule Rule) (d Decision, err error) {
	t.check(ctx)
	p, err := t.prepare(&rule)
	if err != nil {
		return Decision{}, err
	}
	var few [fewConditions]engine.Demand
	var told [fewConditions]engine.Outcome
	demands, out := p.demands(&rule, few[:0]), p.outcomes(told[:])
	t.findConflicts(p, &rule, demands)
	p.plan.Peek(ctx, demands, out)
	p.conclude(&d, out, make([]Outcome, len(out)), nil)
	return d, nil
}

// Wait sleeps until rule authorizes the call, and returns that Decision: use it instead of
// [Throttler.Authorize] if every call is to happen, at a limited rate.
//
// If there is an error the Decision is Blocked, and the error matches
//
//   - ctx.Err() if ctx ends first. If ctx cuts a try short, that try may have
//     counted; [Throttler.Cancel] takes it back.
//   - [context.DeadlineExceeded], at once, if the calls before this one leave no
//     time for it before ctx's deadline.
//   - [ErrOverloaded] if 10,000 calls of this process already wait for one of the conditions.
//   - [ErrInvalidRule], as with [Throttler.Authorize].
//
// A call that waits leaves no hit and sets no ban, as if the rule had CountAuthorizedOnly
// and no Lockout. It waits for the end of existing bans. If it has counted in one of several
// conditions when another one refuses it, it gives the hit back. An Authorize that finds the
// first one full meanwhile may ban it. That ban stays, unless its rule has
// CountAuthorizedOnly and several conditions.
//
// Calls of one process that wait for the same condition are served first come,
// first served. With Either, a call waits for the condition that opens last, and
// other calls may use the others meanwhile. With All or First, it waits for the one that
// opens first. A call with a Cost waits until all its hits fit, or [Condition.Least] of them,
// and smaller calls behind it wait too. Calls of different processes compete.
//
// Wait notices a Release, Cancel, Reset or Ban through the same Throttler at once, and one
// of another process within a minute, or a second for hits in flight.
//
// If the backend fails, this process lets one hit through every TTL/Max until the
// backend answers again. The first one comes no earlier than the time that the backend
// gave last.
// Decision.Err holds the failure. With [Throttler.Fallback], the fallback decides
// instead.
//
// A call that returns an error before it has asked the backend has Outcomes by the
// queue alone: a condition that other calls wait for is Blocked.
func (t *Throttler) Wait(ctx context.Context, rule Rule) (d Decision, err error) {
	t.check(ctx)
	p, err := t.prepare(&rule)
	if err != nil {
		return Decision{}, err
	}
	start := t.startObserving()
	demands, out, a := p.demands(&rule, nil), p.outcomes(nil), p.answer()
	t.findConflicts(p, &rule, demands)
	retry, err := p.plan.Wait(ctx, demands, a.receipt, out)
	p.conclude(&d, out, a.outcomes, a.messages)
	if d.receipt = a.receipt; err != nil {
		d.Status = Blocked // even if the last try authorized it, or failed open
		if retry >= 0 {
			d.RetryAfter = retry
		}
	}
	t.observe(ctx, &rule, &d, start)
	return d, err
}

// Reset lets the values of rule in again: it forgets the hits and lifts the bans of all
// its conditions, in the fallback too.
//
// The error matches [ErrInvalidRule], or is the backend's. The records that it does
// not affect are gone. If ctx ends first, the error matches ctx's too, and deletions that
// have begun go on.
func (t *Throttler) Reset(ctx context.Context, rule Rule) error {
	t.check(ctx)
	p, err := t.prepare(&rule)
	if err != nil {
		return err
	}
	return p.plan.Reset(ctx, p.demands(&rule, nil))
}

// Ban keeps values out by hand: it bans those of all conditions of rule for d from now, in
// the fallback too.
//
// The error matches [ErrInvalidRule] if rule is invalid or d is not positive, or is
// the backend's. The values that it does not affect are banned.
//
// A ban that ends later stays. [Throttler.Reset] lifts a ban. Other processes notice
// both within their [Throttler.BlockCacheTTL].
func (t *Throttler) Ban(ctx context.Context, rule Rule, d time.Duration) error {
	t.check(ctx)
	p, err := t.prepare(&rule)
	switch {
	case err != nil:
		return err
	case d <= 0:
		return rule.invalid("Ban", d, "more than 0")
	}
	return p.plan.Ban(ctx, p.demands(&rule, nil), d)
}

// Client returns the Client that t was made with, for packages that build on a Throttler
// and keep something beside its records.
func (t *Throttler) Client() Client { return t.client }

// engine returns what decides the calls of t.
func (t *Throttler) engine() *engine.Engine {
	t.once.Do(func() {
		c := engine.Config{
			Client: t.client, BlockCache: t.BlockCache,
			BlockTTL:     positive(t.BlockCacheTTL, defaultBlockCacheTTL),
			QueueTimeout: positive(t.QueueTimeout, defaultQueueTimeout),
			Records:      t.RecordCache, Large: 1024, Outlasts: t.Fallback != nil,
		}
		if c.Records == 0 {
			c.Records, c.Large = defaultRecordCache, defaultLarge
		}
		t.decider = engine.New(c)
	})
	if t.Fallback != nil { // one that is set late serves too, though it knows less of what was seen
		t.decider.UseFallback(t.Fallback, t.FallbackShare)
	}
	return t.decider
}

// positive returns d, or byDefault if d is not positive.
func positive(d, byDefault time.Duration) time.Duration {
	if d <= 0 {
		return byDefault
	}
	return d
}

// startObserving returns the time if calls are observed.
func (t *Throttler) startObserving() (start time.Time) {
	if t.Observe != nil {
		start = time.Now()
	}
	return start
}

func (t *Throttler) observe(ctx context.Context, rule *Rule, d *Decision, start time.Time) {
	if t.Observe != nil {
		d.took = time.Since(start)
		t.Observe(ctx, *rule, *d)
	}
}

// Stats counts what a Throttler did since it was made, for metrics.
type Stats struct {
	// Exchanges is the number of times that a record was read, written, or
	// both. Over package pool, if each call has one condition, it is the number
	// of round trips.
	Exchanges uint64

	// Guesses is the number of exchanges that were decided on a remembered
	// record. RightGuesses is the number of them that found it unchanged and
	// wrote it: each saved a round trip.
	Guesses      uint64
	RightGuesses uint64

	// LostRaces is the number of times that a condition was decided again
	// because another process had changed its record.
	LostRaces uint64

	// CacheHits is the number of conditions that [Throttler.BlockCache] blocked.
	CacheHits uint64

	// ClockAhead is the number of times that a call found a record which another process
	// had written by a clock more than a second ahead of this one's.
	ClockAhead uint64

	// Of the hits that were taken ahead, see [Condition.Prefetch]: InHand is how many may
	// be spent now, GivenBack how many were given back with the next exchange, and Expired
	// how many were dropped before, and count until they expire.
	InHand             int
	GivenBack, Expired uint64

	// Waiting is the number of records that calls of [Throttler.Wait] wait for now.
	Waiting int

	// Remembered is the number of records that are remembered now: see
	// [Throttler.RecordCache]. Asking is how many of them calls ask about.
	Remembered, Asking int
}

// Stats returns the counts so far, and the numbers of now.
func (t *Throttler) Stats() Stats {
	s := t.engine().Stats()
	return Stats{
		Exchanges: s.Exchanges, Guesses: s.Guesses, RightGuesses: s.RightGuesses, LostRaces: s.LostRaces, CacheHits: s.CacheHits,
		ClockAhead: s.ClockAhead,
		InHand:     s.InHand, GivenBack: s.GivenBack, Expired: s.Expired,
		Waiting: s.Waiting, Remembered: s.Remembered, Asking: s.Busy,
	}
}

// A Client stores records: pass one to [New], such as a memstore, a pool of memcached
// servers or a redisstore, or write one for a store of your own (docs/stores.md). It has
// five methods of [memcache.Client] of github.com/bradfitz/gomemcache, with the same
// meanings and errors.
//
// The throttler calls the methods from several goroutines at once, always with
// legal keys. An item that the Client gets or returns belongs to the throttler, which
// does not change the Value of a returned item.
//
// A Client may implement Exchanger of package exchange, and its errors KeyError and
// MaybeDoneError of that package.
type Client interface {
	Get(key string) (*memcache.Item, error)
	GetMulti(keys []string) (map[string]*memcache.Item, error)
	Add(item *memcache.Item) error
	CompareAndSwap(item *memcache.Item) error
	Delete(key string) error
}

// ErrOverloaded matches, by errors.Is, the error of a condition that was not decided
// in time although its server answers. This process asks more than the server can
// carry, or too many others change the same record.
var ErrOverloaded = failure.ErrOverloaded

// ErrUnavailable matches, by errors.Is, the error of a condition whose server does not
// answer: it is down, cut off or hung, or has too many connections to take another one.
var ErrUnavailable = failure.ErrUnavailable

// ErrNoCAS matches, by errors.Is, the error of a condition whose server is set up wrongly:
// its records come without a CAS token, so nothing can be stored. memcached runs with -C,
// or what answers in its place knows no tokens.
var ErrNoCAS = failure.ErrNoCAS
