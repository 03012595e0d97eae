package api

import (
	"context"
	"encoding/binary"
	"errors"
	"time"

	"github.com/adaptivethrottler/throttler"
)

// A lease is what a token of kindLease holds. The token is good until the lease ends,
// and as often as its owner likes: a lease is known by an ID of its own, so no renewal
// or release concerns another one.
type lease struct {
	firm    bool          // of a rule with shadow: never lost
	length  time.Duration // for which it counts unless it is renewed
	receipt []byte        // empty: nothing is stored, so it is never lost
}

// leaseHead is the size of what comes before the receipt.
const leaseHead = 1 + 8

// encode returns the contents of the token.
func (l *lease) encode() []byte {
	b := []byte{0}
	if l.firm {
		b[0] = 1
	}
	return append(binary.BigEndian.AppendUint64(b, uint64(l.length)), l.receipt...)
}

// open returns the lease of a token, and the Decision that has its hits.
func (a *api) open(token string) (l lease, d throttler.Decision, err error) {
	b, _, err := a.tokens.open(kindLease, token)
	if err != nil {
		return lease{}, throttler.Decision{}, err
	}
	if len(b) < leaseHead {
		return lease{}, throttler.Decision{}, errNoToken
	}
	l = lease{firm: b[0] == 1, length: time.Duration(binary.BigEndian.Uint64(b[1:])), receipt: b[leaseHead:]}
	d, err = a.Throttler.Redeem(l.receipt)
	return l, d, err
}

func (a *api) acquire(ctx context.Context, c *call) (*decision, error) {
	file := a.Rules.File()
	rule := file.Rule(c.Rule)
	if rule != nil && rule.Lease() == 0 {
		return nil, invalid("Rule %s has no condition in flight: nothing of it is released. Ask /v1/authorize.", c.Rule)
	}
	d, err := a.decide(ctx, file, c, a.Throttler.Authorize)
	if err != nil {
		return nil, err
	}
	if d.Status == throttler.Blocked {
		_ = a.free(ctx, d) // what had room has counted it; what cannot be given back ends within the lease
		return a.counted(d), nil
	}
	l := lease{firm: rule.Shadow(), length: rule.Lease(), receipt: d.Receipt()}
	answer := a.counted(d)
	answer.Lease = a.tokens.seal(kindLease, l.encode())
	answer.ExpiresAfter = l.length.Seconds()
	return answer, nil
}

// A holding names a lease.
type holding struct {
	Lease string `json:"lease"` // the token
}

// A renewal is the answer to a holding that was renewed.
type renewal struct {
	Status       string  `json:"status"`
	ExpiresAfter float64 `json:"expires_after"` // seconds
}

// errLost is the error of a lease that is not renewed any more.
var errLost = &failure{"lease-lost", "The lease is lost: it was not renewed in time, or was released or reset. Stop the work."}

func (a *api) renew(ctx context.Context, h *holding) (*renewal, error) {
	l, d, err := a.open(h.Lease)
	if err != nil {
		return nil, err
	}
	err = a.Throttler.Renew(ctx, d)
	switch {
	case errors.Is(err, throttler.ErrLeaseLost) && !l.firm:
		_ = a.free(ctx, d) // the leases of other conditions; what stays ends in its time
		return nil, errLost
	case err != nil && !errors.Is(err, throttler.ErrLeaseLost):
		return nil, err
	}
	return &renewal{"renewed", l.length.Seconds()}, nil
}

func (a *api) release(ctx context.Context, h *holding) (*done, error) {
	_, d, err := a.open(h.Lease)
	if err != nil {
		return nil, err
	}
	if err := a.free(ctx, d); err != nil {
		return nil, err
	}
	if a.Released != nil {
		a.Released()
	}
	return &done{"released"}, nil
}

// free gives the in-flight hits of d back, even if the caller hangs up.
func (a *api) free(ctx context.Context, d throttler.Decision) error {
	ctx = context.WithoutCancel(ctx)
	return a.Throttler.Hold(ctx, d).Release(ctx)
}
