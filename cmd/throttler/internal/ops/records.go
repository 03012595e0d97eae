package ops

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/pool"
	"github.com/bradfitz/gomemcache/memcache"
)

// A State is the state of a value.
type State struct {
	Identifier string `json:"identifier,omitempty"` // "": the key is a hash
	Condition  string `json:"condition,omitempty"`
	Value      string `json:"value"`
	Key        string `json:"key"`
	Server     string `json:"server,omitempty"` // only in a list

	BannedUntil *time.Time `json:"banned_until,omitempty"` // nil: not banned
	Bans        int        `json:"bans,omitempty"`         // in a row, if they grow

	Hits      int        `json:"hits"` // unexpired, of a window
	FirstEnds *time.Time `json:"first_ends,omitempty"`
	LastEnds  *time.Time `json:"last_ends,omitempty"`
	EmptyAt   *time.Time `json:"empty_at,omitempty"` // of a bucket

	Limit int    `json:"limit,omitempty"` // of the rule file; 0: unknown
	Full  bool   `json:"full"`            // false if the limit is unknown
	Err   error  `json:"-"`
	Error string `json:"error,omitempty"`
}

// newState returns the state of a record at now.
func newState(r throttler.Record, now time.Time) State {
	var s State
	if r.BannedUntil.After(now) {
		s.BannedUntil = &r.BannedUntil
	}
	s.Bans = r.Bans
	for i, expiry := range r.Expiries {
		if !expiry.After(now) {
			continue
		}
		if s.Hits == 0 {
			s.FirstEnds = &r.Expiries[i]
		}
		s.LastEnds = &r.Expiries[i]
		s.Hits++
	}
	if r.EmptyAt.After(now) {
		s.EmptyAt = &r.EmptyAt
	}
	return s
}

// Empty reports whether the value has no ban and no unexpired hits.
func (s *State) Empty() bool {
	return s.BannedUntil == nil && s.Hits == 0 && s.EmptyAt == nil
}

// limit sets Limit and Full of s from the rule file.
func (o *Operator) limit(s *State, now time.Time) {
	if o.Rules == nil {
		return
	}
	c, ok := o.Rules.Limit(s.Identifier, s.Condition, s.Value)
	if !ok {
		return
	}
	s.Limit = c.Max
	if s.EmptyAt != nil {
		s.Full = s.EmptyAt.Sub(now) > c.TTL-c.TTL/time.Duration(c.Max)
		return
	}
	s.Full = s.Hits >= c.Max
}

// servers connects to the operator's servers.
func (o *Operator) servers() (*pool.Pool, error) {
	if len(o.Servers) == 0 {
		return nil, ErrNoServers
	}
	p, err := pool.New(o.Servers...)
	if err != nil {
		return nil, err
	}
	p.Timeout, p.DialTimeout = patience, patience
	p.User, p.Password = o.User, o.Password
	return p, nil
}

// patience is the timeout for a server. An operator waits longer than a caller.
const patience = 3 * time.Second

// Look shows the states of targets.
func (o *Operator) Look(ctx context.Context, identifier string, targets []Target) error {
	p, err := o.servers()
	if err != nil {
		return err
	}
	defer p.Close()
	return o.show(ctx, p, identifier, targets)
}

// Ban bans targets for d and shows their states.
func (o *Operator) Ban(ctx context.Context, identifier string, targets []Target, d time.Duration) error {
	p, err := o.servers()
	if err != nil {
		return err
	}
	defer p.Close()
	err = throttler.New(p).Ban(ctx, rule(identifier, targets), d)
	return errors.Join(err, o.show(ctx, p, identifier, targets))
}

// Lift lifts the bans of targets, forgets their hits, and shows their states.
func (o *Operator) Lift(ctx context.Context, identifier string, targets []Target) error {
	p, err := o.servers()
	if err != nil {
		return err
	}
	defer p.Close()
	err = throttler.New(p).Reset(ctx, rule(identifier, targets))
	return errors.Join(err, o.show(ctx, p, identifier, targets))
}

// show prints the states of targets.
func (o *Operator) show(ctx context.Context, p *pool.Pool, identifier string, targets []Target) error {
	states := make([]State, len(targets))
	var errs []error
	for i, t := range targets {
		states[i] = o.state(p, identifier, t)
		errs = append(errs, states[i].Err)
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
	err := o.print(states, func(w io.Writer) { table(w, states, time.Now()) })
	return errors.Join(append(errs, err)...)
}

// state returns the state of a target.
func (o *Operator) state(p *pool.Pool, identifier string, t Target) (s State) {
	key := throttler.RecordKey(identifier, t.Condition, t.Value)
	now := time.Now()
	item, err := p.Get(key)
	switch {
	case errors.Is(err, memcache.ErrCacheMiss):
		err = nil
	case err == nil:
		var r throttler.Record
		if r, err = throttler.Inspect(item.Value); err == nil {
			s = newState(r, now)
		}
	}
	s.Identifier, s.Condition, s.Value, s.Key, s.Err = identifier, t.Condition, t.Value, key, err
	if err != nil {
		s.Error = err.Error()
	}
	o.limit(&s, now)
	return s
}

// table writes states as a table.
func table(w io.Writer, states []State, now time.Time) {
	fmt.Fprintln(w, "RULE\tCONDITION\tVALUE\tBAN ENDS\tHITS\tNEXT ENDS\tLAST ENDS")
	for i := range states {
		s := &states[i]
		identifier, condition := "-", "-" // of a hash
		if s.Identifier != "" {
			identifier, condition = printable(s.Identifier), printable(s.Condition)
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", identifier, condition, printable(s.Value),
			s.ban(now), s.hits(), ends(s.FirstEnds, now), ends(s.lastEnds(), now))
	}
}

func (s *State) lastEnds() *time.Time {
	if s.EmptyAt != nil {
		return s.EmptyAt
	}
	return s.LastEnds
}

func (s *State) ban(now time.Time) string {
	if s.BannedUntil == nil {
		return "-"
	}
	return s.BannedUntil.Local().Format(time.DateTime) + ", in " + in(*s.BannedUntil, now)
}

func (s *State) hits() string {
	switch {
	case s.Err != nil:
		return "unknown"
	case s.EmptyAt != nil && s.Full:
		return "bucket, full"
	case s.EmptyAt != nil:
		return "bucket"
	case s.Limit > 0:
		return fmt.Sprintf("%d of %d", s.Hits, s.Limit)
	}
	return fmt.Sprint(s.Hits)
}

func ends(t *time.Time, now time.Time) string {
	if t == nil {
		return "-"
	}
	return "in " + in(*t, now)
}
