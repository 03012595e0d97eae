package serve_test

import (
	"context"
	"fmt"
	"math"
	"net/http"
	"slices"
	"strconv"
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

// descriptor parses one: entries, then what the request says of it. "key=a path=/x +3 7/DAY" has
// 3 hits, and a limit of its own; with -3 they are given back, and with - as many as the request
// has.
func descriptor(text string) *common.RateLimitDescriptor {
	d := new(common.RateLimitDescriptor)
	for word := range strings.FieldsSeq(text) {
		if key, value, ok := strings.Cut(word, "="); ok {
			d.Entries = append(d.Entries, &common.RateLimitDescriptor_Entry{Key: key, Value: value})
		} else if most, per, ok := strings.Cut(word, "/"); ok {
			n, _ := strconv.ParseUint(most, 10, 32)
			u, known := unit.RateLimitUnit_value[per]
			if !known {
				u = 99
			}
			d.Limit = &common.RateLimitDescriptor_RateLimitOverride{RequestsPerUnit: uint32(n), Unit: unit.RateLimitUnit(u)}
		} else {
			d.IsNegativeHits = word[0] == '-'
			if hits, err := strconv.ParseUint(word[1:], 10, 64); err == nil {
				d.HitsAddend = wrapperspb.UInt64(hits)
			}
		}
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

// ask asks about descriptors with semicolons between them.
func (e *edge) ask(hits uint32, descriptors string) *rls.RateLimitResponse {
	e.t.Helper()
	r, err := e.client.ShouldRateLimit(e.t.Context(), envoyAsks("edge", hits, descriptors))
	require.NoError(e.t, err)
	return r
}

func envoyAsks(domain string, hits uint32, descriptors string) *rls.RateLimitRequest {
	r := &rls.RateLimitRequest{Domain: domain, HitsAddend: hits}
	for text := range strings.SplitSeq(descriptors, ";") {
		r.Descriptors = append(r.Descriptors, descriptor(text))
	}
	return r
}

// told is ask in words: of each descriptor what is left of which limit, as "OK 4/5 MINUTE api/key".
func (e *edge) told(hits uint32, descriptors string) string {
	e.t.Helper()
	r := e.ask(hits, descriptors)
	var all []string
	for _, s := range r.Statuses {
		words := []string{s.Code.String()}
		switch l := s.CurrentLimit; {
		case l != nil:
			words = append(words, fmt.Sprintf("%d/%d", s.LimitRemaining, l.RequestsPerUnit), l.Unit.String(), l.Name)
		case s.LimitRemaining == math.MaxUint32:
			words = append(words, "unlimited")
		}
		all = append(all, strings.TrimSpace(strings.Join(words, " ")))
	}
	text := strings.Join(all, "; ")
	if len(all) > 1 {
		text = r.OverallCode.String() + ": " + text
	} else {
		assert.Equal(e.t, r.Statuses[0].Code, r.OverallCode)
	}
	for _, what := range []string{"banned", "degraded"} {
		if r.DynamicMetadata.AsMap()[what] == true {
			text += ", " + what
		}
	}
	return text
}

const (
	ok   = rls.RateLimitResponse_OK
	over = rls.RateLimitResponse_OVER_LIMIT
)

func TestWhatEnvoyIsTold(t *testing.T) {
	type step struct {
		hits              uint32
		descriptors, want string
	}
	many := func(n int, s step) []step { return slices.Repeat([]step{s}, n) }
	for _, scene := range []struct {
		what, rules string
		steps       []step
	}{
		{"rules are for descriptors of exactly their keys", descriptors, []step{
			{1000, "other=x", "OK"}, {1000, "key=tin path=/", "OK"}, {1000, "path=/login", "OK"}, {1000, "path=/free remote_address=1", "OK"}, {1000, "", "OK"},
			{1, "key=tin key=gold", "OK 4/5 MINUTE api/key"}, // of two entries with one key the first
			{1, "key=gold", "OK 49/50 MINUTE api/key"},
		}},
		{"clients are counted by network unless exempt", `
rules:
  - name: network
    for: {field: {remote_address: "*"}}
    either:
      - {name: network, value: "{network}", max: 2, per: 1h, exempt: [10.0.0.0/8]}
  - name: path
    for: {field: {remote_address: "*", path: "*"}}
    either:
      - {name: path, value: "{field:path}", max: 2, per: 1h, exempt: [10.0.0.0/8]}
`, []step{
			{1, "remote_address=2001:db8::1", "OK 1/2 HOUR network/network"}, {1, "remote_address=2001:db8::2", "OK 0/2 HOUR network/network"}, // of one network
			{1, "remote_address=203.0.113.7", "OK 1/2 HOUR network/network"}, {1, "remote_address=10.1.2.3", "OK"},
			{1, "remote_address=203.0.113.7 path=10.1.2.3", "OK 1/2 HOUR path/path"}, // the path looks like an address
			{1, "remote_address=10.1.2.3 path=/", "OK"}, {1, "remote_address=nonsense", "OK 1/2 HOUR network/network"},
		}},
		{"hits are counted all or none", descriptors, slices.Concat([]step{
			{3, "key=a", "OK 2/5 MINUTE api/key"}, {3, "key=a", "OVER_LIMIT 2/5 MINUTE api/key"}, {2, "key=a", "OK 0/5 MINUTE api/key"},
			{6, "key=b", "OVER_LIMIT 5/5 MINUTE api/key"}, // more than the limit ever takes
		}, many(10, step{1, "key=b +0", "OK 5/5 MINUTE api/key"}), []step{ // only looks
			{1, "key=b +5", "OK 0/5 MINUTE api/key"}, {1, "key=b +0", "OK 0/5 MINUTE api/key"}, {1, "key=b", "OVER_LIMIT 0/5 MINUTE api/key"},
			{1, "key=c +0", "OK 5/5 MINUTE api/key"},
		})},
		{"all takes hits that one of its conditions has room for", `
rules:
  - name: both
    for: {field: {key: "*"}}
    all:
      - {name: small, value: "{field:key}", max: 5, per: 1d}
      - {name: large, value: "{field:key}", max: 30, per: 1d}
`, []step{
			{10, "key=a", "OK 20/30 DAY both/large"}, {10, "key=a", "OK 10/30 DAY both/large"}, {10, "key=a", "OK 0/30 DAY both/large"}, {10, "key=a", "OVER_LIMIT 0/30 DAY both/large"},
			{5, "key=a", "OK 0/30 DAY both/large"}, // the small one has counted none of those
			{6, "key=a", "OVER_LIMIT 0/30 DAY both/large"}, {1, "key=a -10", "OK 10/30 DAY both/large"}, {11, "key=a", "OVER_LIMIT 10/30 DAY both/large"},
			{10, "key=a", "OK 0/30 DAY both/large"}, {1, "key=a", "OVER_LIMIT 0/5 DAY both/small"},
			{31, "key=b", "OVER_LIMIT 5/5 DAY both/small"}, {5, "key=b", "OK 0/5 DAY both/small"},
		}},
		{"first tells of the condition that counts", `
rules:
  - name: shares
    for: {field: {key: "*"}}
    first:
      - {name: own, value: "{field:key}", max: 2, per: 1d}
      - {name: pool, value: any, max: 3, per: 1d}
`, []step{
			{1, "key=a", "OK 1/2 DAY shares/own"}, {3, "key=a", "OK 0/3 DAY shares/pool"}, {1, "key=a", "OK 0/2 DAY shares/own"}, {1, "key=a", "OVER_LIMIT 0/3 DAY shares/pool"},
		}},
		{"of two rules the tighter calendar is told", `
rules:
  - name: plan
    for: {field: {key: "*"}}
    either:
      - {name: month, value: "{field:key}", max: 10000000000, per: month, algorithm: calendar, anchor: 15, zone: Europe/Berlin}
  - name: day
    for: {field: {key: "*"}}
    either:
      - {name: day, value: "{field:key}", max: 2, per: day, algorithm: calendar}
`, []step{{1, "key=a", "OK 1/2 DAY day/day"}}},
		{"a calendar has more than the protocol can say", `
rules:
  - name: plan
    for: {field: {key: "*"}}
    either: [{name: month, value: "{field:key}", max: 10000000000, per: month, algorithm: calendar}]
`, []step{{1, "key=a", "OK 4294967295/4294967295 MONTH plan/month"}}},
		{"any descriptor over its limit is enough", descriptors, []step{
			{5, "key=a", "OK 0/5 MINUTE api/key"}, {0, "key=b; key=a; none=x", "OVER_LIMIT: OK 4/5 MINUTE api/key; OVER_LIMIT 0/5 MINUTE api/key; OK"},
		}},
		{"a limit in the request comes first, and has no name", descriptors, []step{
			{6, "key=a 7/DAY", "OK 1/7 DAY"}, {0, "key=a 7/DAY", "OK 0/7 DAY"}, {0, "key=a 7/DAY", "OVER_LIMIT 0/7 DAY"}, {0, "key=b 7/DAY", "OK 6/7 DAY"},
			{0, "key=c 0/DAY", "OVER_LIMIT 0/0 DAY"}, {200_000, "key=d 2000000/HOUR", "OK 1800000/2000000 HOUR"}, // more than a window holds
			{0, "key=a 7/AEON; key=tin", "OK: UNKNOWN; OK 4/5 MINUTE api/key, degraded"}, // one bad descriptor does not fail the others
			{5, "key=a 7/AEON; key=tin", "OVER_LIMIT: UNKNOWN; OVER_LIMIT 4/5 MINUTE api/key, degraded"},
		}},
		{"a limit that nobody reaches is none", `
envoy:
  - domain: edge
    descriptors:
      - {key: open, rate_limit: {unit: second, requests_per_unit: 2000000000}}
      - {key: largest, rate_limit: {unit: day, requests_per_unit: 4294967295}}
`, []step{
			{math.MaxUint32, "open=x", "OK unlimited"}, {math.MaxUint32, "largest=x", "OK unlimited"},
			{math.MaxUint32, "own=x 1000000001/SECOND", "OK unlimited"}, {math.MaxUint32, "own=x 4294967295/SECOND", "OK unlimited"},
			{1, "own=x 1000000000/SECOND", "OK 999999999/1000000000 SECOND"},
		}},
		{"in shadow everything passes", "shadow: true" + descriptors + `
envoy:
  - {domain: edge, descriptors: [{key: tree, rate_limit: {unit: hour, requests_per_unit: 1}}]}
`, slices.Concat(
			[]step{{5, "key=a; tree=x; own=x 1/HOUR; none=x 0/HOUR", "OK: OK 0/5 MINUTE api/key; OK 1/1 HOUR; OK 1/1 HOUR; OK 0/0 HOUR"}},
			many(2, step{1, "key=a; tree=x; own=x 1/HOUR; none=x 0/HOUR", "OK: OK 0/5 MINUTE api/key; OK 0/1 HOUR; OK 0/1 HOUR; OK 0/0 HOUR"}),
		)},
		{"descriptors are nested and ordered as in envoyproxy/ratelimit", tree, []step{
			{0, "message_type=marketing to_number=1", "OK 1/2 DAY per-number"}, {0, "message_type=marketing to_number=1", "OK 0/2 DAY per-number"},
			{0, "message_type=marketing to_number=1", "OVER_LIMIT 0/2 DAY per-number"}, {0, "message_type=marketing to_number=2", "OK 1/2 DAY per-number"},
			{0, "to_number=1 message_type=marketing", "OK"}, {0, "message_type=other to_number=1", "OK"}, // another order, another value
			{0, "message_type=marketing", "OK"}, {0, "message_type=marketing to_number=1 x=y", "OK"}, // too short, too long
			{0, "to_number=1", "OK 2/3 WEEK"}, {0, "path=/files/a", "OK 1/2 HOUR"}, {0, "path=/files/b", "OK 0/2 HOUR"}, {0, "path=/files/x/", "OVER_LIMIT 0/2 HOUR"}, // shared
			{0, "path=/a/x/1", "OK 0/1 HOUR"}, {0, "path=/a/x/2", "OK 0/1 HOUR"}, // by itself
			{0, "path=/a/y/2", "OK 8/9 MINUTE"}, {0, "trusted=me", "OK unlimited"}, {0, "nobody=x", "OVER_LIMIT 0/0 SECOND"},
			{0, "tried=x", "OK 0/1 DAY"}, {0, "tried=x", "OK 0/1 DAY"}, {0, "many=x", "OK 1999999/2000000 DAY"},
		}},
		{"a limit replaces another, which counts nothing then", tree, []step{
			{3, "message_type=marketing to_number=1; vip=x", "OK: OK; OK 2/5 DAY"}, {0, "message_type=marketing to_number=1", "OK 1/2 DAY per-number"},
		}},
		{"quotas must all be used up", tree, []step{
			{0, "quota=1", "OK 0/1 DAY"}, {0, "quota=1; quota=2", "OK: OVER_LIMIT 0/1 DAY; OK 0/1 DAY"}, {0, "quota=1; quota=2", "OVER_LIMIT: OVER_LIMIT 0/1 DAY; OVER_LIMIT 0/1 DAY"},
		}},
	} {
		t.Run(scene.what, func(t *testing.T) {
			e := newEdge(t, start(t, scene.rules))
			for i, s := range scene.steps {
				assert.Equal(t, s.want, e.told(s.hits, s.descriptors), "%d: %d hits of %s", i, s.hits, s.descriptors)
			}
		})
	}
}

func TestEnvoyIsToldWhatIsLeftAndWhenToComeBack(t *testing.T) {
	e := newEdge(t, start(t, descriptors))
	for left := 4; left >= 0; left-- {
		assert.Equal(t, fmt.Sprintf("OK %d/5 MINUTE api/key", left), e.told(0, "key=tin"))
	}
	assert.Empty(t, e.ask(0, "key=gold").ResponseHeadersToAdd)
	r := e.ask(0, "key=tin")
	assert.InDelta(t, 60, r.Statuses[0].DurationUntilReset.AsDuration().Seconds(), 30)
	require.Len(t, r.ResponseHeadersToAdd, 1)
	assert.Equal(t, "retry-after", r.ResponseHeadersToAdd[0].Key)
	assert.Regexp(t, `^[1-6]\d?$`, r.ResponseHeadersToAdd[0].Value)
	assert.Equal(t, map[string]any{"blocked_by": []any{"api"}, "banned": false, "degraded": false}, r.DynamicMetadata.AsMap())
	r, err := e.client.ShouldRateLimit(t.Context(), envoyAsks("other", 1000, "key=tin"))
	require.NoError(t, err)
	assert.Equal(t, ok, r.OverallCode, "another domain")

	var all []string
	for i := range 300 {
		all = append(all, fmt.Sprint("key=", i))
	}
	assert.Equal(t, "OK: "+strings.Repeat("OK 4/5 MINUTE api/key; ", 299)+"OK 4/5 MINUTE api/key", e.told(0, strings.Join(all, ";")))
	for want, r := range map[string]*rls.RateLimitRequest{
		"domain must not be empty": envoyAsks("", 1, "key=a"), "descriptor list must not be empty": {Domain: "edge"},
		"1001 descriptors": envoyAsks("edge", 1, strings.Repeat("key=a;", 1000)), "TTL": envoyAsks("edge", 1, "key=a 7/AEON"),
	} {
		_, err := e.client.ShouldRateLimit(t.Context(), r)
		assert.Equal(t, codes.InvalidArgument, status.Code(err))
		assert.ErrorContains(t, err, want)
	}
	_, err = e.client.ShouldRateLimit(t.Context(), envoyAsks(strings.Repeat("x", 1<<20), 1, ""))
	assert.Equal(t, codes.ResourceExhausted, status.Code(err))
}

// A look at a full limit tells of no ban that a call would set, and hits beyond a limit set none.
func TestOnlyABanBlocksALook(t *testing.T) {
	s := start(t, descriptors)
	e := newEdge(t, s)
	const login = "path=/login remote_address=203.0.113.7"
	for _, step := range [][2]string{
		{login, "OK 0/1 HOUR login/address"}, {login + " +0", "OK 0/1 HOUR login/address"}, {login + " +2", "OVER_LIMIT 0/1 HOUR login/address"},
	} {
		require.Equal(t, step[1], e.told(1, step[0]))
		assert.LessOrEqual(t, e.ask(1, login+" +0").Statuses[0].DurationUntilReset.AsDuration(), time.Hour)
	}
	_, metrics := request(t, http.DefaultClient, "GET", "http://"+s.admin+"/metrics", "")
	assert.NotRegexp(t, `throttler_bans_total\{.*throttler_rule="login"\} [1-9]`, metrics)
	for _, d := range []string{login, login + " +0"} {
		require.Equal(t, "OVER_LIMIT 0/1 HOUR login/address, banned", e.told(1, d))
		assert.InDelta(t, 24, e.ask(1, d).Statuses[0].DurationUntilReset.AsDuration().Hours(), 0.1)
	}
}

func TestHitsBeyondALimitAreReported(t *testing.T) {
	for _, c := range []struct{ rules, result, told string }{
		{descriptors, "blocked", "OVER_LIMIT 5/5 MINUTE api/key"},
		{strings.Replace(descriptors, "{gold: 50}}\n", "{gold: 50}}\n    shadow: true\n", 1), "would_block", "OK 5/5 MINUTE api/key"},
	} {
		s := start(t, c.rules)
		look := func(path string) string {
			_, body := request(t, http.DefaultClient, "GET", "http://"+s.admin+path, "", "Accept", "application/json")
			return body
		}
		e := newEdge(t, s)
		assert.Equal(t, c.told, e.told(6, "key=greedy"))
		assert.Regexp(t, `throttler_decisions_total\{.*throttler_result="`+c.result+`",throttler_rule="api"\} 1`, look("/metrics"))
		assert.Contains(t, look("/tally"), "greedy")
		require.Equal(t, "OVER_LIMIT 0/0 DAY", e.told(1, "own=x 0/DAY"))
		assert.Regexp(t, `throttler_decisions_total\{.*throttler_result="blocked",throttler_rule="envoy/edge"\} 1`, look("/metrics"))
		s.stop()
		assert.Contains(t, s.log.String(), "rule=api")
	}
}

func TestNegativeHitsAreGivenBack(t *testing.T) {
	server := servertest.NewMemcached(t)
	edges := []*edge{newEdge(t, start(t, descriptors, server.Addr)), newEdge(t, start(t, descriptors, server.Addr))}
	const login = "path=/login remote_address=203.0.113.7"
	for i, step := range []struct {
		at                int
		hits              uint32
		descriptors, want string
	}{
		{0, 1, "key=tin -3", "OK 5/5 MINUTE api/key"}, // there are none
		{0, 4, "key=tin", "OK 1/5 MINUTE api/key"}, {1, 1, "key=tin -3", "OK 4/5 MINUTE api/key"}, {0, 4, "key=tin", "OK 0/5 MINUTE api/key"}, {0, 1, "key=tin", "OVER_LIMIT 0/5 MINUTE api/key"},
		{1, 1, "key=tin -1099511627776", "OK 5/5 MINUTE api/key"}, // never more than there are
		{0, 5, "key=tin", "OK 0/5 MINUTE api/key"}, {0, 1, "key=tin -0", "OK 0/5 MINUTE api/key"},
		{0, 2, "key=tin -", "OK 2/5 MINUTE api/key"}, {0, 0, "key=tin -", "OK 3/5 MINUTE api/key"}, // as many as the request says, or one
		{0, 1, "key=gold; key=tin -1", "OK: OK 49/50 MINUTE api/key; OK 4/5 MINUTE api/key"}, // of its descriptor only
		{0, 1, login, "OK 0/1 HOUR login/address"}, {0, 1, login, "OVER_LIMIT 0/1 HOUR login/address, banned"},
		{0, 1, login + " -1", "OK 0/1 HOUR login/address, banned"}, {0, 1, login, "OVER_LIMIT 0/1 HOUR login/address, banned"}, // the ban stays
		{0, 1, "own=y -2 0/DAY", "OK 0/0 DAY"},
	} {
		assert.Equal(t, step.want, edges[step.at].told(step.hits, step.descriptors), i)
	}
	left := func(i int, d string) uint32 { return edges[i].ask(10, d).Statuses[0].LimitRemaining }
	assert.InDelta(t, 999_991, left(0, "own=x 1000001/YEAR"), 1)
	assert.InDelta(t, 999_993, left(1, "own=x -2 1000001/YEAR"), 1, "of a bucket: one in 31 s")
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
		for _, h := range e.ask(0, "key=a; path=/").ResponseHeadersToAdd {
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

func TestADescriptorsMetadataIsPassedOn(t *testing.T) {
	e := newEdge(t, start(t, `
envoy:
  - domain: edge
    descriptors:
      - {key: plan, value: gold, metadata: {owner: sales, levels: [1, 2]}, rate_limit: {unit: hour, requests_per_unit: 1}}
      - {key: plan, value: open, metadata: {owner: all}, rate_limit: {unlimited: true}}
`))
	gold := map[string]any{"owner": "sales", "levels": []any{1.0, 2.0}}
	r := e.ask(0, "plan=gold; other=x; plan=open")
	assert.Equal(t, []any{gold, nil, map[string]any{"owner": "all"}}, r.DynamicMetadata.AsMap()["metadata"])
	assert.NotContains(t, e.ask(0, "other=x").DynamicMetadata.AsMap(), "metadata")
}

// tree is a file of envoyproxy/ratelimit, most of it from its README.
const tree = `
envoy:
  - domain: edge
    descriptors:
      - key: message_type
        value: marketing
        descriptors:
          - key: to_number
            rate_limit: {unit: day, requests_per_unit: 2, name: per-number}
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
        rate_limit: {unit: day, requests_per_unit: 5, replaces: [{name: per-number}]}
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

func TestAFailingMemcachedIsToldAsTheRuleFileSays(t *testing.T) {
	for _, failure := range []string{"open", "closed"} {
		server := servertest.NewMemcached(t)
		e := newEdge(t, start(t, descriptors+"failure: "+failure+"\n", server.Addr))
		e.ask(0, "key=a")
		server.Kill()
		r, err := e.client.ShouldRateLimit(t.Context(), envoyAsks("edge", 0, "key=a"))
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
		e.ask(0, "key=a")
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

func TestTheServiceEndsThoughAClientHoldsAStream(t *testing.T) {
	for what, open := range map[string]func(*grpc.ClientConn) (recv func() error, err error){
		"watches its health": func(conn *grpc.ClientConn) (func() error, error) {
			stream, err := healthpb.NewHealthClient(conn).Watch(t.Context(), &healthpb.HealthCheckRequest{})
			return func() error { _, err := stream.Recv(); return err }, err
		},
		"may ask what it serves": func(conn *grpc.ClientConn) (func() error, error) {
			stream, err := grpc_reflection_v1.NewServerReflectionClient(conn).ServerReflectionInfo(t.Context())
			require.NoError(t, err)
			return func() error { _, err := stream.Recv(); return err }, stream.Send(&grpc_reflection_v1.ServerReflectionRequest{
				MessageRequest: &grpc_reflection_v1.ServerReflectionRequest_ListServices{},
			})
		},
	} {
		s := start(t, descriptors)
		recv, err := open(dialEnvoy(t, s))
		require.NoError(t, err)
		require.NoError(t, recv())
		var ended sync.WaitGroup
		ended.Go(s.stop)
		for err == nil { // who watches is told that the service is not ready any more
			err = recv()
		}
		assert.Equal(t, codes.Canceled, status.Code(err), "%s: the stream is ended, and not its connection: %v", what, err)
		ended.Wait()
	}
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
				r, err := edges[c%2].client.ShouldRateLimit(context.Background(), envoyAsks("edge", 0, fmt.Sprint("key=", value)))
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
