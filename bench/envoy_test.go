package main

import (
	"context"
	"fmt"
	"math/rand"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/bradfitz/gomemcache/memcache"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/envoyproxy/ratelimit/src/config"
	rlimiter "github.com/envoyproxy/ratelimit/src/limiter"
	"github.com/envoyproxy/ratelimit/src/memcached"
	"github.com/envoyproxy/ratelimit/src/settings"
	"github.com/envoyproxy/ratelimit/src/stats"
	"github.com/envoyproxy/ratelimit/src/utils"
	gostats "github.com/lyft/gostats"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// The same limits, as throttler and as envoyproxy/ratelimit are told of them.
const (
	ourRules = `
rules:
  - name: api
    for: {field: {domain: edge, key: "*"}}
    either:
      - {name: key, value: "{field:key}", max: 5, per: 1d}
  - name: login
    for: {field: {domain: edge, path: /login, address: "*"}}
    either:
      - {name: address, value: "{field:address}", max: 2, per: 1h}
`
	theirRules = `
domain: edge
descriptors:
  - key: key
    rate_limit: {unit: day, requests_per_unit: 5}
  - key: path
    value: /login
    descriptors:
      - key: address
        rate_limit: {unit: hour, requests_per_unit: 2}
  - key: free
    rate_limit: {unlimited: true}
`
)

// A question is one request: descriptors as "key=value,key=value", and what both
// answer.
type question struct {
	hits        uint32
	descriptors []string
	answer      string

	// For envoyproxy/ratelimit, where it differs on purpose: its answer, and why.
	theirs, why string
}

func same(hits uint32, answer string, descriptors ...string) question {
	return question{hits: hits, descriptors: descriptors, answer: answer}
}

// questions are sequences, by what they show. Not compared is
// duration_until_reset: their windows end on the hour or at midnight, throttler's
// slide.
var questions = map[string][]question{
	"below, at and above the limit": {
		same(1, "OK: OK, 4 of 5 per DAY", "key=a"),
		same(1, "OK: OK, 3 of 5 per DAY", "key=a"),
		same(0, "OK: OK, 2 of 5 per DAY", "key=a"), // 0 in the request is 1
		same(1, "OK: OK, 1 of 5 per DAY", "key=a"),
		same(1, "OK: OK, 0 of 5 per DAY", "key=a"),
		same(1, "OVER_LIMIT: OVER_LIMIT, 0 of 5 per DAY", "key=a"),
		same(1, "OVER_LIMIT: OVER_LIMIT, 0 of 5 per DAY", "key=a"),
	},
	"several hits up to the limit": {
		same(3, "OK: OK, 2 of 5 per DAY", "key=b"),
		same(1, "OK: OK, 1 of 5 per DAY", "key=b"),
		same(1, "OK: OK, 0 of 5 per DAY", "key=b"),
		same(3, "OVER_LIMIT: OVER_LIMIT, 0 of 5 per DAY", "key=b"),
	},
	"several hits across the limit": {
		same(3, "OK: OK, 2 of 5 per DAY", "key=c"),
		{
			hits: 3, descriptors: []string{"key=c"},
			answer: "OVER_LIMIT: OVER_LIMIT, 2 of 5 per DAY",
			theirs: "OVER_LIMIT: OVER_LIMIT, 0 of 5 per DAY",
			why:    "what throttler refuses is not counted, so that two hits are left",
		},
		{
			hits: 1, descriptors: []string{"key=c"},
			answer: "OK: OK, 1 of 5 per DAY",
			theirs: "OVER_LIMIT: OVER_LIMIT, 0 of 5 per DAY",
			why:    "envoyproxy/ratelimit has counted the three hits that it refused",
		},
	},
	"more hits than the limit ever takes": {
		{
			hits: 6, descriptors: []string{"key=i"},
			answer: "OVER_LIMIT: OVER_LIMIT, 5 of 5 per DAY",
			theirs: "OVER_LIMIT: OVER_LIMIT, 0 of 5 per DAY",
			why:    "throttler counts none, so that five are left; envoyproxy/ratelimit counts all six",
		},
		{
			hits: 1, descriptors: []string{"key=i"},
			answer: "OK: OK, 4 of 5 per DAY",
			theirs: "OVER_LIMIT: OVER_LIMIT, 0 of 5 per DAY",
			why:    "throttler has counted none of the six",
		},
	},
	"looks, of hits_addend 0 in the descriptor": {
		same(1, "OK: OK, 5 of 5 per DAY", "key=j!0"),
		same(1, "OK: OK, 5 of 5 per DAY", "key=j!0"),
		same(1, "OK: OK, 1 of 5 per DAY", "key=j!4"),
		same(1, "OK: OK, 1 of 5 per DAY", "key=j!0"),
		same(1, "OK: OK, 0 of 5 per DAY", "key=j"),
		same(1, "OK: OK, 0 of 5 per DAY", "key=j!0"),
		same(1, "OVER_LIMIT: OVER_LIMIT, 0 of 5 per DAY", "key=j"),
	},
	"two descriptors in one request": {
		same(1, "OK: OK, 4 of 5 per DAY; OK, 1 of 2 per HOUR", "key=d", "path=/login,address=x"),
		same(1, "OK: OK, 3 of 5 per DAY; OK, 0 of 2 per HOUR", "key=d", "path=/login,address=x"),
		same(1, "OVER_LIMIT: OK, 2 of 5 per DAY; OVER_LIMIT, 0 of 2 per HOUR", "key=d", "path=/login,address=x"),
		same(1, "OVER_LIMIT: OVER_LIMIT, 0 of 2 per HOUR; OK, 1 of 5 per DAY", "path=/login,address=x", "key=d"),
		same(1, "OK: OK, 0 of 5 per DAY", "key=d"), // each was counted, whatever became of the other
	},
	"several values of one key": {
		same(3, "OK: OK, 2 of 5 per DAY; OK, 2 of 5 per DAY", "key=e", "key=f"),
		same(1, "OK: OK, 1 of 5 per DAY; OK, 4 of 5 per DAY", "key=e", "key=g"),
		same(1, "OK: OK, 1 of 2 per HOUR", "path=/login,address=y"),
		same(1, "OK: OK, 1 of 2 per HOUR", "path=/login,address=z"),
	},
	"descriptors without a limit": {
		same(3, "OK: OK, no limit", "free=x"),
		same(3, "OK: OK, no limit", "other=x"),
		same(1, "OK: OK, no limit", "path=/other,address=x"),
		same(3, "OK: OK, no limit", "path=/login"),
		same(3, "OK: OK, no limit; OK, 2 of 5 per DAY", "free=x", "key=h"),
	},
}

// One call after the other, as envoyproxy/ratelimit is exact only then: it reads
// a count, answers, and counts later.
func TestThrottlerAnswersEnvoyAsRatelimitDoes(t *testing.T) {
	for kind, rules := range map[string]string{"rules": ourRules, "their file": asItem(theirRules)} {
		answersAlike(t, kind, servedThrottler(t, rules), newRatelimit(t, started(t, onMemcached, "tcp")))
	}
}

func answersAlike(t *testing.T, kind string, ours pb.RateLimitServiceClient, theirs *ratelimit) {
	for name, sequence := range questions {
		t.Run(kind+"/"+name, func(t *testing.T) {
			for i, q := range sequence {
				r := q.request()
				answer, err := ours.ShouldRateLimit(t.Context(), r)
				require.NoError(t, err)
				require.Equal(t, false, answer.DynamicMetadata.AsMap()["degraded"])
				assert.Equal(t, q.answer, told(answer), "throttler, question %d %v", i, q)
				want := q.answer
				if q.why != "" {
					want = q.theirs
				}
				assert.Equal(t, want, told(theirs.answer(t.Context(), r)), "envoyproxy/ratelimit, question %d %v", i, q)
			}
		})
	}
}

func (q question) request() *pb.RateLimitRequest {
	r := &pb.RateLimitRequest{Domain: "edge", HitsAddend: q.hits}
	for _, text := range q.descriptors {
		d := new(ratelimitv3.RateLimitDescriptor)
		text, hits, own := strings.Cut(text, "!") // the hits of the descriptor itself
		if own {
			n, _ := strconv.ParseUint(hits, 10, 64)
			d.HitsAddend = wrapperspb.UInt64(n)
		}
		for entry := range strings.SplitSeq(text, ",") {
			key, value, _ := strings.Cut(entry, "=")
			d.Entries = append(d.Entries, &ratelimitv3.RateLimitDescriptor_Entry{Key: key, Value: value})
		}
		r.Descriptors = append(r.Descriptors, d)
	}
	return r
}

// told returns what a response says, in the words of a question's answer.
func told(r *pb.RateLimitResponse) string {
	var statuses []string
	for _, s := range r.Statuses {
		if s.CurrentLimit == nil { // limit_remaining is of no limit
			statuses = append(statuses, s.Code.String()+", no limit")
			continue
		}
		statuses = append(statuses, fmt.Sprintf("%s, %d of %d per %s",
			s.Code, s.LimitRemaining, s.CurrentLimit.RequestsPerUnit, s.CurrentLimit.Unit))
	}
	return r.OverallCode.String() + ": " + strings.Join(statuses, "; ")
}

// servedThrottler builds the command throttler, has it serve Envoy, and returns a client
// of it. Its records are in process memory: on a busy machine a server may answer later
// than the command waits.
func servedThrottler(t *testing.T, rules string) pb.RateLimitServiceClient {
	t.Helper()
	program := filepath.Join(t.TempDir(), "throttler")
	build := exec.CommandContext(t.Context(), "go", "build", "-o", program, ".")
	build.Dir = filepath.Join("..", "cmd", "throttler")
	output, err := build.CombinedOutput()
	require.NoError(t, err, string(output))
	served, err := serveThrottler(program, rules)
	require.NoError(t, err)
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(served.Output())
		}
	})
	t.Cleanup(served.stop)
	conn, err := grpc.NewClient(served.addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	t.Cleanup(func() { conn.Close() })
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	probe := same(1, "", "probe=x").request()
	_, err = pb.NewRateLimitServiceClient(conn).ShouldRateLimit(ctx, probe, grpc.WaitForReady(true))
	require.NoError(t, err)
	return pb.NewRateLimitServiceClient(conn)
}

// A ratelimit is envoyproxy/ratelimit over memcached: its rules, its matching
// and its counting, put together as its service does, without the gRPC before it.
type ratelimit struct {
	rules config.RateLimitConfig
	cache rlimiter.RateLimitCache
}

func newRatelimit(t *testing.T, server *server) *ratelimit {
	t.Helper()
	client := memcache.New(server.addr)
	t.Cleanup(func() { client.Close() })
	client.Timeout = patience
	manager := stats.NewStatManager(gostats.NewStore(gostats.NewNullSink(), false), settings.Settings{})
	yaml := config.ConfigFileContentToYaml("rules.yaml", theirRules)
	clock := stopped(time.Now().Unix())
	return &ratelimit{
		rules: config.NewRateLimitConfigImpl([]config.RateLimitConfigToLoad{{Name: "rules.yaml", ConfigYaml: yaml}}, manager, false),
		cache: memcached.NewRateLimitCacheImpl(client, clock, rand.New(utils.NewLockedSource(1)), 0, nil, manager, 0.8, ""),
	}
}

// A stopped clock keeps a window of fixed times from ending during a test.
type stopped int64

func (s stopped) UnixNow() int64 { return int64(s) }

// answer answers a request, and returns when it is counted.
func (l *ratelimit) answer(ctx context.Context, r *pb.RateLimitRequest) *pb.RateLimitResponse {
	limits := make([]*config.RateLimit, len(r.Descriptors))
	for i, d := range r.Descriptors {
		if limit := l.rules.GetLimit(ctx, r.Domain, d); limit != nil && !limit.Unlimited {
			limits[i] = limit
		}
	}
	response := &pb.RateLimitResponse{OverallCode: pb.RateLimitResponse_OK, Statuses: l.cache.DoLimit(ctx, r, limits)}
	l.cache.Flush()
	for _, s := range response.Statuses {
		if s.Code == pb.RateLimitResponse_OVER_LIMIT {
			response.OverallCode = s.Code
		}
	}
	return response
}
