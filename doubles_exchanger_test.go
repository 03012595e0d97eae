package throttler_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/memstore"
	"github.com/bradfitz/gomemcache/memcache"
)

// A remote is an Exchanger whose server is roundTrip away. In a bubble of synctest
// time passes for nothing else, so the time that a call takes is the number of its
// round trips.
type remote struct {
	server

	mu     sync.Mutex // guards what follows
	conn   uint64     // of the connection
	lose   loss       // what becomes of the next exchange
	err    error      // fails all exchanges
	faster func()     // comes before each write of a record, and changes it; nil: nobody does
	trips  atomic.Int64
}

// server is a memstore that can be restarted, with tokens that begin anew.
type server = *restartable

type restartable struct {
	throttler.Client // of the tests that ask it directly
	store            *memstore.Store
}

// A loss says what becomes of an exchange whose connection breaks.
type loss int

const (
	nothingLost loss = iota
	answerLost       // the write was carried out
	requestLost      // it was not
	covered          // it was carried out, and another write came after it
	arrivesLate      // it is carried out, after the record was read anew
)

func newRemote() *remote {
	r := &remote{conn: 1}
	r.restart()
	r.conn = 1
	return r
}

// restart empties the server, which ends its connections.
func (r *remote) restart() {
	store := memstore.New()
	r.server = &restartable{Client: store, store: store}
	r.conn++
}

func (r *remote) Exchange(ctx context.Context, xs ...throttler.Exchange) {
	var all sync.WaitGroup
	done := make(chan struct{})
	for _, x := range xs {
		all.Go(func() { r.exchange(x) })
	}
	go func() { all.Wait(); close(done) }()
	select {
	case <-done:
	case <-ctx.Done():
	}
}

func (r *remote) Start(xs ...throttler.Exchange) { go r.Exchange(context.Background(), xs...) }

func (r *remote) exchange(x throttler.Exchange) {
	r.mu.Lock()
	conn, lose, err := r.conn, r.lose, r.err
	r.lose = nothingLost
	r.mu.Unlock()
	item := x.Propose(throttler.Turn{Conn: conn})
	r.trips.Add(1)
	time.Sleep(roundTrip / 2)
	if err != nil {
		time.Sleep(roundTrip / 2)
		x.Done(throttler.Result{Conn: conn, Err: err, Unknown: item != nil})
		return
	}
	if lose == nothingLost {
		result := r.serve(x.Key(), item)
		result.Conn = conn
		time.Sleep(roundTrip / 2)
		x.Done(result)
		return
	}
	if lose != requestLost && lose != arrivesLate {
		r.serve(x.Key(), item)
	}
	if lose == covered {
		found, _ := r.store.Get(x.Key())
		found.Flags++
		_ = r.store.CompareAndSwap(found)
	}
	r.mu.Lock()
	r.conn++
	r.mu.Unlock()
	if lose == arrivesLate {
		time.AfterFunc(roundTrip/2+1, func() { r.serve(x.Key(), item) })
	}
	r.exchange(x)
}

// serve stores item, if there is one, and reads the record.
func (r *remote) serve(key string, item *memcache.Item) throttler.Result {
	var err error
	if r.faster != nil {
		r.faster()
	}
	switch {
	case item == nil:
		err = memcache.ErrNotStored
	case item.CasID == 0:
		err = r.store.Add(item)
	default:
		err = r.store.CompareAndSwap(item)
	}
	found, missing := r.store.Get(key)
	if errors.Is(missing, memcache.ErrCacheMiss) {
		found = nil
	}
	return throttler.Result{Stored: err == nil, Read: true, Found: found}
}
