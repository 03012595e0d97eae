// Package rulefile reads rules from YAML: which requests a rule applies to,
// what it counts, and its limits.
//
//	rules:
//	  - name: login
//	    for: {path: [/login], method: [POST]}
//	    either:
//	      - {name: network, value: "{network}", max: 50, per: 5m}
//	      - {name: user, value: "{user}", max: 5, per: 1m}
//	    lockout: 10m
//
// docs/rules.md is its manual, schema.json its JSON schema.
package rulefile

import (
	"cmp"
	_ "embed"
	"fmt"
	"maps"
	"math"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/internal/address"
	"github.com/adaptivethrottler/throttler/robots"
)

// A File is a parsed rule file. It is never changed.
type File struct {
	Servers   []string       // of memcached
	Store     string         // URL of Redis or Valkey; neither: process memory
	Trusted   []netip.Prefix // proxies that are believed
	Hops      int            // how many proxies there are, where that is what is known
	Forwarded string         // the header field with the client's address
	IPv6Bits  int            // of an IPv6 address that are counted
	Closed    bool           // refuse calls while the backend fails
	Shadow    bool           // all rules, and all limits for Envoy, are in shadow
	Rules     []*Rule
	Proxy     *Proxy            // nil: none
	Robots    *robots.Directory // nil: no rule asks who a robot is
	Warnings  Problems          // none of which keeps it from being used

	domains map[string]*descriptors // see Descriptor
}

// A Rule is one rule of a File.
type Rule struct {
	Name   string
	Public []string // conditions whose state clients are told
	Answer Answer

	selector   selector
	list       string // the key of its conditions: either, all or first
	conditions []condition
	template   throttler.Rule // without conditions
}

// An Answer is the response to a blocked request.
type Answer struct {
	Status int    // 429 unless the file says otherwise
	Type   string // of Body
	Body   string // empty: a default
}

// A condition is one condition of a Rule.
type condition struct {
	throttler.Condition                 // without a Value
	value               template        // makes the Value
	limits              map[string]int  // other limits, by Value
	limitsFile          string          // where some of them are; empty: none
	limitLines          map[string]int  // by Value, in that file
	exempt              map[string]bool // Values that are not counted
	networks            []netip.Prefix  // whose addresses are not counted
	skipMissing         bool            // requests without the attribute are not counted
}

// For returns the rules that apply to a request, in the order of the file, with
// the request's values. A rule of which no condition counts the request is left
// out.
func (f *File) For(r *Request) []throttler.Rule {
	var apply []throttler.Rule
	for _, rule := range f.Rules {
		if filled, ok := rule.Fill(r); ok {
			apply = append(apply, filled)
		}
	}
	return apply
}

// Fill returns the rule with the values of a request. ok is false if the rule
// does not apply to it.
func (r *Rule) Fill(request *Request) (rule throttler.Rule, ok bool) {
	m, ok := r.selector.selects(request)
	if !ok {
		return throttler.Rule{}, false
	}
	conditions := make([]throttler.Condition, 0, len(r.conditions))
	for i := range r.conditions {
		if c, ok := r.conditions[i].fill(request, m); ok {
			conditions = append(conditions, c)
		}
	}
	if len(conditions) == 0 {
		return throttler.Rule{}, false
	}
	return r.of(conditions), true
}

// of returns the rule for some of its conditions. If none of these bans, how bans grow is left
// out: no rule may say so alone.
func (r *Rule) of(conditions []throttler.Condition) throttler.Rule {
	rule := r.with(conditions)
	if rule.Lockout == 0 && !slices.ContainsFunc(conditions, func(c throttler.Condition) bool { return c.Lockout != 0 }) {
		rule.LockoutGrowth, rule.MaxLockout = 0, 0
	}
	return rule
}

func (r *Rule) with(conditions []throttler.Condition) throttler.Rule {
	rule := r.template
	switch r.list {
	case "all":
		rule.All = conditions
	case "first":
		rule.First = conditions
	default:
		rule.Either = conditions
	}
	return rule
}

// fill returns the condition with the value of a request. ok is false if the
// condition does not count it.
func (c *condition) fill(r *Request, m match) (filled throttler.Condition, ok bool) {
	value, complete := c.value.value(r, m)
	if !complete && c.skipMissing || c.exempts(r, value) {
		return throttler.Condition{}, false
	}
	return c.with(value), true
}

// with returns the condition with a value, and the limit for it.
func (c *condition) with(value string) throttler.Condition {
	filled := c.Condition
	filled.Value = value
	if limit, ok := c.limits[value]; ok {
		filled.Max = limit
	}
	return filled
}

func (c *condition) exempts(r *Request, value string) bool {
	return c.exempt[value] || address.In(r.Addr, c.networks)
}

// Rule returns the rule with a name, or nil.
func (f *File) Rule(name string) *Rule {
	for _, r := range f.Rules {
		if r.Name == name {
			return r
		}
	}
	return nil
}

// Reserved is the prefix of the identifiers under which the service itself
// counts. No rule of a file may have it.
const Reserved = "throttler-"

// The defaults of a File.
const (
	defaultIPv4Bits  = 24
	defaultIPv6Bits  = 64
	defaultForwarded = "X-Forwarded-For"
	defaultStatus    = http.StatusTooManyRequests
)

// ParseDuration parses a duration as time.ParseDuration does, or a number of
// days: "7d".
func ParseDuration(text string) (time.Duration, error) {
	days, found := strings.CutSuffix(text, "d")
	if !found {
		return time.ParseDuration(text)
	}
	n, err := strconv.ParseFloat(days, 64)
	if err != nil || n < 0 || n > float64(math.MaxInt64/day) {
		return 0, fmt.Errorf("%q is no number of days", days)
	}
	return time.Duration(n * float64(day)), nil
}

const day = 24 * time.Hour

// Schema is the JSON schema of a rule file.
//
//go:embed schema.json
var Schema string

// Limit returns a condition of a rule with the limit for value. ok is false if
// the file has no such condition.
func (f *File) Limit(rule, name, value string) (c throttler.Condition, ok bool) {
	if r := f.Rule(rule); r != nil {
		if c := r.condition(name); c != nil {
			return c.with(value), true
		}
	}
	return throttler.Condition{}, false
}

// Uses returns the attributes of a request that the rule needs, written as in a
// template: "host", "header:User-Agent".
func (r *Rule) Uses() []string {
	var uses []string
	if len(r.selector.hosts) > 0 {
		uses = append(uses, "host")
	}
	for name := range r.selector.fields {
		uses = append(uses, "field:"+name)
	}
	if r.selector.robot != nil {
		uses = append(uses, userAgent)
	}
	for i := range r.conditions {
		for _, p := range r.conditions[i].value.parts {
			if p.attribute != nil {
				uses = append(uses, cmp.Or(p.attribute.from, strings.Replace(p.attribute.name, "NAME", p.argument, 1)))
			}
		}
	}
	return uses
}

// RemoteAddress is the field in which Envoy sends the client's address.
const RemoteAddress = "remote_address"

// ForFields returns the rules whose for.field names exactly the given fields
// (domain may be missing), with their values. It is for front ends that know
// only these fields. The client's address is that of RemoteAddress.
func (f *File) ForFields(domain string, fields map[string]string) []throttler.Rule {
	request := &Request{Fields: maps.Clone(fields)}
	request.Addr, _ = netip.ParseAddr(fields[RemoteAddress]) // zero: unknown
	if request.Fields == nil {
		request.Fields = make(map[string]string)
	}
	request.Fields["domain"] = domain
	var apply []throttler.Rule
	for _, rule := range f.Rules {
		if !rule.selector.names(fields) {
			continue
		}
		if filled, ok := rule.Fill(request); ok {
			apply = append(apply, filled)
		}
	}
	return apply
}
