package throttler

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"time"
)

// MaxHits is the largest [Condition.Max] of a [SlidingWindow]. A window stores
// each hit on its own, in 3 bytes for a TTL of up to 27 minutes and in 6 at
// most, so a full record stays under 600 kB, well below the 1 MiB that
// memcached takes.
const MaxHits = 100_000

// ErrInvalidRule is wrapped by the error of every call that is given a rule
// which breaks what [Rule] and [Condition] ask for. The text names the field
// and its value.
var ErrInvalidRule = errors.New("throttler: invalid rule")

// A Rule says what is limited: one or more conditions, combined by either or
// all, and what happens to a condition that is found full.
//
// A rule is a plain value, usually built anew for every call with the Values
// of that call in its conditions.
type Rule struct {
	// Identifier tells this rule's records from those of other rules:
	// "login", "robots". Two rules with the same Identifier share the
	// records of conditions that have the same Name and Value. Required.
	Identifier string

	// Either blocks a call as soon as one of its conditions is full. The
	// other conditions count the call all the same.
	Either []Condition

	// All blocks a call only if every one of its conditions is full. The
	// conditions that are not full count the call. Exactly one of Either
	// and All is set.
	All []Condition

	// Lockout is how long a condition that is found full stays banned,
	// from the call that found it so. During a ban nothing is counted and
	// nothing prolongs it; when it ends, counting starts anew.
	// 0: no ban, a full condition opens as its hits expire.
	Lockout time.Duration

	// Shadow lets every call pass that the rule would block, to try out
	// limits before they are enforced: conditions are counted and banned as
	// usual, [Decision.WouldBlock] says what Status would have been, and
	// Outcomes say why.
	Shadow bool
}

// A Condition limits how often one value may occur.
type Condition struct {
	// Name tells the conditions of a rule apart: "ip", "login". Required,
	// and different for each condition of a rule.
	Name string

	// Value is what is counted: an address, a user name. Any bytes will
	// do, of any length, and none at all. Values that differ in any byte
	// are counted apart.
	Value string

	// Max is how many hits a window of TTL holds: 1 to [MaxHits].
	Max int

	// TTL is how long a hit counts: 1 ms or more.
	TTL time.Duration

	// Message is handed back in [Decision.Messages] when this condition
	// blocks. Empty: Name.
	Message string

	// Lockout overrides the rule's for this condition. 0: the rule's;
	// negative: this condition is never banned.
	Lockout time.Duration
}

// conditions returns the rule's conditions, whichever way they are combined.
func (r *Rule) conditions() []Condition {
	if len(r.Either) > 0 {
		return r.Either
	}
	return r.All
}

// lockout returns how long c is banned when it is found full; 0: not at all.
func (r *Rule) lockout(c *Condition) time.Duration {
	if c.Lockout != 0 {
		return max(c.Lockout, 0)
	}
	return r.Lockout
}

// message returns what c has to say when it blocks.
func (c *Condition) message() string {
	if c.Message != "" {
		return c.Message
	}
	return c.Name
}

// Validate reports what is wrong with r, in an error that wraps
// [ErrInvalidRule], or nil. Every method that takes a rule calls it; a program
// whose rules are configured may call it when it starts.
func (r Rule) Validate() error {
	if r.Identifier == "" {
		return invalid("Identifier", `""`, "a name")
	}
	if len(r.Either) > 0 && len(r.All) > 0 {
		return invalid("All", fmt.Sprintf("set (%d conditions) beside Either (%d)", len(r.All), len(r.Either)), "only one of the two")
	}
	if len(r.Either) == 0 && len(r.All) == 0 {
		return invalid("Either", "empty, and so is All", "conditions in one of the two")
	}
	if r.Lockout < 0 {
		return invalid("Lockout", r.Lockout, "0 or more")
	}
	return r.validateConditions()
}

func (r *Rule) validateConditions() error {
	conditions := r.conditions()
	for i := range conditions {
		c := &conditions[i]
		field, problem, want := c.problem()
		for j := 0; j < i && field == ""; j++ {
			if conditions[j].Name == c.Name {
				field, problem, want = "Name", fmt.Sprintf("%q, as that of condition %d", c.Name, j), "one of its own"
			}
		}
		if field != "" {
			return invalid(fmt.Sprintf("%s[%d].%s", r.kind(), i, field), problem, want)
		}
	}
	return nil
}

// problem returns the first field of c that breaks its contract, how it does
// and what was wanted instead, or "" for a good condition.
func (c *Condition) problem() (field string, problem any, want string) {
	switch {
	case c.Name == "":
		return "Name", `""`, "a name"
	case c.Max < 1 || c.Max > MaxHits:
		return "Max", c.Max, fmt.Sprintf("1 to %d", MaxHits)
	case c.TTL < time.Millisecond:
		return "TTL", c.TTL, "1ms or more"
	}
	return "", nil, ""
}

func (r *Rule) kind() string {
	if len(r.Either) > 0 {
		return "Either"
	}
	return "All"
}

func invalid(field string, problem any, want string) error {
	return fmt.Errorf("%w: %s is %v, want %s", ErrInvalidRule, field, problem, want)
}

// maxKey is the longest key that is written out in full. memcached takes 250
// bytes.
const maxKey = 249

// hashedKey begins the keys that are not written out in full. No plain key
// begins like it, since an identifier is never empty and a plain one holds
// no '#'.
const hashedKey = "#sha256#"

// key returns the memcached key of the record for a condition's value.
//
// It is identifier#name#value where those bytes make a legal key that can be
// taken apart again, as in the original, so that an operator can read it.
// Every other one is hashedKey and the SHA-256, in hexadecimal, of the three
// parts, each preceded by its length as 8 bytes, big endian. So two different
// triples never share a key, and no triple makes a key that memcached or its
// client refuses.
func key(identifier, name, value string) string {
	if plainKey(identifier, name, value) {
		return identifier + "#" + name + "#" + value
	}
	hash := sha256.New()
	for _, part := range []string{identifier, name, value} {
		var length [8]byte
		binary.BigEndian.PutUint64(length[:], uint64(len(part)))
		hash.Write(length[:])
		hash.Write([]byte(part))
	}
	return hashedKey + hex.EncodeToString(hash.Sum(nil))
}

// plainKey reports whether identifier#name#value is a legal key and the only
// triple to read so. The first two parts may not hold a '#', the last one may:
// all that follows the second '#' is the value.
func plainKey(identifier, name, value string) bool {
	return len(identifier)+len(name)+len(value)+2 <= maxKey &&
		identifier != "" &&
		strings.IndexByte(identifier, '#') < 0 && legal(identifier) &&
		strings.IndexByte(name, '#') < 0 && legal(name) &&
		legal(value)
}

// legal reports whether memcached takes the bytes of s in a key: neither a
// blank nor a control character of ASCII.
func legal(s string) bool {
	for i := 0; i < len(s); i++ {
		if s[i] <= ' ' || s[i] == 0x7f {
			return false
		}
	}
	return true
}

// decision draws the verdict from the outcomes of r's conditions.
func (r *Rule) decision(outcomes []Outcome) Decision {
	d := Decision{Status: Authorized, Outcomes: outcomes}
	for i := range outcomes {
		if err := outcomes[i].Err; err != nil && !errors.Is(d.Err, err) {
			d.Err = join(d.Err, err)
		}
	}
	d.WouldBlock = r.blocks(outcomes)
	if !d.WouldBlock || r.Shadow {
		return d
	}
	d.Status = Blocked
	d.RetryAfter = r.retryAfter(outcomes)
	conditions := r.conditions()
	d.Messages = make([]string, 0, len(outcomes))
	for i := range outcomes {
		if outcomes[i].Blocked {
			d.Messages = append(d.Messages, conditions[i].message())
		}
	}
	return d
}

// blocks reports whether the outcomes block the call: any of Either, every
// one of All.
func (r *Rule) blocks(outcomes []Outcome) bool {
	any := len(r.Either) > 0
	for i := range outcomes {
		if outcomes[i].Blocked == any {
			return any
		}
	}
	return !any
}

// retryAfter returns when a call that the outcomes block could be authorized:
// with All when the first of them takes a hit again, with Either when the last
// of them does. With Either that may be a condition that took this hit, and
// was filled by it.
func (r *Rule) retryAfter(outcomes []Outcome) time.Duration {
	wait := outcomes[0].RetryAfter
	for i := range outcomes {
		if len(r.Either) > 0 {
			wait = max(wait, outcomes[i].RetryAfter)
		} else {
			wait = min(wait, outcomes[i].RetryAfter)
		}
	}
	return wait
}

// join is errors.Join, but leaves a single error as it is.
func join(a, b error) error {
	if a == nil {
		return b
	}
	return errors.Join(a, b)
}
