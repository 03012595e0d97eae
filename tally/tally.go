// Package tally counts a throttler's decisions in the memory of the process:
// how often each rule and condition let calls pass or stopped them, and which
// values were stopped most.
//
//	t := tally.New()
//	limits.Observe = t.Observe
//	http.Handle("/tally", t) // on a listener that only operators reach
//
// As an http.Handler a [Tally] shows the counts as a page and as JSON. [Tally.MarshalJSON] is that
// JSON for programs, and says what each count is.
//
// # What is counted
//
// Every observed decision is one call of its rule, and one call of each
// condition in the rule that was asked. At both levels a call is counted under exactly one of
// these names, so they add up to all calls:
//
//	              the rule                         one of its conditions
//	authorized    authorized the call              had room for the call
//	blocked       blocked the call                 was full or banned, and the call was blocked
//	would_block   would have blocked it, but for   was full or banned, and the call would have
//	              Shadow                           been blocked, but for Shadow
//	overruled                                      was full or banned, and the call was authorized
//	                                               all the same, by another condition of All or First
//
// In a rule of Either, blocked of a condition are the calls that it blocked,
// alone or with others, and overruled is 0. In a rule of All, all conditions
// have the same blocked, and overruled tells how often one was full and another
// had room. In both, authorized of a condition are the calls for which it had
// room, although another may have blocked them.
//
// A hit that Throttler.Cancel takes back later stays counted. A Wait is one
// call, however often it tried. It is blocked if it gave up, also if its ctx
// ended before a condition was found full. Peek is not observed.
//
// # Logins
//
// Decisions do not tell failed logins from successful ones. For package login
// set Guard.Observe = t.ObserveLogin. It counts each attempt once, with its
// result, and the names, addresses and networks that fail most.
//
// An attempt is not a decision. If one is blocked as a stranger's and then let
// in because the name is known, Throttler.Observe sees two decisions, one of
// them blocked (with Shadow: would have been). The JSON's logins have the final result.
// So judge logins by these, in a trial too.
//
// # Bans
//
// The page shows the bans that decisions have met or set, up to MaxValues, and not with HashKey
// nor for values of more than 256 bytes. It lifts them if it may:
//
//	t.Look, t.Lift = limits.Peek, limits.Reset
//	t.LiftKeys = []string{os.Getenv("OPERATOR_KEY")}
//
// # What is recorded
//
// The tally records identifiers of rules, names of conditions, values of
// conditions that blocked a call or would have, and names and addresses of
// failed logins. With [Tally.HashKey] values are recorded as hashes, and with a
// negative [Tally.MaxValues] not at all.
//
// # Bounds
//
// The options bound the memory. With the defaults a condition takes about 150
// kB once it has blocked 1,000 values, and a whole tally at most 80 MB. The
// most blocked values of a condition are kept by the Space-Saving algorithm:
// see [Tally.MarshalJSON] for its guarantee.
package tally

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/internal/address"
	"github.com/adaptivethrottler/throttler/internal/counts"
	"github.com/adaptivethrottler/throttler/login"
)

// defaultMaxValues is the default of [Tally.MaxValues].
const defaultMaxValues = 1000

// A Tally keeps counts per rule and condition, and the most blocked values of
// each condition. Make it by [New].
//
// The exported fields are options. They must be set before the first use, and a
// Tally must not be copied. All methods are safe for concurrent use. A Tally
// starts no goroutine and needs no Close.
type Tally struct {
	// MaxNames is the number of rules and conditions, together, that are
	// counted: one for each Rule.Identifier and one for each Condition.Name in
	// it. Later ones are not counted (see uncounted in [Tally.MarshalJSON]), nor are names
	// of more than 256 bytes. Default: 256.
	MaxNames int

	// MaxValues is the number of values kept for each condition, and of names,
	// addresses and networks of failed logins. Zero means the default; negative
	// disables it. Default: 1,000.
	MaxValues int

	// HashKey replaces values by keyed hashes, for privacy: by the first 16
	// bytes of their HMAC-SHA-256 under this key, as 32 hexadecimal digits.
	// Equal values still count together. To find a value, hash it:
	//
	//	printf %s 'value' | openssl dgst -sha256 -hmac 'key' -r | cut -c 1-32
	//
	// Use 32 random bytes, so that values cannot be tried out. To hash some
	// conditions only, hand Observe a changed copy of the rule. Default: values
	// are kept in clear text.
	HashKey []byte

	// Look and Lift let the page show which bans hold now, also if another process has lifted
	// one, and lift them. They are Throttler.Peek and Throttler.Reset, or functions that choose
	// between several Throttlers by the rule's Identifier. The rule has one condition. Default:
	// the page shows the bans that decisions have met, until they end.
	Look func(ctx context.Context, rule throttler.Rule) (throttler.Decision, error)
	Lift func(ctx context.Context, rule throttler.Rule) error

	// LiftKeys are secrets, of which the page asks for one to lift a ban. Default: the page
	// lifts none.
	LiftKeys []string

	epoch atomic.Pointer[epoch]
}

// An epoch holds what was counted since a Reset.
type epoch struct {
	since time.Time
	table counts.Table

	names, addrs, networks counts.Values // of failed logins; names is locked for all three

	bans bans

	robotsMu sync.Mutex
	robots   map[robotCount]uint64 // without Requests
}

// New returns an empty Tally whose counts begin now.
func New() *Tally {
	t := new(Tally)
	t.Reset()
	return t
}

// Reset forgets all counts, names and values. Counting begins again now. A
// concurrent call is counted in full, before or after.
//
// Counts do not fade with time, and the error of the most blocked values grows
// with all calls ever blocked. So a program that runs for long should reset its
// tally, for example every day, after it has saved what [Tally.MarshalJSON] returns.
func (t *Tally) Reset() {
	t.epoch.Store(&epoch{since: time.Now().UTC()})
}

// Observe counts one decision. It fits Throttler.Observe. It keeps neither rule
// nor d, and ignores the ctx.
//
// An authorized decision costs one atomic addition for the rule and one for
// each condition, with no lock and no allocation. A condition that blocks takes
// a lock of its own.
func (t *Tally) Observe(_ context.Context, rule throttler.Rule, d throttler.Decision) {
	t.epoch.Load().table.Observe(&rule, &d, t.MaxNames, t.countValue)
	t.noteBans(&rule, &d)
}

// countValue counts a value that n blocked or would have blocked.
func (t *Tally) countValue(n *counts.Condition, value string) {
	if t.maxValues() == 0 {
		return
	}
	value = t.kept(value)
	n.Values.Lock()
	defer n.Values.Unlock()
	n.Values.Count(value, t.maxValues())
}

// ObserveLogin counts one attempt to log in. It fits login.Guard.Observe. It
// keeps nothing else of e, and ignores the ctx. Names, addresses and networks
// of failed attempts are recorded like values of conditions: with HashKey as
// hashes. Attempts of several guards are counted together. To tell them apart,
// give each guard a Tally.
func (t *Tally) ObserveLogin(_ context.Context, e login.Event) {
	in := t.epoch.Load()
	if !in.table.ObserveLogin(&e) || e.Result != login.Failed || t.maxValues() == 0 {
		return
	}
	name, addr, network := t.kept(e.Name), t.kept(address.Text(e.Addr, 64)), t.kept(address.Network(e.Addr, 24, 48))
	in.names.Lock()
	defer in.names.Unlock()
	in.names.Count(name, t.maxValues())
	in.addrs.Count(addr, t.maxValues())
	in.networks.Count(network, t.maxValues())
}

// maxRobots is the number of pairs of group and standing that are counted. Package robots has fewer.
const maxRobots = 64

// ObserveRobot counts a request by who sends it: the Group and the Standing of a
// robots.Identity. It fits robots.Policy.Observe:
//
//	policy.Observe = func(who robots.Identity) { t.ObserveRobot(who.Group, who.Standing.String()) }
func (t *Tally) ObserveRobot(group, standing string) {
	in := t.epoch.Load()
	in.robotsMu.Lock()
	defer in.robotsMu.Unlock()
	key := robotCount{Group: group, Standing: standing}
	if _, ok := in.robots[key]; !ok && len(in.robots) == maxRobots {
		in.table.Uncounted.Add(1)
		return
	}
	if in.robots == nil {
		in.robots = make(map[robotCount]uint64)
	}
	in.robots[key]++
}

// kept returns the form in which value is kept.
func (t *Tally) kept(value string) string {
	if t.HashKey != nil {
		value = t.hash(value)
	}
	return shorten(value)
}

func (t *Tally) hash(value string) string {
	h := hmac.New(sha256.New, t.HashKey)
	h.Write([]byte(value))
	return hex.EncodeToString(h.Sum(nil)[:16])
}

// maxValue is the longest value that is kept unchanged, in bytes.
const maxValue = 128

// shorten returns value or, if that is too long, its beginning and its SHA-256.
// The result is longer than maxValue then, so it never equals a value that is
// kept unchanged.
func shorten(value string) string {
	if len(value) <= maxValue {
		return value
	}
	hash := sha256.Sum256([]byte(value))
	var b strings.Builder
	b.WriteString(value[:maxValue-32])
	b.WriteString("...sha256:")
	b.WriteString(hex.EncodeToString(hash[:]))
	return b.String()
}

func (t *Tally) maxValues() int {
	if t.MaxValues == 0 {
		return defaultMaxValues
	}
	return max(t.MaxValues, 0)
}
