package throttler

import (
	"hash/maphash"
	"math"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/adaptivethrottler/throttler/internal/items"
	"github.com/adaptivethrottler/throttler/internal/record"
)

// A plan is what all calls of a rule have in common: everything but the Value, Cost and Least
// of each condition, validated and prepared. Programs have few rules, though they build them
// anew for each call, so plans are looked up by what they say, and receipts share them.
type plan struct {
	home    *backend // where calls are settled that were decided there
	rule    Rule     // its conditions have no Value, Cost or Least
	limits  []prepared
	inPlace bool // all conditions are windows and buckets
}

// A prepared is what a plan has of one condition.
type prepared struct {
	record.Limit
	name, message string
	lockout       record.Lockout
	prefix        string     // of the keys of usual values; "": none has a plain key
	head          items.Head // the prefix, if the store is in memory
}

// plans remembers plans, each at one of a few places by what they say. Programs that give each
// customer a limit of its own may have thousands.
type plans struct {
	once sync.Once
	all  []atomic.Pointer[plan]
}

const (
	maxPlans = 4096
	places   = 4
)

// planOf returns the plan of rule, or why rule is invalid.
func (t *Throttler) planOf(rule *Rule) (*plan, error) {
	conditions := rule.conditions()
	at := rule.hash(conditions)
	t.plans.once.Do(func() { t.plans.all = make([]atomic.Pointer[plan], maxPlans) })
	for i := range uint64(places) {
		p := t.plans.all[(at+i)%maxPlans].Load()
		if p == nil {
			at += i // is free
			break
		}
		if p.is(rule, conditions) {
			return p, nil
		}
	}
	if err := rule.validate(); err != nil {
		return nil, err
	}
	p := newPlan(t.backend(), rule, conditions)
	t.plans.all[at%maxPlans].Store(p)
	return p, nil
}

// planSeed is that of [Rule.hash].
var planSeed = maphash.MakeSeed()

// hash tells the rules of most programs apart.
func (r *Rule) hash(conditions []Condition) uint64 {
	h := maphash.String(planSeed, r.Identifier)
	for i := range conditions {
		c := &conditions[i]
		h = 31*h + 7*uint64(c.Max) + uint64(c.TTL) + uint64(len(c.Name))
	}
	return h ^ h>>32
}

func newPlan(home *backend, rule *Rule, conditions []Condition) *plan {
	p := &plan{home: home, limits: make([]prepared, len(conditions)), inPlace: true}
	own := make([]Condition, len(conditions))
	for i := range conditions {
		own[i] = conditions[i]
		own[i].Value, own[i].Cost, own[i].Least = "", 0, 0
		// Of larger strings of the caller, such as a request, nothing else is to stay in memory.
		own[i].Name, own[i].Message = strings.Clone(own[i].Name), strings.Clone(own[i].Message)
		l := &p.limits[i]
		own[i].setLimit(&l.Limit)
		l.Prepare()
		l.name, l.message, l.lockout = own[i].Name, own[i].message(), rule.lockout(&own[i])
		if l.prefix = record.Prefix(rule.Identifier, l.name); home.memory != nil && l.prefix != "" {
			l.head, _ = home.memory.Head(l.prefix)
		}
		p.inPlace = p.inPlace && own[i].Algorithm <= LeakyBucket
	}
	p.rule = rule.with(own)
	p.rule.Identifier = strings.Clone(rule.Identifier)
	return p
}

// is reports whether p is the plan of rule, which has these conditions, and rule is valid.
func (p *plan) is(rule *Rule, conditions []Condition) bool {
	r := &p.rule
	own := r.conditions()
	if len(own) != len(conditions) || len(r.Either) != len(rule.Either) || r.Identifier != rule.Identifier ||
		r.Lockout != rule.Lockout || r.LockoutGrowth != rule.LockoutGrowth || r.MaxLockout != rule.MaxLockout ||
		r.CountAuthorizedOnly != rule.CountAuthorizedOnly || r.Shadow != rule.Shadow {
		return false
	}
	for i := range own {
		a, b := &own[i], &conditions[i]
		if a.Name != b.Name || a.Max != b.Max || a.TTL != b.TTL || a.Algorithm != b.Algorithm || a.Message != b.Message ||
			a.Lockout != b.Lockout || a.Period != b.Period || a.Prefetch != b.Prefetch {
			return false
		}
		if uint(b.Cost) > uint(b.Max) || uint(b.Least) > uint(max(b.Cost, 1)) || a.Prefetch > 0 && b.Least > 0 {
			return false
		}
	}
	return len(rule.All) == len(r.All) && len(rule.First) == len(r.First)
}

// limit returns the limit of one call.
func (l *prepared) limit(of *Condition) record.Limit {
	limit := l.Limit
	limit.Cost, limit.Least = of.Cost, of.Least
	return limit
}

// appendKey appends the key of a value to b.
func (p *plan) appendKey(b []byte, i int, value string) []byte {
	l := &p.limits[i]
	if l.prefix != "" && len(l.prefix)+len(value) <= record.MaxKey {
		if b := append(append(b, l.prefix...), value...); record.Legal(b[len(b)-len(value):]) {
			return b
		}
	}
	return record.AppendKey(b, p.rule.Identifier, l.name, value)
}

// keyOf returns the key of condition i, which is of: kept, as the store keeps it, if it has a
// record.
func (p *plan) keyOf(i int, of *Condition, kept string) string {
	if kept != "" {
		return kept
	}
	return string(p.appendKey(nil, i, of.Value))
}

// place returns the key of a value in two parts, for a store in memory.
func (p *plan) place(i int, value string) (head items.Head, tail string) {
	l := &p.limits[i]
	if l.prefix != "" && len(l.prefix)+len(value) <= record.MaxKey && record.LegalText(value) {
		return l.head, value
	}
	return p.home.memory.Head(record.Key(p.rule.Identifier, l.name, value))
}

// brief reports whether a part of a receipt can hold that many hits.
func brief(cost int) bool { return uint64(cost) <= math.MaxUint32 }
