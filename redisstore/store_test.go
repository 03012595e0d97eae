package redisstore_test

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/exchange"
	"github.com/adaptivethrottler/throttler/internal/servertest"
	"github.com/adaptivethrottler/throttler/pool"
	"github.com/adaptivethrottler/throttler/redisstore"
	"github.com/bradfitz/gomemcache/memcache"
	"github.com/redis/rueidis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// open returns a store for the servers of url, which ends with the test. It is patient: a
// busy machine must not count as an outage.
func open(t testing.TB, url string) *redisstore.Store {
	t.Helper()
	s, err := redisstore.Open(url)
	require.NoError(t, err)
	s.Timeout, s.QueueTimeout = 10*time.Second, 10*time.Second
	t.Cleanup(func() { s.Close() })
	return s
}

// rule returns a rule with one condition.
func rule(value string, max int) throttler.Rule {
	return throttler.Rule{Identifier: "test", Either: []throttler.Condition{{Name: "ip", Value: value, Max: max, TTL: time.Hour}}}
}

// admitted returns how many of calls, made by many goroutines over several throttlers,
// are authorized. None may fail.
func admitted(t *testing.T, rule throttler.Rule, calls int, clients ...throttler.Client) int {
	t.Helper()
	var n, failed atomic.Int64
	var wg sync.WaitGroup
	for _, c := range clients {
		th := throttler.New(c)
		for range 16 {
			wg.Go(func() {
				for range calls {
					d, err := th.Authorize(context.Background(), rule)
					if !assert.NoError(t, err) || !assert.NoError(t, d.Err) {
						failed.Add(1)
						continue
					}
					if d.Status == throttler.Authorized {
						n.Add(1)
					}
				}
			})
		}
	}
	wg.Wait()
	require.Zero(t, failed.Load())
	return int(n.Load())
}

// One script carries a bundle out. It reads all records at once, and a key may come twice.
func TestARecordThatIsWrittenTwiceInABatchIsWrittenOnce(t *testing.T) {
	t.Parallel()
	server := servertest.NewRedis(t)
	s := open(t, "redis://"+server.Addr)
	require.NoError(t, s.Add(&memcache.Item{Key: "old", Value: []byte("before"), Expiration: 60}))
	item, err := s.Get("old")
	require.NoError(t, err)
	item.Expiration = 60
	var xs []exchange.Exchange
	var all []*single
	for i := range 6 {
		one := newSingle("new", true)
		if i%2 == 1 {
			swap := *item
			swap.Value = []byte{byte('0' + i)}
			one = &single{key: "old", item: &swap, done: make(chan exchange.Result, 1)}
		}
		all, xs = append(all, one), append(xs, one)
	}
	s.Exchange(context.Background(), xs...)
	stored := make(map[string]*memcache.Item)
	for i, one := range all {
		r := <-one.done
		require.NoError(t, r.Err)
		require.True(t, r.Read)
		if i < 2 {
			require.True(t, r.Stored, "the first of its key")
			stored[one.key] = r.Found
		} else {
			require.False(t, r.Stored, "the record has changed")
		}
		require.Equal(t, stored[one.key].CasID, r.Found.CasID, "what was written before in the same bundle")
		require.Equal(t, stored[one.key].Value, r.Found.Value)
	}
	require.EqualValues(t, 1, calls(server, "mget"), "one bundle")
	require.Len(t, server.Command("GET", "new"), 8+1)
}

// The errors are those of a memcache.Client themselves, which storetest leaves open.
func TestWritesThatAreRefused(t *testing.T) {
	t.Parallel()
	s := open(t, "redis://"+servertest.NewRedis(t).Addr)
	require.NoError(t, s.Add(&memcache.Item{Key: "k", Value: []byte("one"), Expiration: 60}))
	require.ErrorIs(t, s.Add(&memcache.Item{Key: "k", Expiration: 60}), memcache.ErrNotStored)
	item, err := s.Get("k")
	require.NoError(t, err)
	before := *item
	require.NoError(t, s.CompareAndSwap(item))
	require.Equal(t, before, *item, "it is left as it is")
	require.ErrorIs(t, s.CompareAndSwap(item), memcache.ErrCASConflict)
	require.NoError(t, s.Delete("k"))
	require.ErrorIs(t, s.Delete("k"), memcache.ErrCacheMiss)
	require.ErrorIs(t, s.CompareAndSwap(item), memcache.ErrCacheMiss)
	require.Error(t, s.CompareAndSwap(&memcache.Item{Key: "k"}))
	require.ErrorIs(t, s.Add(&memcache.Item{Key: "a b"}), memcache.ErrMalformedKey)
}

// As in memcached. An expiry of 0 would delete, and one below 0 is an error.
func TestAnItemThatHasExpiredAlreadyIsStoredForAMoment(t *testing.T) {
	t.Parallel()
	server := servertest.NewRedis(t)
	s := open(t, "redis://"+server.Addr)
	require.NoError(t, s.Add(&memcache.Item{Key: "k", Value: []byte("v"), Expiration: 60}))
	for _, past := range []int32{-1, int32(time.Now().Unix() - 10)} {
		item, err := s.Get("k")
		require.NoError(t, err)
		item.Expiration = past
		stale := *item
		stale.CasID++
		require.ErrorIs(t, s.CompareAndSwap(&stale), memcache.ErrCASConflict)
		require.NoError(t, s.CompareAndSwap(item))
		require.Eventually(t, func() bool { _, err := s.Get("k"); return err == memcache.ErrCacheMiss }, 20*time.Second, time.Millisecond)
		require.NoError(t, s.Add(&memcache.Item{Key: "other" + strconv.Itoa(int(past)), Expiration: past}))
		require.NoError(t, s.Add(&memcache.Item{Key: "k", Value: []byte("v"), Expiration: 60}))
	}
}

func TestEachKeyOfABundleHasItsOwnExpiry(t *testing.T) {
	t.Parallel()
	server := servertest.NewRedis(t)
	s := open(t, "redis://"+server.Addr)
	require.NoError(t, s.Add(&memcache.Item{Key: "seen", Value: []byte("before"), Expiration: 5000}))
	seen, err := s.Get("seen")
	require.NoError(t, err)
	seen.Expiration = 4000
	expirations := map[string]int32{"a": 60, "b": 60, "c": 7, "d": int32(time.Now().Unix()) + 40*24*60*60, "none": 0, "seen": 4000}
	xs := []exchange.Exchange{newSingle("read", false), &single{key: "seen", item: seen, done: make(chan exchange.Result, 1)}}
	for key, expiration := range expirations {
		if key != "seen" {
			item := &memcache.Item{Key: key, Value: []byte(key), Expiration: expiration}
			xs = append(xs, &single{key: key, item: item, done: make(chan exchange.Result, 1)})
		}
	}
	for range 2 { // with what is only read, and without
		s.Exchange(context.Background(), xs...)
		require.EqualValues(t, 1, calls(server, "mget"), "one bundle")
		server.Command("CONFIG", "RESETSTAT")
		for _, x := range xs {
			r := <-x.(*single).done
			require.NoError(t, r.Err)
			require.Equal(t, x.(*single).item != nil, r.Stored)
		}
		for key, expiration := range expirations {
			want := time.Duration(expiration) * time.Second
			switch key {
			case "d":
				want = 40 * 24 * time.Hour
			case "none":
				want = 10 * 365 * 24 * time.Hour
			}
			ms, err := strconv.ParseInt(server.Command("PTTL", key), 10, 64)
			require.NoError(t, err)
			left := time.Duration(ms) * time.Millisecond
			require.LessOrEqual(t, left, want, key)
			require.Greater(t, left, want-5*time.Second, key)
		}
		xs = xs[1:]
		for _, x := range xs {
			x := x.(*single)
			stored, err := s.Get(x.key)
			require.NoError(t, err)
			swap := *x.item
			swap.CasID = stored.CasID
			x.item = &swap
		}
	}
}

func TestAValueWithoutANumberCountsAsNone(t *testing.T) {
	t.Parallel()
	server := servertest.NewRedis(t)
	s := open(t, "redis://"+server.Addr)
	for _, foreign := range []string{"", "short", "\x00\x00\x00\x00\x00\x00\x00\x00and more"} {
		server.Command("SET", "k", foreign)
		_, err := s.Get("k")
		require.ErrorIs(t, err, memcache.ErrCacheMiss)
		require.NoError(t, s.Add(&memcache.Item{Key: "k", Value: []byte("mine"), Expiration: 60}))
		item, err := s.Get("k")
		require.NoError(t, err)
		require.Equal(t, "mine", string(item.Value))

		server.Command("SET", "k", foreign)
		bundled := newSingle("k", true)
		s.Exchange(context.Background(), bundled, newSingle("another", false))
		require.True(t, (<-bundled.done).Stored)
	}
	key := "test#ip#a" // of a throttler: a value of its length is foreign, too
	server.Command("SET", key, "a value of another program")
	require.Equal(t, 5, admitted(t, rule("a", 5), 3, s))
}

// A record that should not be there is written without the script. If it is there, the same
// command brings it.
func TestNewRecordsNeedNoScript(t *testing.T) {
	t.Parallel()
	for name, servers := range map[string][]*servertest.Redis{"a server": {servertest.NewRedis(t)}, "a Cluster": servertest.NewRedisCluster(t)} {
		server := servers[0]
		s, other := open(t, "redis://"+server.Addr), open(t, "redis://"+server.Addr+"?protocol=2")
		for i, s := range []*redisstore.Store{s, other} {
			require.Equal(t, 5, admitted(t, rule(fmt.Sprint("warm", i), 5), 5, s), "the script works")
		}
		for _, server := range servers {
			server.Command("CONFIG", "RESETSTAT")
		}
		const count = 40
		var all []*single
		for _, s := range []*redisstore.Store{s, other} {
			more, xs := several(count, newAdd)
			s.Exchange(context.Background(), xs...)
			all = append(all, more...)
		}
		for i, x := range all {
			r := <-x.done
			require.NoError(t, r.Err)
			require.Equal(t, i < count, r.Stored, name)
			require.Equal(t, "x", string(r.Found.Value))
			require.NotZero(t, r.Found.CasID)
		}
		var sets, scripts int64
		for _, server := range servers {
			if strings.HasPrefix(server.Command("ROLE"), "master") { // replicas repeat what is written
				sets += calls(server, "set")
				scripts += calls(server, "evalsha") + calls(server, "eval")
			}
		}
		require.EqualValues(t, 2*count, sets, name)
		require.Zero(t, scripts, name)
	}
}

func TestAPrefixIsPutBeforeEachKey(t *testing.T) {
	t.Parallel()
	server := servertest.NewRedis(t)
	s := open(t, "redis://"+server.Addr+"?prefix=app:")
	d, err := throttler.New(s).Authorize(context.Background(), rule("a", 5))
	require.NoError(t, err)
	require.NoError(t, d.Err)
	require.Equal(t, "app:test#ip#a", server.Command("KEYS", "*"))
}

func TestNewUsesTheClientItIsGiven(t *testing.T) {
	t.Parallel()
	server := servertest.NewRedis(t)
	client, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{server.Addr}})
	require.NoError(t, err)
	defer client.Close()
	s := redisstore.New(client)
	s.Timeout, s.QueueTimeout = 10*time.Second, 10*time.Second // as in open
	require.Equal(t, 10, admitted(t, rule("a", 10), 5, s))
	require.NoError(t, s.Close())
	_, err = s.Get("k")
	require.ErrorIs(t, err, pool.ErrClosed)
	require.NoError(t, client.Do(context.Background(), client.B().Ping().Build()).Error())
}

func TestASocketAndADatabase(t *testing.T) {
	t.Parallel()
	server := servertest.NewRedisSocket(t)
	s := open(t, "unix://"+server.Addr+"?db=3")
	require.Equal(t, 10, admitted(t, rule("a", 10), 2, s))
	require.Contains(t, server.Command("INFO", "keyspace"), "db3:keys=1")
}

func TestOpenRefuses(t *testing.T) {
	t.Parallel()
	for _, url := range []string{
		"", "10.0.0.1:6379", "http://x", "redis://x/a", "redis://x?adr=y", "redis://x?prefix=a%20b", "unix://",
		"redis://user:secret@[::1", "redis://user:secret@host:port/",
	} {
		_, err := redisstore.Open(url)
		require.Error(t, err, url)
		require.NotContains(t, err.Error(), "secret")
	}
	for _, url := range []string{"127.0.0.1:6379", "localhost:6379", "redis:host:6379", "memcached://host:11211"} {
		_, err := redisstore.Open(url)
		require.ErrorContains(t, err, "as redis://127.0.0.1:6379", url)
	}
}

// A value that clients choose does not choose a node.
func TestAKeyWithBracesIsSpreadByAllOfIt(t *testing.T) {
	t.Parallel()
	server := servertest.NewRedis(t, "--cluster-enabled", "yes", "--cluster-require-full-coverage", "no")
	server.Command("CLUSTER", "ADDSLOTSRANGE", "0", "16383")
	s := open(t, "redis://"+server.Addr+"?prefix=p:")
	want := map[string]bool{}
	for i := range 20 {
		for _, key := range []string{fmt.Sprintf("login#ip#{tag}%d", i), fmt.Sprintf("{}x%d", i), fmt.Sprintf("}{%d", i)} {
			want[key] = true
			require.Eventually(t, func() bool { return s.Add(&memcache.Item{Key: key, Value: []byte(key), Expiration: 60}) == nil },
				20*time.Second, time.Millisecond)
			item, err := s.Get(key)
			require.NoError(t, err)
			require.Equal(t, key, string(item.Value))
		}
	}
	slots, found := map[string]bool{}, map[string]bool{}
	for _, stored := range strings.Split(server.Command("KEYS", "*tag*"), "\n") {
		slots[server.Command("CLUSTER", "KEYSLOT", stored)] = true
	}
	require.Greater(t, len(slots), 15)
	for key, err := range s.Keys(context.Background()) {
		require.NoError(t, err)
		found[key] = true
	}
	require.Equal(t, want, found)
	for key := range want {
		require.NoError(t, s.Delete(key))
	}
}

func TestOpenNeedsNoServer(t *testing.T) {
	t.Parallel()
	server := servertest.NewRedis(t)
	server.Kill()
	s := open(t, "redis://"+server.Addr)
	s.BreakerPause = 50 * time.Millisecond
	th := throttler.New(s)
	d, err := th.Authorize(context.Background(), rule("a", 5))
	require.NoError(t, err)
	require.ErrorIs(t, d.Err, throttler.ErrUnavailable)
	require.Zero(t, s.Stats()[0].Retries, "there was nothing to connect to")
	server.Start()
	require.Eventually(t, func() bool {
		d, err := th.Authorize(context.Background(), rule("b", 1000))
		return err == nil && d.Err == nil
	}, 30*time.Second, 5*time.Millisecond)
}

func TestKeysAreListedInSteps(t *testing.T) {
	t.Parallel()
	server := servertest.NewRedis(t)
	url := "redis://" + server.Addr
	s := open(t, url+"?prefix=a*%5B:")
	want := map[string]bool{}
	for i := range 3000 {
		key := "k" + strconv.Itoa(i)
		want[key] = true
		require.NoError(t, s.Add(&memcache.Item{Key: key, Expiration: 3600}))
	}
	require.NoError(t, open(t, url).Add(&memcache.Item{Key: "ab[:other", Expiration: 3600}))
	found := map[string]bool{}
	for key, err := range s.Keys(context.Background()) {
		require.NoError(t, err)
		found[key] = true
	}
	require.Equal(t, want, found)
	for range s.Keys(context.Background()) {
		break
	}
	infos, err := s.Info(context.Background())
	require.NoError(t, err)
	require.Equal(t, "7", infos[server.Addr]["redis_version"][:1])
	server.Kill()
	for _, err := range s.Keys(context.Background()) {
		require.ErrorIs(t, err, throttler.ErrUnavailable)
	}
	require.Error(t, s.Check(context.Background()))
}

// split returns the host and the port of an address.
func split(t *testing.T, addr string) (host, port string) {
	t.Helper()
	host, port, err := net.SplitHostPort(addr)
	require.NoError(t, err)
	return host, port
}
