package throttler_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/adaptivethrottler/throttler"
	"github.com/bradfitz/gomemcache/memcache"
)

// ownStore is a throttler.Client over a map. One over a database has the same methods;
// storetest.Run tells whether they are right.
type ownStore struct {
	mu      sync.Mutex
	records map[string]ownRecord
	writes  uint64
}

type ownRecord struct {
	item  memcache.Item
	until time.Time
}

func (s *ownStore) Get(key string) (*memcache.Item, error) {
	items, _ := s.GetMulti([]string{key})
	if items[key] == nil {
		return nil, memcache.ErrCacheMiss
	}
	return items[key], nil
}

func (s *ownStore) GetMulti(keys []string) (map[string]*memcache.Item, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	items := make(map[string]*memcache.Item)
	for _, key := range keys {
		if r, ok := s.find(key); ok {
			items[key] = &r.item
		}
	}
	return items, nil
}

func (s *ownStore) Add(item *memcache.Item) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.find(item.Key); ok {
		return memcache.ErrNotStored
	}
	s.write(*item)
	return nil
}

func (s *ownStore) CompareAndSwap(item *memcache.Item) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r, ok := s.find(item.Key); !ok || r.item.CasID != item.CasID {
		return memcache.ErrCASConflict
	}
	s.write(*item)
	return nil
}

func (s *ownStore) Delete(key string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.find(key); !ok {
		return memcache.ErrCacheMiss
	}
	delete(s.records, key)
	return nil
}

// find returns a record that has not expired. s.mu is held.
func (s *ownStore) find(key string) (ownRecord, bool) {
	r, ok := s.records[key]
	return r, ok && time.Now().Before(r.until)
}

// write stores item under a new CasID. s.mu is held.
func (s *ownStore) write(item memcache.Item) {
	s.writes++
	item.CasID = s.writes
	item.Value = slices.Clone(item.Value) // the throttler may reuse its own
	until := time.Now().Add(time.Duration(item.Expiration) * time.Second)
	if item.Expiration > 30*24*60*60 { // a date
		until = time.Unix(int64(item.Expiration), 0)
	}
	s.records[item.Key] = ownRecord{item, until}
}

// A store of one's own is a type with five methods.
func ExampleClient() {
	th := throttler.New(&ownStore{records: make(map[string]ownRecord)})
	for range 3 {
		d, err := th.Authorize(context.Background(), throttler.Rule{
			Identifier: "api",
			Either:     []throttler.Condition{{Name: "customer", Value: "c-42", Max: 2, TTL: time.Minute}},
		})
		if err != nil {
			panic(err) // the rule is wrong
		}
		fmt.Println(d.Status, d.Outcomes[0].Remaining, d.Err)
	}

	// Output:
	// authorized 1 <nil>
	// authorized 0 <nil>
	// blocked 0 <nil>
}
