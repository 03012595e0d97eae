package rulefile

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/adaptivethrottler/throttler"
)

// WithValues returns the rule with values by condition name, for a front end
// that does not know the request. Conditions without a value are left out, and
// so are exempt values. The error is for the caller: the rule has no such
// condition, or a value is not an address although the condition counts
// addresses.
func (r *Rule) WithValues(values map[string]string) (rule throttler.Rule, err error) {
	for name := range values {
		if r.condition(name) == nil {
			return throttler.Rule{}, fmt.Errorf("rule %s has no condition %q", r.Name, name)
		}
	}
	var conditions []throttler.Condition
	for i := range r.conditions {
		given, ok := values[r.conditions[i].Name]
		if !ok {
			continue
		}
		c, counted, err := r.conditions[i].withValue(given, r.selector.bits)
		if err != nil {
			return throttler.Rule{}, err
		}
		if counted {
			conditions = append(conditions, c)
		}
	}
	return r.of(conditions), nil
}

// MaxNetwork is the largest number of values that a network stands for in
// Expand: a /16 of IPv4, or a /48 of the /64 of IPv6.
const MaxNetwork = 1 << 16

// Expand returns the values of a condition that an operator means by given:
// given itself or, if the condition counts addresses, the address in its
// canonical form. A network stands for all values in it. The error is for the
// operator.
func (r *Rule) Expand(name, given string) ([]string, error) {
	c := r.condition(name)
	if c == nil {
		return nil, fmt.Errorf("rule %s has no condition %q: it has %s", r.Name, name, strings.Join(r.Names(), ", "))
	}
	if !c.value.isAddress() {
		return []string{given}, nil
	}
	prefix, err := parsePrefix(given)
	if err != nil {
		return nil, fmt.Errorf("condition %s counts addresses: %w", name, err)
	}
	return c.within(prefix, r.selector.bits)
}

// within returns the values of the addresses in a network.
func (c *condition) within(network netip.Prefix, counted bits) ([]string, error) {
	bits := network.Addr().BitLen()
	if network.Addr().Is6() && c.value.has("network") {
		bits = counted.ipv6
	}
	free := max(bits-network.Bits(), 0)
	if free > 16 {
		return nil, fmt.Errorf("%v holds 2^%d values of condition %s, want at most %d", network, free, c.Name, MaxNetwork)
	}
	values := make([]string, 0, 1<<free)
	for i := range 1 << free {
		request := &Request{Addr: nth(network.Addr(), i, bits)}
		value, _ := c.value.value(request, match{bits: counted})
		values = append(values, value)
	}
	return values, nil
}

// nth returns the first address of the nth network of a length after addr, which
// is the first address of one.
func nth(addr netip.Addr, n, bits int) netip.Addr {
	bytes := addr.AsSlice()
	for n <<= (8 - bits%8) % 8; n > 0; n >>= 8 {
		i := (bits - 1) / 8
		sum := int(bytes[i]) + n&0xff
		bytes[i] = byte(sum)
		bits -= 8
	}
	next, _ := netip.AddrFromSlice(bytes)
	return next
}

// Names returns the names of the rule's conditions.
func (r *Rule) Names() []string {
	names := make([]string, len(r.conditions))
	for i := range r.conditions {
		names[i] = r.conditions[i].Name
	}
	return names
}

// condition returns the condition of that name, or nil.
func (r *Rule) condition(name string) *condition {
	for i := range r.conditions {
		if r.conditions[i].Name == name {
			return &r.conditions[i]
		}
	}
	return nil
}

// withValue returns the condition with a value, and whether it is counted. If
// it counts networks, an IPv6 address is cut to its network. Exempt networks
// hold for conditions that count addresses only: in another one the caller may
// send any text, also one that looks like an address.
func (c *condition) withValue(given string, cut bits) (filled throttler.Condition, counted bool, err error) {
	request, value := new(Request), given
	if c.value.isAddress() {
		request.Addr, err = netip.ParseAddr(given)
		if err != nil {
			return throttler.Condition{}, false, fmt.Errorf("condition %s counts addresses, and %q is not one", c.Name, given)
		}
		value, _ = c.value.value(request, match{bits: cut})
	}
	if c.exempts(request, value) {
		return throttler.Condition{}, false, nil
	}
	return c.with(value), true, nil
}
