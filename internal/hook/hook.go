// Package hook lets the tests in test/ see what package throttler does not export.
package hook

import (
	"context"
	"time"
)

var (
	CutShort  func(ctx context.Context, d any) bool
	WaitLines func(throttler any) int
	Queued    func(throttler any, key string) int
	Slots     func(throttler any) (all, used int)
	Records   func(simulation any) int
	SetBack   func(lease any, d time.Duration)
)
