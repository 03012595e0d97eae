package rulefile

import (
	"math"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/adaptivethrottler/throttler"
	"google.golang.org/protobuf/types/known/structpb"
)

// This file implements descriptors as envoyproxy/ratelimit has them: a tree for
// each domain, whose keys must come in the order of the request's entries.

// The structure of the tree, as in envoyproxy/ratelimit's README. Keep it equal
// to schema.json.
type (
	domainYAML struct {
		Domain      string           `yaml:"domain"`
		Descriptors []descriptorYAML `yaml:"descriptors"`
	}
	descriptorYAML struct {
		Key            string           `yaml:"key"`
		Value          string           `yaml:"value"`
		RateLimit      *rateLimitYAML   `yaml:"rate_limit"`
		Descriptors    []descriptorYAML `yaml:"descriptors"`
		ShadowMode     bool             `yaml:"shadow_mode"`
		QuotaMode      bool             `yaml:"quota_mode"`
		ShareThreshold bool             `yaml:"share_threshold"`
		DetailedMetric bool             `yaml:"detailed_metric"` // for envoyproxy/ratelimit's own metrics
		ValueToMetric  bool             `yaml:"value_to_metric"`
		Metadata       map[string]any   `yaml:"metadata"`
	}
	rateLimitYAML struct {
		Unit            string `yaml:"unit"`
		RequestsPerUnit uint32 `yaml:"requests_per_unit"`
		Unlimited       bool   `yaml:"unlimited"`
		Name            string `yaml:"name"`
		Replaces        []struct {
			Name string `yaml:"name"`
		} `yaml:"replaces"`
	}
)

// Units are the lengths of a limit's units. A month is 30 days and a year 365,
// since sliding windows have no calendar.
var Units = map[string]time.Duration{
	"second": time.Second, "minute": time.Minute, "hour": time.Hour, "day": day,
	"week": 7 * day, "month": 30 * day, "year": 365 * day,
}

// EnvoyRule is the prefix of the identifiers under which descriptors count that
// no rule of the file is for.
const EnvoyRule = "envoy/"

// An Entry is one entry of a request's descriptor.
type Entry struct{ Key, Value string }

// A DescriptorLimit is the limit of a descriptor.
type DescriptorLimit struct {
	Name      string           // for Replaces, and for the client; may be empty
	Replaces  []string         // names of limits in the same request that do not apply beside this one
	Unlimited bool             // there is no Rule
	Quota     bool             // a request is over its quotas only if all of them are used up
	Metadata  *structpb.Struct // for Envoy; nil: none
	Rule      throttler.Rule
}

// A descriptors is one level of a tree.
type descriptors struct {
	children  map[Entry]*descriptor // without a Value: for all values
	wildcards []*descriptor         // in the order of the file
}

// A descriptor is one node of a tree.
type descriptor struct {
	descriptors
	entry  Entry
	values *regexp.Regexp   // that match the wildcard
	limit  *DescriptorLimit // nil: none. Its Rule has no values
	shared bool             // values that match the wildcard are counted together
}

// Descriptor returns the limit of a descriptor, with the values of the entries.
// ok is false if there is none: each entry must match a level of the domain's
// tree, and the last one must have a limit.
func (f *File) Descriptor(domain string, entries []Entry) (limit DescriptorLimit, ok bool) {
	level, found := f.domains[domain]
	if !found {
		return DescriptorLimit{}, false
	}
	var node *descriptor
	counted := slices.Clone(entries)
	for i, e := range entries {
		if node = level.find(e); node == nil {
			return DescriptorLimit{}, false
		}
		if node.shared {
			counted[i].Value = node.entry.Value
		}
		level = &node.descriptors
	}
	if node == nil || node.limit == nil {
		return DescriptorLimit{}, false
	}
	limit = *node.limit
	if !limit.Unlimited {
		c := limit.Rule.Either[0]
		c.Value = DescriptorValue(counted)
		limit.Rule.Either = []throttler.Condition{c}
	}
	return limit, true
}

// DescriptorRule returns the rule of a limit of descriptors, without a value: most requests
// in a unit. names tell it from the domain's other limits. unlimited reports whether there is
// no limit: nobody counts more than one a nanosecond, and the largest number stands for none.
func DescriptorRule(domain string, names []string, unit string, most uint32) (rule throttler.Rule, unlimited bool) {
	unit = strings.ToLower(unit)
	length, known := Units[unit]
	if most == math.MaxUint32 || known && int64(most) > int64(length) {
		return throttler.Rule{}, true
	}
	c := throttler.Condition{Name: strings.Join(names, ",") + " per " + unit, Max: int(most), TTL: length}
	if c.Max > throttler.MaxHits { // needs a bucket
		c.Algorithm = throttler.LeakyBucket
	}
	return throttler.Rule{Identifier: EnvoyRule + domain, Either: []throttler.Condition{c}}, false
}

// DescriptorValue returns the value that a descriptor with these entries is counted by.
func DescriptorValue(entries []Entry) string {
	var b strings.Builder
	for i, e := range entries {
		if i > 0 {
			b.WriteByte('&')
		}
		b.WriteString(url.QueryEscape(e.Key) + "=" + url.QueryEscape(e.Value))
	}
	return b.String()
}

// find returns the node of an entry: for its value, by a wildcard, or for all
// values.
func (d *descriptors) find(e Entry) *descriptor {
	if node := d.children[e]; node != nil {
		return node
	}
	for _, node := range d.wildcards {
		if node.entry.Key == e.Key && node.values.MatchString(e.Value) {
			return node
		}
	}
	return d.children[Entry{Key: e.Key}]
}

// domainTrees parses the trees of a file.
func (p *parsing) domainTrees(raw []domainYAML) map[string]*descriptors {
	trees := make(map[string]*descriptors)
	for i := range raw {
		path := at("$.envoy", i)
		switch {
		case raw[i].Domain == "":
			p.problem(path, "no domain")
		case trees[raw[i].Domain] != nil:
			p.problem(path+".domain", "domain %q is there twice", raw[i].Domain)
		}
		trees[raw[i].Domain] = p.descriptors(path, raw[i].Domain, nil, raw[i].Descriptors)
	}
	return trees
}

// descriptors parses one level. above are the levels above it.
func (p *parsing) descriptors(path, domain string, above []string, raw []descriptorYAML) *descriptors {
	level := &descriptors{children: make(map[Entry]*descriptor)}
	for i := range raw {
		d, path := &raw[i], at(path+".descriptors", i)
		entry := Entry{d.Key, d.Value}
		wild := strings.Contains(d.Value, "*")
		switch {
		case d.Key == "":
			p.problem(path, "no key")
		case level.children[entry] != nil:
			p.problem(path+".key", "the same key and value is there twice")
		case d.ShareThreshold && !wild:
			p.problem(path+".share_threshold", "share_threshold needs a value with *")
		}
		names := append(above[:len(above):len(above)], label(entry))
		node := &descriptor{
			descriptors: *p.descriptors(path, domain, names, d.Descriptors),
			entry:       entry, limit: p.descriptorLimit(path, domain, names, d), shared: d.ShareThreshold,
		}
		level.children[entry] = node
		if wild { // each * stands for any text, or none
			node.values = regexp.MustCompile(`(?s)^` + strings.ReplaceAll(regexp.QuoteMeta(d.Value), `\*`, `.*`) + `$`)
			level.wildcards = append(level.wildcards, node)
		}
	}
	return level
}

// label names a level in the name of a condition: "path=/login", or "address".
func label(e Entry) string {
	if e.Value == "" {
		return e.Key
	}
	return e.Key + "=" + e.Value
}

func (p *parsing) descriptorLimit(path, domain string, names []string, d *descriptorYAML) *DescriptorLimit {
	raw := d.RateLimit
	if raw == nil {
		return nil
	}
	limit := &DescriptorLimit{Name: raw.Name, Unlimited: raw.Unlimited, Quota: d.QuotaMode}
	if d.Metadata != nil {
		var err error
		if limit.Metadata, err = structpb.NewStruct(d.Metadata); err != nil {
			p.problem(path+".metadata", "%v, want what JSON can hold", err)
		}
	}
	for i, other := range raw.Replaces {
		if other.Name == "" || other.Name == raw.Name {
			p.problem(at(path+".rate_limit.replaces", i), "%q, want the name of another limit", other.Name)
		}
		limit.Replaces = append(limit.Replaces, other.Name)
	}
	_, known := Units[strings.ToLower(raw.Unit)]
	switch {
	case raw.Unlimited && raw.Unit != "":
		p.problem(path+".rate_limit.unit", "a unit, although it is unlimited")
	case !raw.Unlimited && !known:
		p.problem(path+".rate_limit.unit", "%q is no unit: want second, minute, hour, day, week, month or year", raw.Unit)
	}
	rule, unlimited := DescriptorRule(domain, names, raw.Unit, raw.RequestsPerUnit)
	rule.Shadow = d.ShadowMode || p.shadow
	limit.Rule, limit.Unlimited = rule, limit.Unlimited || unlimited
	return limit
}
