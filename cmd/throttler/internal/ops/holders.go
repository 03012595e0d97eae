package ops

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/internal/record"
	"github.com/bradfitz/gomemcache/memcache"
)

// A Holder is one lease of what is in flight.
type Holder struct {
	ID      string    `json:"id"`
	Hits    int       `json:"hits"`
	Renewed time.Time `json:"renewed"` // or taken
	Ends    time.Time `json:"ends"`    // unless it is renewed
}

// holders returns those of the leases that count at now.
func holders(leases []throttler.StoredLease, now time.Time) (all []Holder) {
	for _, l := range leases {
		if l.End.After(now) {
			all = append(all, Holder{ID: holderID(l.ID), Hits: l.Hits, Renewed: l.End.Add(-l.TTL), Ends: l.End})
		}
	}
	return all
}

func holderID(id uint64) string { return fmt.Sprintf("%016x", id) }

// LiftHolder frees one holder of a target, and shows the target's state. The others
// stay. Its owner is told when it renews.
func (o *Operator) LiftHolder(ctx context.Context, identifier string, t Target, holder string) error {
	id, err := strconv.ParseUint(holder, 16, 64)
	if err != nil {
		return UsageError(fmt.Sprintf("%q: want the ID of a holder, as look shows it", holder))
	}
	targets, err := o.expand(identifier, []Target{t})
	if err != nil {
		return err
	}
	if len(targets) != 1 {
		return UsageError(fmt.Sprintf("%d values: a holder is one of a single value", len(targets)))
	}
	return o.run(ctx, identifier, targets, func(s store, t Target) error {
		return free(ctx, s, throttler.RecordKey(identifier, t.Condition, t.Value), id)
	})
}

// errNoHolder is the error of a holder that has ended already.
var errNoHolder = errors.New("there is no such holder: it has been released, or has ended")

// free removes a lease from a record. It tries again as long as others change the
// record in between.
func free(ctx context.Context, s store, key string, id uint64) error {
	for ctx.Err() == nil {
		item, err := s.Get(key)
		if errors.Is(err, memcache.ErrCacheMiss) {
			return errNoHolder
		}
		if err != nil {
			return err
		}
		r, err := record.Decode(item.Value)
		if err != nil {
			return err
		}
		now := record.InstantOf(time.Now())
		rest, found := r.Without(record.Hit{Kind: record.Leases, Cost: 1, Expiry: now, ID: id}, now)
		if !found {
			return errNoHolder
		}
		item.Value, item.Expiration = rest.Encode(), record.Expiration(now, rest.End())
		err = s.CompareAndSwap(item)
		if !errors.Is(err, memcache.ErrCASConflict) && !errors.Is(err, memcache.ErrCacheMiss) {
			return err
		}
	}
	return ctx.Err()
}

// holderTable writes the holders of states, if there are any.
func holderTable(w io.Writer, states []State, now time.Time) {
	head := "\nRULE\tCONDITION\tVALUE\tHOLDER\tHITS\tRENEWED\tENDS\n"
	for i := range states {
		s := &states[i]
		for _, h := range s.Holders {
			fmt.Fprintf(w, "%s%s\t%s\t%s\t%s\t%d\t%s ago\t%s\n", head, printable(s.Identifier), printable(s.Condition), printable(s.Value),
				h.ID, h.Hits, in(now, h.Renewed), ends(&h.Ends, now))
			head = ""
		}
	}
}
