package pool

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/bradfitz/gomemcache/memcache"
)

// A MultiError is the error of [Pool.GetMulti] if it failed for any of the keys.
// It says for each key what became of it.
type MultiError struct {
	keys   map[string]error
	causes []error
	asked  int
}

// KeyError returns why key is not known, or nil if its server answered: then a key
// that is not among the items is a miss.
func (e *MultiError) KeyError(key string) error { return e.keys[key] }

// Unwrap returns the causes, one for each server that failed.
func (e *MultiError) Unwrap() []error { return e.causes }

func (e *MultiError) Error() string {
	texts := make([]string, len(e.causes))
	for i, err := range e.causes {
		texts[i] = err.Error()
	}
	return fmt.Sprintf("%d of %d keys: %s", len(e.keys), e.asked, strings.Join(texts, "; "))
}

// with returns e, or a new error if e is nil, with the note that err became of
// keys.
func (e *MultiError) with(err error, keys ...string) *MultiError {
	if e == nil {
		e = &MultiError{keys: make(map[string]error)}
	}
	for _, key := range keys {
		e.keys[key] = err
	}
	if !slices.Contains(e.causes, err) {
		e.causes = append(e.causes, err)
	}
	return e
}

// A batch is the part of a GetMulti that one server is asked for.
type batch struct {
	server *server
	keys   []string
	items  map[string]*memcache.Item
	err    error
}

// GetMulti returns the items at keys, by key; those that are not there are left
// out. It asks all servers at once, each with one request.
//
// If it fails for some keys the error is a *[MultiError], and the items of the
// others are there all the same. The map is never nil.
func (p *Pool) GetMulti(keys []string) (map[string]*memcache.Item, error) {
	batches, failed := p.batches(keys)
	fetchAll(batches)
	if len(batches) == 1 && batches[0].err == nil && failed == nil {
		return batches[0].items, nil // most often: one server, all well
	}
	items := make(map[string]*memcache.Item, len(keys))
	for _, b := range batches {
		if b.err != nil {
			failed = failed.with(b.err, b.keys...)
			continue // what it has of items is a part of an answer
		}
		maps.Copy(items, b.items)
	}
	if failed != nil {
		failed.asked = len(keys)
		return items, failed
	}
	return items, nil
}

// batches sorts keys by server. Those that no server is to be asked for stand in
// the error, which is nil if there are none.
func (p *Pool) batches(keys []string) ([]batch, *MultiError) {
	var failed *MultiError
	batches := make([]batch, 0, min(len(keys), len(p.servers.all)))
	for i, key := range keys {
		s, err := p.server(key)
		if err != nil {
			failed = failed.with(err, key)
			continue
		}
		j := slices.IndexFunc(batches, func(b batch) bool { return b.server == s })
		if j < 0 {
			j = len(batches)
			batches = append(batches, batch{server: s, keys: make([]string, 0, len(keys)-i)})
		}
		batches[j].keys = append(batches[j].keys, key)
	}
	return batches, failed
}

// fetchAll fetches all batches at once and returns when each has its items or
// its error.
func fetchAll(batches []batch) {
	if len(batches) == 0 {
		return
	}
	if len(batches) > 1 {
		var others sync.WaitGroup
		defer others.Wait()
		for i := range batches[1:] {
			others.Go(batches[i+1].fetch)
		}
	}
	batches[0].fetch()
}

func (b *batch) fetch() {
	if len(b.keys) > 1 {
		b.items, b.err = b.server.getMulti(b.keys)
		return
	}
	// Get is a fraction of the work of a GetMulti for one key.
	b.items = make(map[string]*memcache.Item, 1)
	item, err := b.server.get(b.keys[0])
	switch {
	case err == nil:
		b.items[item.Key] = item
	case !errors.Is(err, memcache.ErrCacheMiss):
		b.err = err
	}
}

// getMulti is GetMulti for keys of this server.
func (s *server) getMulti(keys []string) (map[string]*memcache.Item, error) {
	var items map[string]*memcache.Item
	err := s.read(func(c *memcache.Client) (err error) {
		items, err = c.GetMulti(keys)
		if err != nil {
			return err
		}
		for key := range items {
			if !slices.Contains(keys, key) {
				return s.strayed(key)
			}
		}
		return nil
	})
	return items, err
}
