package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/pool"
)

// workerVariable is set in the environment of a process that is a worker.
const workerVariable = "THROTTLER_BENCH_WORKER"

// The work of each process. Callers pause, so that all processes together fit
// on a small machine.
const (
	workerCallers = 4
	workerPause   = 4 * time.Millisecond
	workerValues  = 1000
	workerLimit   = 20   // of each value
	hotLimit      = 2000 // of the one that a quarter of all calls is for
)

// An order gives a process its servers from now on. With none, the process
// ends.
type order struct {
	Servers []string
	Hot     string // the value that all processes ask for, if any
}

// An account counts a process's calls between two orders.
type account struct {
	Decided   int            // calls
	Open      int            // calls that failed open, because a server failed
	Waited    int            // of these, those that took the pool's Timeout or more
	Times     []int64        // of all calls, in microseconds
	Exchanges uint64         // records read, written or both in one request
	CPU       time.Duration  // of the process
	Admitted  map[string]int // by value; only calls that were decided
}

// A worker is one process of many.
type worker struct {
	pool      *pool.Pool
	throttler *throttler.Throttler

	mu      sync.Mutex
	account account // guarded by mu
	hot     string  // guarded by mu
}

// followOrders follows the orders from in. It answers each but the first with
// the account since the one before.
func followOrders(in io.Reader, out io.Writer) error {
	orders, answers := json.NewDecoder(in), json.NewEncoder(out)
	var first order
	if err := orders.Decode(&first); err != nil {
		return err
	}
	p, err := pool.New(first.Servers...)
	if err != nil {
		return err
	}
	defer p.Close()
	w := &worker{pool: p, throttler: throttler.New(p)}
	ctx, cancel := context.WithCancel(context.Background())
	var callers sync.WaitGroup
	defer callers.Wait()
	defer cancel()
	w.begin(first.Hot)
	for range workerCallers {
		callers.Go(func() { w.call(ctx) })
	}
	for {
		var o order
		if err := orders.Decode(&o); err != nil {
			return err // the parent has gone
		}
		last := len(o.Servers) == 0
		if last {
			cancel()
			callers.Wait()
		} else if err := p.SetServers(o.Servers...); err != nil {
			return err
		}
		if err := answers.Encode(w.begin(o.Hot)); err != nil || last {
			return err
		}
	}
}

// begin starts a new account with another hot value, and returns the account so
// far.
func (w *worker) begin(hot string) account {
	w.mu.Lock()
	defer w.mu.Unlock()
	before := w.account
	w.hot = hot
	exchanges, cpu := w.throttler.Stats().Exchanges, processTime()
	w.account = account{Exchanges: exchanges, CPU: cpu, Admitted: make(map[string]int)}
	before.Exchanges, before.CPU = exchanges-before.Exchanges, cpu-before.CPU
	return before
}

// call makes calls until ctx ends.
func (w *worker) call(ctx context.Context) {
	pause := time.NewTimer(0)
	defer pause.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-pause.C:
		}
		value, limit := w.next()
		begin := time.Now()
		d, err := w.throttler.Authorize(context.Background(), scaleRule(value, limit))
		w.note(value, d, err, time.Since(begin))
		pause.Reset(workerPause)
	}
}

// next returns the value of the next call. A quarter of the calls is for the
// hot value, if there is one.
func (w *worker) next() (value string, limit int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.hot != "" && rand.IntN(4) == 0 {
		return w.hot, hotLimit
	}
	return strconv.Itoa(rand.IntN(workerValues)), workerLimit
}

func scaleRule(value string, limit int) throttler.Rule {
	return throttler.Rule{Identifier: "scale", Either: []throttler.Condition{
		{Name: "value", Value: value, Max: limit, TTL: day},
	}}
}

func (w *worker) note(value string, d throttler.Decision, err error, took time.Duration) {
	if err != nil {
		panic(err) // the rule is wrong
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	a := &w.account
	a.Times = append(a.Times, took.Microseconds())
	switch {
	case d.Err != nil:
		a.Open++
		if took >= pool.DefaultTimeout {
			a.Waited++
		}
	default:
		a.Decided++
		if d.Status == throttler.Authorized {
			a.Admitted[value]++
		}
	}
}

// add adds b to a.
func (a *account) add(b account) {
	a.Decided += b.Decided
	a.Open += b.Open
	a.Waited += b.Waited
	a.Times = append(a.Times, b.Times...)
	a.Exchanges += b.Exchanges
	a.CPU += b.CPU
	if a.Admitted == nil {
		a.Admitted = make(map[string]int)
	}
	for value, n := range b.Admitted {
		a.Admitted[value] += n
	}
}

// homes returns the servers that store each value under these lists of servers,
// each server once.
func homes(values []string, lists ...[]string) (map[string][]string, error) {
	of := make(map[string][]string)
	for _, list := range lists {
		if err := addHomes(of, values, list); err != nil {
			return nil, err
		}
	}
	return of, nil
}

func addHomes(of map[string][]string, values, list []string) error {
	p, err := pool.New(list...)
	if err != nil {
		return err
	}
	defer p.Close()
	p.Timeout = patience
	before := calls(p)
	for _, value := range values {
		if _, err := p.GetMulti([]string{"scale#value#" + value}); err != nil {
			return err
		}
		for server, n := range calls(p) {
			if n == before[server] {
				continue
			}
			before[server] = n
			if !slices.Contains(of[value], server) {
				of[value] = append(of[value], server)
			}
		}
	}
	return nil
}

// calls returns the number of calls of each server.
func calls(p *pool.Pool) map[string]uint64 {
	n := make(map[string]uint64)
	for _, s := range p.Stats() {
		n[s.Server] = s.Calls
	}
	return n
}

// errWorker is wrapped in the error of a process that failed.
var errWorker = errors.New("a process of many failed")

func workerError(err error, output fmt.Stringer) error {
	return fmt.Errorf("%w: %w: %s", errWorker, err, output)
}
