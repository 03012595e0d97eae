package serve_test

import (
	"context"
	"fmt"
	"math"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/adaptivethrottler/throttler/cmd/throttler/internal/serve"
	"github.com/adaptivethrottler/throttler/internal/servertest"
	common "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	unit "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

const descriptors = `
rules:
  - name: api
    for: {field: {domain: edge, key: "*"}}
    either:
      - {name: key, value: "{field:key}", max: 5, per: 1m, limits: {gold: 50}}
  - name: login
    for: {field: {path: /login, remote_address: "*"}}
    either:
      - {name: address, value: "{field:remote_address}", max: 1, per: 1h}
    lockout: 1d
`

func dialEnvoy(t *testing.T, s *service) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient(s.envoy, grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	t.Cleanup(func() { conn.Close() })
	return conn
}

// descriptor returns one of pairs of keys and values.
func descriptor(pairs ...string) *common.RateLimitDescriptor {
	d := new(common.RateLimitDescriptor)
	for pair := range slices.Chunk(pairs, 2) {
		d.Entries = append(d.Entries, &common.RateLimitDescriptor_Entry{Key: pair[0], Value: pair[1]})
	}
	return d
}

// An edge is an Envoy that asks a service.
type edge struct {
	t      *testing.T
	client rls.RateLimitServiceClient
}

func newEdge(t *testing.T, s *service) *edge {
	return &edge{t, rls.NewRateLimitServiceClient(dialEnvoy(t, s))}
}

func (e *edge) ask(hits uint32, descriptors ...*common.RateLimitDescriptor) *rls.RateLimitResponse {
	e.t.Helper()
	r, err := e.client.ShouldRateLimit(e.t.Context(), &rls.RateLimitRequest{Domain: "edge", Descriptors: descriptors, HitsAddend: hits})
	require.NoError(e.t, err)
	return r
}

const (
	ok   = rls.RateLimitResponse_OK
	over = rls.RateLimitResponse_OVER_LIMIT
)

func TestEnvoyIsToldWhatIsLeftAndWhenToComeBack(t *testing.T) {
	e := newEdge(t, start(t, descriptors))
	for left := 4; left >= 0; left-- {
		r := e.ask(0, descriptor("key", "tin"))
		require.Equal(t, ok, r.OverallCode)
		require.Len(t, r.Statuses, 1)
		assert.EqualValues(t, left, r.Statuses[0].LimitRemaining)
		assert.Equal(t, "api/key", r.Statuses[0].CurrentLimit.Name)
		assert.EqualValues(t, 5, r.Statuses[0].CurrentLimit.RequestsPerUnit)
		assert.Equal(t, rls.RateLimitResponse_RateLimit_MINUTE, r.Statuses[0].CurrentLimit.Unit)
		assert.Empty(t, r.ResponseHeadersToAdd)
	}
	r := e.ask(0, descriptor("key", "tin"))
	assert.Equal(t, over, r.OverallCode)
	assert.Equal(t, over, r.Statuses[0].Code)
	assert.InDelta(t, 60, r.Statuses[0].DurationUntilReset.AsDuration().Seconds(), 30)
	require.Len(t, r.ResponseHeadersToAdd, 1)
	assert.Equal(t, "retry-after", r.ResponseHeadersToAdd[0].Key)
	assert.Regexp(t, `^[1-6]\d?$`, r.ResponseHeadersToAdd[0].Value)
	assert.Equal(t, map[string]any{"blocked_by": []any{"api"}, "banned": false, "degraded": false}, r.DynamicMetadata.AsMap())
	assert.Equal(t, ok, e.ask(0, descriptor("key", "gold")).OverallCode, "another value has a limit of its own")
	assert.EqualValues(t, 50, e.ask(0, descriptor("key", "gold")).Statuses[0].CurrentLimit.RequestsPerUnit)
}

func TestARuleIsForDescriptorsOfExactlyItsKeys(t *testing.T) {
	e := newEdge(t, start(t, descriptors))
	for _, d := range []*common.RateLimitDescriptor{
		descriptor("other", "x"), descriptor("key", "tin", "path", "/"), descriptor("path", "/login"),
		descriptor("path", "/free", "remote_address", "1"), descriptor(),
	} {
		r := e.ask(1000, d)
		assert.Equal(t, ok, r.OverallCode, "%v", d)
		assert.Nil(t, r.Statuses[0].CurrentLimit)
	}
	twice := e.ask(1, descriptor("key", "tin", "key", "gold"))
	assert.EqualValues(t, 5, twice.Statuses[0].CurrentLimit.RequestsPerUnit, "of two entries with one key the first")
	r, err := e.client.ShouldRateLimit(t.Context(), &rls.RateLimitRequest{Domain: "other", HitsAddend: 1000, Descriptors: []*common.RateLimitDescriptor{descriptor("key", "tin")}})
	require.NoError(t, err)
	assert.Equal(t, ok, r.OverallCode, "another domain")
}

func TestEnvoysClientsAreCountedByNetworkUnlessExempt(t *testing.T) {
	e := newEdge(t, start(t, `
rules:
  - name: network
    for: {field: {remote_address: "*"}}
    either:
      - {name: network, value: "{network}", max: 2, per: 1h, exempt: [10.0.0.0/8]}
  - name: path
    for: {field: {remote_address: "*", path: "*"}}
    either:
      - {name: path, value: "{field:path}", max: 2, per: 1h, exempt: [10.0.0.0/8]}
`))
	left := func(pairs ...string) any {
		r := e.ask(1, descriptor(pairs...))
		if r.Statuses[0].CurrentLimit == nil {
			return "no limit"
		}
		return r.Statuses[0].LimitRemaining
	}
	assert.EqualValues(t, 1, left("remote_address", "2001:db8::1"))
	assert.EqualValues(t, 0, left("remote_address", "2001:db8::2"), "of one network")
	assert.EqualValues(t, 1, left("remote_address", "203.0.113.7"))
	assert.Equal(t, "no limit", left("remote_address", "10.1.2.3"))
	assert.EqualValues(t, 1, left("remote_address", "203.0.113.7", "path", "10.1.2.3"), "the path looks like an address")
	assert.Equal(t, "no limit", left("remote_address", "10.1.2.3", "path", "/"))
	assert.EqualValues(t, 1, left("remote_address", "no address"))
}

func TestADescriptorIsBannedByItsRule(t *testing.T) {
	e := newEdge(t, start(t, descriptors))
	login := descriptor("path", "/login", "remote_address", "203.0.113.7")
	assert.Equal(t, ok, e.ask(0, login).OverallCode)
	r := e.ask(0, login)
	assert.Equal(t, over, r.OverallCode)
	assert.Equal(t, true, r.DynamicMetadata.AsMap()["banned"])
	look := descriptor("path", "/login", "remote_address", "203.0.113.7")
	look.HitsAddend = wrapperspb.UInt64(0)
	looked := e.ask(0, look)
	assert.Equal(t, over, looked.OverallCode, "banned for a look too")
	assert.InDelta(t, 24, looked.Statuses[0].DurationUntilReset.AsDuration().Hours(), 0.1)
	assert.InDelta(t, 24, r.Statuses[0].DurationUntilReset.AsDuration().Hours(), 0.1)
}

func TestHitsAreCountedAllOrNone(t *testing.T) {
	e := newEdge(t, start(t, descriptors))
	assert.EqualValues(t, 2, e.ask(3, descriptor("key", "a")).Statuses[0].LimitRemaining)
	assert.Equal(t, over, e.ask(3, descriptor("key", "a")).OverallCode)
	assert.Equal(t, ok, e.ask(2, descriptor("key", "a")).OverallCode, "the call before counted none")
	assert.Equal(t, over, e.ask(6, descriptor("key", "b")).OverallCode, "more than the limit ever takes")
	look := descriptor("key", "b")
	look.HitsAddend = wrapperspb.UInt64(0)
	for range 10 {
		assert.Equal(t, ok, e.ask(1, look).OverallCode, "0 hits only look")
	}
	own := descriptor("key", "b")
	own.HitsAddend = wrapperspb.UInt64(5)
	assert.Equal(t, ok, e.ask(1, own).OverallCode, "a descriptor's hits come before the request's")
	assert.Equal(t, ok, e.ask(1, look).OverallCode, "full, but 0 hits more fit")
	assert.EqualValues(t, 0, e.ask(1, look).Statuses[0].LimitRemaining)
	assert.Equal(t, over, e.ask(1, descriptor("key", "b")).OverallCode)
	fresh := descriptor("key", "c")
	fresh.HitsAddend = wrapperspb.UInt64(0)
	assert.EqualValues(t, 5, e.ask(1, fresh).Statuses[0].LimitRemaining, "a look takes nothing")
}

func TestARuleOfAllTakesHitsThatOneOfItsConditionsHasRoomFor(t *testing.T) {
	e := newEdge(t, start(t, `
rules:
  - name: both
    for: {field: {key: "*"}}
    all:
      - {name: small, value: "{field:key}", max: 5, per: 1d}
      - {name: large, value: "{field:key}", max: 100, per: 1d}
`))
	told := func(hits uint32, d *common.RateLimitDescriptor) string {
		r := e.ask(hits, d).Statuses[0]
		return fmt.Sprintf("%v, %d of %s", r.Code, r.LimitRemaining, r.CurrentLimit.Name)
	}
	a := descriptor("key", "a")
	for i := range 10 {
		assert.Equal(t, fmt.Sprintf("OK, %d of both/large", 90-10*i), told(10, a))
	}
	assert.Equal(t, "OVER_LIMIT, 0 of both/large", told(10, a))
	assert.Equal(t, ok, e.ask(5, a).OverallCode, "the small one has counted none of those")
	assert.Equal(t, "OVER_LIMIT, 0 of both/large", told(6, a))
	back := descriptor("key", "a")
	back.HitsAddend, back.IsNegativeHits = wrapperspb.UInt64(10), true
	assert.Equal(t, "OK, 10 of both/large", told(1, back))
	assert.Equal(t, "OVER_LIMIT, 10 of both/large", told(11, a))
	assert.Equal(t, "OK, 0 of both/large", told(10, a), "what was given back was counted there")
	assert.Equal(t, "OVER_LIMIT, 0 of both/small", told(1, a))
	assert.Equal(t, over, e.ask(101, descriptor("key", "b")).OverallCode, "more than any ever takes")
	assert.Equal(t, "OK, 0 of both/small", told(5, descriptor("key", "b")))
}

func TestEnvoyIsToldOfTheConditionOfFirstThatCounts(t *testing.T) {
	e := newEdge(t, start(t, `
rules:
  - name: shares
    for: {field: {key: "*"}}
    first:
      - {name: own, value: "{field:key}", max: 2, per: 1d}
      - {name: pool, value: any, max: 3, per: 1d}
`))
	told := func(hits uint32) string {
		r := e.ask(hits, descriptor("key", "a")).Statuses[0]
		return fmt.Sprintf("%v, %d of %s", r.Code, r.LimitRemaining, r.CurrentLimit.Name)
	}
	assert.Equal(t, "OK, 1 of shares/own", told(1))
	assert.Equal(t, "OK, 0 of shares/pool", told(3), "more than the first ever takes")
	assert.Equal(t, "OK, 0 of shares/own", told(1))
	assert.Equal(t, "OVER_LIMIT, 0 of shares/pool", told(1))
}

func TestHitsBeyondALimitAreReported(t *testing.T) {
	for _, c := range []struct {
		rules, result string
		code          rls.RateLimitResponse_Code
	}{
		{descriptors, "blocked", over},
		{strings.Replace(descriptors, "{gold: 50}}\n", "{gold: 50}}\n    shadow: true\n", 1), "would_block", ok},
	} {
		s := start(t, c.rules)
		look := func(path string) string {
			_, body := request(t, http.DefaultClient, "GET", "http://"+s.admin+path, "", "Accept", "application/json")
			return body
		}
		e := newEdge(t, s)
		assert.Equal(t, c.code, e.ask(6, descriptor("key", "greedy")).OverallCode)
		assert.Regexp(t, `throttler_decisions_total\{.*throttler_result="`+c.result+`",throttler_rule="api"\} 1`, look("/metrics"))
		assert.Contains(t, look("/tally"), "greedy")
		none := descriptor("own", "x")
		none.Limit = &common.RateLimitDescriptor_RateLimitOverride{RequestsPerUnit: 0, Unit: unit.RateLimitUnit_DAY}
		require.Equal(t, over, e.ask(1, none).OverallCode)
		assert.Regexp(t, `throttler_decisions_total\{.*throttler_result="blocked",throttler_rule="envoy/edge"\} 1`, look("/metrics"))
		s.stop()
		assert.Contains(t, s.log.String(), "rule=api")
	}
}

// A look at a full limit tells of no ban that a call would set.
func TestOnlyABanBlocksALook(t *testing.T) {
	s := start(t, descriptors)
	e := newEdge(t, s)
	full := []string{"path", "/login", "remote_address", "203.0.113.7"}
	require.Equal(t, ok, e.ask(1, descriptor(full...)).OverallCode)
	look := descriptor(full...)
	look.HitsAddend = wrapperspb.UInt64(0)
	r := e.ask(1, look)
	assert.Equal(t, ok, r.OverallCode)
	assert.Equal(t, false, r.DynamicMetadata.AsMap()["banned"])
	assert.Zero(t, r.Statuses[0].LimitRemaining)
	assert.LessOrEqual(t, r.Statuses[0].DurationUntilReset.AsDuration(), time.Hour)
	r = e.ask(2, descriptor(full...))
	assert.Equal(t, over, r.OverallCode)
	assert.Equal(t, false, r.DynamicMetadata.AsMap()["banned"], "hits beyond the limit set none either")
	_, metrics := request(t, http.DefaultClient, "GET", "http://"+s.admin+"/metrics", "")
	assert.NotRegexp(t, `throttler_bans_total\{.*throttler_rule="login"\} [1-9]`, metrics)
	require.Equal(t, true, e.ask(1, descriptor(full...)).DynamicMetadata.AsMap()["banned"])
	assert.Equal(t, over, e.ask(1, look).OverallCode)
}

func TestNegativeHitsAreGivenBack(t *testing.T) {
	server := servertest.NewMemcached(t)
	edges := []*edge{newEdge(t, start(t, descriptors, server.Addr)), newEdge(t, start(t, descriptors, server.Addr))}
	back := func(hits uint64, pairs ...string) *common.RateLimitDescriptor {
		d := descriptor(pairs...)
		d.HitsAddend, d.IsNegativeHits = wrapperspb.UInt64(hits), true
		return d
	}
	left := func(i int, hits uint32, d *common.RateLimitDescriptor) any {
		r := edges[i].ask(hits, d)
		assert.Equal(t, false, r.DynamicMetadata.AsMap()["degraded"])
		if r.OverallCode != ok {
			return "over"
		}
		return int(r.Statuses[0].LimitRemaining)
	}
	key := descriptor("key", "tin")
	assert.Equal(t, 5, left(0, 1, back(3, "key", "tin")), "there are none")
	assert.Equal(t, 1, left(0, 4, key))
	assert.Equal(t, 4, left(1, 1, back(3, "key", "tin")), "at another service")
	assert.Equal(t, 0, left(0, 4, key))
	assert.Equal(t, "over", left(0, 1, key))
	assert.Equal(t, 5, left(1, 1, back(1<<40, "key", "tin")), "never more than there are")
	assert.Equal(t, 0, left(0, 5, key))
	assert.Equal(t, 0, left(0, 1, back(0, "key", "tin")))

	plain := descriptor("key", "tin")
	plain.IsNegativeHits = true
	assert.Equal(t, 2, left(0, 2, plain), "as many as the request says")
	assert.Equal(t, 3, left(0, 0, plain), "or one")

	both := edges[0].ask(1, descriptor("key", "gold"), back(1, "key", "tin"))
	assert.EqualValues(t, 49, both.Statuses[0].LimitRemaining)
	assert.EqualValues(t, 4, both.Statuses[1].LimitRemaining, "of its descriptor only")

	login := []string{"path", "/login", "remote_address", "203.0.113.7"}
	for range 6 {
		edges[0].ask(1, descriptor(login...))
	}
	r := edges[0].ask(1, back(1, login...))
	assert.Equal(t, ok, r.OverallCode, "a refund is never over the limit")
	assert.Equal(t, true, r.DynamicMetadata.AsMap()["banned"])
	assert.Equal(t, over, edges[0].ask(1, descriptor(login...)).OverallCode, "the ban stays")

	limited := back(2, "own", "x")
	limited.Limit = &common.RateLimitDescriptor_RateLimitOverride{RequestsPerUnit: 1_000_001, Unit: unit.RateLimitUnit_YEAR} // one in 31 s
	counted := descriptor("own", "x")
	counted.Limit = limited.Limit
	assert.InDelta(t, 999_991, left(0, 10, counted), 1)
	assert.InDelta(t, 999_993, left(1, 1, limited), 1, "of a bucket")
	none := back(2, "own", "y")
	none.Limit = &common.RateLimitDescriptor_RateLimitOverride{RequestsPerUnit: 0, Unit: unit.RateLimitUnit_DAY}
	assert.Equal(t, 0, left(0, 1, none))
}

func TestACalendarIsToldInTheProtocolsUnits(t *testing.T) {
	e := newEdge(t, start(t, `
rules:
  - name: plan
    for: {field: {key: "*"}}
    either:
      - {name: month, value: "{field:key}", max: 10000000000, per: month, algorithm: calendar, anchor: 15, zone: Europe/Berlin}
  - name: day
    for: {field: {key: "*"}}
    either:
      - {name: day, value: "{field:key}", max: 2, per: day, algorithm: calendar}
`))
	r := e.ask(1, descriptor("key", "a")).Statuses[0]
	assert.Equal(t, rls.RateLimitResponse_RateLimit_DAY, r.CurrentLimit.Unit, "the tighter one")
	assert.EqualValues(t, 1, r.LimitRemaining)
	assert.LessOrEqual(t, r.DurationUntilReset.AsDuration(), 24*time.Hour)
	e = newEdge(t, start(t, `
rules:
  - name: plan
    for: {field: {key: "*"}}
    either:
      - {name: month, value: "{field:key}", max: 10000000000, per: month, algorithm: calendar}
`))
	r = e.ask(1, descriptor("key", "a")).Statuses[0]
	assert.Equal(t, rls.RateLimitResponse_RateLimit_MONTH, r.CurrentLimit.Unit)
	assert.Equal(t, uint32(math.MaxUint32), r.CurrentLimit.RequestsPerUnit, "more than the protocol can say")
	assert.Equal(t, uint32(math.MaxUint32), r.LimitRemaining)
}

func TestAnyDescriptorOverItsLimitIsEnough(t *testing.T) {
	e := newEdge(t, start(t, descriptors))
	e.ask(5, descriptor("key", "a"))
	r := e.ask(0, descriptor("key", "b"), descriptor("key", "a"), descriptor("none", "x"))
	assert.Equal(t, over, r.OverallCode)
	var codes []rls.RateLimitResponse_Code
	for _, s := range r.Statuses {
		codes = append(codes, s.Code)
	}
	assert.Equal(t, []rls.RateLimitResponse_Code{ok, over, ok}, codes, "in the order of the request")
}

func TestALimitInTheRequestComesFirst(t *testing.T) {
	e := newEdge(t, start(t, descriptors))
	limited := func(value string, perUnit uint32, u unit.RateLimitUnit) *common.RateLimitDescriptor {
		d := descriptor("key", value)
		d.Limit = &common.RateLimitDescriptor_RateLimitOverride{RequestsPerUnit: perUnit, Unit: u}
		return d
	}
	for i := range 8 {
		r := e.ask(0, limited("a", 7, unit.RateLimitUnit_DAY))
		assert.Equal(t, i < 7, r.OverallCode == ok, i)
		assert.EqualValues(t, 7, r.Statuses[0].CurrentLimit.RequestsPerUnit)
		assert.Equal(t, rls.RateLimitResponse_RateLimit_DAY, r.Statuses[0].CurrentLimit.Unit)
	}
	assert.Equal(t, ok, e.ask(0, limited("b", 7, unit.RateLimitUnit_DAY)).OverallCode)
	assert.Equal(t, over, e.ask(0, limited("c", 0, unit.RateLimitUnit_DAY)).OverallCode, "none at all")
	assert.Equal(t, ok, e.ask(200_000, limited("d", 2_000_000, unit.RateLimitUnit_HOUR)).OverallCode, "more than a window holds")
	_, err := e.client.ShouldRateLimit(t.Context(), &rls.RateLimitRequest{Domain: "edge", Descriptors: []*common.RateLimitDescriptor{limited("a", 7, 99)}})
	assert.Equal(t, codes.InvalidArgument, status.Code(err))
	assert.Empty(t, e.ask(0, limited("a", 7, unit.RateLimitUnit_DAY)).Statuses[0].CurrentLimit.Name, "it has no name")
}

func TestALimitThatNobodyReachesIsNone(t *testing.T) {
	e := newEdge(t, start(t, `
envoy:
  - domain: edge
    descriptors:
      - {key: open, rate_limit: {unit: second, requests_per_unit: 2000000000}}
      - {key: largest, rate_limit: {unit: day, requests_per_unit: 4294967295}}
`))
	own := descriptor("own", "x")
	for _, most := range []uint32{1_000_000_001, math.MaxUint32} {
		own.Limit = &common.RateLimitDescriptor_RateLimitOverride{RequestsPerUnit: most, Unit: unit.RateLimitUnit_SECOND}
		for _, d := range []*common.RateLimitDescriptor{own, descriptor("open", "x"), descriptor("largest", "x")} {
			r := e.ask(math.MaxUint32, d)
			assert.Equal(t, ok, r.OverallCode)
			assert.Nil(t, r.Statuses[0].CurrentLimit)
			assert.Equal(t, uint32(math.MaxUint32), r.Statuses[0].LimitRemaining)
		}
	}
	own.Limit.RequestsPerUnit = 1_000_000_000
	assert.EqualValues(t, 1_000_000_000, e.ask(1, own).Statuses[0].CurrentLimit.RequestsPerUnit)
}

func TestEnvoysClientsAreToldWhatIsLeftOfPublicLimits(t *testing.T) {
	e := newEdge(t, start(t, `
rules:
  - name: api
    for: {field: {key: "*"}}
    either:
      - {name: key, value: "{field:key}", max: 2, per: 1m, public: true}
      - {name: day, value: "{field:key}", max: 50, per: 1d}
`))
	fields := func() map[string]string {
		told := make(map[string]string)
		for _, h := range e.ask(0, descriptor("key", "a"), descriptor("path", "/")).ResponseHeadersToAdd {
			told[h.Key] = h.Value
		}
		return told
	}
	first := fields()
	assert.Equal(t, `"key";q=2;w=60`, first["ratelimit-policy"])
	assert.Regexp(t, `^"key";r=1;t=\d+$`, first["ratelimit"])
	assert.NotContains(t, first, "retry-after")
	fields()
	refused := fields()
	assert.Regexp(t, `^"key";r=0;t=\d+$`, refused["ratelimit"])
	assert.Contains(t, refused, "retry-after")
}

func TestInShadowEverythingOfEnvoyPasses(t *testing.T) {
	e := newEdge(t, start(t, "shadow: true"+descriptors+`
envoy:
  - {domain: edge, descriptors: [{key: tree, rate_limit: {unit: hour, requests_per_unit: 1}}]}
`))
	own, none := descriptor("own", "x"), descriptor("none", "x")
	own.Limit = &common.RateLimitDescriptor_RateLimitOverride{RequestsPerUnit: 1, Unit: unit.RateLimitUnit_HOUR}
	none.Limit = &common.RateLimitDescriptor_RateLimitOverride{Unit: unit.RateLimitUnit_HOUR}
	for range 7 {
		r := e.ask(0, descriptor("key", "a"), descriptor("tree", "x"), own, none)
		assert.Equal(t, ok, r.OverallCode, "%v", r)
	}
	assert.Zero(t, e.ask(0, descriptor("key", "a")).Statuses[0].LimitRemaining, "it is counted all the same")
}

func TestADescriptorsMetadataIsPassedOn(t *testing.T) {
	e := newEdge(t, start(t, `
envoy:
  - domain: edge
    descriptors:
      - {key: plan, value: gold, metadata: {owner: sales, levels: [1, 2]}, rate_limit: {unit: hour, requests_per_unit: 1}}
      - {key: plan, value: open, metadata: {owner: all}, rate_limit: {unlimited: true}}
`))
	gold := map[string]any{"owner": "sales", "levels": []any{1.0, 2.0}}
	r := e.ask(0, descriptor("plan", "gold"), descriptor("other", "x"), descriptor("plan", "open"))
	assert.Equal(t, []any{gold, nil, map[string]any{"owner": "all"}}, r.DynamicMetadata.AsMap()["metadata"])
	assert.NotContains(t, e.ask(0, descriptor("other", "x")).DynamicMetadata.AsMap(), "metadata")
}

func TestOneBadDescriptorDoesNotFailTheOthers(t *testing.T) {
	e := newEdge(t, start(t, descriptors))
	bad := descriptor("key", "a")
	bad.Limit = &common.RateLimitDescriptor_RateLimitOverride{RequestsPerUnit: 7, Unit: 99}
	r := e.ask(0, bad, descriptor("key", "tin"))
	assert.Equal(t, ok, r.OverallCode)
	assert.Equal(t, rls.RateLimitResponse_UNKNOWN, r.Statuses[0].Code)
	assert.EqualValues(t, 4, r.Statuses[1].LimitRemaining)
	assert.Equal(t, true, r.DynamicMetadata.AsMap()["degraded"])
	assert.Equal(t, over, e.ask(5, bad, descriptor("key", "tin")).OverallCode)
}

func TestMoreThanAHundredDescriptorsAreDecided(t *testing.T) {
	e := newEdge(t, start(t, descriptors))
	var all []*common.RateLimitDescriptor
	for i := range 300 {
		all = append(all, descriptor("key", fmt.Sprint(i)))
	}
	r := e.ask(0, all...)
	require.Len(t, r.Statuses, 300)
	for i := range r.Statuses {
		assert.EqualValues(t, 4, r.Statuses[i].LimitRemaining, i)
	}
}

// tree is a file of envoyproxy/ratelimit, most of it from its README.
const tree = `
envoy:
  - domain: messaging
    descriptors:
      - key: message_type
        value: marketing
        descriptors:
          - key: to_number
            rate_limit: {unit: day, requests_per_unit: 2, name: per number}
      - key: to_number
        rate_limit: {unit: week, requests_per_unit: 3}
      - key: path
        value: /files/*
        share_threshold: true
        rate_limit: {unit: hour, requests_per_unit: 2}
      - key: path
        value: /*/x/*
        rate_limit: {unit: hour, requests_per_unit: 1}
      - key: path
        rate_limit: {unit: minute, requests_per_unit: 9}
      - key: trusted
        rate_limit: {unlimited: true}
      - key: vip
        rate_limit: {unit: day, requests_per_unit: 5, replaces: [{name: per number}]}
      - key: nobody
        rate_limit: {unit: second, requests_per_unit: 0}
      - key: tried
        shadow_mode: true
        rate_limit: {unit: day, requests_per_unit: 1}
      - key: quota
        quota_mode: true
        rate_limit: {unit: day, requests_per_unit: 1}
      - key: many
        rate_limit: {unit: day, requests_per_unit: 2000000}
`

func TestDescriptorsAreNestedAndOrderedAsInEnvoyproxyRatelimit(t *testing.T) {
	e := newEdge(t, start(t, tree))
	left := func(pairs ...string) string {
		r, err := e.client.ShouldRateLimit(t.Context(), &rls.RateLimitRequest{Domain: "messaging", Descriptors: []*common.RateLimitDescriptor{descriptor(pairs...)}})
		require.NoError(t, err)
		require.Equal(t, r.OverallCode, r.Statuses[0].Code)
		l := r.Statuses[0].CurrentLimit
		if l == nil {
			return fmt.Sprintf("%v, no limit, %d", r.OverallCode, r.Statuses[0].LimitRemaining)
		}
		return fmt.Sprintf("%v, %d of %d per %v %s", r.OverallCode, r.Statuses[0].LimitRemaining, l.RequestsPerUnit, l.Unit, l.Name)
	}
	for _, step := range []struct {
		want  string
		pairs []string
	}{
		{"OK, 1 of 2 per DAY per number", []string{"message_type", "marketing", "to_number", "1"}},
		{"OK, 0 of 2 per DAY per number", []string{"message_type", "marketing", "to_number", "1"}},
		{"OVER_LIMIT, 0 of 2 per DAY per number", []string{"message_type", "marketing", "to_number", "1"}},
		{"OK, 1 of 2 per DAY per number", []string{"message_type", "marketing", "to_number", "2"}},
		{"OK, no limit, 0", []string{"to_number", "1", "message_type", "marketing"}}, // another order
		{"OK, no limit, 0", []string{"message_type", "other", "to_number", "1"}},
		{"OK, no limit, 0", []string{"message_type", "marketing"}},                             // too short
		{"OK, no limit, 0", []string{"message_type", "marketing", "to_number", "1", "x", "y"}}, // too long
		{"OK, 2 of 3 per WEEK ", []string{"to_number", "1"}},
		{"OK, 1 of 2 per HOUR ", []string{"path", "/files/a"}},
		{"OK, 0 of 2 per HOUR ", []string{"path", "/files/b"}}, // shared
		{"OVER_LIMIT, 0 of 2 per HOUR ", []string{"path", "/files/x/"}},
		{"OK, 0 of 1 per HOUR ", []string{"path", "/a/x/1"}},
		{"OK, 0 of 1 per HOUR ", []string{"path", "/a/x/2"}}, // by itself
		{"OK, 8 of 9 per MINUTE ", []string{"path", "/a/y/2"}},
		{"OK, no limit, 4294967295", []string{"trusted", "me"}},
		{"OVER_LIMIT, 0 of 0 per SECOND ", []string{"nobody", "x"}},
		{"OK, 0 of 1 per DAY ", []string{"tried", "x"}},
		{"OK, 0 of 1 per DAY ", []string{"tried", "x"}},
		{"OK, 1999999 of 2000000 per DAY ", []string{"many", "x"}},
	} {
		assert.Equal(t, step.want, left(step.pairs...), "%v", step.pairs)
	}
}

func TestALimitReplacesOthersAndQuotasMustAllBeUsedUp(t *testing.T) {
	e := newEdge(t, start(t, tree))
	codesOf := func(descriptors ...*common.RateLimitDescriptor) (all []rls.RateLimitResponse_Code) {
		r, err := e.client.ShouldRateLimit(t.Context(), &rls.RateLimitRequest{Domain: "messaging", Descriptors: descriptors})
		require.NoError(t, err)
		for _, s := range r.Statuses {
			all = append(all, s.Code)
		}
		return append(all, r.OverallCode)
	}
	number, vip := descriptor("message_type", "marketing", "to_number", "1"), descriptor("vip", "x")
	for range 4 {
		assert.Equal(t, []rls.RateLimitResponse_Code{ok, ok, ok}, codesOf(number, vip), "the named limit does not apply")
	}
	assert.Equal(t, []rls.RateLimitResponse_Code{ok, ok}, codesOf(number), "and has counted nothing")

	one, other := descriptor("quota", "1"), descriptor("quota", "2")
	require.Equal(t, []rls.RateLimitResponse_Code{ok, ok}, codesOf(one))
	assert.Equal(t, []rls.RateLimitResponse_Code{over, ok, ok}, codesOf(one, other), "one quota is left")
	assert.Equal(t, []rls.RateLimitResponse_Code{over, over, over}, codesOf(one, other))
}

func TestARequestWithoutDomainOrDescriptorsIsAnError(t *testing.T) {
	e := newEdge(t, start(t, descriptors))
	for want, r := range map[string]*rls.RateLimitRequest{
		"domain must not be empty":          {Descriptors: []*common.RateLimitDescriptor{descriptor("key", "a")}},
		"descriptor list must not be empty": {Domain: "edge"},
		"1001 descriptors":                  {Domain: "edge", Descriptors: slices.Repeat([]*common.RateLimitDescriptor{descriptor("key", "a")}, 1001)},
	} {
		_, err := e.client.ShouldRateLimit(t.Context(), r)
		assert.Equal(t, codes.InvalidArgument, status.Code(err))
		assert.ErrorContains(t, err, want)
	}
	_, err := e.client.ShouldRateLimit(t.Context(), &rls.RateLimitRequest{Domain: strings.Repeat("x", 1<<20)})
	assert.Equal(t, codes.ResourceExhausted, status.Code(err))
}

func TestAFailingMemcachedIsToldAsTheRuleFileSays(t *testing.T) {
	for _, failure := range []string{"open", "closed"} {
		server := servertest.NewMemcached(t)
		e := newEdge(t, start(t, descriptors+"failure: "+failure+"\n", server.Addr))
		e.ask(0, descriptor("key", "a"))
		server.Kill()
		r, err := e.client.ShouldRateLimit(t.Context(), &rls.RateLimitRequest{Domain: "edge", Descriptors: []*common.RateLimitDescriptor{descriptor("key", "a")}})
		if failure == "closed" {
			assert.Equal(t, codes.Unavailable, status.Code(err), "Envoy does as its failure_mode_deny says")
			continue
		}
		require.NoError(t, err)
		assert.Equal(t, ok, r.OverallCode)
		assert.Equal(t, true, r.DynamicMetadata.AsMap()["degraded"])
	}
}

func TestTheServerTellsItsHealthAndItsServices(t *testing.T) {
	conn := dialEnvoy(t, start(t, descriptors))
	for _, name := range []string{"", "envoy.service.ratelimit.v3.RateLimitService"} {
		health, err := healthpb.NewHealthClient(conn).Check(t.Context(), &healthpb.HealthCheckRequest{Service: name})
		require.NoError(t, err)
		assert.Equal(t, healthpb.HealthCheckResponse_SERVING, health.Status)
	}
	_, err := healthpb.NewHealthClient(conn).Check(t.Context(), &healthpb.HealthCheckRequest{Service: "another"})
	assert.Equal(t, codes.NotFound, status.Code(err))
	stream, err := grpc_reflection_v1.NewServerReflectionClient(conn).ServerReflectionInfo(t.Context())
	require.NoError(t, err)
	require.NoError(t, stream.Send(&grpc_reflection_v1.ServerReflectionRequest{
		MessageRequest: &grpc_reflection_v1.ServerReflectionRequest_ListServices{},
	}))
	answer, err := stream.Recv()
	require.NoError(t, err)
	assert.Contains(t, answer.String(), "envoy.service.ratelimit.v3.RateLimitService")
}

func TestHealthIsThatOfTheServersAndOfTheService(t *testing.T) {
	server, seen := servertest.NewMemcached(t), make(chan struct{})
	serve.SetDrained(t, func() { <-seen })
	see := sync.OnceFunc(func() { close(seen) })
	defer see()
	s := start(t, descriptors, server.Addr)
	health, e := healthpb.NewHealthClient(dialEnvoy(t, s)), newEdge(t, s)
	is := func(want healthpb.HealthCheckResponse_ServingStatus) func() bool {
		return func() bool {
			answer, err := health.Check(t.Context(), &healthpb.HealthCheckRequest{Service: rls.RateLimitService_ServiceDesc.ServiceName})
			return err == nil && answer.Status == want
		}
	}
	require.Eventually(t, is(healthpb.HealthCheckResponse_SERVING), 30*time.Second, 20*time.Millisecond)
	server.Kill()
	for range 10 { // a server is down when requests say so
		e.ask(0, descriptor("key", "a"))
	}
	require.Eventually(t, is(healthpb.HealthCheckResponse_NOT_SERVING), 30*time.Second, 20*time.Millisecond)
	server.Start()
	require.Eventually(t, is(healthpb.HealthCheckResponse_SERVING), 30*time.Second, 20*time.Millisecond)
	var ended sync.WaitGroup
	ended.Go(s.stop)
	assert.Eventually(t, is(healthpb.HealthCheckResponse_NOT_SERVING), 30*time.Second, 20*time.Millisecond, "while it drains")
	see()
	ended.Wait()
}

func TestTheServiceEndsThoughAClientWatchesItsHealth(t *testing.T) {
	s := start(t, descriptors)
	stream, err := healthpb.NewHealthClient(dialEnvoy(t, s)).Watch(t.Context(), &healthpb.HealthCheckRequest{})
	require.NoError(t, err)
	_, err = stream.Recv()
	require.NoError(t, err)
	var ended sync.WaitGroup
	ended.Go(s.stop)
	for err == nil { // the client is told that the service is not ready any more
		_, err = stream.Recv()
	}
	assert.Equal(t, codes.Canceled, status.Code(err), "the stream is ended, and not its connection: %v", err)
	ended.Wait()
}

func TestTheServiceEndsThoughAClientMayAskWhatItServes(t *testing.T) {
	s := start(t, descriptors)
	stream, err := grpc_reflection_v1.NewServerReflectionClient(dialEnvoy(t, s)).ServerReflectionInfo(t.Context())
	require.NoError(t, err)
	require.NoError(t, stream.Send(&grpc_reflection_v1.ServerReflectionRequest{
		MessageRequest: &grpc_reflection_v1.ServerReflectionRequest_ListServices{},
	}))
	_, err = stream.Recv()
	require.NoError(t, err)
	var ended sync.WaitGroup
	ended.Go(s.stop)
	_, err = stream.Recv()
	assert.Equal(t, codes.Canceled, status.Code(err), "the stream is ended, and not its connection: %v", err)
	ended.Wait()
}

// TestManyEnvoysAdmitNoMoreThanTheLimit asks two services on one memcached, and
// measures how long the answers take: Envoy waits 20 ms by default.
func TestManyEnvoysAdmitNoMoreThanTheLimit(t *testing.T) {
	server := servertest.NewMemcached(t)
	edges := []*edge{newEdge(t, start(t, descriptors, server.Addr)), newEdge(t, start(t, descriptors, server.Addr))}
	const callers, calls = 32, 100
	took := make([]time.Duration, callers*calls)
	var admitted [20]atomic.Int64
	var all sync.WaitGroup
	for c := range callers {
		all.Go(func() {
			for i := range calls {
				value := (c + i) % len(admitted)
				begin := time.Now()
				r, err := edges[c%2].client.ShouldRateLimit(context.Background(), &rls.RateLimitRequest{
					Domain: "edge", Descriptors: []*common.RateLimitDescriptor{descriptor("key", fmt.Sprint(value))},
				})
				took[c*calls+i] = time.Since(begin)
				if assert.NoError(t, err) && r.OverallCode == ok {
					admitted[value].Add(1)
				}
			}
		})
	}
	all.Wait()
	for value := range admitted {
		assert.EqualValues(t, 5, admitted[value].Load(), "value %d", value)
	}
	slices.Sort(took)
	t.Logf("%d callers, %d calls: median %v, p99 %v", callers, len(took), took[len(took)/2], took[len(took)*99/100])
}
