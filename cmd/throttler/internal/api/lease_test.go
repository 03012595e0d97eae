package api_test

import (
	"encoding/json"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/adaptivethrottler/throttler/cmd/throttler/internal/api"
	"github.com/adaptivethrottler/throttler/internal/servertest"
	"github.com/adaptivethrottler/throttler/memstore"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// job returns the question about a value of a rule with what is in flight.
func job(rule string, values ...string) question {
	q := map[string]string{"worker": values[0]}
	if len(values) > 1 {
		q["starts"] = values[1]
	}
	return question{"rule": rule, "values": q}
}

func TestWhatIsInFlightIsAcquiredRenewedAndReleasedAtAnyReplica(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New()
		one, other := newReplica(t, store, rules), newReplica(t, store, rules)
		first, second := one.ask(t, "/v1/acquire", job("jobs", "a")), other.ask(t, "/v1/acquire", job("jobs", "a"))
		for _, a := range []answer{first, second} {
			require.Equal(t, "authorized", a.fields["status"])
			assert.EqualValues(t, 30, a.fields["expires_after"])
		}
		full := one.ask(t, "/v1/acquire", job("jobs", "a"))
		assert.Equal(t, "blocked", full.fields["status"])
		assert.NotContains(t, full.fields, "lease")

		for range 5 { // far beyond the life of other tokens
			time.Sleep(20 * time.Second)
			renewed := other.ask(t, "/v1/renew", first.token("lease"))
			require.Equal(t, 200, renewed.status)
			assert.EqualValues(t, 30, renewed.fields["expires_after"])
		}
		assert.Equal(t, 410, one.ask(t, "/v1/renew", second.token("lease")).status, "nobody has renewed it")
		third := one.ask(t, "/v1/acquire", job("jobs", "a"))
		require.Equal(t, "authorized", third.fields["status"], "it is free")
		assert.Equal(t, 410, one.ask(t, "/v1/renew", second.token("lease")).status, "it is never renewed again")
		assert.Equal(t, 200, one.ask(t, "/v1/release", second.token("lease")).status)
		assert.Equal(t, "blocked", one.ask(t, "/v1/acquire", job("jobs", "a")).fields["status"], "its release freed nobody else")

		for range 2 {
			assert.Equal(t, "released", other.ask(t, "/v1/release", first.token("lease")).fields["status"])
		}
		assert.Equal(t, 410, one.ask(t, "/v1/renew", first.token("lease")).status)
		assert.Equal(t, "authorized", one.ask(t, "/v1/acquire", job("jobs", "a")).fields["status"])
		assert.Equal(t, "blocked", one.ask(t, "/v1/acquire", job("jobs", "a")).fields["status"], "freed once")
	})
}

func TestAReleaseGivesBackWhatIsInFlightOnly(t *testing.T) {
	r := newReplica(t, memstore.New(), rules)
	q := job("counted-jobs", "a", "a")
	a := r.ask(t, "/v1/acquire", q)
	r.ask(t, "/v1/release", a.token("lease"))
	left := func() []any {
		seen := r.ask(t, "/v1/peek", q)
		return []any{seen.before(0), seen.before(1)}
	}
	assert.Equal(t, []any{2.0, 9.0}, left())
	assert.Equal(t, 200, r.ask(t, "/v1/cancel", a.token("cancel")).status)
	assert.Equal(t, []any{2.0, 10.0}, left(), "a job that did not start")
}

func TestACallThatIsBlockedHoldsNoPlace(t *testing.T) {
	r := newReplica(t, memstore.New(), strings.ReplaceAll(rules, "max: 10, per: 1h", "max: 1, per: 1h"))
	q := job("counted-jobs", "a", "a")
	first := r.ask(t, "/v1/acquire", q)
	for range 3 {
		assert.Equal(t, "blocked", r.ask(t, "/v1/acquire", q).fields["status"])
	}
	assert.EqualValues(t, 1, r.ask(t, "/v1/peek", q).before(0))
	assert.Equal(t, 200, r.ask(t, "/v1/renew", first.token("lease")).status)
}

func TestALeaseThatWasResetIsLostWithThoseBesideIt(t *testing.T) {
	r := newReplica(t, memstore.New(), strings.ReplaceAll(rules, "{name: starts, value: any, max: 10, per: 1h}", "{name: starts, value: any, max: 10, algorithm: in-flight, lease: 1h}"))
	q := job("counted-jobs", "a", "a")
	a := r.ask(t, "/v1/acquire", q)
	assert.EqualValues(t, 30, a.fields["expires_after"], "the shorter of two")
	r.ask(t, "/v1/reset", question{"rule": "counted-jobs", "values": map[string]string{"worker": "a"}})
	assert.Equal(t, 410, r.ask(t, "/v1/renew", a.token("lease")).status)
	seen := r.ask(t, "/v1/peek", q)
	assert.EqualValues(t, 10, seen.before(1))
}

func TestALeaseOfNothingIsNeverLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newReplica(t, memstore.New(), rules)
		exempt := r.ask(t, "/v1/acquire", job("jobs", "internal"))
		require.Equal(t, "authorized", exempt.fields["status"])
		r.ask(t, "/v1/acquire", job("trial", "a"))
		over := r.ask(t, "/v1/acquire", job("trial", "a"))
		require.Equal(t, "authorized", over.fields["status"])
		require.Equal(t, true, over.fields["would_block"])
		time.Sleep(time.Hour)
		for _, a := range []answer{exempt, over} {
			assert.Equal(t, 200, r.ask(t, "/v1/renew", a.token("lease")).status)
			assert.Equal(t, 200, r.ask(t, "/v1/release", a.token("lease")).status)
		}
	})
}

// A token of an earlier version is good, as replicas are updated one after the other. This
// one is of a value that is exempt, so that it never ends.
func TestALeaseThatAnEarlierVersionSealedIsRenewed(t *testing.T) {
	const token = "aRKhqksR-D0_R95FpiSoiOkGDdzlGUaLj1Tzk3nVFVQKWU52di8bxVuNC4iE"
	renewed := newReplica(t, memstore.New(), rules).ask(t, "/v1/renew", question{"lease": token})
	assert.Equal(t, 200, renewed.status)
	assert.EqualValues(t, 30, renewed.fields["expires_after"])
}

func TestACallTakesWhatThereIs(t *testing.T) {
	r := newReplica(t, memstore.New(), rules)
	q := job("counted-jobs", "a", "a")
	q["cost"], q["least"] = 2, 1
	assert.EqualValues(t, 2, r.ask(t, "/v1/acquire", q).outcome(0)["cost"])
	r.ask(t, "/v1/reset", question{"rule": "counted-jobs", "values": map[string]string{"worker": "a"}})
	r.ask(t, "/v1/acquire", job("counted-jobs", "a", "a"))
	some := r.ask(t, "/v1/acquire", q)
	assert.Equal(t, "authorized", some.fields["status"])
	assert.EqualValues(t, 1, some.outcome(0)["cost"])
	assert.EqualValues(t, 2, some.outcome(1)["cost"])
	q["least"] = 3
	assert.Equal(t, 400, r.ask(t, "/v1/acquire", q).status)
}

func TestNoMoreThanMaxHoldOverMemcached(t *testing.T) {
	server := servertest.NewMemcached(t)
	replicas := []*replica{newReplica(t, pooled(t, server), rules), newReplica(t, pooled(t, server), rules)}
	acquire, err := json.Marshal(job("jobs", "shared"))
	require.NoError(t, err)
	var holding, most, done atomic.Int64
	var all sync.WaitGroup
	for i := range 16 {
		all.Go(func() {
			for done.Load() < 100 {
				var a struct{ Status, Lease string }
				w := replicas[i%2].send(t.Context(), "/v1/acquire", string(acquire))
				if !assert.Equal(t, 200, w.Code) || !decodes(t, w, &a) {
					return
				}
				if a.Status != "authorized" {
					continue
				}
				n := holding.Add(1)
				for seen := most.Load(); n > seen && !most.CompareAndSwap(seen, n); seen = most.Load() {
				}
				question, _ := json.Marshal(map[string]string{"lease": a.Lease})
				assert.Equal(t, 200, replicas[(i+1)%2].send(t.Context(), "/v1/renew", string(question)).Code)
				holding.Add(-1)
				assert.Equal(t, 200, replicas[(i+1)%2].send(t.Context(), "/v1/release", string(question)).Code)
				done.Add(1)
			}
		})
	}
	all.Wait()
	assert.LessOrEqual(t, most.Load(), int64(2))
	assert.GreaterOrEqual(t, done.Load(), int64(100))

	first := replicas[0].ask(t, "/v1/acquire", job("jobs", "outage"))
	server.Stop()
	assert.Equal(t, 503, replicas[1].ask(t, "/v1/renew", first.token("lease")).status)
	alone := replicas[1].ask(t, "/v1/acquire", job("jobs", "outage"))
	assert.Equal(t, "authorized", alone.fields["status"])
	assert.Equal(t, true, alone.fields["degraded"])
	assert.Equal(t, 200, replicas[1].ask(t, "/v1/renew", alone.token("lease")).status)
}

func decodes(t *testing.T, w *httptest.ResponseRecorder, into any) bool {
	return assert.NoError(t, json.Unmarshal(w.Body.Bytes(), into))
}

// withSecret seals tokens with another secret.
func withSecret(secret string) func(*api.Options) {
	return func(o *api.Options) { o.Secret = secret }
}
