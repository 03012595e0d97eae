package throttler_test

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/memstore"
)

// Calls of many conditions use memory again, of calls that had more or fewer of them and were
// blocked.
func TestCallsOfManyConditionsShareNothing(t *testing.T) {
	th := throttler.New(memstore.New())
	var callers sync.WaitGroup
	for caller := range 8 {
		callers.Go(func() {
			for call := range 60 {
				n := 3 + (caller+call)%6
				rule := throttler.Rule{Identifier: "many", CountAuthorizedOnly: true}
				for i := range n {
					rule.Either = append(rule.Either, throttler.Condition{
						Name: fmt.Sprint(i), Value: fmt.Sprint(caller, "/", call/2), Max: 1 + i, TTL: time.Hour,
					})
				}
				d, err := th.Authorize(t.Context(), rule)
				assert.NoError(t, err)
				assert.Len(t, d.Outcomes, n)
				for i, o := range d.Outcomes {
					assert.Equal(t, fmt.Sprint(i), o.Name)
					assert.NoError(t, o.Err)
					assert.Equal(t, i == 0 && call%2 == 1, o.Blocked, "of condition %s only one call is allowed", o.Name)
					assert.Equal(t, call%2 == 0, o.Cost == 1)
				}
			}
		})
	}
	callers.Wait()
}
