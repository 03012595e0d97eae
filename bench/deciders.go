package main

import (
	"context"
	"slices"

	"github.com/adaptivethrottler/throttler"
)

// deciders is a limiter that asks a Throttler with a rule, each of whose conditions has the
// same value.
type deciders struct {
	ctx       context.Context
	throttler *throttler.Throttler
	rule      throttler.Rule
	end       func()
}

// caller returns a function that changes the value in a rule of its own, so
// that no decision pays for making a rule.
func (d deciders) caller() func(string) (bool, error) {
	rule := d.rule
	rule.Either = slices.Clone(d.rule.Either)
	return func(value string) (bool, error) {
		for i := range rule.Either {
			rule.Either[i].Value = value
		}
		decision, err := d.throttler.Authorize(d.ctx, rule)
		if err == nil {
			err = decision.Err
		}
		return decision.Status == throttler.Authorized, err
	}
}

func (deciders) flush() {}

func (d deciders) close() { d.end() }
