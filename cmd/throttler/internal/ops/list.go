package ops

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"maps"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/cmd/throttler/internal/rulefile"
	"github.com/adaptivethrottler/throttler/internal/memcached"
	"github.com/adaptivethrottler/throttler/internal/record"
)

// batch is the number of records that one request reads.
const batch = 200

// List shows the values that are banned, or full by the limits of the rule
// file, of one rule or of all (identifier ""). With bansOnly it shows only
// banned ones, with all every value with hits. The error names servers that do
// not answer or do not list their keys; those of the others are shown all the
// same.
func (o *Operator) List(ctx context.Context, identifier string, bansOnly, all bool) error {
	servers := o.Servers
	if o.Store != "" {
		servers = []string{""}
	}
	if len(servers) == 0 {
		return errNoServers
	}
	found := make([][]State, len(servers))
	errs := make([]error, len(servers))
	progress := newProgress(o.Progress, "records")
	var each sync.WaitGroup
	for i, server := range servers {
		each.Go(func() {
			l := &listing{o: o, server: server, identifier: identifier, bansOnly: bansOnly, all: all, progress: progress}
			if o.Store != "" {
				errs[i] = o.listRedis(ctx, l)
			} else {
				errs[i] = l.run(ctx)
			}
			found[i] = l.states
		})
	}
	each.Wait()
	progress.end()
	states := slices.Concat(found...)
	slices.SortFunc(states, func(a, b State) int {
		return cmp.Or(strings.Compare(a.Identifier, b.Identifier), strings.Compare(a.Condition, b.Condition), strings.Compare(a.Value, b.Value))
	})
	if states == nil {
		states = []State{} // [] in JSON
	}
	err := errors.Join(errs...)
	return errors.Join(err, o.print(states, func(w io.Writer) {
		switch {
		case len(states) > 0:
			table(w, states, time.Now())
		case err == nil: // a server that does not answer may hold any number
			fmt.Fprintln(w, "nothing")
		}
	}))
}

// A listing collects the values on one server.
type listing struct {
	o             *Operator
	server        string
	identifier    string // "": all
	bansOnly, all bool
	progress      *progress
	states        []State
}

// tries is how often a list is begun that the server cuts off, or refuses
// because it makes another one.
const tries = 5

// run goes through all keys of the server.
func (l *listing) run(ctx context.Context) error {
	var err error
	for range tries {
		if err = l.tryRun(ctx); err == nil || !worthAnotherTry(err) {
			break
		}
		l.states = nil
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(200 * time.Millisecond):
		}
	}
	switch {
	case err == nil:
		return nil
	case errors.Is(err, memcached.ErrRefused) && !errors.Is(err, memcached.ErrBusy):
		return fmt.Errorf("server %s does not list its keys; look up values by name: %w", l.server, err)
	}
	return fmt.Errorf("server %s: %w", l.server, err)
}

func worthAnotherTry(err error) bool {
	return errors.Is(err, memcached.ErrBusy) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.ECONNRESET)
}

// tryRun needs two connections: a list of keys occupies its own until the end.
func (l *listing) tryRun(ctx context.Context) error {
	keys, err := l.o.dialer().Dial(ctx, l.server)
	if err != nil {
		return err
	}
	defer keys.Close()
	values, err := l.o.dialer().Dial(ctx, l.server)
	if err != nil {
		return err
	}
	defer values.Close()
	if stats, err := values.Stats(); err == nil {
		l.progress.expect(int(number(stats["curr_items"])))
	}
	return l.walk(keys.Keys(), values.Values)
}

// walk reads a list of keys, which may hold one twice, and the records of those that are wanted.
// It reads the list to its end first: a memcached that must wait for its reader ends it early.
// If that fails, the records of what it held are read all the same.
func (l *listing) walk(keys iter.Seq2[string, error], read func(keys []string) (map[string][]byte, error)) error {
	wanted, listErr := make(map[string]bool), error(nil)
	for key, err := range keys {
		if err != nil {
			listErr = err
			break
		}
		if l.wants(key) && !wanted[key] {
			wanted[key] = true
		} else {
			l.progress.add(1)
		}
	}
	for some := range slices.Chunk(slices.Collect(maps.Keys(wanted)), batch) {
		items, err := read(some)
		l.add(items)
		if err != nil {
			return errors.Join(listErr, err)
		}
		l.progress.add(len(some))
	}
	return listErr
}

// wants reports whether key may be a record for the list.
func (l *listing) wants(key string) bool {
	if strings.HasPrefix(key, record.HashedKey) {
		return l.identifier == "" // the rule is unknown
	}
	identifier, _, _, ok := throttler.SplitRecordKey(key)
	return ok && (l.identifier == identifier || l.identifier == "" && !bookkeeping(identifier))
}

// bookkeeping reports whether nobody is blocked by the records of identifier: the service keeps
// them beside those of logins.
func bookkeeping(identifier string) bool {
	return strings.HasPrefix(identifier, rulefile.Reserved) && identifier != rulefile.Reserved+"login"
}

// add adds records to the list.
func (l *listing) add(items map[string][]byte) {
	now := time.Now()
	for key, value := range items {
		r, err := throttler.Inspect(value)
		if err != nil {
			continue // another program's item under a similar key
		}
		s := newState(r, now)
		s.Key, s.Value, s.Server = key, key, l.server
		if identifier, name, value, ok := throttler.SplitRecordKey(key); ok {
			s.Identifier, s.Condition, s.Value = identifier, name, value
		}
		l.o.limit(&s, now)
		if l.belongs(&s) {
			l.states = append(l.states, s)
		}
	}
}

func (l *listing) belongs(s *State) bool {
	switch {
	case s.BannedUntil != nil:
		return true
	case l.bansOnly:
		return false
	case l.all:
		return !s.Empty()
	}
	return s.Full
}
