package engine

import (
	"context"

	"github.com/adaptivethrottler/throttler/internal/record"
)

// Hold renews the in-flight hits of r, for by, until Release or the end of ctx. r may be nil.
func (r *Receipt) Hold(ctx context.Context, by *Engine) *Lease {
	l := &Lease{by: by, receipt: r}
	l.ctx.lease = l
	l.ctx.Context, l.cancel = context.WithCancelCause(parent{ctx, ctx.Done()})
	if r == nil {
		return l
	}
	leases, shadow := r.leases()
	if len(leases) == 0 {
		return l
	}
	l.firm = shadow
	l.engine = leases[0].backend.engine // which counted them, and is told when they are given back
	l.engine.holds.add(l, leases)
	l.unwatch = context.AfterFunc(ctx, func() { l.engine.holds.drop(l) })
	return l
}

// Context returns the ctx for the work that l is held for.
func (l *Lease) Context() context.Context { return &l.ctx }

// Release gives the in-flight hits back.
func (l *Lease) Release(ctx context.Context) error {
	if l.engine != nil {
		l.engine.holds.drop(l)
		l.unwatch()
	}
	l.cancel(nil)
	if l.receipt == nil {
		return nil
	}
	return l.receipt.CancelLeases(ctx, l.by)
}

// Renew renews the in-flight hits of r once.
func (r *Receipt) Renew(ctx context.Context) error {
	leases, _ := r.leases()
	entries := make([]*entry, len(leases))
	for i, l := range leases {
		entries[i] = renewal(l.backend, l.key, map[uint64]record.Instant{l.hit.ID: 0})
	}
	askAll(ctx, entries, false)
	errs := make([]error, len(entries))
	for i, e := range entries {
		if errs[i] = e.Failed(); errs[i] != nil {
			continue
		}
		id := leases[i].hit.ID
		if e.ends[id] == 0 {
			errs[i] = ErrLeaseLost
			continue
		}
		r.renewed(id, e.ends[id])
	}
	if r.gaveLeasesBack() {
		errs = append(errs, ErrLeaseLost)
	}
	return Join(errs...)
}
