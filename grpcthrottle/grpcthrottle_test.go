package grpcthrottle_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/bradfitz/gomemcache/memcache"
	"github.com/stretchr/testify/require"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/grpcthrottle"
	"github.com/adaptivethrottler/throttler/httpthrottle"
	"github.com/adaptivethrottler/throttler/memstore"
)

// A service is gRPC's health service, which has a unary method and a stream, and
// remembers the contexts of the calls that reached it.
type service struct {
	grpc_health_v1.UnimplementedHealthServer

	mu    sync.Mutex // guards calls
	calls []context.Context
}

func (s *service) called(ctx context.Context) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls = append(s.calls, ctx)
}

// contexts returns those of the calls so far.
func (s *service) contexts() []context.Context {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.calls
}

func (s *service) Check(ctx context.Context, _ *grpc_health_v1.HealthCheckRequest) (*grpc_health_v1.HealthCheckResponse, error) {
	s.called(ctx)
	return &grpc_health_v1.HealthCheckResponse{Status: grpc_health_v1.HealthCheckResponse_SERVING}, nil
}

// Watch sends three messages.
func (s *service) Watch(_ *grpc_health_v1.HealthCheckRequest, stream grpc.ServerStreamingServer[grpc_health_v1.HealthCheckResponse]) error {
	s.called(stream.Context())
	for range 3 {
		if err := stream.Send(&grpc_health_v1.HealthCheckResponse{}); err != nil {
			return err
		}
	}
	return nil
}

// serve starts a server whose calls limit limits, on an address of network, and
// returns its service and a client.
func serve(t *testing.T, network, address string, limit *grpcthrottle.Interceptor) (*service, grpc_health_v1.HealthClient) {
	t.Helper()
	listener, err := net.Listen(network, address)
	require.NoError(t, err)
	s := new(service)
	server := grpc.NewServer(grpc.ChainUnaryInterceptor(limit.Unary), grpc.ChainStreamInterceptor(limit.Stream))
	grpc_health_v1.RegisterHealthServer(server, s)
	var serving sync.WaitGroup
	serving.Go(func() { server.Serve(listener) })
	t.Cleanup(func() {
		server.Stop()
		serving.Wait()
	})
	target := "passthrough:///" + listener.Addr().String()
	if network == "unix" {
		target = "unix:" + listener.Addr().String()
	}
	client, err := grpc.NewClient(target, grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	t.Cleanup(func() { client.Close() })
	return s, grpc_health_v1.NewHealthClient(client)
}

func serveTCP(t *testing.T, limit *grpcthrottle.Interceptor) (*service, grpc_health_v1.HealthClient) {
	t.Helper()
	return serve(t, "tcp", "127.0.0.1:0", limit)
}

// check makes a unary call about name with metadata, key and value in turn.
func check(t *testing.T, client grpc_health_v1.HealthClient, name string, kv ...string) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(metadata.AppendToOutgoingContext(t.Context(), kv...), 20*time.Second)
	defer cancel()
	_, err := client.Check(ctx, &grpc_health_v1.HealthCheckRequest{Service: name})
	return err
}

// watch opens a stream and returns how many messages came.
func watch(t *testing.T, client grpc_health_v1.HealthClient) (int, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	stream, err := client.Watch(ctx, &grpc_health_v1.HealthCheckRequest{})
	require.NoError(t, err)
	for n := 0; ; n++ {
		if _, err := stream.Recv(); errors.Is(err, io.EOF) {
			return n, nil
		} else if err != nil {
			return n, err
		}
	}
}

// perMinute returns an Interceptor that allows n calls a minute from an address.
func perMinute(n int) *grpcthrottle.Interceptor {
	return grpcthrottle.New(throttler.New(memstore.New()), grpcthrottle.PerAddress(httpthrottle.Source{}, "test", n, time.Minute))
}

// byRule returns an Interceptor over client that decides each call by rule.
func byRule(client throttler.Client, rule throttler.Rule) *grpcthrottle.Interceptor {
	return grpcthrottle.New(throttler.New(client), func(context.Context, grpcthrottle.Call) throttler.Rule { return rule })
}

// retryDelay returns that of the RetryInfo of err, and whether it has one.
func retryDelay(t *testing.T, err error) (time.Duration, bool) {
	t.Helper()
	for _, detail := range status.Convert(err).Details() {
		info, ok := detail.(*errdetails.RetryInfo)
		require.True(t, ok, "%T", detail)
		return info.RetryDelay.AsDuration(), true
	}
	return 0, false
}

// Unary calls and streams count together, and a stream once, however many messages it has.
func TestCallsAreAllowedAndRefused(t *testing.T) {
	broken := errors.New("broken")
	costly, saying := one, one
	costly.Either = []throttler.Condition{{Name: "bytes", Max: 10, TTL: time.Minute, Cost: 11, Message: "Ten bytes a minute"}}
	saying.Either = []throttler.Condition{{Name: "all", Max: 1, TTL: time.Minute, Message: "not you, \xff!"}}
	refusing := byRule(failing{throttler.ErrOverloaded}, one)
	refusing.RefuseOverloaded = true
	for name, test := range map[string]struct {
		limit   *grpcthrottle.Interceptor
		allowed int   // of four calls
		err     error // of their Decisions
		code    codes.Code
		message string
		retry   time.Duration // at most; 0: none is told
	}{
		"by address":             {perMinute(3), 3, nil, codes.ResourceExhausted, "Too many requests from this address.", time.Minute},
		"a condition's name":     {byRule(memstore.New(), one), 1, nil, codes.ResourceExhausted, "Too many requests.", time.Minute},
		"a message not in UTF-8": {byRule(memstore.New(), saying), 1, nil, codes.ResourceExhausted, "not you, \uFFFD!", time.Minute},
		"a cost that never fits": {byRule(memstore.New(), costly), 0, nil, codes.ResourceExhausted, "Ten bytes a minute (larger than the limit ever allows)", 0},
		"a store that fails":     {byRule(failing{broken}, one), 4, broken, codes.OK, "", 0},
		"an overload":            {byRule(failing{throttler.ErrOverloaded}, one), 4, throttler.ErrOverloaded, codes.OK, "", 0},
		"an overload, refused":   {refusing, 0, nil, codes.Unavailable, "there are too many calls to decide this one", time.Second},
		"no limit":               {byRule(failing{broken}, httpthrottle.Unlimited()), 4, nil, codes.OK, "", 0},
	} {
		t.Run(name, func(t *testing.T) {
			test.limit.Failed = func(context.Context, grpcthrottle.Call, error) error {
				t.Error("the rule is no mistake")
				return nil
			}
			s, client := serveTCP(t, test.limit)
			for i := range 4 {
				var err error
				messages := 3
				if i%2 == 0 {
					err = check(t, client, "")
				} else {
					messages, err = watch(t, client)
				}
				if i < test.allowed {
					require.NoError(t, err)
					require.Equal(t, 3, messages)
					d, ok := grpcthrottle.DecisionFrom(s.contexts()[i])
					require.Equal(t, name != "no limit", ok)
					require.ErrorIs(t, d.Err, test.err)
					continue
				}
				require.Equal(t, test.code, status.Code(err))
				require.Equal(t, test.message, status.Convert(err).Message())
				delay, ok := retryDelay(t, err)
				require.Equal(t, test.retry > 0, ok)
				require.LessOrEqual(t, delay, test.retry)
				require.GreaterOrEqual(t, delay, test.retry/2)
			}
			require.Len(t, s.contexts(), test.allowed, "a refused call is not handed on")
		})
	}
}

func TestRulesAreMadeOfTheMethodAndTheRequest(t *testing.T) {
	limit := grpcthrottle.New(throttler.New(memstore.New()), func(_ context.Context, call grpcthrottle.Call) throttler.Rule {
		request, ok := call.Request.(*grpc_health_v1.HealthCheckRequest)
		if !ok {
			return throttler.Rule{Identifier: call.Method, Either: []throttler.Condition{{Name: "streams", Max: 1, TTL: time.Minute}}}
		}
		return throttler.Rule{Identifier: call.Method, Either: []throttler.Condition{
			{Name: "service", Value: request.Service, Max: 1, TTL: time.Minute},
		}}
	})
	_, client := serveTCP(t, limit)
	require.NoError(t, check(t, client, "a"))
	require.NoError(t, check(t, client, "b"))
	require.Equal(t, codes.ResourceExhausted, status.Code(check(t, client, "a")))
	_, err := watch(t, client)
	require.NoError(t, err)
	_, err = watch(t, client)
	require.Equal(t, "Too many requests.", status.Convert(err).Message(), "not the condition's name")
}

func TestInvalidRulesAreInternal(t *testing.T) {
	limit := byRule(memstore.New(), throttler.Rule{})
	var failures []error
	limit.Failed = func(_ context.Context, call grpcthrottle.Call, err error) error {
		failures = append(failures, fmt.Errorf("%s: %w", call.Method, err))
		return nil
	}
	s, client := serveTCP(t, limit)
	err := check(t, client, "")
	require.Equal(t, codes.Internal, status.Code(err))
	require.NotContains(t, status.Convert(err).Message(), "rule")
	require.Len(t, failures, 1)
	require.ErrorIs(t, failures[0], throttler.ErrInvalidRule)
	require.ErrorContains(t, failures[0], "/grpc.health.v1.Health/Check: ")
	require.Empty(t, s.contexts())

	limit = byRule(memstore.New(), throttler.Rule{})
	limit.Failed = func(context.Context, grpcthrottle.Call, error) error {
		return status.Error(codes.FailedPrecondition, "mine")
	}
	_, client = serveTCP(t, limit)
	require.Equal(t, codes.FailedPrecondition, status.Code(check(t, client, "")))

	limit = byRule(memstore.New(), throttler.Rule{}) // written to the log
	_, client = serveTCP(t, limit)
	_, err = watch(t, client)
	require.Equal(t, codes.Internal, status.Code(err))
}

// failing is a store whose every operation ends with the same error.
type failing struct{ err error }

func (f failing) Get(string) (*memcache.Item, error)                   { return nil, f.err }
func (f failing) GetMulti([]string) (map[string]*memcache.Item, error) { return nil, f.err }
func (f failing) Add(*memcache.Item) error                             { return f.err }
func (f failing) CompareAndSwap(*memcache.Item) error                  { return f.err }
func (f failing) Delete(string) error                                  { return f.err }

var one = throttler.Rule{Identifier: "test", Either: []throttler.Condition{{Name: "all", Max: 1, TTL: time.Minute}}}

func TestCallThatEndsUndecidedIsNotHandedOn(t *testing.T) {
	for want, end := range map[codes.Code]func(context.Context) (context.Context, context.CancelFunc){
		codes.Canceled: func(ctx context.Context) (context.Context, context.CancelFunc) {
			ctx, cancel := context.WithCancel(ctx)
			cancel()
			return ctx, cancel
		},
		codes.DeadlineExceeded: func(ctx context.Context) (context.Context, context.CancelFunc) {
			return context.WithDeadline(ctx, time.Now().Add(-time.Second))
		},
	} {
		ctx, cancel := end(t.Context())
		defer cancel()
		_, err := perMinute(1).Unary(withPeer(ctx, "203.0.113.9:1"), nil, &grpc.UnaryServerInfo{}, func(context.Context, any) (any, error) {
			t.Error("handed on")
			return nil, nil
		})
		require.Equal(t, want, status.Code(err))
	}
}

func TestRefusalOfAHandlersOwn(t *testing.T) {
	err := grpcthrottle.Refusal(throttler.Decision{Messages: []string{"one", "two"}, RetryAfter: 1500 * time.Millisecond})
	require.Equal(t, codes.ResourceExhausted, status.Code(err))
	require.Equal(t, "one; two", status.Convert(err).Message())
	delay, _ := retryDelay(t, err)
	require.Equal(t, 1500*time.Millisecond, delay)
}

func TestMisusePanics(t *testing.T) {
	rule := func(context.Context, grpcthrottle.Call) throttler.Rule { return one }
	require.PanicsWithValue(t, "grpcthrottle: New with a nil Throttler", func() { grpcthrottle.New(nil, rule) })
	require.PanicsWithValue(t, "grpcthrottle: New with a nil rule", func() { grpcthrottle.New(throttler.New(memstore.New()), nil) })
	require.PanicsWithValue(t, "httpthrottle: PerAddress: max is 0, want 1 to 1000000", func() {
		grpcthrottle.PerAddress(httpthrottle.Source{}, "test", 0, time.Minute)
	})
}
