package rulefile

import (
	"fmt"
	"net/netip"

	"github.com/adaptivethrottler/throttler"
)

// WithValues returns the rule with values by condition name, for a front end
// that does not know the request. Conditions without a value are left out, and
// so are exempt values. The error is for the caller: the rule has no such
// condition, or a value is not an address although the condition counts
// addresses.
func (r *Rule) WithValues(values map[string]string) (rule throttler.Rule, err error) {
	for name := range values {
		if !r.has(name) {
			return throttler.Rule{}, fmt.Errorf("rule %s has no condition %q", r.Name, name)
		}
	}
	var conditions []throttler.Condition
	for i := range r.conditions {
		given, ok := values[r.conditions[i].Name]
		if !ok {
			continue
		}
		c, counted, err := r.conditions[i].withValue(given, r.ipv6Bits)
		if err != nil {
			return throttler.Rule{}, err
		}
		if counted {
			conditions = append(conditions, c)
		}
	}
	return r.with(conditions), nil
}

// Names returns the names of the rule's conditions.
func (r *Rule) Names() []string {
	names := make([]string, len(r.conditions))
	for i := range r.conditions {
		names[i] = r.conditions[i].Name
	}
	return names
}

func (r *Rule) has(condition string) bool {
	for i := range r.conditions {
		if r.conditions[i].Name == condition {
			return true
		}
	}
	return false
}

// withValue returns the condition with a value, and whether it is counted. If
// it counts networks, an IPv6 address is cut to its network.
func (c *condition) withValue(given string, ipv6Bits int) (filled throttler.Condition, counted bool, err error) {
	request := new(Request)
	if addr, err := netip.ParseAddr(given); err == nil {
		request.Addr = addr
	}
	value := given
	if parts := c.value.parts; len(parts) == 2 && (parts[0].attribute == "address" || parts[0].attribute == "network") {
		if !request.Addr.IsValid() {
			return throttler.Condition{}, false, fmt.Errorf("condition %s counts addresses, and %q is not one", c.Name, given)
		}
		value, _ = c.value.value(request, "", ipv6Bits)
	}
	if c.exempts(request, value) {
		return throttler.Condition{}, false, nil
	}
	filled = c.Condition
	filled.Value = value
	if limit, ok := c.limits[value]; ok {
		filled.Max = limit
	}
	return filled, true, nil
}
