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

	mu   sync.Mutex // guards bans, which changes with every look as well
	bans *simplelru.LRU[string, cachedBan]
}

type cachedBan struct {
	ban   ban
	until instant // when the backend is to be asked again
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
	if !cached.ban.holds(now) || now >= cached.until {
		bc.bans.Remove(key)
		return ban{}
	}
	return cached.ban
}

func (bc *banCache) add(key string, b ban, until instant) {
	bc.mu.Lock()
	defer bc.mu.Unlock()
	bc.bans.Add(key, cachedBan{b, until})
}

func (bc *banCache) remove(key string) {
	bc.mu.Lock()
	defer bc.mu.Unlock()
	bc.bans.Remove(key)
}
