package api_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/adaptivethrottler/throttler/cmd/throttler/internal/api"
	"github.com/adaptivethrottler/throttler/internal/servertest"
	"github.com/adaptivethrottler/throttler/memstore"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// settled returns the question that settles what a has counted.
func (a answer) settled(totals map[string]int) question {
	return question{"cancel": a.fields["cancel"], "totals": totals}
}

func TestWhatACallHasCostIsSettledAtAnyReplica(t *testing.T) {
	server := servertest.NewMemcached(t)
	one, other := newReplica(t, pooled(t, server), rules), newReplica(t, pooled(t, server), rules)
	left := func() any { return one.ask(t, "/v1/peek", mail("a", "203.0.113.7")).before(0) }
	q := mail("a", "203.0.113.7")
	q["cost"] = 2
	a := one.ask(t, "/v1/authorize", q)
	require.EqualValues(t, 1, left())

	less := other.ask(t, "/v1/settle", a.settled(map[string]int{"customer": 1}))
	require.Equal(t, 200, less.status)
	assert.Equal(t, "authorized", less.fields["status"])
	require.Len(t, less.fields["outcomes"], 1, "of what is settled")
	assert.EqualValues(t, 2, less.outcome(0)["remaining"])
	assert.EqualValues(t, 2, left())
	assert.Equal(t, 409, one.ask(t, "/v1/settle", a.settled(map[string]int{"customer": 3})).status, "the token was used")
	assert.Equal(t, 409, one.ask(t, "/v1/cancel", question{"cancel": a.fields["cancel"]}).status)

	more := one.ask(t, "/v1/settle", less.settled(map[string]int{"customer": 5, "network": 7}))
	assert.Equal(t, "blocked", more.fields["status"], "more than there is: a stream stops")
	assert.Len(t, more.fields["outcomes"], 2)
	assert.Equal(t, "blocked", other.ask(t, "/v1/authorize", mail("a", "203.0.113.8")).fields["status"])

	assert.Equal(t, 200, other.ask(t, "/v1/cancel", question{"cancel": more.fields["cancel"]}).status)
	again := one.ask(t, "/v1/peek", mail("b", "203.0.113.7"))
	assert.EqualValues(t, 100, again.before(1), "all of it is back")
}

func TestAWrongSettlementUsesUpNoToken(t *testing.T) {
	r := newReplica(t, memstore.New(), rules)
	a := r.ask(t, "/v1/authorize", mail("a", "203.0.113.7"))
	for text, totals := range map[string]any{
		"\"nothing\"": map[string]int{"nothing": 1}, "\"customer\": Cost is -1": map[string]int{"customer": -1},
		"no totals": map[string]int{}, "want an object": 7,
	} {
		wrong := r.ask(t, "/v1/settle", question{"cancel": a.fields["cancel"], "totals": totals})
		assert.Equal(t, 400, wrong.status, text)
		assert.Contains(t, wrong.fields["detail"], text)
	}
	assert.Equal(t, 400, r.ask(t, "/v1/settle", question{"cancel": a.fields["cancel"].(string) + "A", "totals": map[string]int{"customer": 1}}).status)
	assert.Equal(t, 200, r.ask(t, "/v1/settle", a.settled(map[string]int{"customer": 0})).status)
	assert.EqualValues(t, 3, r.ask(t, "/v1/peek", mail("a", "203.0.113.7")).before(0))
}

func TestAStreamOfAnyLengthIsSettledOnItsWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newReplica(t, memstore.New(), rules)
		a := r.ask(t, "/v1/authorize", mail("big", "203.0.113.7"))
		for total := 10; total <= 50; total += 10 {
			time.Sleep(api.HitsLife - time.Second)
			a = r.ask(t, "/v1/settle", a.settled(map[string]int{"customer": total}))
			require.Equal(t, 200, a.status)
		}
		assert.EqualValues(t, 950, r.ask(t, "/v1/peek", mail("big", "203.0.113.7")).before(0))
		time.Sleep(api.HitsLife)
		assert.Equal(t, 410, r.ask(t, "/v1/settle", a.settled(map[string]int{"customer": 1})).status)
	})
}
