package envoy

import (
	"slices"
	"strings"
	"time"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/cmd/throttler/internal/rulefile"
	common "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/protobuf/types/known/structpb"
)

// A question is what is asked about one descriptor.
type question struct {
	hits      uint64 // 0: only look
	refund    bool   // give the hits back
	limits    []limit
	unlimited bool // beside limits
	quota     bool // see rulefile.DescriptorLimit
	metadata  *structpb.Struct
}

// A limit is a rule for a descriptor.
type limit struct {
	rule  throttler.Rule
	named bool   // as in name, not after the rule
	name  string // may be empty

	public []string // conditions whose state the client is told
}

// nameOf returns what the client is told as the name of a condition.
func (l *limit) nameOf(c *throttler.Condition) string {
	if l.named {
		return l.name
	}
	return l.rule.Identifier + "/" + c.Name
}

// leaveOut leaves conditions out of a rule of All or First that can never take the hits, unless
// none can. Such hits count, and are given back, where the others have room.
func (l *limit) leaveOut(hits uint64) {
	for _, conditions := range []*[]throttler.Condition{&l.rule.All, &l.rule.First} {
		able := slices.DeleteFunc(slices.Clone(*conditions), func(c throttler.Condition) bool { return hits > uint64(c.Max) })
		if len(able) > 0 {
			*conditions = able
		}
	}
}

// ask returns the questions of a request, one for each descriptor.
func ask(file *rulefile.File, r *rls.RateLimitRequest) []question {
	questions := make([]question, len(r.Descriptors))
	var replaced []string
	for i, d := range r.Descriptors {
		replaced = append(replaced, questions[i].fill(file, r, d)...)
	}
	for i := range questions {
		questions[i].limits = slices.DeleteFunc(questions[i].limits, func(l limit) bool {
			return l.name != "" && slices.Contains(replaced, l.name)
		})
	}
	return questions
}

// fill adds the limits for a descriptor: its own limit if it has one, otherwise
// that of the file's tree and the file's rules. It returns the names of the
// limits that these replace.
func (q *question) fill(file *rulefile.File, r *rls.RateLimitRequest, d *common.RateLimitDescriptor) (replaces []string) {
	q.hits, q.refund = hits(r, d), d.GetIsNegativeHits()
	entries := make([]rulefile.Entry, len(d.Entries))
	for i, e := range d.Entries {
		entries[i] = rulefile.Entry{Key: e.Key, Value: e.Value}
	}
	if d.Limit != nil {
		var rule throttler.Rule
		if rule, q.unlimited = ownRule(r.Domain, d, entries); !q.unlimited {
			rule.Shadow = file.Shadow
			q.limits = []limit{{rule: rule, named: true}} // it has no name
		}
		return nil
	}
	if found, ok := file.Descriptor(r.Domain, entries); ok {
		q.unlimited, q.quota, q.metadata, replaces = found.Unlimited, found.Quota, found.Metadata, found.Replaces
		if !found.Unlimited {
			q.limits = []limit{{rule: found.Rule, named: true, name: found.Name}}
		}
	}
	fields := make(map[string]string, len(entries))
	for _, e := range entries {
		if _, twice := fields[e.Key]; !twice {
			fields[e.Key] = e.Value
		}
	}
	for _, rule := range file.ForFields(r.Domain, fields) {
		q.limits = append(q.limits, limit{rule: rule, public: file.Rule(rule.Identifier).Public})
	}
	return replaces
}

// hits returns the cost of a descriptor, or how many hits it gives back. 0 means a look
// that counts nothing.
func hits(r *rls.RateLimitRequest, d *common.RateLimitDescriptor) uint64 {
	switch {
	case d.HitsAddend != nil:
		return d.HitsAddend.Value
	case r.HitsAddend != 0:
		return uint64(r.HitsAddend)
	}
	return 1
}

// ownRule returns the rule of a descriptor that has its own limit, or reports that it is none.
func ownRule(domain string, d *common.RateLimitDescriptor, entries []rulefile.Entry) (rule throttler.Rule, unlimited bool) {
	keys := make([]string, len(entries))
	for i, e := range entries {
		keys[i] = e.Key
	}
	rule, unlimited = rulefile.DescriptorRule(domain, keys, d.Limit.Unit.String(), d.Limit.RequestsPerUnit)
	if !unlimited {
		rule.Either[0].Value = rulefile.DescriptorValue(entries)
	}
	return rule, unlimited
}

// windowUnits are the protocol's units of windows, by length.
var windowUnits = func() map[time.Duration]rls.RateLimitResponse_RateLimit_Unit {
	units := make(map[time.Duration]rls.RateLimitResponse_RateLimit_Unit)
	for name, length := range rulefile.Units {
		units[length] = rls.RateLimitResponse_RateLimit_Unit(rls.RateLimitResponse_RateLimit_Unit_value[strings.ToUpper(name)])
	}
	return units
}()

// calendarUnits are the protocol's units of a calendar's periods.
var calendarUnits = map[throttler.Unit]rls.RateLimitResponse_RateLimit_Unit{
	throttler.Day: rls.RateLimitResponse_RateLimit_DAY, throttler.Week: rls.RateLimitResponse_RateLimit_WEEK,
	throttler.Month: rls.RateLimitResponse_RateLimit_MONTH,
}

// unit returns the unit of a condition, or UNKNOWN.
func unit(c *throttler.Condition) rls.RateLimitResponse_RateLimit_Unit {
	if c.Algorithm == throttler.Calendar {
		return calendarUnits[c.Period.Unit]
	}
	return windowUnits[c.TTL]
}
