// Package tally counts what a throttler decides, in the memory of the process:
// how often each rule and each of its conditions let calls pass or stopped them,
// and which values were stopped most.
//
//	t := tally.New()
//	limits.Observe = t.Observe
//	http.Handle("/tally", t) // on a listener that only operators reach
//
// A [Tally] is fed by Throttler.Observe. [Tally.Snapshot] returns its counts to
// programs, and as an http.Handler it shows them as a page and as JSON.
//
// # What is counted
//
// Every decision that is observed is one call of its rule, and one call of each
// condition in the rule. On both levels a call is counted under exactly one of
// these names, so that they add up to all calls:
//
//	             the rule                          one of its conditions
//	Authorized   authorized the call               had room for the call
//	Blocked      blocked the call                  was full or banned, and the call was blocked
//	WouldBlock   would have blocked it, but for    was full or banned, and the call would have
//	             Shadow                            been blocked, but for Shadow
//	Overruled                                      was full or banned, and the call was authorized
//	                                               all the same, by another condition of All
//
// So what a condition's counts mean follows the kind of its rule. In a rule of
// Either a condition that is full or banned always blocks: its Blocked are calls
// that it blocked, alone or with others, and Overruled is 0. In a rule of All the
// call is blocked only if all conditions are full: all have the same Blocked, and
// Overruled says how often one was full and another had room. In either kind the
// Authorized of a condition are calls for which the condition itself had room,
// while another may have blocked them.
//
// Beside these there are Banned, the calls that met a ban or set one; Failed,
// those over which the backend failed, which fail open if the throttler has no
// Fallback; and LostRaces, what concurrent calls cost each other.
//
// The tally counts decisions and nothing else, so a hit that is taken back later
// by Throttler.Cancel stays counted. A Wait is one call, however often it tried: it
// is blocked if it gave up, even where its ctx ended before a condition was found
// full. Peek is not observed.
//
// # Logins
//
// Decisions do not tell a login that failed from one that succeeded. For package
// login, set Guard.Observe = t.ObserveLogin: it counts each attempt once, with its
// result, and the names, addresses and networks that fail most. See [LoginCounts].
//
// Attempts and decisions are different things. An attempt takes several decisions:
// if it is blocked as a stranger's where its name is known, another one lets it in.
// Throttler.Observe sees both. So a tally of decisions has such a login as blocked,
// or in Shadow as one that would have been, and Logins has it as what it came to.
// Judge a login by Logins, in a trial too.
//
// # What is recorded
//
// Identifiers of rules, names of conditions, and values of conditions that
// blocked a call or would have, and names and addresses of logins that failed.
// Nothing else: no value that was not blocked, no
// message, no error's text, nothing from the ctx. With [Tally.HashKey] values are
// recorded only as hashes, and with a negative [Tally.MaxValues] not at all.
//
// # Bounds
//
// Memory is bounded by the options, whatever is observed. A condition's most
// blocked values are kept by the Space-Saving algorithm, which counts MaxValues
// of them, and which of them are kept is not chance: see [ConditionCounts.Values]
// for what is guaranteed. With the defaults a condition takes about 150 kB once
// that many values have been blocked, and all that a tally can be made to take is
// 80 MB.
package tally

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"strings"
	"sync/atomic"
	"time"

	"github.com/adaptivethrottler/throttler"
)

// The defaults of a [Tally].
const (
	DefaultMaxNames  = 256
	DefaultMaxValues = 1000
)

// A Tally keeps counts per rule and condition, and the most blocked values of
// each condition. It must be made by [New].
//
// The exported fields are options. They must be set before the first use, and a
// Tally must not be copied. All methods are safe for concurrent use. A Tally
// starts no goroutine and needs no Close.
type Tally struct {
	// MaxNames is the number of rules and conditions, together, that are told
	// apart: one for each Rule.Identifier and one for each Condition.Name in it.
	// Later ones are not counted (see [Snapshot.Uncounted]), nor are names of
	// more than 256 bytes. Default: 256.
	MaxNames int

	// MaxValues is the number of values that are kept for each condition, and
	// of names, addresses and networks of failed logins. Default: 1,000.
	// Negative: none.
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

	counts atomic.Pointer[counts]
}

// New returns an empty Tally whose counts begin now.
func New() *Tally {
	t := new(Tally)
	t.Reset()
	return t
}

// Reset forgets all counts, names and values, so that counting begins anew now.
// A call that is observed at the same time is counted in full, before or after.
//
// Nothing in a tally fades with time: a value that was blocked a lot last month
// stands above one that is blocked now, and the error of the most blocked values
// grows with all calls ever blocked. A program that runs for long resets its
// tally now and then, say every day, after it has saved a [Tally.Snapshot] if it
// needs one.
func (t *Tally) Reset() {
	t.counts.Store(newCounts(time.Now().UTC()))
}

// Observe counts one decision. It fits Throttler.Observe, keeps neither rule nor
// d, and ignores the ctx.
//
// A decision that authorizes costs one atomic addition for the rule and one for
// each condition, with no lock and no allocation. A condition that blocks takes a
// lock of its own for its most blocked values.
func (t *Tally) Observe(_ context.Context, rule throttler.Rule, d throttler.Decision) {
	c := t.counts.Load()
	r := c.rule(rule.Identifier, t.maxNames())
	if r == nil {
		c.uncounted.Add(1)
		return
	}
	verdict := verdictOf(&d)
	r.add(verdict, d.Err)
	conditions := rule.Either
	if len(conditions) == 0 {
		conditions = rule.All
	}
	complete := true
	for i := range d.Outcomes {
		o := &d.Outcomes[i]
		n := c.condition(r, i, o.Name, t.maxNames())
		if n == nil {
			complete = false
			continue
		}
		n.add(verdict, o)
		if o.Blocked && verdict != authorized && i < len(conditions) {
			t.count(n, conditions[i].Value)
		}
	}
	if !complete {
		c.uncounted.Add(1)
	}
}

// count counts a value that n blocked or would have.
func (t *Tally) count(n *condition, value string) {
	if t.maxValues() == 0 {
		return
	}
	value = t.kept(value)
	n.mu.Lock()
	defer n.mu.Unlock()
	n.values.count(value, t.maxValues())
}

// kept returns what is kept of value.
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

// maxValue is how long a value may be to be kept as it is, in bytes.
const maxValue = 128

// shorten returns value, or what stands for one that is too long to keep: how it
// begins, and the SHA-256 of all of it, so that long values are told apart like
// others. That is longer than any value which stands for itself, so no value is
// taken for what stands for another.
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

func (t *Tally) maxNames() int {
	if t.MaxNames < 1 {
		return DefaultMaxNames
	}
	return t.MaxNames
}

func (t *Tally) maxValues() int {
	if t.MaxValues == 0 {
		return DefaultMaxValues
	}
	return max(t.MaxValues, 0)
}
