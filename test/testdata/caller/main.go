// Command caller makes calls of a rule as it is told on its standard input, line
// by line. It is built with an older release of this package, see mixed_test.go.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log"
	"os"
	"sync"
	"time"

	"github.com/adaptivethrottler/throttler"
	"github.com/bradfitz/gomemcache/memcache"
)

// A command is one line of the input.
type command struct {
	Rule   throttler.Rule
	Calls  int   // so many calls at once are made …
	Cancel []int // … or these of the decisions are cancelled
}

// An answer is one line of the output.
type answer struct {
	Decisions []throttler.Decision
	Failed    int // calls and cancels that went wrong
}

func main() {
	client := memcache.New(os.Args[1])
	client.Timeout = 20 * time.Second // for a busy machine
	client.MaxIdleConns = 64
	th := throttler.New(client)
	in, out := json.NewDecoder(os.Stdin), json.NewEncoder(os.Stdout)
	var made []throttler.Decision
	for {
		var c command
		if err := in.Decode(&c); errors.Is(err, io.EOF) {
			return
		} else if err != nil {
			log.Fatal(err)
		}
		a := c.call(th)
		made = append(made, a.Decisions...)
		for _, i := range c.Cancel {
			if th.Cancel(context.Background(), made[i]) != nil {
				a.Failed++
			}
		}
		if err := out.Encode(a); err != nil {
			log.Fatal(err)
		}
	}
}

// call makes the calls of c.
func (c command) call(th *throttler.Throttler) answer {
	var a answer
	var mu sync.Mutex
	var wg sync.WaitGroup
	for range c.Calls {
		wg.Go(func() {
			d, err := th.Authorize(context.Background(), c.Rule)
			mu.Lock()
			defer mu.Unlock()
			if err != nil || d.Err != nil {
				a.Failed++
			}
			a.Decisions = append(a.Decisions, d)
		})
	}
	wg.Wait()
	return a
}
