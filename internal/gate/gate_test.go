package gate_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bradfitz/gomemcache/memcache"
	"github.com/stretchr/testify/require"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/internal/gate"
	"github.com/adaptivethrottler/throttler/memstore"
)

// rule returns a rule of a window of 5 and, beside it, a bucket of 10, of which
// a call takes as much as cost says.
func rule(cost ...int) throttler.Rule {
	r := throttler.Rule{Identifier: "test", Either: []throttler.Condition{
		{Name: "calls", Max: 5, TTL: time.Minute, Message: "Too many calls."},
		{Name: "bytes", Max: 10, TTL: time.Minute, Algorithm: throttler.LeakyBucket},
	}}
	for i := range cost {
		r.Either[i].Cost = cost[i]
	}
	return r
}

// ask returns what [gate.Decide] makes of a request that is refused in an overload.
func ask(ctx context.Context, t *throttler.Throttler, r *throttler.Rule) (d throttler.Decision, action gate.Action, err error) {
	action, err = gate.Decide(ctx, t, r, &d, gate.Options{RefuseOverloaded: true})
	return d, action, err
}

// failing is a store whose every operation ends with the same error.
type failing struct{ err error }

func (f failing) Get(string) (*memcache.Item, error)                   { return nil, f.err }
func (f failing) GetMulti([]string) (map[string]*memcache.Item, error) { return nil, f.err }
func (f failing) Add(*memcache.Item) error                             { return f.err }
func (f failing) CompareAndSwap(*memcache.Item) error                  { return f.err }
func (f failing) Delete(string) error                                  { return f.err }

// busy is a store that is overloaded when it is to add a record of "calls".
type busy struct{ throttler.Client }

func (b busy) Add(item *memcache.Item) error {
	if strings.Contains(item.Key, "#calls#") {
		return throttler.ErrOverloaded
	}
	return b.Client.Add(item)
}

// What becomes of a request, by its rule and what its store answers.
func TestWhatBecomesOfARequest(t *testing.T) {
	broken, overloaded := errors.New("broken"), fmt.Errorf("asked 2 s: %w", throttler.ErrOverloaded)
	tooLarge := rule(1, 11).Either
	changed := func(r throttler.Rule, change func(*throttler.Rule)) throttler.Rule {
		change(&r)
		return r
	}
	inShadow := func(r *throttler.Rule) { r.Shadow = true }
	refuse := gate.Options{RefuseOverloaded: true}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for name, test := range map[string]struct {
		store, fallback throttler.Client
		ctx             context.Context
		rule            throttler.Rule
		options         gate.Options
		action          gate.Action
		err             error // of the Decision
	}{
		"it is unlimited, and nobody is asked":       {failing{broken}, nil, t.Context(), gate.UnlimitedRule(), refuse, gate.Unlimited, nil},
		"there is room":                              {memstore.New(), nil, t.Context(), rule(), refuse, gate.Pass, nil},
		"the largest cost that fits":                 {memstore.New(), nil, t.Context(), rule(5, 10), refuse, gate.Pass, nil},
		"too large for one of Either":                {memstore.New(), nil, t.Context(), throttler.Rule{Identifier: "test", Either: tooLarge}, refuse, gate.TooLarge, nil},
		"too large for one of All":                   {memstore.New(), nil, t.Context(), throttler.Rule{Identifier: "test", All: tooLarge}, refuse, gate.TooLarge, nil},
		"too large for one of First":                 {memstore.New(), nil, t.Context(), throttler.Rule{Identifier: "test", First: tooLarge}, refuse, gate.TooLarge, nil},
		"too large, in shadow":                       {memstore.New(), nil, t.Context(), changed(rule(6), inShadow), refuse, gate.Pass, nil},
		"the store fails":                            {failing{broken}, nil, t.Context(), rule(), refuse, gate.Pass, broken},
		"it is overloaded":                           {failing{overloaded}, nil, t.Context(), rule(), refuse, gate.Overloaded, throttler.ErrOverloaded},
		"it is overloaded, and such requests pass":   {failing{overloaded}, nil, t.Context(), rule(), gate.Options{}, gate.Pass, throttler.ErrOverloaded},
		"it is overloaded, and the fallback decides": {failing{overloaded}, memstore.New(), t.Context(), rule(), refuse, gate.Pass, throttler.ErrOverloaded},
		"it is overloaded, in shadow":                {failing{overloaded}, nil, t.Context(), changed(rule(), inShadow), refuse, gate.Pass, throttler.ErrOverloaded},
		"it has ended":                               {memstore.New(), nil, ended, rule(), refuse, gate.Ended, context.Canceled},
	} {
		t.Run(name, func(t *testing.T) {
			th := throttler.New(test.store)
			th.Fallback = test.fallback
			var d throttler.Decision
			action, err := gate.Decide(test.ctx, th, &test.rule, &d, test.options)
			require.NoError(t, err)
			require.Equal(t, test.action, action)
			require.ErrorIs(t, d.Err, test.err)
			switch {
			case action == gate.Unlimited:
				require.Zero(t, d)
				require.ErrorIs(t, test.rule.Validate(), throttler.ErrInvalidRule)
			case test.rule.Shadow:
				require.Equal(t, throttler.Authorized, d.Status)
				require.Equal(t, test.err == nil, d.WouldBlock)
				require.Empty(t, d.Messages)
			}
		})
	}
}

func TestRequestsPassUntilAConditionIsFull(t *testing.T) {
	th, r := throttler.New(memstore.New()), rule()
	for range 5 {
		d, action, err := ask(t.Context(), th, &r)
		require.NoError(t, err)
		require.Equal(t, gate.Pass, action)
		require.Equal(t, throttler.Authorized, d.Status)
	}
	d, action, err := ask(t.Context(), th, &r)
	require.NoError(t, err)
	require.Equal(t, gate.Refuse, action)
	require.Equal(t, []string{"Too many calls."}, d.Messages)
	require.Positive(t, d.RetryAfter)
}

func TestCostThatNoConditionHoldsIsARefusalThatNamesNoTime(t *testing.T) {
	for _, test := range []struct {
		cost     []int
		messages []string
		blocked  []bool
	}{
		{[]int{6}, []string{"Too many calls."}, []bool{true, false}},
		{[]int{5, 11}, []string{"Too many requests."}, []bool{false, true}},
		{[]int{6, 11}, []string{"Too many calls.", "Too many requests."}, []bool{true, true}},
		{[]int{-1}, []string{"Too many calls."}, []bool{true, false}},
	} {
		t.Run(fmt.Sprint(test.cost), func(t *testing.T) {
			var observed []throttler.Decision
			th := throttler.New(memstore.New())
			th.Observe = func(_ context.Context, _ throttler.Rule, d throttler.Decision) { observed = append(observed, d) }
			r := rule(test.cost...)
			d, action, err := ask(t.Context(), th, &r)
			require.NoError(t, err)
			require.Equal(t, gate.TooLarge, action)
			require.Equal(t, throttler.Blocked, d.Status)
			require.True(t, d.WouldBlock)
			require.Equal(t, test.messages, d.Messages)
			require.Zero(t, d.RetryAfter)
			require.NoError(t, d.Err)
			require.Len(t, d.Outcomes, 2)
			for i, o := range d.Outcomes {
				require.Equal(t, r.Either[i].Name, o.Name)
				require.Equal(t, r.Either[i].Max, o.Limit)
				require.Equal(t, test.blocked[i], o.Blocked)
				require.Equal(t, r.Either[i].Max, o.Remaining)
				require.Zero(t, o.Cost)
			}
			require.Len(t, observed, 1)
			require.Equal(t, d.Outcomes, observed[0].Outcomes)
			require.Equal(t, rule(test.cost...), r, "the rule is left as it was")

			untouched := rule()
			d, err = th.Peek(t.Context(), untouched)
			require.NoError(t, err)
			require.Equal(t, 4, d.Outcomes[0].Remaining, "nothing is counted")
		})
	}
}

func TestARequestThatLooksCountsNothingAndPasses(t *testing.T) {
	th := throttler.New(memstore.New())
	th.Observe = func(_ context.Context, _ throttler.Rule, d throttler.Decision) {
		require.Positive(t, d.Outcomes[0].Cost)
	}
	look := func(r throttler.Rule) (d throttler.Decision) {
		action, err := gate.Decide(t.Context(), th, &r, &d, gate.Options{Look: true, RefuseOverloaded: true})
		require.NoError(t, err)
		require.Equal(t, gate.Pass, action)
		return d
	}
	for left := 5; left > 0; left-- {
		for _, r := range []throttler.Rule{rule(), rule(left), rule(6), rule(-1, 11)} {
			d := look(r)
			require.Equal(t, left, d.Outcomes[0].Remaining)
			require.Equal(t, left+5, d.Outcomes[1].Remaining)
			require.Zero(t, d.Outcomes[0].Cost)
			require.Zero(t, d.Outcomes[0].RetryAfter)
		}
		r := rule()
		_, action, _ := ask(t.Context(), th, &r)
		require.Equal(t, gate.Pass, action)
	}
	d := look(rule())
	require.Equal(t, throttler.Blocked, d.Status)
	require.Positive(t, d.RetryAfter)
	require.Zero(t, d.Outcomes[0].Remaining)
	require.Equal(t, d.RetryAfter, d.Outcomes[0].RetryAfter)

	var none throttler.Decision
	action, err := gate.Decide(t.Context(), th, &throttler.Rule{}, &none, gate.Options{Look: true})
	require.Equal(t, gate.Invalid, action)
	require.ErrorIs(t, err, throttler.ErrInvalidRule)
}

func TestClientsReadNoNamesOfConditions(t *testing.T) {
	outcomes := []throttler.Outcome{{Name: "ip"}, {Name: "login"}, {Name: "day"}}
	for _, test := range []struct{ messages, want []string }{
		{nil, nil},
		{[]string{"Slow down."}, []string{"Slow down."}},
		{[]string{"ip"}, []string{"Too many requests."}},
		{[]string{"ip", "Slow down.", "day"}, []string{"Too many requests.", "Slow down."}},
		{[]string{"Too many requests.", "day"}, []string{"Too many requests."}},
	} {
		before := slices.Clone(test.messages)
		require.Equal(t, test.want, gate.Messages(&throttler.Decision{Messages: test.messages, Outcomes: outcomes}))
		require.Equal(t, before, test.messages)
	}
}

func TestRuleThatIsWrongBesidesItsCostIsAnError(t *testing.T) {
	negative, both, unnamed := rule(6), rule(6), rule(6)
	negative.Either[1].Max = -1
	both.All = []throttler.Condition{{Name: "all", Max: 1, TTL: time.Minute}}
	unnamed.Identifier = ""
	least := rule(2)
	least.Either[0].Least = 3
	for name, r := range map[string]throttler.Rule{
		"Max": negative, "All beside Either": both, "Identifier": unnamed, "Least above Cost": least, "zero": {},
	} {
		t.Run(name, func(t *testing.T) {
			th := throttler.New(memstore.New())
			th.Observe = func(context.Context, throttler.Rule, throttler.Decision) { t.Error("observed") }
			d, action, err := ask(t.Context(), th, &r)
			require.ErrorIs(t, err, throttler.ErrInvalidRule)
			require.Equal(t, gate.Invalid, action)
			require.Zero(t, d)
		})
	}
}

func TestRuleOfAPeerWithNoAddressSaysSo(t *testing.T) {
	r := gate.NoAddress()
	_, action, err := ask(t.Context(), throttler.New(memstore.New()), &r)
	require.Equal(t, gate.Invalid, action)
	require.ErrorIs(t, err, gate.ErrNoAddress)
	require.ErrorIs(t, gate.Validate(&r), gate.ErrNoAddress)
	require.ErrorIs(t, err, throttler.ErrInvalidRule)

	r = rule()
	require.NoError(t, gate.Validate(&r))
	r.Identifier = ""
	require.Equal(t, r.Validate(), gate.Validate(&r))
}

func TestRequestThatEndsOnceItIsDecidedPasses(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	th := throttler.New(memstore.New())
	th.Observe = func(context.Context, throttler.Rule, throttler.Decision) { cancel() }
	r := rule()
	d, action, err := ask(ctx, th, &r)
	require.NoError(t, err)
	require.Error(t, ctx.Err())
	require.Equal(t, gate.Pass, action)
	require.NoError(t, d.Err)
}

func TestARequestThatDoesNotRunIsNotInFlight(t *testing.T) {
	r := throttler.Rule{Identifier: "test", Either: []throttler.Condition{
		{Name: "running", Max: 2, TTL: time.Hour, Algorithm: throttler.InFlight},
		{Name: "calls", Max: 1, TTL: time.Minute},
	}}
	th := throttler.New(memstore.New())
	for i, want := range []gate.Action{gate.Pass, gate.Refuse, gate.Refuse} {
		d, action, err := ask(t.Context(), th, &r)
		require.NoError(t, err)
		require.Equal(t, want, action)
		if i == 0 {
			_, release := gate.Hold(t.Context(), th, &r, &d)
			release()
		}
	}
	seen, err := th.Peek(t.Context(), r)
	require.NoError(t, err)
	require.Equal(t, 1, seen.Outcomes[0].Remaining, "one of two is left beside this one")
}

func TestARequestIsInFlightUntilItIsReleased(t *testing.T) {
	r := throttler.Rule{Identifier: "test", Either: []throttler.Condition{
		{Name: "running", Max: 1, TTL: time.Hour, Algorithm: throttler.InFlight},
	}}
	th := throttler.New(memstore.New())
	for range 2 {
		d, action, err := ask(t.Context(), th, &r)
		require.NoError(t, err)
		require.Equal(t, gate.Pass, action)
		_, release := gate.Hold(t.Context(), th, &r, &d)
		_, action, err = ask(t.Context(), th, &r)
		require.NoError(t, err)
		require.Equal(t, gate.Refuse, action)
		release()
	}
}

func TestARequestThatIsRefusedInAnOverloadIsNotInFlight(t *testing.T) {
	r := throttler.Rule{Identifier: "test", Either: []throttler.Condition{
		{Name: "running", Max: 2, TTL: time.Hour, Algorithm: throttler.InFlight},
		{Name: "calls", Max: 5, TTL: time.Minute},
	}}
	th := throttler.New(busy{memstore.New()})
	_, action, err := ask(t.Context(), th, &r)
	require.NoError(t, err)
	require.Equal(t, gate.Overloaded, action)
	seen, err := th.Peek(t.Context(), r)
	require.NoError(t, err)
	require.Equal(t, 1, seen.Outcomes[0].Remaining, "one of two is left beside this one")
}

func TestTakeAnswersAsDecide(t *testing.T) {
	for name, test := range map[string]struct {
		store   throttler.Client
		message string
		shadow  bool
		want    gate.Action // of the third request
	}{
		"full":              {memstore.New(), "Slow down.", false, gate.Refuse},
		"without a text":    {memstore.New(), "", false, gate.Refuse},
		"in shadow":         {memstore.New(), "", true, gate.Pass},
		"a failing store":   {failing{errors.New("away")}, "", false, gate.Pass},
		"an overloaded one": {failing{throttler.ErrOverloaded}, "", false, gate.Overloaded},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				th := throttler.New(test.store)
				r := throttler.Rule{Identifier: "test", Shadow: test.shadow, Either: []throttler.Condition{
					{Name: "address", Value: "a", Max: 2, TTL: time.Minute, Message: test.message},
				}}
				limit, err := th.Limit(r)
				require.NoError(t, err)
				other := r
				other.Either = slices.Clone(r.Either)
				other.Either[0].Value = "b"
				for i := range 3 {
					want, action, err := ask(t.Context(), th, &other)
					require.NoError(t, err)
					var o throttler.Outcome
					var d throttler.Decision
					require.Equal(t, action, gate.Take(t.Context(), limit, &r, "a", &o, &d, gate.Options{RefuseOverloaded: true}))
					if test.shadow {
						want.Outcomes[0].Blocked = false // as Limit.Take has it
					}
					require.Equal(t, want.Outcomes, []throttler.Outcome{o})
					if i == 2 {
						require.Equal(t, test.want, action)
					}
					if action == gate.Pass {
						require.Zero(t, d)
						continue
					}
					require.Equal(t, want.Outcomes, d.Outcomes)
					require.Equal(t, want.Err, d.Err)
					if action == gate.Refuse {
						require.Equal(t, want.Messages, d.Messages)
						require.Equal(t, want.RetryAfter, d.RetryAfter)
						require.Equal(t, want.WouldBlock, d.WouldBlock)
						require.Equal(t, throttler.Blocked, d.Status)
					}
				}
				ended, cancel := context.WithCancel(t.Context())
				cancel()
				var o throttler.Outcome
				var d throttler.Decision
				require.Equal(t, gate.Ended, gate.Take(ended, limit, &r, "c", &o, &d, gate.Options{}))
			})
		})
	}
}
