// Package grpcthrottle limits the calls of a gRPC server.
//
// An [Interceptor] makes a rule of each call, asks a [throttler.Throttler]
// whether it may happen, and either calls the handler or refuses with
// ResourceExhausted:
//
//	source := httpthrottle.Source{Trusted: proxies, Header: "X-Forwarded-For"}
//	limit := grpcthrottle.New(t, grpcthrottle.PerAddress(source, "api", 100, time.Minute))
//	server := grpc.NewServer(
//		grpc.ChainUnaryInterceptor(limit.Unary),
//		grpc.ChainStreamInterceptor(limit.Stream),
//	)
//
// [Addr] and [Key] say who is calling, behind proxies too. [Metadata] reads a key
// that a client sends.
//
// # What is done to a call
//
// The context of an allowed call holds its Decision, see [DecisionFrom]. A stream
// is one call, decided when it is opened, however many messages it has.
//
// A refused call gets the status ResourceExhausted, the messages of the conditions
// that block, and RetryInfo (google.rpc) with the time until it could be allowed.
// One that costs more than a condition ever holds (Condition.Cost above Max, or
// negative) gets no RetryInfo.
//
// A throttler whose backend fails lets calls pass. A call whose context ends
// before it is decided is not handed on but answered with DeadlineExceeded or
// Canceled: otherwise a client that cancels each call as soon as it is sent would
// have each of them done and none counted.
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

// A Call is what a rule is made of, beside the context.
type Call struct {
	// Method is the full method, "/package.Service/Method".
	Method string

	// Request is the message of a unary call, and nil for a stream.
	Request any
}

// An Interceptor limits the calls of the servers that it is given to. All of them
// count together.
//
// The exported fields are options. They must be set before the first call. An
// Interceptor is safe for concurrent use.
type Interceptor struct {
	// RefuseOverloaded answers Unavailable, with RetryInfo, to a call that
	// could not be decided since the process asks more than the servers can
	// carry (throttler.ErrOverloaded). It has no effect on a Throttler with a
	// Fallback, which decides such a call. Default: it is handed on.
	RefuseOverloaded bool

	// Failed returns the error that answers a call whose rule is invalid,
	// which is err. If it returns nil, or is nil, the answer is Internal. If it
	// is nil, err is written to the standard logger.
	Failed func(ctx context.Context, call Call, err error) error

	throttler *throttler.Throttler
	rule      func(context.Context, Call) throttler.Rule
}

// New returns an Interceptor that decides each call by the rule that rule makes
// of it. rule is called from many goroutines at once; it returns [Unlimited]'s
// result for a call that is not to be limited. New panics if t or rule is nil.
func New(t *throttler.Throttler, rule func(ctx context.Context, call Call) throttler.Rule) *Interceptor {
	if t == nil {
		panic("grpcthrottle: New with a nil Throttler")
	}
	if rule == nil {
		panic("grpcthrottle: New with a nil rule")
	}
	return &Interceptor{throttler: t, rule: rule}
}

// Unlimited returns what a rule function returns for a call that is not to be
// limited: it is handed on at once, nothing is counted, and its context has no
// Decision. The zero Rule is a mistake that is answered with Internal.
func Unlimited() throttler.Rule { return gate.Unlimited() }

// Unary is a grpc.UnaryServerInterceptor.
func (i *Interceptor) Unary(ctx context.Context, request any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	ctx, err := i.decide(ctx, Call{Method: info.FullMethod, Request: request})
	if err != nil {
		return nil, err
	}
	return handler(ctx, request)
}

// Stream is a grpc.StreamServerInterceptor.
func (i *Interceptor) Stream(server any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	ctx, err := i.decide(stream.Context(), Call{Method: info.FullMethod})
	if err != nil {
		return err
	}
	return handler(server, &decidedStream{stream, ctx})
}

// A decidedStream is a stream with another context.
type decidedStream struct {
	grpc.ServerStream
	ctx context.Context
}

func (s *decidedStream) Context() context.Context { return s.ctx }

// decide returns the context for the handler of call, or the error that answers
// it.
func (i *Interceptor) decide(ctx context.Context, call Call) (context.Context, error) {
	rule := i.rule(ctx, call)
	d, verdict, err := gate.Decide(ctx, i.throttler, &rule)
	switch verdict {
	case gate.Free:
		return ctx, nil
	case gate.Overloaded:
		if i.RefuseOverloaded {
			return nil, overloaded()
		}
		return withDecision(ctx, d), nil
	case gate.Passed:
		return withDecision(ctx, d), nil
	case gate.Refused, gate.TooLarge:
		return nil, Refusal(d)
	case gate.Ended:
		return nil, status.FromContextError(ctx.Err()).Err()
	}
	return nil, i.fail(ctx, call, err)
}

// fail returns the error that answers a call whose rule is invalid, which must
// not be nil: the handler must not be called.
func (i *Interceptor) fail(ctx context.Context, call Call, err error) error {
	if i.Failed == nil {
		log.Printf("grpcthrottle: %s: %v", call.Method, err)
	} else if answer := i.Failed(ctx, call, err); answer != nil {
		return answer
	}
	return status.Error(codes.Internal, "the call could not be limited")
}

type decisionKey struct{}

func withDecision(ctx context.Context, d throttler.Decision) context.Context {
	return context.WithValue(ctx, decisionKey{}, &d)
}

// DecisionFrom returns the Decision on the call that ctx belongs to, and whether
// there is one: none if no Interceptor has decided the call, or only with
// [Unlimited] rules. With one Interceptor inside another it is that of the
// innermost which has. Its slices must not be changed.
func DecisionFrom(ctx context.Context) (throttler.Decision, bool) {
	d, ok := ctx.Value(decisionKey{}).(*throttler.Decision)
	if !ok {
		return throttler.Decision{}, false
	}
	return *d, true
}
