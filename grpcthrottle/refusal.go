package grpcthrottle

import (
	"strings"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/internal/gate"
)

// Refusal returns the error for a call that d refuses, for handlers that ask a
// throttler themselves:
//
//	if d.Status == throttler.Blocked {
//		return nil, grpcthrottle.Refusal(d)
//	}
//
// It is the status ResourceExhausted with d.Messages, "Too many requests." in
// place of a condition without a Message, and, unless d.RetryAfter is 0,
// RetryInfo. An Interceptor answers the same.
func Refusal(d throttler.Decision) error {
	message := strings.Join(gate.Messages(&d), "; ")
	if d.RetryAfter == 0 {
		message = strings.TrimSpace(message + " (larger than the limit ever allows)")
	}
	return withRetry(codes.ResourceExhausted, message, d.RetryAfter)
}

// undecidedRetry is the RetryInfo of a call that could not be decided: a burst
// is over soon.
const undecidedRetry = time.Second

func overloaded() error {
	return withRetry(codes.Unavailable, "there are too many calls to decide this one", undecidedRetry)
}

// withRetry returns a status with RetryInfo, or without if after is 0.
func withRetry(code codes.Code, message string, after time.Duration) error {
	// A message may hold bytes from a client. protobuf wants valid UTF-8.
	s := status.New(code, strings.ToValidUTF8(message, "\uFFFD"))
	if after > 0 {
		detailed, err := s.WithDetails(&errdetails.RetryInfo{RetryDelay: durationpb.New(after)})
		if err != nil {
			panic(err) // a RetryInfo always marshals, and code is not OK
		}
		s = detailed
	}
	return s.Err()
}
