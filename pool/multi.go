package pool

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/bradfitz/gomemcache/memcache"
)

// A MultiError is the error of [Pool.GetMulti] if it failed for any of the keys.
// It says for each key what became of it.
type MultiError struct {
	keys   map[string]error
	causes []error
	asked  int
}

// KeyError returns the error of key, or nil if its server answered: then a key that is
// not among the items is a miss.
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

// GetMulti returns the items at keys, by key; those that are not there are left
// out. It asks all servers at once, each with one request.
//
// If it fails for some keys the error is a *[MultiError], and the items of the
// others are there all the same. The map is never nil.
func (p *Pool) GetMulti(keys []string) (map[string]*memcache.Item, error) {
	requests, failed := p.byServer(keys)
	together := batch{requests: slices.Clone(requests)}
	together.do(context.Background())
	if len(requests) == 1 && requests[0].err == nil && failed == nil {
		return requests[0].reply.items, nil // most often: one server, all well
	}
	items := make(map[string]*memcache.Item, len(keys))
	for _, r := range requests {
		if r.err != nil {
			failed = failed.with(r.err, r.keys...)
			continue // what it has of items is a part of an answer
		}
		maps.Copy(items, r.reply.items)
	}
	if failed != nil {
		failed.asked = len(keys)
		return items, failed
	}
	return items, nil
}

// byServer returns a request for the keys of each server. Keys that no server is to
// be asked for stand in the error, which is nil if there are none.
func (p *Pool) byServer(keys []string) ([]*request, *MultiError) {
	var failed *MultiError
	requests := make([]*request, 0, min(len(keys), len(p.servers.Load().all)))
	for i, key := range keys {
		s, err := p.server(key)
		if err != nil {
			failed = failed.with(err, key)
			continue
		}
		j := slices.IndexFunc(requests, func(r *request) bool { return r.shard.server == s })
		if j < 0 {
			j = len(requests)
			r := &request{shard: s.shard(key), reads: true, keys: make([]string, 0, len(keys)-i)}
			requests = append(requests, r)
		}
		requests[j].keys = append(requests[j].keys, key)
	}
	admitted := requests[:0]
	for _, r := range requests {
		if err := r.shard.server.Admit(); err != nil {
			failed = failed.with(err, r.keys...)
			continue
		}
		r.reply.items = make(map[string]*memcache.Item, len(r.keys))
		admitted = append(admitted, r)
	}
	return admitted, failed
}
