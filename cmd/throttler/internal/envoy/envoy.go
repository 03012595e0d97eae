// Package envoy implements Envoy's rate limit service,
// envoy.service.ratelimit.v3, by the rules of a file.
package envoy

import (
	"context"
	"fmt"
	"log/slog"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/cmd/throttler/internal/rulefile"
	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	common "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/reflection"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/structpb"
)

// maxDescriptors is the largest number of descriptors in a request.
const maxDescriptors = 100

// A Service answers Envoy's requests.
type Service struct {
	rls.UnimplementedRateLimitServiceServer

	rules     *rulefile.Source
	throttler *throttler.Throttler
	log       *slog.Logger
}

// New returns a Service that counts with t.
func New(rules *rulefile.Source, t *throttler.Throttler, log *slog.Logger) *Service {
	return &Service{rules: rules, throttler: t, log: log}
}

// ShouldRateLimit decides all descriptors of a request at the same time. The
// request is over the limit if any of them is.
//
// The error is InvalidArgument for a request without a domain or descriptors,
// with too many descriptors, or for an invalid limit. It is Unavailable if the
// back end failed and the rule file says failure: closed. Envoy then follows
// its failure_mode_deny.
func (s *Service) ShouldRateLimit(ctx context.Context, r *rls.RateLimitRequest) (*rls.RateLimitResponse, error) {
	switch n := len(r.Descriptors); {
	case r.Domain == "":
		return nil, status.Error(codes.InvalidArgument, "rate limit domain must not be empty")
	case n == 0:
		return nil, status.Error(codes.InvalidArgument, "rate limit descriptor list must not be empty")
	case n > maxDescriptors:
		return nil, status.Errorf(codes.InvalidArgument, "%d descriptors, want at most %d", n, maxDescriptors)
	}
	file := s.rules.File()
	answers := make([]answer, len(r.Descriptors))
	var others sync.WaitGroup
	for i := 1; i < len(r.Descriptors); i++ {
		others.Go(func() { answers[i] = s.decide(ctx, file, r, r.Descriptors[i]) })
	}
	answers[0] = s.decide(ctx, file, r, r.Descriptors[0])
	others.Wait()
	return respond(file, answers)
}

// Server returns a gRPC server with the service, health checks and reflection.
func (s *Service) Server() *grpc.Server {
	server := grpc.NewServer(grpc.MaxRecvMsgSize(maxRequest), grpc.ConnectionTimeout(connectTimeout))
	rls.RegisterRateLimitServiceServer(server, s)
	checks := health.NewServer() // SERVING for the server as a whole
	checks.SetServingStatus(rls.RateLimitService_ServiceDesc.ServiceName, healthpb.HealthCheckResponse_SERVING)
	healthpb.RegisterHealthServer(server, checks)
	reflection.Register(server)
	return server
}

// The bounds of a request, in bytes, and of the start of a connection.
const (
	maxRequest     = 256 << 10
	connectTimeout = 10 * time.Second
)

// An answer is the result of one descriptor.
type answer struct {
	status     *rls.RateLimitResponse_DescriptorStatus
	retryAfter time.Duration // if over the limit
	rule       string        // the one that blocks
	banned     bool
	err        error // of the back end
	wrong      error // of the rule
}

// decide decides a descriptor by each rule that applies, until one blocks it.
func (s *Service) decide(ctx context.Context, file *rulefile.File, r *rls.RateLimitRequest, d *common.RateLimitDescriptor) answer {
	a := answer{status: &rls.RateLimitResponse_DescriptorStatus{Code: rls.RateLimitResponse_OK}}
	for _, rule := range rulesFor(file, r.Domain, d) {
		decision, err := s.ask(ctx, rule, hits(r, d))
		if err != nil {
			s.log.Error("the rule is invalid for this descriptor", "rule", rule.Identifier, "err", err)
			a.wrong = err
			return a
		}
		if decision.Err != nil {
			a.err = decision.Err
		}
		a.tell(&rule, &decision)
		if decision.Status == throttler.Blocked {
			return a
		}
	}
	return a
}

// hits returns the cost of a descriptor. 0 means a look that counts nothing.
func hits(r *rls.RateLimitRequest, d *common.RateLimitDescriptor) uint64 {
	switch {
	case d.GetIsNegativeHits():
		return 0 // hits cannot be given back: it is unknown which ones
	case d.HitsAddend != nil:
		return d.HitsAddend.Value
	case r.HitsAddend != 0:
		return uint64(r.HitsAddend)
	}
	return 1
}

// rulesFor returns the rules for a descriptor: its own limit if it has one,
// otherwise the file's rules.
func rulesFor(file *rulefile.File, domain string, d *common.RateLimitDescriptor) []throttler.Rule {
	if d.Limit != nil {
		return []throttler.Rule{ownRule(domain, d)}
	}
	fields := make(map[string]string, len(d.Entries))
	for _, e := range d.Entries {
		if _, twice := fields[e.Key]; !twice {
			fields[e.Key] = e.Value
		}
	}
	var rules []throttler.Rule
	for _, a := range file.ForFields(domain, fields) {
		rules = append(rules, a.Throttler)
	}
	return rules
}

// ownRule returns the rule of a descriptor that has its own limit.
func ownRule(domain string, d *common.RateLimitDescriptor) throttler.Rule {
	var keys, value []string
	for _, e := range d.Entries {
		keys = append(keys, e.Key)
		value = append(value, url.QueryEscape(e.Key)+"="+url.QueryEscape(e.Value))
	}
	return throttler.Rule{Identifier: "envoy/" + domain, Either: []throttler.Condition{{
		Name:  strings.Join(keys, ",") + " per " + strings.ToLower(d.Limit.Unit.String()),
		Value: strings.Join(value, "&"),
		Max:   int(d.Limit.RequestsPerUnit),
		TTL:   length(rls.RateLimitResponse_RateLimit_Unit(d.Limit.Unit)),
		// A limit beyond MaxHits needs a bucket.
		Algorithm: algorithm(d.Limit.RequestsPerUnit),
	}}}
}

func algorithm(limit uint32) throttler.Algorithm {
	if limit > throttler.MaxHits {
		return throttler.LeakyBucket
	}
	return throttler.SlidingWindow
}

// ask decides a rule at a cost of hits.
func (s *Service) ask(ctx context.Context, rule throttler.Rule, hits uint64) (throttler.Decision, error) {
	conditions := rule.Either
	if len(conditions) == 0 {
		conditions = rule.All
	}
	for i := range conditions {
		if limit := conditions[i].Max; limit == 0 || hits > uint64(limit) {
			return s.refuse(ctx, rule)
		}
		conditions[i].Cost = int(hits)
	}
	if hits == 0 {
		return s.throttler.Peek(ctx, rule)
	}
	return s.throttler.Authorize(ctx, rule)
}

// refuse returns the decision on a call that costs more than the limit. It
// counts nothing.
func (s *Service) refuse(ctx context.Context, rule throttler.Rule) (throttler.Decision, error) {
	for i := range rule.Either {
		rule.Either[i].Cost = 0
	}
	for i := range rule.All {
		rule.All[i].Cost = 0
	}
	if len(rule.Either)+len(rule.All) == 1 && slices.ContainsFunc(rule.Either, func(c throttler.Condition) bool { return c.Max == 0 }) {
		return throttler.Decision{Outcomes: []throttler.Outcome{{Name: rule.Either[0].Name, Blocked: true}}}, nil
	}
	d, err := s.throttler.Peek(ctx, rule)
	if err != nil || rule.Shadow || d.Status == throttler.Blocked {
		return d, err
	}
	d.Status = throttler.Blocked
	for i := range d.Outcomes {
		d.RetryAfter = max(d.RetryAfter, d.Outcomes[i].ResetAfter)
	}
	return d, nil
}

// tell adds a decision to the answer: the condition with the least left.
func (a *answer) tell(rule *throttler.Rule, d *throttler.Decision) {
	conditions := rule.Either
	if len(conditions) == 0 {
		conditions = rule.All
	}
	at := 0
	for i := range d.Outcomes {
		if tighter(&d.Outcomes[i], &d.Outcomes[at]) {
			at = i
		}
		a.banned = a.banned || d.Outcomes[i].Banned
	}
	o, c := &d.Outcomes[at], &conditions[at]
	blocked := d.Status == throttler.Blocked
	if !blocked && a.status.CurrentLimit != nil && uint32(o.Remaining) >= a.status.LimitRemaining {
		return // an earlier rule leaves less
	}
	reset := o.ResetAfter
	if blocked {
		a.status.Code = rls.RateLimitResponse_OVER_LIMIT
		a.retryAfter, a.rule, reset = d.RetryAfter, rule.Identifier, d.RetryAfter
	}
	a.status.CurrentLimit = &rls.RateLimitResponse_RateLimit{
		Name: rule.Identifier + "/" + c.Name, RequestsPerUnit: uint32(c.Max), Unit: unit(c.TTL),
	}
	a.status.LimitRemaining = uint32(o.Remaining)
	a.status.DurationUntilReset = durationOf(reset)
}

// tighter reports whether a has less left than b.
func tighter(a, b *throttler.Outcome) bool {
	if a.Blocked != b.Blocked {
		return a.Blocked
	}
	if a.Blocked {
		return a.RetryAfter > b.RetryAfter
	}
	return a.Remaining < b.Remaining
}

// respond combines the answers.
func respond(file *rulefile.File, answers []answer) (*rls.RateLimitResponse, error) {
	response := &rls.RateLimitResponse{OverallCode: rls.RateLimitResponse_OK}
	var retryAfter time.Duration
	var blockedBy []any
	banned, degraded := false, false
	for i := range answers {
		a := &answers[i]
		switch {
		case a.wrong != nil:
			return nil, status.Error(codes.InvalidArgument, a.wrong.Error())
		case a.err != nil && file.Closed:
			return nil, status.Error(codes.Unavailable, a.err.Error())
		}
		degraded, banned = degraded || a.err != nil, banned || a.banned
		response.Statuses = append(response.Statuses, a.status)
		if a.status.Code == rls.RateLimitResponse_OVER_LIMIT {
			response.OverallCode = rls.RateLimitResponse_OVER_LIMIT
			retryAfter = max(retryAfter, a.retryAfter)
			blockedBy = append(blockedBy, a.rule)
		}
	}
	if response.OverallCode == rls.RateLimitResponse_OVER_LIMIT {
		seconds := max((retryAfter+time.Second-1)/time.Second, 1)
		response.ResponseHeadersToAdd = []*core.HeaderValue{{Key: "retry-after", Value: strconv.FormatInt(int64(seconds), 10)}}
	}
	var err error
	response.DynamicMetadata, err = structpb.NewStruct(map[string]any{"blocked_by": blockedBy, "banned": banned, "degraded": degraded})
	if err != nil {
		return nil, status.Error(codes.Internal, fmt.Sprint(err))
	}
	return response, nil
}
