package redisstore

import (
	"context"
	"errors"

	"github.com/adaptivethrottler/throttler/exchange"
	"github.com/adaptivethrottler/throttler/internal/failure"
	"github.com/adaptivethrottler/throttler/internal/legal"
	"github.com/bradfitz/gomemcache/memcache"
)

// An operation is an exchange of the Client's methods.
type operation struct {
	key   string
	item  *memcache.Item // to be written; nil: the record is read
	asked bool           // Propose was called
	lost  bool           // and again: the answer to a write was lost

	result exchange.Result
}

func (o *operation) Key() string { return o.key }

// Propose returns the item. If the answer was lost, the record is only read.
func (o *operation) Propose(exchange.Turn) *memcache.Item {
	if o.asked {
		o.lost = true
		return nil
	}
	o.asked = true
	return o.item
}

func (o *operation) Done(r exchange.Result) { o.result = r }

// run carries o out. Its error is not that of a conflict.
func (s *Store) run(o *operation) error {
	if !legal.Key(o.key) {
		return memcache.ErrMalformedKey
	}
	s.Exchange(context.Background(), o)
	return o.result.Err
}

// Get returns the item at key, or memcache.ErrCacheMiss.
func (s *Store) Get(key string) (*memcache.Item, error) {
	o := &operation{key: key}
	if err := s.run(o); err != nil {
		return nil, err
	}
	if o.result.Found == nil {
		return nil, memcache.ErrCacheMiss
	}
	return o.result.Found, nil
}

// GetMulti returns the items at keys, by key. Those that are not there are left out. If
// it fails for some keys, the error is an [exchange.KeyError], and the items of the others are
// there all the same. The map is never nil.
func (s *Store) GetMulti(keys []string) (map[string]*memcache.Item, error) {
	items, failed := make(map[string]*memcache.Item, len(keys)), make(map[string]error)
	operations := make([]*operation, 0, len(keys))
	xs := make([]exchange.Exchange, 0, len(keys))
	for _, key := range keys {
		if !legal.Key(key) {
			failed[key] = memcache.ErrMalformedKey
			continue
		}
		o := &operation{key: key}
		operations, xs = append(operations, o), append(xs, o)
	}
	s.Exchange(context.Background(), xs...)
	for _, o := range operations {
		switch {
		case o.result.Err != nil:
			failed[o.key] = o.result.Err
		case o.result.Found != nil:
			items[o.key] = o.result.Found
		}
	}
	if len(failed) > 0 {
		return items, &failure.MultiError{Keys: failed, Asked: len(keys)}
	}
	return items, nil
}

// Add stores item if there is none at its key. If there is one, the error is
// memcache.ErrNotStored, or an [exchange.MaybeDoneError] of that.
func (s *Store) Add(item *memcache.Item) error {
	added := *item // it is changed when it is stored
	added.CasID = 0
	return s.store(&added, memcache.ErrNotStored)
}

// CompareAndSwap stores item if the item at its key has not changed since Get or
// GetMulti returned it. If it has changed, the error is memcache.ErrCASConflict. If
// there is none any more, it is memcache.ErrCacheMiss. Either may come as an
// [exchange.MaybeDoneError].
func (s *Store) CompareAndSwap(item *memcache.Item) error {
	if item.CasID == 0 {
		return errNoNumber
	}
	swapped := *item
	return s.store(&swapped, memcache.ErrCASConflict)
}

var errNoNumber = errors.New("redisstore: item without a CasID: it is not from Get")

// store writes item. conflict is the error if there is another one.
func (s *Store) store(item *memcache.Item, conflict error) error {
	o := &operation{key: item.Key, item: item}
	err := s.run(o)
	switch {
	case err != nil || o.result.Stored:
		return err
	case o.result.Found == nil && item.CasID != 0:
		err = memcache.ErrCacheMiss
	default:
		err = conflict
	}
	if o.lost {
		return &failure.LostAnswerError{Err: err}
	}
	return err
}

// Delete deletes the item at key. If there is none it returns memcache.ErrCacheMiss or an
// [exchange.MaybeDoneError] of that.
func (s *Store) Delete(key string) error {
	if !legal.Key(key) {
		return memcache.ErrMalformedKey
	}
	o := &operation{key: key}
	b := s.batches.Get(1)
	defer s.batches.Put(b)
	r := &b.All[0]
	r.x, r.key, r.deletes = o, s.stored(key), true
	b.Admit(s.admit)
	await(context.Background(), b)
	switch {
	case o.result.Err != nil:
		return o.result.Err
	case o.result.Stored:
		return nil
	case r.lost:
		return &failure.LostAnswerError{Err: memcache.ErrCacheMiss}
	}
	return memcache.ErrCacheMiss
}
