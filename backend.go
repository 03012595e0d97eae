package throttler

import (
	"context"
	"errors"
	"sync"

	"github.com/adaptivethrottler/throttler/memstore"
	"github.com/bradfitz/gomemcache/memcache"
)

// A Client keeps records. It is the part of [memcache.Client] of
// github.com/bradfitz/gomemcache that a throttler needs, with the meanings and
// the errors that it has there; package memstore has one in process memory,
// package pool one over several servers.
//
// Its methods are called from several goroutines at once, always with legal
// keys. An item that it was given or has returned belongs to the throttler,
// which does not change the values of those it was returned.
//
// A GetMulti that fails may return an error with the method
//
//	KeyError(key string) error
//
// which says of each key whether it could be looked up; then a key without an
// error and without an item is one that is not stored. Without that method,
// keys that a failed GetMulti returned no item for are asked for one by one.
//
// An Add or CompareAndSwap that tries again by itself, after an answer was lost,
// may find that somebody was faster and not know whether that was itself. It may
// return an error that matches the one for that, and has the method
//
//	MaybeDone() bool
//
// which tells [Throttler.Cancel] not to take the same hit back once more.
type Client interface {
	Get(key string) (*memcache.Item, error)
	GetMulti(keys []string) (map[string]*memcache.Item, error)
	Add(item *memcache.Item) error
	CompareAndSwap(item *memcache.Item) error
	Delete(key string) error
}

// lostRace reports whether err, of Add or CompareAndSwap, says that somebody
// else has written the record since it was read.
func lostRace(err error) bool {
	return errors.Is(err, memcache.ErrCASConflict) ||
		errors.Is(err, memcache.ErrNotStored) ||
		errors.Is(err, memcache.ErrCacheMiss)
}

// maybeDone reports whether err, though it says that somebody else was faster,
// may be about the write itself.
func maybeDone(err error) bool {
	var lost interface {
		error
		MaybeDone() bool
	}
	return errors.As(err, &lost) && lost.MaybeDone()
}

// errRunning is the error of an operation that has not returned yet.
var errRunning = errors.New("throttler: operation has not returned")

// inProcess reports whether client answers from process memory, without waiting
// for anybody: then a goroutine would cost more than what it does. It is about
// that very type. A client that wraps a Store may well take its time.
func inProcess(client Client) bool {
	_, ok := client.(*memstore.Store)
	return ok
}

// each runs op for all entries at the same time, and sets the err of each to
// what it returns. It returns when all of them have, or when ctx is done,
// whichever comes first: a Client knows no ctx, so what is still running then
// goes on unheard until the client gives it up, and has ctx's error. Nobody may
// touch again what an op sets in such an entry.
func each(ctx context.Context, entries []*entry, op func(*entry) error) {
	if err := ctx.Err(); err != nil {
		for _, e := range entries {
			e.err = err
		}
		return
	}
	remote := 0
	for _, e := range entries {
		if !inProcess(e.client) {
			remote++
		}
	}
	switch {
	case remote == 0:
		for _, e := range entries {
			e.err = op(e)
		}
		return
	case ctx.Done() == nil:
		all(entries, op)
		return
	}
	type result struct {
		e   *entry
		err error
	}
	results := make(chan result, len(entries)) // so that nobody waits to be heard
	for _, e := range entries {
		e.err = errRunning
		go func() { results <- result{e, op(e)} }()
	}
	for range entries {
		select {
		case r := <-results:
			r.e.err = r.err
		case <-ctx.Done():
			for _, e := range entries {
				if e.err == errRunning {
					e.err, e.left = ctx.Err(), true
				}
			}
			return
		}
	}
}

// all is [each] for a ctx that is never done: one of the operations runs on the
// caller's goroutine, and none is left behind.
func all(entries []*entry, op func(*entry) error) {
	if len(entries) == 1 { // the usual case, which allocates nothing
		entries[0].err = op(entries[0])
		return
	}
	var others sync.WaitGroup
	for _, e := range entries[1:] {
		others.Go(func() { e.err = op(e) })
	}
	entries[0].err = op(entries[0])
	others.Wait()
}

// getMulti is client.GetMulti, left when ctx is done.
func getMulti(ctx context.Context, client Client, keys []string) (map[string]*memcache.Item, error) {
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	if ctx.Done() == nil || inProcess(client) {
		return client.GetMulti(keys)
	}
	type result struct {
		items map[string]*memcache.Item
		err   error
	}
	results := make(chan result, 1)
	go func() {
		items, err := client.GetMulti(keys)
		results <- result{items, err}
	}()
	select {
	case r := <-results:
		return r.items, r.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// keyError returns what err, of a GetMulti, says of key. known is false if it
// says nothing.
func keyError(err error, key string) (known bool, keyErr error) {
	var keyed interface {
		error
		KeyError(key string) error
	}
	if !errors.As(err, &keyed) {
		return false, nil
	}
	return true, keyed.KeyError(key)
}
