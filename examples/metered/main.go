// Metered streams answers of a language model to several customers at once, each on a budget
// of tokens a minute. What an answer costs is known when it has been sent.
//
//	go run ./examples/metered [-budget 1000] [-streams 8] [-minute 2s]
//
// A stream reserves a portion, reserves another one when that is used up, and gives back what
// it has not used. When the budget is used up it stops in the middle. A minute takes 2
// seconds by default. The exit status is 0, or 1 if it cannot write, or 2 if the flags are
// wrong.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/examples/internal/startup"
	"github.com/adaptivethrottler/throttler/memstore"
)

const portion = 20 // tokens that a stream reserves at a time

func main() {
	os.Exit(run(context.Background(), os.Stdout, os.Stderr, os.Args[1:]...))
}

// run runs the program and returns its exit status, 1 also if ctx ends.
func run(ctx context.Context, stdout, stderr io.Writer, args ...string) int {
	flags := flag.NewFlagSet("metered", flag.ContinueOnError)
	budget := flags.Int("budget", 1000, "tokens a minute for each customer")
	streams := flags.Int("streams", 8, "streams that each customer has at once")
	minute := flags.Duration("minute", 2*time.Second, "the length of a minute")
	err := startup.Parse(flags, args, stderr)
	if err == nil && (*budget < portion || *budget > throttler.MaxHits || *streams < 1 || *minute < 60*time.Millisecond) {
		err = fmt.Errorf("want -budget from %d to %d, -streams from 1, -minute from 60ms", portion, throttler.MaxHits)
	}
	if err != nil {
		return startup.Misused("metered", err, stderr)
	}
	m := meter{throttler: throttler.New(memstore.New()), budget: *budget, minute: *minute}
	return startup.Ended("metered", m.play(ctx, stdout, *streams), stderr)
}

// A meter sends answers on a budget.
type meter struct {
	throttler *throttler.Throttler
	budget    int
	minute    time.Duration
}

// play has each of two customers' streams answer at once, those of bob with longer answers, and
// writes what each customer has spent.
func (m *meter) play(ctx context.Context, out io.Writer, streams int) error {
	for _, of := range []struct {
		customer string
		tokens   int
	}{{"ann", m.budget / (2 * streams)}, {"bob", m.budget}} {
		customer, tokens := of.customer, of.tokens
		var wg sync.WaitGroup
		var mu sync.Mutex
		spent, whole, cut, refused := 0, 0, 0, 0
		for range streams {
			wg.Go(func() {
				used, err := m.answer(ctx, customer, tokens)
				mu.Lock()
				defer mu.Unlock()
				spent += used
				switch {
				case err == nil && used == tokens:
					whole++
				case used > 0:
					cut++
				default:
					refused++
				}
			})
		}
		wg.Wait()
		_, err := fmt.Fprintf(out, "%s: %d of %d tokens in %d streams: %d whole, %d stopped in the middle, %d refused\n",
			customer, spent, m.budget, streams, whole, cut, refused)
		if err != nil {
			return err
		}
	}
	return ctx.Err()
}

// answer sends up to that many tokens, as long as the budget lasts, and returns how many.
func (m *meter) answer(ctx context.Context, customer string, tokens int) (used int, err error) {
	d, err := m.throttler.Authorize(ctx, throttler.Rule{Identifier: "model", Either: []throttler.Condition{
		{Name: "tokens", Value: customer, Max: m.budget, TTL: m.minute, Cost: portion},
	}})
	if err != nil || d.Status == throttler.Blocked {
		return 0, err
	}
	settle := func(ctx context.Context, total int) (throttler.Decision, error) {
		return m.throttler.Settle(ctx, d, map[string]int{"tokens": total})
	}
	defer func() {
		if _, failed := settle(context.WithoutCancel(ctx), used); err == nil {
			err = failed // it gives back what is not used
		}
	}()
	for reserved := portion; used < tokens; used++ {
		if used == reserved {
			reserved += portion
			more, err := settle(ctx, reserved)
			if err != nil || more.Status == throttler.Blocked {
				return used, err
			}
		}
		select {
		case <-time.After(m.minute / time.Duration(10*m.budget)): // the model thinks
		case <-ctx.Done():
			return used, ctx.Err()
		}
	}
	return used, nil
}
