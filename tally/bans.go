package tally

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/adaptivethrottler/throttler"
)

// maxBanName is the longest identifier, name or value of a ban that is kept, in bytes.
const maxBanName = 256

// bans are the bans that decisions have met or set, and that have not ended.
type bans struct {
	mu     sync.Mutex
	all    map[banKey]ban // guarded by mu
	pruned time.Time      // when those that had ended were last removed; guarded by mu
}

type banKey struct{ identifier, name, value string }

// A ban is one of a value.
type ban struct {
	condition throttler.Condition // the strings are its own
	until     time.Time
}

// ObserveBans notes the bans in a decision for the page, and counts nothing. [Tally.Observe] does
// it too: this is for a Throttler whose decisions are not to be counted, as that of a login
// guard. It fits Throttler.Observe.
func (t *Tally) ObserveBans(_ context.Context, rule throttler.Rule, d throttler.Decision) {
	t.noteBans(&rule, &d)
}

func (t *Tally) noteBans(rule *throttler.Rule, d *throttler.Decision) {
	if t.HashKey != nil || t.maxValues() == 0 {
		return
	}
	var conditions []throttler.Condition
	for i := range d.Outcomes {
		o := &d.Outcomes[i]
		if !o.Banned || o.RetryAfter <= 0 {
			continue
		}
		if conditions == nil {
			conditions = rule.Conditions()
		}
		if i < len(conditions) && max(len(rule.Identifier), len(o.Name), len(conditions[i].Value)) <= maxBanName {
			t.epoch.Load().bans.note(rule.Identifier, &conditions[i], time.Now().Add(o.RetryAfter), t.maxValues())
		}
	}
}

// note notes a ban, if there is room for it among the most bans.
func (b *bans) note(identifier string, c *throttler.Condition, until time.Time, most int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	key := banKey{identifier, c.Name, c.Value}
	if known, ok := b.all[key]; ok {
		known.until = until
		b.all[key] = known
		return
	}
	if len(b.all) >= most && !b.prune() {
		return
	}
	key = banKey{strings.Clone(identifier), strings.Clone(c.Name), strings.Clone(c.Value)}
	own := *c
	own.Name, own.Value, own.Message = key.name, key.value, ""
	if b.all == nil {
		b.all = make(map[banKey]ban)
	}
	b.all[key] = ban{own, until}
}

// prune removes the bans that have ended, once a second, and reports whether there was one. b.mu
// is held.
func (b *bans) prune() (room bool) {
	now := time.Now()
	if now.Sub(b.pruned) < time.Second {
		return false
	}
	b.pruned = now
	for key, of := range b.all {
		if !of.until.After(now) {
			delete(b.all, key)
			room = true
		}
	}
	return room
}

// A banned is a ban on the page.
type banned struct {
	Rule, Condition, Value string
	For                    time.Duration // how long it goes on
	ID                     string

	rule throttler.Rule
}

// banned returns up to most of the bans that hold, those of one rule together, the longest first,
// and how many there are, as far as is known.
func (t *Tally) banned(ctx context.Context, most int) (shown []banned, all int) {
	b := &t.epoch.Load().bans
	for _, of := range b.holding() {
		if len(shown) == most {
			all++
			continue
		}
		if t.look(ctx, &of) {
			shown = append(shown, of)
			all++
		} else {
			b.forget(&of)
		}
	}
	return shown, all
}

// look asks t.Look whether a ban still holds, and for how long. What cannot be asked holds.
func (t *Tally) look(ctx context.Context, of *banned) bool {
	if t.Look == nil {
		return true
	}
	d, err := t.Look(ctx, of.rule)
	if err != nil || d.Err != nil || len(d.Outcomes) != 1 {
		return true
	}
	of.For = d.Outcomes[0].RetryAfter
	return d.Outcomes[0].Banned
}

// holding returns the bans that have not ended.
func (b *bans) holding() (all []banned) {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := time.Now()
	for key, of := range b.all {
		if of.until.After(now) {
			all = append(all, banned{
				Rule: key.identifier, Condition: key.name, Value: key.value, For: of.until.Sub(now), ID: key.id(),
				rule: throttler.Rule{Identifier: key.identifier, Either: []throttler.Condition{of.condition}},
			})
		}
	}
	slices.SortFunc(all, func(a, b banned) int {
		return cmp.Or(cmp.Compare(a.Rule, b.Rule), cmp.Compare(a.Condition, b.Condition), cmp.Compare(b.For, a.For), cmp.Compare(a.Value, b.Value))
	})
	return all
}

// id names the ban in a request: a URL has no value of a client in it.
func (k banKey) id() string {
	h := sha256.New()
	for _, part := range []string{k.identifier, k.name, k.value} {
		h.Write([]byte(part))
		h.Write([]byte{0xff})
	}
	return hex.EncodeToString(h.Sum(nil)[:8])
}

// find returns the ban of an id, if it holds.
func (b *bans) find(id string) (banned, bool) {
	all := b.holding()
	i := slices.IndexFunc(all, func(of banned) bool { return of.ID == id })
	if i < 0 {
		return banned{}, false
	}
	return all[i], true
}

func (b *bans) forget(of *banned) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.all, banKey{of.Rule, of.Condition, of.Value})
}
