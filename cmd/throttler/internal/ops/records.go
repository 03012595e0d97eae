package ops

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/cmd/throttler/internal/rulefile"
	"github.com/adaptivethrottler/throttler/login"
	"github.com/adaptivethrottler/throttler/pool"
	"github.com/bradfitz/gomemcache/memcache"
	"golang.org/x/sync/errgroup"
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

	Hits      int        `json:"hits"` // unexpired, of a window; in flight; or of a calendar's period
	FirstEnds *time.Time `json:"first_ends,omitempty"`
	LastEnds  *time.Time `json:"last_ends,omitempty"`
	EmptyAt   *time.Time `json:"empty_at,omitempty"` // of a bucket
	Holders   []Holder   `json:"holders,omitempty"`  // of what is in flight

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
	for _, expiry := range r.Expiries {
		if expiry.After(now) {
			s.add(1, expiry)
		}
	}
	if r.EmptyAt.After(now) {
		s.EmptyAt = &r.EmptyAt
	}
	if r.PeriodEnd.After(now) && r.Counted > 0 {
		s.add(r.Counted, r.PeriodEnd)
	}
	s.Holders = holders(r.Leases, now)
	for i := range s.Holders {
		s.add(s.Holders[i].Hits, s.Holders[i].Ends)
	}
	return s
}

// add notes that hits end at t.
func (s *State) add(hits int, t time.Time) {
	s.Hits += hits
	if s.FirstEnds == nil || t.Before(*s.FirstEnds) {
		s.FirstEnds = &t
	}
	if s.LastEnds == nil || t.After(*s.LastEnds) {
		s.LastEnds = &t
	}
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

// A store is where the records are.
type store interface {
	throttler.Client
	io.Closer
}

// open connects to the operator's store.
func (o *Operator) open() (store, error) {
	switch {
	case o.Store != "":
		return o.openRedis()
	case len(o.Servers) == 0:
		return nil, errNoServers
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
	return o.each(ctx, identifier, targets, nil)
}

// Ban bans targets for d and shows their states.
func (o *Operator) Ban(ctx context.Context, identifier string, targets []Target, d time.Duration) error {
	return o.each(ctx, identifier, targets, func(s store, t Target) error { return throttler.New(s).Ban(ctx, rule(identifier, t), d) })
}

// Lift lifts the bans of targets, forgets their hits, and shows their states. It says for which
// of them nothing was stored.
func (o *Operator) Lift(ctx context.Context, identifier string, targets []Target) error {
	var mu sync.Mutex // guards absent
	var absent []Target
	err := o.each(ctx, identifier, targets, func(s store, t Target) error {
		if _, err := s.Get(throttler.RecordKey(identifier, t.Condition, t.Value)); errors.Is(err, memcache.ErrCacheMiss) {
			mu.Lock()
			absent = append(absent, t)
			mu.Unlock()
		}
		th := throttler.New(s)
		guard := login.New(th) // if it is a login's: what is counted beside it
		guard.Identifier = identifier
		return errors.Join(th.Reset(ctx, rule(identifier, t)), guard.LiftRecord(ctx, t.Condition, t.Value))
	})
	mu.Lock()
	defer mu.Unlock()
	for _, t := range absent {
		if o.JSON || len(absent) > shownAtMost {
			break // the values of a network are summed up
		}
		fmt.Fprintf(o.Out, "nothing was stored for %s=%s\n", printable(t.Condition), printable(t.Value))
	}
	return err
}

// each is run for targets as they were given.
func (o *Operator) each(ctx context.Context, identifier string, targets []Target, change func(store, Target) error) error {
	targets, err := o.expand(identifier, targets)
	if err != nil {
		return err
	}
	return o.run(ctx, identifier, targets, change)
}

// run does what change says to each of targets, unless it is nil, and shows its state after it.
// It ends with ctx, whatever the servers do. Its error names the first that failed.
func (o *Operator) run(ctx context.Context, identifier string, targets []Target, change func(store, Target) error) error {
	s, err := o.open()
	if err != nil {
		return err
	}
	ended := make(chan error, 1)
	states := make([]State, len(targets))
	go func() {
		defer s.Close()
		var all errgroup.Group
		all.SetLimit(atOnce)
		for i, t := range targets {
			all.Go(func() (err error) {
				if change != nil {
					err = change(s, t)
				}
				states[i] = o.state(s, identifier, t)
				return err
			})
		}
		ended <- all.Wait()
	}()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case err := <-ended:
		return errors.Join(err, o.show(states))
	}
}

// expand returns the targets as the rule file counts them: in the canonical form
// of their condition, and instead of a network the values in it. Without a file
// they are taken as they are.
func (o *Operator) expand(identifier string, targets []Target) ([]Target, error) {
	if identifier == rulefile.Reserved+"login" {
		for _, t := range targets {
			if !slices.Contains(loginConditions, strings.TrimSuffix(t.Condition, "-variant")) {
				return nil, UsageError(fmt.Sprintf("the rule of logins has no condition %q: it has %s", t.Condition, strings.Join(loginConditions, ", ")))
			}
		}
	}
	if o.Rules == nil || strings.HasPrefix(identifier, rulefile.Reserved) || strings.HasPrefix(identifier, rulefile.EnvoyRule) {
		return targets, nil
	}
	rule := o.Rules.Rule(identifier)
	if rule == nil {
		return nil, UsageError(fmt.Sprintf("the rule file has no rule %q", identifier))
	}
	var all []Target
	for _, t := range targets {
		values, err := rule.Expand(t.Condition, t.Value)
		if err != nil {
			return nil, UsageError(err.Error())
		}
		for _, value := range values {
			all = append(all, Target{t.Condition, value})
		}
	}
	return all, nil
}

// loginConditions are the conditions by which [login.Guard] counts attempts. Those beside them
// with "-variant" count other spellings.
var loginConditions = []string{
	"name+address", "name+device", "name", "name-long", "address", "address-day", "network-56", "network-48", "network-32",
	"known", "known-long", "address-known", "account",
}

// atOnce is the number of records that are changed at the same time.
const atOnce = 64

// shownAtMost is the number of states that are shown as a table: more are
// summed up.
const shownAtMost = 100

// show prints states. The error joins theirs.
func (o *Operator) show(states []State) error {
	err := o.print(states, func(w io.Writer) {
		if len(states) > shownAtMost {
			sumUp(w, states)
			return
		}
		now := time.Now()
		table(w, states, now)
		holderTable(w, states, now)
	})
	errs := []error{err}
	for i := range states {
		if states[i].Err != nil && len(errs) < 10 {
			errs = append(errs, states[i].Err)
		}
	}
	return errors.Join(errs...)
}

func sumUp(w io.Writer, states []State) {
	banned, hit, unknown := 0, 0, 0
	for i := range states {
		switch s := &states[i]; {
		case s.Err != nil:
			unknown++
		case s.BannedUntil != nil:
			banned++
		case !s.Empty():
			hit++
		}
	}
	fmt.Fprintf(w, "%d values from %s to %s: %d banned, %d with hits, %d unknown\n", len(states),
		printable(states[0].Value), printable(states[len(states)-1].Value), banned, hit, unknown)
}

// state returns the state of a target.
func (o *Operator) state(p store, identifier string, t Target) (s State) {
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
	case s.BannedUntil != nil && s.Hits == 0:
		return "-" // the ban has taken their place
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
