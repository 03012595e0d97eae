package api

import (
	"context"
	"errors"
	"net/netip"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/login"
)

// A beginning requests an attempt to log in.
type beginning struct {
	Name    string `json:"name"`
	Address string `json:"address"`
	Device  string `json:"device"` // from a cookie; empty: none
}

// An attempt is the response to a beginning. RetryAfter is in seconds.
type attempt struct {
	Status     string  `json:"status"`
	Message    string  `json:"message,omitempty"`
	RetryAfter float64 `json:"retry_after"`
	Known      bool    `json:"known"`
	HalfUsed   bool    `json:"half_used"`
	Siege      bool    `json:"siege"`
	Degraded   bool    `json:"degraded"`          // the backend failed
	Attempt    string  `json:"attempt,omitempty"` // a token
}

func (a *api) begin(ctx context.Context, b *beginning) (*attempt, error) {
	addr, err := addressOf(b.Address)
	if err != nil {
		return nil, err
	}
	begun, err := a.Guard.Begin(login.WithDevice(ctx, b.Device), b.Name, addr)
	if errors.Is(err, login.ErrNameTooLong) {
		return nil, invalid("The name has more than %d bytes. Do not look at the password.", login.MaxName)
	}
	if err != nil {
		return nil, err
	}
	d := &begun.Decision
	if d.Err != nil && a.Rules.File().Closed {
		begun.Cancel(ctx) // as far as the backend answers
		return nil, unavailable("The backend has failed, and the rule file says failure: closed. Do not look at the password.")
	}
	answer := &attempt{
		Status: d.Status.String(), RetryAfter: d.RetryAfter.Seconds(),
		Known: begun.Known, HalfUsed: begun.HalfUsed, Siege: begun.Siege, Degraded: d.Err != nil,
	}
	if d.Status == throttler.Blocked {
		if len(d.Messages) > 0 {
			answer.Message = d.Messages[0]
		}
		return answer, nil
	}
	handed, err := begun.HandOver()
	if err != nil {
		return nil, err
	}
	answer.Attempt = a.tokens.seal(kindLogin, handed)
	return answer, nil
}

func addressOf(text string) (netip.Addr, error) {
	addr, err := netip.ParseAddr(text)
	if err != nil {
		return addr, invalid("%q is no address. Send the client's address, without a port.", text)
	}
	return addr, nil
}

// An ending ends an attempt.
type ending struct {
	Attempt string `json:"attempt"` // the token
}

// end returns an operation that ends an attempt by how.
func (a *api) end(status string, how func(*login.Attempt, context.Context) error) func(context.Context, *ending) (*done, error) {
	return func(ctx context.Context, e *ending) (*done, error) {
		handed, err := a.tokens.use(ctx, kindLogin, e.Attempt)
		if err != nil {
			return nil, err
		}
		taken, err := a.Guard.TakeOver(handed)
		if err != nil {
			return nil, err
		}
		return &done{status}, how(taken, ctx)
	}
}

// A lifting names whose bans are lifted.
type lifting struct {
	Name    string `json:"name"`
	Address string `json:"address"`
}

func (a *api) lift(ctx context.Context, l *lifting) (*done, error) {
	if l.Name == "" && l.Address == "" {
		return nil, invalid("There is neither a name nor an address. Send one of them, or both.")
	}
	var addr netip.Addr
	if l.Address != "" {
		var err error
		if addr, err = addressOf(l.Address); err != nil {
			return nil, err
		}
	}
	return changed("lifted", a.Guard.Lift(ctx, l.Name, addr))
}

// recognize makes a person known who has proved their identity in another way.
func (a *api) recognize(ctx context.Context, b *beginning) (*done, error) {
	if b.Name == "" {
		return nil, invalid("There is no name. Send that of the person who is known from now on.")
	}
	addr, err := addressOf(b.Address)
	if err != nil {
		return nil, err
	}
	return changed("recognized", a.Guard.Recognize(ctx, b.Name, addr, b.Device))
}

// changed answers with the status of a change, unless it has failed.
func changed(status string, err error) (*done, error) {
	if errors.Is(err, login.ErrNameTooLong) {
		return nil, invalid("The name has more than %d bytes.", login.MaxName)
	}
	return &done{status}, err
}
