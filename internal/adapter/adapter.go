package adapter

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/adaptivethrottler/throttler/exchange"
	"github.com/bradfitz/gomemcache/memcache"
)

// A Client is a throttler.Client.
type Client interface {
	Get(key string) (*memcache.Item, error)
	GetMulti(keys []string) (map[string]*memcache.Item, error)
	Add(item *memcache.Item) error
	CompareAndSwap(item *memcache.Item) error
	Delete(key string) error
}

// An Exchanger makes an [exchange.Exchanger] of a client that is none. An exchange takes two round
// trips: it reads the record, and writes it if it is still as it was read. Several
// exchanges read all records at once, and then write as many at a time as the turnstile has
// places.
type Exchanger struct {
	Client
	turnstile turnstile
}

// New returns an Exchanger over client. An exchange waits for its turn for timeout at most,
// and as long for a connection that the server refuses.
func New(client Client, timeout time.Duration) *Exchanger {
	return &Exchanger{Client: client, turnstile: turnstile{places: maxUnderWay, limit: timeout}}
}

// Exchange runs xs. If ctx can end, it runs them on another goroutine, which goes on
// when ctx ends: the methods of a client take no ctx.
func (p *Exchanger) Exchange(ctx context.Context, xs ...exchange.Exchange) {
	if ctx.Done() == nil && len(xs) == 1 { // the usual case, without a channel
		p.readAndWrite(xs[0])
		return
	}
	done := make(chan struct{})
	if ctx.Done() == nil {
		p.run(xs, done)
		<-done
		return
	}
	go p.run(slices.Clone(xs), done)
	select {
	case <-done:
	case <-ctx.Done():
	}
}

// Start runs xs on a goroutine of their own.
func (p *Exchanger) Start(xs ...exchange.Exchange) {
	go p.run(slices.Clone(xs), make(chan struct{}))
}

// Delete calls the client's Delete when the turnstile allows it.
func (p *Exchanger) Delete(key string) error {
	if err := p.turnstile.enter(); err != nil {
		return err
	}
	var w connWait
	err := w.try(&p.turnstile, func() error { return p.Client.Delete(key) })
	err = Classified(err)
	p.turnstile.leave(err)
	return err
}

// hedge is the time that a GetMulti may take before each key is also read by itself. If
// one of several servers hangs, the records of the others then arrive without it.
const hedge = 50 * time.Millisecond

// run reads the records of all xs, in one round trip if the backend works, and then
// writes them. It closes done when all xs have ended. It may return later, when the
// client has given up a GetMulti that was not needed any more.
func (p *Exchanger) run(xs []exchange.Exchange, done chan<- struct{}) {
	if len(xs) == 1 {
		p.readAndWrite(xs[0])
		close(done)
		return
	}
	keys := unread(xs)
	var allRead atomic.Bool // one of the ways has read all keys, and goes on
	goOn := func(items map[string]*memcache.Item, err error) {
		if allRead.CompareAndSwap(false, true) {
			if stray(items, keys) {
				items, err = nil, allKeys{errStray}
			}
			p.writeAll(xs, items, err)
			close(done)
		}
	}
	if len(keys) == 0 {
		goOn(nil, nil)
		return
	}
	if err := p.turnstile.enter(); err != nil {
		goOn(nil, allKeys{err})
		return
	}
	timer := time.AfterFunc(hedge, func() { goOn(p.readSingly(keys, &allRead)) })
	items, err := p.Client.GetMulti(keys)
	err = Classified(err)
	p.turnstile.leave(err)
	var keyed exchange.KeyError
	if timer.Stop() || err == nil || errors.As(err, &keyed) {
		goOn(items, err)
	}
}

// unread returns the keys of those xs whose records their call has not read yet.
func unread(xs []exchange.Exchange) []string {
	keys := make([]string, 0, len(xs))
	for _, x := range xs {
		if _, ok := wasRead(x); !ok {
			keys = append(keys, x.Key())
		}
	}
	return keys
}

// writeAll has all xs decide on the records that were found, and writes them. items are
// those of a GetMulti that returned err.
func (p *Exchanger) writeAll(xs []exchange.Exchange, items map[string]*memcache.Item, err error) {
	var writers sync.WaitGroup
	var last func() // the last write, which is left to this goroutine
	var others []exchange.Exchange
	for _, x := range xs {
		item, known, keyErr := foundIn(x, items, err)
		switch {
		case keyErr != nil:
			x.Done(exchange.Result{Err: keyErr})
		case !known || !p.turnstile.tryEnter():
			others = append(others, x)
		default:
			if write := p.propose(x, item); write != nil {
				if last != nil {
					writers.Go(last)
				}
				last = write
			}
		}
	}
	if len(others) > 0 {
		if last != nil {
			writers.Go(last)
		}
		p.each(others, func(x exchange.Exchange) (bool, error) {
			if item, known, _ := foundIn(x, items, err); known {
				return p.pass(x, func() exchange.Result { return p.write(x, item, new(connWait)) })
			}
			return p.readAndWrite(x)
		})
	} else if last != nil {
		last()
	}
	writers.Wait()
}

// foundIn returns the record of x, which its call has read before or which is in items,
// the result of a GetMulti with err. known is false if x has to read it by itself.
func foundIn(x exchange.Exchange, items map[string]*memcache.Item, err error) (item *memcache.Item, known bool, keyErr error) {
	if item, ok := wasRead(x); ok {
		return item, true, nil
	}
	if item = items[x.Key()]; item != nil || err == nil {
		return item, true, nil
	}
	known, keyErr = keyError(err, x.Key())
	if !known || isRefused(keyErr) {
		return nil, false, nil
	}
	return nil, true, Classified(keyErr)
}

// propose lets x, which has a place at the turnstile, decide on the record that was found. If
// x writes, it returns what does so and ends x. Otherwise x has ended.
func (p *Exchanger) propose(x exchange.Exchange, found *memcache.Item) (write func()) {
	item := x.Propose(exchange.Turn{Known: true, Found: found})
	if item == nil {
		p.turnstile.vacate()
		x.Done(exchange.Result{Read: true, Found: found})
		return nil
	}
	return func() {
		r := p.store(x, item, new(connWait))
		p.turnstile.leave(r.Err)
		x.Done(r)
	}
}

// each calls do, which is pass, for all xs, as many at the same time as the turnstile has
// places. Those that are left when an operation times out fail with the same error, if
// nothing was answered meanwhile: since that operation began, or since each did if it
// was turned away at the turnstile. An error that comes at once is that of one key: the other
// servers may be well.
func (p *Exchanger) each(xs []exchange.Exchange, do func(exchange.Exchange) (began bool, err error)) {
	next := make(chan exchange.Exchange, len(xs))
	for _, x := range xs {
		next <- x
	}
	close(next)
	came := p.turnstile.answered()
	var gone atomic.Pointer[error]
	work := func() {
		for x := range next {
			if err := gone.Load(); err != nil {
				x.Done(exchange.Result{Err: *err})
				continue
			}
			answers := p.turnstile.answered()
			began, err := do(x)
			if !began {
				answers = came
			}
			if isTimeout(err) && p.turnstile.answered() == answers {
				gone.Store(&err)
			}
		}
	}
	var workers sync.WaitGroup
	for range min(len(xs), p.turnstile.places) - 1 {
		workers.Go(work)
	}
	work()
	workers.Wait()
}

// pass calls do when the turnstile allows it, and reports whether it did. x gets its result,
// or the turnstile's error, and pass returns its error.
func (p *Exchanger) pass(x exchange.Exchange, do func() exchange.Result) (began bool, err error) {
	r := exchange.Result{Err: p.turnstile.enter()}
	if began = r.Err == nil; began {
		r = do()
		p.turnstile.leave(r.Err)
	}
	x.Done(r)
	return began, r.Err
}

func (p *Exchanger) readAndWrite(x exchange.Exchange) (began bool, err error) {
	return p.pass(x, func() exchange.Result {
		var w connWait
		item, ok := wasRead(x)
		if ok {
			return p.write(x, item, &w)
		}
		item, err := p.read(x.Key(), &w)
		if err != nil {
			return exchange.Result{Err: err}
		}
		return p.write(x, item, &w)
	})
}

// wasRead returns the record of x, if its call has just read it.
func wasRead(x exchange.Exchange) (item *memcache.Item, ok bool) {
	read, ok := x.(interface{ WasRead() (*memcache.Item, bool) })
	if !ok {
		return nil, false
	}
	return read.WasRead()
}

// errStray is the error of a client that returns an item of another key: its
// connection is out of step.
var errStray = errors.New("throttler: the client answered with another key")

// read returns the item at key, or nil.
func (p *Exchanger) read(key string, w *connWait) (item *memcache.Item, err error) {
	err = w.tryRead(&p.turnstile, func() (err error) {
		item, err = p.Client.Get(key)
		return err
	})
	switch {
	case errors.Is(err, memcache.ErrCacheMiss):
		return nil, nil
	case err != nil:
		return nil, Classified(err)
	case item.Key != key:
		return nil, errStray
	}
	return item, nil
}

// write writes the item that x proposes. found is the item that was read, or nil.
func (p *Exchanger) write(x exchange.Exchange, found *memcache.Item, w *connWait) exchange.Result {
	item := x.Propose(exchange.Turn{Known: true, Found: found})
	if item == nil {
		return exchange.Result{Read: true, Found: found}
	}
	return p.store(x, item, w)
}

// store writes item, which x has proposed.
func (p *Exchanger) store(x exchange.Exchange, item *memcache.Item, w *connWait) exchange.Result {
	err := w.try(&p.turnstile, func() error { return p.put(item) }) // a server that refuses has not read it
	switch {
	case err == nil:
		return exchange.Result{Stored: true}
	case w.over:
		return exchange.Result{Err: err}
	case lostRace(err) && !maybeDone(err):
		return exchange.Result{}
	case !lostRace(err) && (!isBroken(err) || isTimeout(err) && !w.excuse()):
		return exchange.Result{Err: Classified(err), Unknown: true}
	}
	return p.findOut(x, w)
}

func (p *Exchanger) put(item *memcache.Item) error {
	if item.CasID == 0 {
		return p.Client.Add(item)
	}
	return p.Client.CompareAndSwap(item)
}

// findOut reads the record again, after the answer to a write was lost, and lets x
// propose again.
func (p *Exchanger) findOut(x exchange.Exchange, w *connWait) exchange.Result {
	found, err := p.read(x.Key(), w)
	if err != nil {
		return exchange.Result{Err: err, Unknown: true}
	}
	return p.write(x, found, w)
}

// stray reports whether items has an item of a key that is not in keys.
func stray(items map[string]*memcache.Item, keys []string) bool {
	asked := 0
	for _, key := range keys { // they differ
		if item, ok := items[key]; ok && (item == nil || item.Key == key) {
			asked++
		}
	}
	return asked < len(items)
}

// readSingly reads each of keys by itself, all at the same time, except those whose turn
// comes when needless is set. The error is a KeyError.
func (p *Exchanger) readSingly(keys []string, needless *atomic.Bool) (map[string]*memcache.Item, error) {
	var mu sync.Mutex
	items, failed := make(map[string]*memcache.Item), make(perKey)
	var readers sync.WaitGroup
	for _, key := range keys {
		readers.Go(func() {
			err := p.turnstile.enter()
			var item *memcache.Item
			switch {
			case err != nil:
			case needless.Load():
				p.turnstile.vacate()
			default:
				item, err = p.read(key, new(connWait))
				p.turnstile.leave(err)
			}
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				failed[key] = err
			} else if item != nil {
				items[key] = item
			}
		})
	}
	readers.Wait()
	if len(failed) > 0 {
		return items, failed
	}
	return items, nil
}

// allKeys is a KeyError with the same error for all keys.
type allKeys struct{ error }

func (e allKeys) KeyError(string) error { return e.error }

// perKey is a KeyError by key.
type perKey map[string]error

func (e perKey) KeyError(key string) error { return e[key] }
func (e perKey) Error() string             { return "some keys could not be read" }

// keyError returns the error of key in err, an error of GetMulti. known is false if err
// is no [exchange.KeyError].
func keyError(err error, key string) (known bool, keyErr error) {
	var keyed exchange.KeyError
	if !errors.As(err, &keyed) {
		return false, nil
	}
	return true, keyed.KeyError(key)
}
