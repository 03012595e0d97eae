package pool

import (
	"context"

	"github.com/adaptivethrottler/throttler/internal/failure"
	"github.com/bradfitz/gomemcache/memcache"
)

// GetMulti returns the items at keys, by key; those that are not there are left
// out. It asks all servers at once, each in one round trip.
//
// If it fails for some keys the error is an [exchange.KeyError], and the items of the
// others are there all the same. The map is never nil.
func (p *Pool) GetMulti(keys []string) (map[string]*memcache.Item, error) {
	b := p.batches.Get(len(keys))
	defer p.release(b)
	for i, key := range keys {
		b.All[i].key, b.All[i].reads = key, true
	}
	b.Admit(p.admit)
	do(context.Background(), b)
	items, failed := make(map[string]*memcache.Item, len(keys)), make(map[string]error)
	for i := range b.All {
		switch r := &b.All[i]; {
		case r.err != nil:
			failed[r.key] = r.err
		case r.reply.found != nil:
			items[r.key] = r.reply.found
		}
	}
	if len(failed) > 0 {
		return items, &failure.MultiError{Keys: failed, Asked: len(keys)}
	}
	return items, nil
}
