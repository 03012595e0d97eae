package api

import (
	"context"
	"errors"

	"github.com/adaptivethrottler/throttler"
)

// A settlement sets what a call has cost.
type settlement struct {
	Cancel string         `json:"cancel"` // the token of the call, or of its last settlement
	Totals map[string]int `json:"totals"` // by condition
}

func (a *api) settle(ctx context.Context, s *settlement) (*decision, error) {
	if len(s.Totals) == 0 {
		return nil, invalid("There are no totals. Send what each condition has cost, by its name.")
	}
	d, err := a.redeem(ctx, s.Cancel)
	if err != nil {
		return nil, err
	}
	// The token is used now, so finish even if the caller hangs up.
	settled, err := a.Throttler.Settle(context.WithoutCancel(ctx), d, s.Totals)
	if errors.Is(err, throttler.ErrInvalidRule) {
		return nil, errors.Join(invalid("%v.", err), a.tokens.unuse(ctx, kindHits, s.Cancel))
	}
	if err != nil {
		return nil, err
	}
	return a.counted(settled), nil
}
