package gate

import (
	"fmt"

	"github.com/adaptivethrottler/throttler"
)

const unlimited = "throttler: unlimited"

// UnlimitedRule returns the rule of a request that is not limited. For a
// Throttler it is invalid.
func UnlimitedRule() throttler.Rule { return throttler.Rule{Identifier: unlimited} }

// IsUnlimited reports whether rule comes from UnlimitedRule.
func IsUnlimited(rule *throttler.Rule) bool {
	return rule.Identifier == unlimited && len(rule.Conditions()) == 0
}

const noAddress = "throttler: no address"

// ErrNoAddress is the error of a [NoAddress] rule.
var ErrNoAddress = fmt.Errorf("%w: the peer has no address; set TrustUnix of the Source if a proxy connects through a Unix socket, and have it forward the client's address", throttler.ErrInvalidRule)

// NoAddress returns an invalid rule, for a request whose peer has no address.
func NoAddress() throttler.Rule { return throttler.Rule{Identifier: noAddress} }

// Validate is rule.Validate, with [ErrNoAddress] for a [NoAddress] rule.
func Validate(rule *throttler.Rule) error { return explain(rule, rule.Validate()) }

// explain returns [ErrNoAddress] for a NoAddress rule, and otherwise err.
func explain(rule *throttler.Rule, err error) error {
	if rule.Identifier == noAddress && len(rule.Conditions()) == 0 {
		return ErrNoAddress
	}
	return err
}
