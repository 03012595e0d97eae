package throttler

import (
	"sync"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"
)

// DefaultBanCacheTTL is what [Throttler.BanCacheTTL] is if it is not set.
const DefaultBanCacheTTL = 5 * time.Second

// A banCache remembers bans by the key of their record, the most recently used
// ones, each for a while. The zero banCache remembers none.
type banCache struct {
	once sync.Once // makes bans

	mu      sync.Mutex // guards what follows; bans changes with every look as well
	bans    *simplelru.LRU[string, cachedBan]
	removed uint64 // counts what was removed for a Reset
}

type cachedBan struct {
	ban         ban
	from, until instant // while it is believed; then the backend is asked again
}

// ready makes room for size bans at the first call, and reports whether there
// is any.
func (bc *banCache) ready(size int) bool {
	if size <= 0 {
		return false
	}
	bc.once.Do(func() {
		bc.bans, _ = simplelru.NewLRU[string, cachedBan](size, nil) // fails for no size only
	})
	return true
}

// get returns the ban that holds at now for key, or the zero ban.
func (bc *banCache) get(key string, now instant) ban {
	bc.mu.Lock()
	defer bc.mu.Unlock()
	cached, ok := bc.bans.Get(key)
	if !ok {
		return ban{}
	}
	if !cached.ban.holds(now) || now < cached.from || now >= cached.until {
		bc.bans.Remove(key)
		return ban{}
	}
	return cached.ban
}

// age returns what add is to be given for a ban that is read from now on.
func (bc *banCache) age() uint64 {
	bc.mu.Lock()
	defer bc.mu.Unlock()
	return bc.removed
}

// add keeps a ban that was read since age, for ttl from now, unless a Reset came
// in between: it may have lifted that very ban.
func (bc *banCache) add(key string, b ban, now instant, ttl time.Duration, age uint64) {
	bc.mu.Lock()
	defer bc.mu.Unlock()
	if bc.removed == age {
		bc.bans.Add(key, cachedBan{ban: b, from: now, until: now.add(ttl)})
	}
}

func (bc *banCache) remove(key string) {
	bc.mu.Lock()
	defer bc.mu.Unlock()
	bc.bans.Remove(key)
	bc.removed++
}
