package grpcthrottle_test

import (
	"context"
	"fmt"
	"net"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/grpcthrottle"
	"github.com/adaptivethrottler/throttler/httpthrottle"
	"github.com/adaptivethrottler/throttler/memstore"
)

// Two calls an hour from each address. A client that is refused learns how long
// to wait.
func Example() {
	var source httpthrottle.Source // no proxy: the peer is the client
	limit := grpcthrottle.New(throttler.New(memstore.New()), grpcthrottle.PerAddress(source, "api", 2, time.Hour))
	server := grpc.NewServer(
		grpc.ChainUnaryInterceptor(limit.Unary),
		grpc.ChainStreamInterceptor(limit.Stream),
	)
	grpc_health_v1.RegisterHealthServer(server, health.NewServer())
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		fmt.Println(err)
		return
	}
	go server.Serve(listener)
	defer server.Stop()

	conn, err := grpc.NewClient(listener.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer conn.Close()
	for range 3 {
		_, err := grpc_health_v1.NewHealthClient(conn).Check(context.Background(), &grpc_health_v1.HealthCheckRequest{})
		answer := status.Convert(err)
		fmt.Printf("%v %q\n", answer.Code(), answer.Message())
		for _, detail := range answer.Details() {
			if retry, ok := detail.(*errdetails.RetryInfo); ok {
				fmt.Println("again in", retry.RetryDelay.AsDuration().Round(time.Minute))
			}
		}
	}
	// Output:
	// OK ""
	// OK ""
	// ResourceExhausted "Too many requests from this address."
	// again in 1h0m0s
}

// A rule of one's own: a method that is dear is limited per customer, who has
// been authenticated before, and by the size of what they send.
func ExampleNew() {
	customer := func(ctx context.Context) string { return "acme" } // set by authentication
	limit := grpcthrottle.New(throttler.New(memstore.New()), func(ctx context.Context, call grpcthrottle.Call) throttler.Rule {
		upload, ok := call.Request.([]byte)
		if !ok {
			return httpthrottle.Unlimited()
		}
		return throttler.Rule{
			Identifier: "uploads",
			Either: []throttler.Condition{
				{Name: "calls", Value: customer(ctx), Max: 100, TTL: time.Minute},
				{Name: "bytes", Value: customer(ctx), Max: 1 << 20, TTL: time.Minute, Algorithm: throttler.LeakyBucket,
					Cost: max(len(upload), 1), Message: "A megabyte a minute is yours."},
			},
		}
	})
	handler := func(context.Context, any) (any, error) { return "stored", nil }

	for _, size := range []int{500, 2 << 20} {
		answer, err := limit.Unary(context.Background(), make([]byte, size), &grpc.UnaryServerInfo{FullMethod: "/files/Upload"}, handler)
		fmt.Printf("%d bytes: %v (%v)\n", size, answer, err)
	}
	// Output:
	// 500 bytes: stored (<nil>)
	// 2097152 bytes: <nil> (rpc error: code = ResourceExhausted desc = A megabyte a minute is yours. (larger than the limit ever allows))
}
