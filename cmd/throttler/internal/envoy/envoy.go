// Package envoy implements Envoy's rate limit service,
// envoy.service.ratelimit.v3, by the rules of a file.
package envoy

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/cmd/throttler/internal/rulefile"
	"github.com/adaptivethrottler/throttler/httpthrottle"
	"github.com/adaptivethrottler/throttler/internal/gate"
	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/reflection"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"
)

// maxDescriptors is the largest number of descriptors in a request.
const maxDescriptors = 1000

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
// with too many descriptors, or of which every descriptor has an invalid limit.
// Beside others, such a descriptor has the code UNKNOWN. It is Unavailable if the
// backend failed and the rule file says failure: closed. Envoy then follows
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
	questions := ask(file, r)
	answers := make([]answer, len(questions))
	var others sync.WaitGroup
	for i := 1; i < len(questions); i++ {
		others.Go(func() { answers[i] = s.decide(ctx, &questions[i]) })
	}
	answers[0] = s.decide(ctx, &questions[0])
	others.Wait()
	return respond(file, answers)
}

// Server returns a gRPC server with the service, health checks and reflection,
// and what sets the state that the checks tell. Clients that watch the state do so
// until watching ends.
func (s *Service) Server(watching context.Context) (*grpc.Server, *health.Server) {
	server := grpc.NewServer(grpc.MaxRecvMsgSize(maxRequest), grpc.ConnectionTimeout(connectTimeout),
		grpc.StreamInterceptor(endingWith(watching)))
	rls.RegisterRateLimitServiceServer(server, s)
	checks := health.NewServer() // SERVING for the server as a whole
	checks.SetServingStatus(rls.RateLimitService_ServiceDesc.ServiceName, healthpb.HealthCheckResponse_SERVING)
	healthpb.RegisterHealthServer(server, checks)
	reflection.Register(server)
	return server, checks
}

// The bounds of a request, in bytes, and of the start of a connection.
const (
	maxRequest     = 256 << 10
	connectTimeout = 10 * time.Second
)

// endingWith returns what ends the context of each stream when ctx ends.
func endingWith(ctx context.Context) grpc.StreamServerInterceptor {
	return func(service any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, handle grpc.StreamHandler) error {
		bounded, cancel := context.WithCancel(stream.Context())
		defer cancel()
		defer context.AfterFunc(ctx, cancel)()
		return handle(service, boundedStream{stream, bounded})
	}
}

// A boundedStream is a stream with another context.
type boundedStream struct {
	grpc.ServerStream
	ctx context.Context
}

func (s boundedStream) Context() context.Context { return s.ctx }

// RecvMsg also returns when ctx ends. m must not be used then: what waits for the client ends
// with the stream.
func (s boundedStream) RecvMsg(m any) error {
	received := make(chan error, 1)
	go func() { received <- s.ServerStream.RecvMsg(m) }()
	select {
	case err := <-received:
		return err
	case <-s.ctx.Done():
		return status.FromContextError(s.ctx.Err()).Err()
	}
}

// An answer is the result of one descriptor.
type answer struct {
	status     *rls.RateLimitResponse_DescriptorStatus
	quota      bool          // of several, all must be used up
	retryAfter time.Duration // if over the limit
	rule       string        // the one that blocks
	banned     bool
	published  []published
	metadata   *structpb.Struct // of the descriptor; nil: none
	err        error            // of the backend
	wrong      error            // of the descriptor
}

// published is what the client is told in RateLimit fields.
type published struct {
	names    []string
	rule     throttler.Rule
	decision throttler.Decision
}

// decide decides a descriptor by each rule that applies, until one blocks it.
func (s *Service) decide(ctx context.Context, q *question) answer {
	a := answer{status: &rls.RateLimitResponse_DescriptorStatus{Code: rls.RateLimitResponse_OK}, quota: q.quota, metadata: q.metadata}
	if q.unlimited {
		a.status.LimitRemaining = math.MaxUint32
	}
	for i := range q.limits {
		l := &q.limits[i]
		l.leaveOut(q.hits)
		decision, err := s.carryOut(ctx, q, l.rule)
		if err != nil {
			s.log.Error("the limit of this descriptor is invalid", "rule", l.rule.Identifier, "err", err)
			a.wrong, a.status.Code = err, rls.RateLimitResponse_UNKNOWN
			return a
		}
		if decision.Err != nil {
			a.err = decision.Err
		}
		a.tell(l, &decision)
		if len(l.public) > 0 {
			a.published = append(a.published, published{l.public, l.rule, decision})
		}
		if decision.Status == throttler.Blocked {
			return a
		}
	}
	return a
}

// carryOut counts the hits of q by a rule, or gives them back.
func (s *Service) carryOut(ctx context.Context, q *question, rule throttler.Rule) (throttler.Decision, error) {
	if q.refund && q.hits > 0 {
		return s.giveBack(ctx, rule, q.hits)
	}
	return s.count(ctx, rule, q.hits)
}

// giveBack takes back the newest hits of a rule's values, at most all there are. The answer
// is never over the limit.
func (s *Service) giveBack(ctx context.Context, rule throttler.Rule, hits uint64) (throttler.Decision, error) {
	if allowsNothing(rule) {
		return nothing(rule, 0), nil
	}
	conditions := rule.Conditions()
	for i := range conditions {
		conditions[i].Cost = int(min(hits, uint64(conditions[i].Max)))
	}
	d, err := s.throttler.Refund(ctx, rule)
	d.Status = throttler.Authorized
	return d, err
}

// count decides a rule at a cost of hits. 0 only looks: then only a ban blocks.
func (s *Service) count(ctx context.Context, rule throttler.Rule, hits uint64) (d throttler.Decision, err error) {
	if allowsNothing(rule) {
		d = nothing(rule, hits)
		if s.throttler.Observe != nil && hits > 0 { // as Authorize does
			s.throttler.Observe(ctx, rule, d)
		}
		return d, nil
	}
	conditions := rule.Conditions()
	for i := range conditions {
		conditions[i].Cost = int(min(hits, math.MaxInt))
	}
	action, err := gate.Decide(ctx, s.throttler, &rule, &d, gate.Options{Look: hits == 0})
	switch {
	case hits == 0 && err == nil:
		blockIfBanned(&rule, &d)
	case action == gate.TooLarge:
		for i := range d.Outcomes {
			d.RetryAfter = max(d.RetryAfter, d.Outcomes[i].ResetAfter)
		}
	}
	return d, err
}

// allowsNothing reports whether rule is of a descriptor with 0 requests per unit, which is no
// rule to a Throttler.
func allowsNothing(rule throttler.Rule) bool {
	conditions := rule.Conditions()
	return len(conditions) == 1 && conditions[0].Max == 0
}

// nothing returns the decision of a rule that allows nothing.
func nothing(rule throttler.Rule, hits uint64) throttler.Decision {
	d := throttler.Decision{
		Status:     throttler.Authorized,
		Outcomes:   []throttler.Outcome{{Name: rule.Conditions()[0].Name, Blocked: hits > 0}},
		WouldBlock: hits > 0,
	}
	if hits > 0 && !rule.Shadow {
		d.Status = throttler.Blocked
	}
	return d
}

// blockIfBanned makes d, the answer to a look, one that only bans block.
func blockIfBanned(rule *throttler.Rule, d *throttler.Decision) {
	banned := 0
	d.RetryAfter = 0
	for i := range d.Outcomes {
		if o := &d.Outcomes[i]; o.Banned {
			banned++
			d.RetryAfter = max(d.RetryAfter, o.RetryAfter)
		} else if o.Blocked {
			o.Blocked, o.RetryAfter = false, 0
		}
	}
	d.WouldBlock = banned > 0 && (len(rule.Either) > 0 || banned == len(d.Outcomes))
	d.Status = throttler.Authorized
	if d.WouldBlock && !rule.Shadow {
		d.Status = throttler.Blocked
	}
}

// tell adds a decision to the answer: the condition with the least left, or the last that was
// asked of First.
func (a *answer) tell(l *limit, d *throttler.Decision) {
	conditions := l.rule.Conditions()
	at := 0
	for i := range d.Outcomes {
		if o := &d.Outcomes[i]; o.Remaining >= 0 && (len(l.rule.First) > 0 || tighter(o, &d.Outcomes[at])) {
			at = i
		}
		a.banned = a.banned || d.Outcomes[i].Banned
	}
	o, c := &d.Outcomes[at], &conditions[at]
	blocked := d.Status == throttler.Blocked
	if !blocked && a.status.CurrentLimit != nil && atMost32(o.Remaining) >= a.status.LimitRemaining {
		return // an earlier rule leaves less
	}
	reset := o.ResetAfter
	if blocked {
		a.status.Code = rls.RateLimitResponse_OVER_LIMIT
		a.retryAfter, a.rule, reset = d.RetryAfter, l.rule.Identifier, d.RetryAfter
	}
	a.status.CurrentLimit = &rls.RateLimitResponse_RateLimit{
		Name: l.nameOf(c), RequestsPerUnit: atMost32(c.Max), Unit: unit(c),
	}
	a.status.LimitRemaining = atMost32(o.Remaining)
	a.status.DurationUntilReset = durationpb.New(reset)
}

// atMost32 returns n as the protocol has it: no more than it can say.
func atMost32(n int) uint32 { return uint32(min(uint64(max(n, 0)), math.MaxUint32)) }

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

// respond combines the answers. The request is over the limit by any limit, or by all of its
// quotas. The error is for a request whose descriptors are all invalid, and for failure: closed.
func respond(file *rulefile.File, answers []answer) (*rls.RateLimitResponse, error) {
	response := &rls.RateLimitResponse{OverallCode: rls.RateLimitResponse_OK}
	var retryAfter time.Duration
	var blockedBy []any
	wrong, quotas, quotasOver, over, banned, degraded := 0, 0, 0, false, false, false
	fields := make(http.Header)
	metadata, some := make([]any, len(answers)), false
	for i := range answers {
		a := &answers[i]
		if a.err != nil && file.Closed {
			return nil, status.Error(codes.Unavailable, a.err.Error())
		}
		response.Statuses = append(response.Statuses, a.status)
		for _, p := range a.published {
			httpthrottle.Publish(fields, p.names, p.rule, p.decision)
		}
		if a.metadata != nil {
			metadata[i], some = a.metadata.AsMap(), true
		}
		banned = banned || a.banned
		degraded = degraded || a.err != nil || a.wrong != nil
		if a.wrong != nil {
			wrong++
		} else if a.quota {
			quotas++
		}
		if a.status.Code == rls.RateLimitResponse_OVER_LIMIT {
			retryAfter = max(retryAfter, a.retryAfter)
			blockedBy = append(blockedBy, a.rule)
			if a.quota {
				quotasOver++
			} else {
				over = true
			}
		}
	}
	if wrong == len(answers) {
		return nil, status.Error(codes.InvalidArgument, answers[0].wrong.Error())
	}
	if over || quotas > 0 && quotas == quotasOver {
		response.OverallCode = rls.RateLimitResponse_OVER_LIMIT
		seconds := max((retryAfter+time.Second-1)/time.Second, 1)
		response.ResponseHeadersToAdd = []*core.HeaderValue{{Key: "retry-after", Value: strconv.FormatInt(int64(seconds), 10)}}
	}
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		response.ResponseHeadersToAdd = append(response.ResponseHeadersToAdd,
			&core.HeaderValue{Key: strings.ToLower(name), Value: strings.Join(fields[name], ", ")})
	}
	told := map[string]any{"blocked_by": blockedBy, "banned": banned, "degraded": degraded}
	if some {
		told["metadata"] = metadata
	}
	var err error
	response.DynamicMetadata, err = structpb.NewStruct(told)
	if err != nil {
		return nil, status.Error(codes.Internal, fmt.Sprint(err))
	}
	return response, nil
}
