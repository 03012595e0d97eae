package upstream

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"time"
)

// Check asks each of servers, which have a Server inside, for a Reading, all at once, and calls
// forgot for what they have forgotten since it last did. Those that are down are not asked.
func Check[S interface{ Inside() *Server }](ctx context.Context, servers []S, ask func(context.Context, S) (Reading, error), forgot func(server string, loss Loss)) error {
	errs := make([]error, len(servers))
	var checks sync.WaitGroup
	for i, of := range servers {
		s := of.Inside()
		if s.Down() != nil {
			s.Memory.Away()
			continue
		}
		checks.Go(func() {
			loss, err := s.Memory.Ask(ctx, func() (Reading, error) { return ask(ctx, of) })
			switch {
			case err != nil:
				errs[i] = s.Wrap(err)
			case loss != (Loss{}):
				forgot(s.Name, loss)
			}
		})
	}
	checks.Wait()
	return errors.Join(errs...)
}

// Number returns the whole number that a server tells as text, or 0.
func Number(text string) int64 {
	n, _ := strconv.ParseInt(text, 10, 64)
	return n
}

// DefaultWatchEvery is how often servers are checked by default.
const DefaultWatchEvery = 15 * time.Second

// Watch calls check at once and then again after every pause, each time with a ctx that ends
// after as long. It returns when ctx ends, with its error, or when over is closed, with
// errClosed.
func Watch(ctx context.Context, every time.Duration, check func(context.Context) error, over <-chan struct{}, errClosed error) error {
	if every <= 0 {
		every = DefaultWatchEvery
	}
	pause := time.NewTimer(every)
	defer pause.Stop()
	for {
		bounded, cancel := context.WithTimeout(ctx, every)
		_ = check(bounded) // a server that does not answer is down, which is told elsewhere
		cancel()
		pause.Reset(every)
		select {
		case <-pause.C:
		case <-ctx.Done():
			return ctx.Err()
		case <-over:
			return errClosed
		}
	}
}
