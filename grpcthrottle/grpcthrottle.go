// Package grpcthrottle limits the calls of a gRPC server.
//
// An [Interceptor] makes a rule of each call and asks a [throttler.Throttler].
// It calls the handler, or refuses the call with ResourceExhausted:
//
//	source := httpthrottle.Source{Trusted: proxies, Header: "X-Forwarded-For"}
//	limit := grpcthrottle.New(t, grpcthrottle.PerAddress(source, "api", 100, time.Minute))
//	server := grpc.NewServer(
//		grpc.ChainUnaryInterceptor(limit.Unary),
//		grpc.ChainStreamInterceptor(limit.Stream),
//	)
//
// [Addr] and [Key] tell the client's address, also behind proxies. [Metadata]
// reads a key that a client sends.
//
// # What is done to a call
//
// The context of an allowed call holds its Decision: see [DecisionFrom]. A
// stream is one call, decided when it is opened, however many messages it has.
//
// A refused call gets the status ResourceExhausted, the messages of the
// conditions that block, and RetryInfo (google.rpc) with the time until it
// could be allowed. A call that can never be allowed (Condition.Cost above Max,
// or negative) gets no RetryInfo.
//
// If the backend fails, calls pass. If a call's context ends before it is
// decided, the call gets DeadlineExceeded or Canceled and does not reach the
// handler. Otherwise a client could cancel each call right after sending it and
// have it done uncounted.
package grpcthrottle

import (
	"context"
	"log"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/internal/gate"
)

// A Call is what a rule function gets beside the context.
type Call struct {
	// Method is the full method, "/package.Service/Method".
	Method string

	// Request is the message of a unary call. It is nil for a stream.
	Request any
}

// An Interceptor limits the calls of the servers that use it. All of them count
// together.
//
// The exported fields are options. They must be set before the first call. An
// Interceptor is safe for concurrent use.
type Interceptor struct {
	// RefuseOverloaded answers Unavailable, with RetryInfo, to a call that
	// could not be decided because the process asks more than the servers can
	// carry (throttler.ErrOverloaded). It has no effect if the Throttler has a
	// Fallback, which decides such a call. Default: the call passes.
	RefuseOverloaded bool

	// Failed returns the error for a call whose rule is invalid; err says why.
	// If it returns nil, the answer is Internal. Default: err goes to the
	// standard logger, and the answer is Internal.
	Failed func(ctx context.Context, call Call, err error) error

	throttler *throttler.Throttler
	rule      func(context.Context, Call) throttler.Rule
}

// New returns an Interceptor that decides each call by the rule that the
// function rule returns. rule is called from many goroutines at once. To leave
// a call unlimited, it returns [httpthrottle.Unlimited]: such a call passes at once, nothing is
// counted, and its context has no Decision. The zero Rule is a mistake instead, and answered with
// Internal. New panics if t or rule is nil.
func New(t *throttler.Throttler, rule func(ctx context.Context, call Call) throttler.Rule) *Interceptor {
	if t == nil {
		panic("grpcthrottle: New with a nil Throttler")
	}
	if rule == nil {
		panic("grpcthrottle: New with a nil rule")
	}
	return &Interceptor{throttler: t, rule: rule}
}

// Unary is a grpc.UnaryServerInterceptor.
func (i *Interceptor) Unary(ctx context.Context, request any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	ctx, release, err := i.decide(ctx, Call{Method: info.FullMethod, Request: request})
	if err != nil {
		return nil, err
	}
	defer release()
	return handler(ctx, request)
}

// Stream is a grpc.StreamServerInterceptor.
func (i *Interceptor) Stream(server any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	ctx, release, err := i.decide(stream.Context(), Call{Method: info.FullMethod})
	if err != nil {
		return err
	}
	defer release()
	return handler(server, &decidedStream{stream, ctx})
}

// A decidedStream is a stream with another context.
type decidedStream struct {
	grpc.ServerStream
	ctx context.Context
}

func (s *decidedStream) Context() context.Context { return s.ctx }

// decide returns the context for the handler and what is to be called when that has
// returned, or the error that answers call.
func (i *Interceptor) decide(ctx context.Context, call Call) (decided context.Context, release func(), err error) {
	rule := i.rule(ctx, call)
	d := new(throttler.Decision)
	action, err := gate.Decide(ctx, i.throttler, &rule, d, gate.Options{RefuseOverloaded: i.RefuseOverloaded})
	switch action {
	case gate.Unlimited:
		return ctx, func() {}, nil
	case gate.Pass:
		ctx, release = gate.Hold(ctx, i.throttler, &rule, d)
		return context.WithValue(ctx, decisionKey{}, d), release, nil
	case gate.Refuse, gate.TooLarge:
		return nil, nil, Refusal(*d)
	case gate.Overloaded:
		return nil, nil, overloaded()
	case gate.Ended:
		return nil, nil, status.FromContextError(ctx.Err()).Err()
	}
	return nil, nil, i.fail(ctx, call, err)
}

// fail returns the error for a call whose rule is invalid. It is never nil, so
// the handler is not called.
func (i *Interceptor) fail(ctx context.Context, call Call, err error) error {
	if i.Failed == nil {
		log.Printf("grpcthrottle: %s: %v", call.Method, err)
	} else if answer := i.Failed(ctx, call, err); answer != nil {
		return answer
	}
	return status.Error(codes.Internal, "the call could not be limited")
}

type decisionKey struct{}

// DecisionFrom returns the Decision on the call that ctx belongs to. The second
// result is false if no Interceptor has decided the call, or all rules were
// [httpthrottle.Unlimited]. With one Interceptor inside another it is the innermost
// Decision. Do not change its slices.
func DecisionFrom(ctx context.Context) (throttler.Decision, bool) {
	d, ok := ctx.Value(decisionKey{}).(*throttler.Decision)
	if !ok {
		return throttler.Decision{}, false
	}
	return *d, true
}
