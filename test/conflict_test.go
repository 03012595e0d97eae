package throttler_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/memstore"
	"github.com/stretchr/testify/require"
)

// toldOf returns a throttler, and what it tells of rules that contradict others.
func toldOf() (th *throttler.Throttler, told *[]string) {
	th, told = throttler.New(memstore.New()), new([]string)
	th.Conflict = func(rule throttler.Rule, err error) {
		*told = append(*told, rule.Identifier+": "+err.Error())
	}
	return th, told
}

func TestRulesThatShareARecordButNotItsLimitAreToldOnce(t *testing.T) {
	for name, change := range map[string]func(*throttler.Condition){
		"a sliding window of 3 in 1m0s and a sliding window of 4 in 1m0s": func(c *throttler.Condition) { c.Max = 4 },
		"a sliding window of 3 in 1m0s and a sliding window of 3 in 2m0s": func(c *throttler.Condition) { c.TTL *= 2 },
		"a sliding window of 3 in 1m0s and a leaky bucket of 3 in 1m0s":   func(c *throttler.Condition) { c.Algorithm = throttler.LeakyBucket },
	} {
		t.Run(name, func(t *testing.T) {
			th, told := toldOf()
			rule := either(condition("a", 3, time.Minute))
			other := either(condition("a", 3, time.Minute))
			change(&other.Either[0])
			authorize(t, th, rule)
			require.Empty(t, *told)
			for range 3 {
				authorize(t, th, other)
				peek(t, th, rule)
			}
			for i := range 3 {
				other.Either[0].Value, rule.Either[0].Value = fmt.Sprint(i), fmt.Sprint(i)
				authorize(t, th, other)
				authorize(t, th, rule)
			}
			require.Equal(t, []string{`test: throttler: condition "a" of "test" has two limits for one record, ` + name + ": use one, or another Identifier"}, *told)
		})
	}
}

func TestLimitsThatDifferByTheirValueAreNoConflict(t *testing.T) {
	th, told := toldOf()
	for i := range 100 {
		rule := either(condition("a", 1+i, time.Minute))
		rule.Either[0].Value = fmt.Sprint("customer ", i)
		rule.Either[0].Cost = 1
		authorize(t, th, rule)
		rule.Lockout, rule.Either[0].Message, rule.Shadow = time.Hour, "no", true
		authorize(t, th, rule)
	}
	require.Empty(t, *told)
}

func TestEachConditionIsToldOfByItself(t *testing.T) {
	th, told := toldOf()
	for _, limit := range []int{3, 4, 5} {
		for _, identifier := range []string{"one", "two"} {
			rule := either(condition("a", limit, time.Minute), condition("b", limit, time.Minute))
			rule.Identifier = identifier
			authorize(t, th, rule)
		}
	}
	require.Len(t, *told, 4)
}

func TestAConflictChangesNoDecision(t *testing.T) {
	with, _ := toldOf()
	without := throttler.New(memstore.New())
	for i := range 12 {
		rule := either(condition("a", 3+i%2, time.Minute))
		require.Equal(t, remaining(authorize(t, without, rule)), remaining(authorize(t, with, rule)))
	}
}
