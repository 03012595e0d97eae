package main

import (
	"context"
	"slices"
	"sync"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/memstore"
	golimiter "github.com/sethvargo/go-limiter"
	"github.com/sethvargo/go-limiter/memorystore"
)

// deciders is a limiter that asks a Throttler with a rule, each of whose conditions has the
// same value.
type deciders struct {
	throttler *throttler.Throttler
	rule      throttler.Rule
	end       func()
	callers   *endings
}

// endings are the ends of the ctx of all callers.
type endings struct {
	sync.Mutex
	all []context.CancelFunc
}

// begin returns a ctx for a caller, which can end, as that of an HTTP request.
func (e *endings) begin() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	e.Lock()
	defer e.Unlock()
	e.all = append(e.all, cancel)
	return ctx
}

func (e *endings) end() {
	for _, cancel := range e.all {
		cancel()
	}
}

// caller returns a function that changes the value in a rule of its own, so that no decision
// pays for making a rule.
func (d deciders) caller() func(string) (bool, error) {
	ctx, rule := d.callers.begin(), d.rule
	rule.Either = slices.Clone(d.rule.Either)
	return func(value string) (bool, error) {
		for i := range rule.Either {
			rule.Either[i].Value = value
		}
		decision, err := d.throttler.Authorize(ctx, rule)
		if err == nil {
			err = decision.Err
		}
		return decision.Status == throttler.Authorized, err
	}
}

func (deciders) flush() {}

func (d deciders) close() {
	d.callers.end()
	d.end()
}

// memorySystems are those of the tables in process memory.
var memorySystems = []system{
	storeWindow, storeBucket,
	{"throttler, memstore, Take", "sliding window", inProcess, taking(throttler.SlidingWindow)},
	{"throttler, memstore, Take", "leaky bucket", inProcess, taking(throttler.LeakyBucket)},
	{"sethvargo/go-limiter", "token bucket", inProcess, overGoLimiter},
}

// taking opens a Limit, whose Take returns no Decision.
func taking(algorithm throttler.Algorithm) func(env, limit) (limiter, error) {
	return func(e env, l limit) (limiter, error) {
		prepared, err := throttler.New(memstore.New()).Limit(ruleOf(e, l, algorithm))
		if err != nil {
			return nil, err
		}
		return &simple{allow: func(ctx context.Context, value string) (bool, error) {
			o := prepared.Take(ctx, value)
			return !o.Blocked, o.Err
		}, end: func() {}}, nil
	}
}

// overGoLimiter opens the memory store of go-limiter, which gives all tokens back at once when
// an interval ends.
func overGoLimiter(_ env, l limit) (limiter, error) {
	var store golimiter.Store
	store, err := memorystore.New(&memorystore.Config{Tokens: uint64(l.Max), Interval: l.Window})
	if err != nil {
		return nil, err
	}
	return &simple{allow: func(ctx context.Context, value string) (bool, error) {
		_, _, _, ok, err := store.Take(ctx, value)
		return ok, err
	}, end: func() { store.Close(context.Background()) }}, nil
}
