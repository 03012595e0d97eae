package api

import (
	"context"
	"errors"
	"strings"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/cmd/throttler/internal/rulefile"
	"github.com/adaptivethrottler/throttler/internal/gate"
)

// A subject is a rule, and values by condition name.
type subject struct {
	Rule   string            `json:"rule"`
	Values map[string]string `json:"values"`
}

// rule returns the rule of s with conditions for the values that are counted.
func (s *subject) rule(file *rulefile.File) (*rulefile.Rule, throttler.Rule, error) {
	r := file.Rule(s.Rule)
	if r == nil && strings.HasPrefix(s.Rule, rulefile.Reserved) {
		return nil, throttler.Rule{}, invalid("Rule %s is the service's own. Ask /v1/login/begin to count a login, /v1/login/lift to lift its bans.", s.Rule)
	}
	if r == nil {
		return nil, throttler.Rule{}, invalid("There is no rule %q.", s.Rule)
	}
	if len(s.Values) == 0 {
		return nil, throttler.Rule{}, invalid("There are no values. Rule %s has the conditions %q.", s.Rule, r.Names())
	}
	filled, err := r.WithValues(s.Values)
	if err != nil {
		return nil, throttler.Rule{}, invalid("%v.", err)
	}
	return r, filled, nil
}

// A call requests a decision.
type call struct {
	subject
	Cost  *int `json:"cost"`  // of each condition; nil: 1
	Least int  `json:"least"` // with which the call makes do; 0: Cost
}

// rule returns the rule of c. Each of its conditions must have a value.
func (c *call) rule(file *rulefile.File) (throttler.Rule, error) {
	r, filled, err := c.subject.rule(file)
	if err != nil {
		return throttler.Rule{}, err
	}
	for _, name := range r.Names() {
		if _, ok := c.Values[name]; !ok {
			return throttler.Rule{}, invalid("There is no value for condition %q of rule %s.", name, c.Rule)
		}
	}
	cost := 1
	if c.Cost != nil {
		cost = *c.Cost
	}
	if cost == 0 { // would be 1 for a Condition
		return throttler.Rule{}, invalid("cost is 0, want 1 or more. To count nothing, ask /v1/peek.")
	}
	conditions := filled.Conditions()
	for i := range conditions {
		conditions[i].Cost, conditions[i].Least = cost, c.Least
	}
	return filled, nil
}

// A decision is the answer to a call. Times are in seconds.
type decision struct {
	Status     string    `json:"status"`
	WouldBlock bool      `json:"would_block"`
	Messages   []string  `json:"messages"`
	RetryAfter float64   `json:"retry_after"`
	Outcomes   []outcome `json:"outcomes"`
	Degraded   bool      `json:"degraded"`         // the backend has failed
	Cancel     string    `json:"cancel,omitempty"` // a token

	// Of what was acquired: a token, and for how long it counts unless it is renewed.
	Lease        string  `json:"lease,omitempty"`
	ExpiresAfter float64 `json:"expires_after,omitempty"`
}

// An outcome is the decision of one condition. Times are in seconds.
type outcome struct {
	Name       string  `json:"name"`
	Blocked    bool    `json:"blocked"`
	Banned     bool    `json:"banned"`
	Limit      int     `json:"limit"`
	Remaining  *int    `json:"remaining,omitempty"` // nil: it was not asked
	Cost       int     `json:"cost"`
	RetryAfter float64 `json:"retry_after"`
	ResetAfter float64 `json:"reset_after"`
}

func (a *api) authorize(ctx context.Context, c *call) (*decision, error) {
	d, err := a.decide(ctx, a.Rules.File(), c, a.Throttler.Authorize)
	if err != nil {
		return nil, err
	}
	return a.counted(d), nil
}

// counted returns the answer to a call that was counted, with the token that takes it
// back.
func (a *api) counted(d throttler.Decision) *decision {
	answer := describe(d)
	if receipt := d.Receipt(); receipt != nil {
		answer.Cancel = a.tokens.seal(kindHits, receipt)
	}
	return answer
}

func (a *api) peek(ctx context.Context, c *call) (*decision, error) {
	d, err := a.decide(ctx, a.Rules.File(), c, a.Throttler.Peek)
	if err != nil {
		return nil, err
	}
	return describe(d), nil
}

// decide decides c by how.
func (a *api) decide(ctx context.Context, file *rulefile.File, c *call, how func(context.Context, throttler.Rule) (throttler.Decision, error)) (throttler.Decision, error) {
	rule, err := c.rule(file)
	if err != nil {
		return throttler.Decision{}, err
	}
	if !hasConditions(rule) { // all values are exempt
		return throttler.Decision{Status: throttler.Authorized}, nil
	}
	d, err := how(ctx, rule)
	if errors.Is(err, throttler.ErrInvalidRule) {
		return throttler.Decision{}, invalid("%v.", err)
	}
	if err == nil && d.Err != nil && file.Closed {
		a.Throttler.Cancel(context.WithoutCancel(ctx), d) // as far as the backend answers
		err = unavailable("The backend has failed, and the rule file says failure: closed. Try again later.")
	}
	return d, err
}

func hasConditions(rule throttler.Rule) bool { return len(rule.Conditions()) > 0 }

func describe(d throttler.Decision) *decision {
	answer := &decision{
		Status: d.Status.String(), WouldBlock: d.WouldBlock, Messages: append([]string{}, gate.Messages(&d)...),
		RetryAfter: d.RetryAfter.Seconds(), Outcomes: []outcome{}, Degraded: d.Err != nil,
	}
	for _, o := range d.Outcomes {
		told := outcome{
			Name: o.Name, Blocked: o.Blocked, Banned: o.Banned, Limit: o.Limit, Cost: o.Cost,
			RetryAfter: o.RetryAfter.Seconds(), ResetAfter: o.ResetAfter.Seconds(),
		}
		if o.Remaining >= 0 {
			told.Remaining = &o.Remaining
		}
		answer.Outcomes = append(answer.Outcomes, told)
	}
	return answer
}

// A done is the response of operations that return nothing else.
type done struct {
	Status string `json:"status"`
}

// A cancellation takes back the hits of a call.
type cancellation struct {
	Cancel string `json:"cancel"` // the token
}

func (a *api) cancel(ctx context.Context, c *cancellation) (*done, error) {
	d, err := a.redeem(ctx, c.Cancel)
	if err != nil {
		return nil, err
	}
	// The token is used now, so finish even if the caller hangs up.
	return &done{"canceled"}, a.Throttler.Cancel(context.WithoutCancel(ctx), d)
}

// redeem uses a token, and returns the Decision that has its hits.
func (a *api) redeem(ctx context.Context, token string) (throttler.Decision, error) {
	receipt, err := a.tokens.use(ctx, kindHits, token)
	if err != nil {
		return throttler.Decision{}, err
	}
	return a.Throttler.Redeem(receipt)
}

func (a *api) reset(ctx context.Context, s *subject) (*done, error) {
	return a.change(s, "reset", func(rule throttler.Rule) error { return a.Throttler.Reset(ctx, rule) })
}

// A ban bans the values of a subject.
type ban struct {
	subject
	Duration string `json:"duration"`
}

func (a *api) ban(ctx context.Context, b *ban) (*done, error) {
	length, err := rulefile.ParseDuration(b.Duration)
	if err != nil || length <= 0 {
		return nil, invalid("%q is no duration: send the length of the ban, as in 30m, 24h or 7d.", b.Duration)
	}
	return a.change(&b.subject, "banned", func(rule throttler.Rule) error {
		return a.Throttler.Ban(ctx, rule, length)
	})
}

// change applies how to the records of a subject.
func (a *api) change(s *subject, status string, how func(throttler.Rule) error) (*done, error) {
	_, rule, err := s.rule(a.Rules.File())
	if err != nil {
		return nil, err
	}
	if !hasConditions(rule) {
		return nil, invalid("The rule file exempts these values.")
	}
	return &done{status}, how(rule)
}

// A settlement sets what a call has cost.
type settlement struct {
	Cancel string         `json:"cancel"` // the token of the call, or of its last settlement
	Totals map[string]int `json:"totals"` // by condition
}

func (a *api) settle(ctx context.Context, s *settlement) (*decision, error) {
	if len(s.Totals) == 0 {
		return nil, invalid("There are no totals. Send what each condition has cost, by its name.")
	}
	d, err := a.redeem(ctx, s.Cancel)
	if err != nil {
		return nil, err
	}
	// The token is used now, so finish even if the caller hangs up.
	settled, err := a.Throttler.Settle(context.WithoutCancel(ctx), d, s.Totals)
	if errors.Is(err, throttler.ErrInvalidRule) {
		return nil, errors.Join(invalid("%v.", err), a.tokens.unuse(ctx, kindHits, s.Cancel))
	}
	if err != nil {
		return nil, err
	}
	return a.counted(settled), nil
}
