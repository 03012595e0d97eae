package login

import (
	"context"
	"errors"
	"net/netip"

	"github.com/adaptivethrottler/throttler"
)

// Try counts an attempt to log in as name from addr, calls check if it may be
// made, and ends it exactly once:
//
//   - Refused: check was not called. Answer with Decision.RetryAfter.
//   - Succeeded, Failed: the password was right or wrong, as check has said. A
//     check that panics has Failed, and the panic goes on.
//   - Canceled: check returned an error, and Try returns it. The attempt is not
//     counted. So check returns an error only if it did not compare the password.
//
// check gets ctx. That ctx ends meanwhile does not keep the attempt from being
// ended.
//
// Without a call of check the error is that of [Guard.Begin], and the result is
// Refused with the zero Decision. A failure of the backend is never that error: it
// stands in the Decision's Err, also where the attempt could not be ended.
func (g *Guard) Try(ctx context.Context, name string, addr netip.Addr, check func(ctx context.Context) (right bool, err error)) (Result, throttler.Decision, error) {
	attempt, err := g.Begin(ctx, name, addr)
	if err != nil {
		return Refused, throttler.Decision{}, err
	}
	d := attempt.Decision
	if d.Status == throttler.Blocked {
		return Refused, d, nil
	}
	checked := false
	defer func() {
		if !checked { // check panics or has called runtime.Goexit
			attempt.Fail(ctx)
		}
	}()
	right, err := check(ctx)
	checked = true
	result, end := Failed, attempt.Fail
	switch {
	case err != nil:
		result, end = Canceled, attempt.Cancel
	case right:
		result, end = Succeeded, attempt.Succeed
	}
	d.Err = errors.Join(d.Err, end(ctx))
	return result, d, err
}
