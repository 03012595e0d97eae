package pool_test

import (
	"context"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/adaptivethrottler/throttler/exchange"
	"github.com/adaptivethrottler/throttler/internal/servertest"
	"github.com/adaptivethrottler/throttler/pool"
	"github.com/bradfitz/gomemcache/memcache"
)

// client is what both sides of the benchmarks have.
type client interface {
	Get(key string) (*memcache.Item, error)
	GetMulti(keys []string) (map[string]*memcache.Item, error)
	Add(item *memcache.Item) error
	CompareAndSwap(item *memcache.Item) error
	Delete(key string) error
}

var benchmarked = []struct {
	name string
	call func(c client) error
}{
	{"get", func(c client) error {
		_, err := c.Get("key")
		return err
	}},
	{"gets+cas", func(c client) error {
		item, err := c.Get("key")
		if err != nil {
			return err
		}
		return c.CompareAndSwap(item)
	}},
	{"multi", func(c client) error {
		_, err := c.GetMulti([]string{"key", "key2", "key3"})
		return err
	}},
}

// both returns a pool and a plain client of one server, with items to read.
func both(b *testing.B, servers ...string) (direct *memcache.Client, pooled *pool.Pool) {
	b.Helper()
	direct = memcache.New(servers...)
	direct.MaxIdleConns = 64
	b.Cleanup(func() { direct.Close() })
	pooled, err := pool.New(servers...)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { pooled.Close() })
	for _, key := range []string{"key", "key2", "key3"} {
		if err := direct.Add(&memcache.Item{Key: key, Value: make([]byte, 100), Expiration: 600}); err != nil {
			b.Fatal(err)
		}
	}
	return direct, pooled
}

// BenchmarkAllocs counts the allocations of each side.
func BenchmarkAllocs(b *testing.B) {
	for _, bb := range benchmarked {
		for _, side := range []string{"direct", "pool"} {
			b.Run(fmt.Sprintf("op=%s/client=%s", bb.name, side), func(b *testing.B) {
				direct, pooled := both(b, servertest.NewMemcached(b).Addr)
				var c client = direct
				if side == "pool" {
					c = pooled
				}
				b.ReportAllocs()
				for b.Loop() {
					if err := bb.call(c); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}

// BenchmarkRefused is a call of a server that is taken to be down.
func BenchmarkRefused(b *testing.B) {
	p, err := pool.New("127.0.0.1:1")
	if err != nil {
		b.Fatal(err)
	}
	defer p.Close()
	p.BreakerPause = time.Hour
	for range pool.DefaultBreakerFailures {
		if _, err := p.Get("key"); err == nil {
			b.Fatal("something answers at port 1")
		}
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := p.Get("key"); err == nil {
			b.Fatal("not refused")
		}
	}
}

// BenchmarkPlacement is the choice of the server for one key.
func BenchmarkPlacement(b *testing.B) {
	for _, n := range []int{1, 4, 64} {
		b.Run(fmt.Sprintf("servers=%d", n), func(b *testing.B) {
			p, err := pool.New(names(n)...)
			if err != nil {
				b.Fatal(err)
			}
			defer p.Close()
			b.ReportAllocs()
			for b.Loop() {
				p.Place("login#ip+user#192.0.2.17")
			}
		})
	}
}

// An update is an exchange that writes the record with the token that it last saw
// on the connection, as a throttler does.
type update struct {
	key    string
	value  []byte
	conn   uint64 // that gave token
	token  uint64
	result exchange.Result
}

func (u *update) Key() string { return u.key }

func (u *update) Propose(turn exchange.Turn) *memcache.Item {
	item := &memcache.Item{Key: u.key, Value: u.value, Expiration: 600}
	if turn.Conn == u.conn {
		item.CasID = u.token
	}
	return item
}

func (u *update) Done(result exchange.Result) {
	u.result, u.conn = result, result.Conn
	if u.token = 0; result.Found != nil {
		u.token = result.Found.CasID
	}
}

// BenchmarkExchange shows what one exchange costs beside the get and the cas of a
// memcache.Client, which it takes the place of. The two alternate in small rounds;
// x is the ratio of their times.
func BenchmarkExchange(b *testing.B) {
	for _, callers := range []int{1, 4, 16, 64} {
		for _, ending := range []bool{false, true} {
			b.Run(fmt.Sprintf("callers=%d/ctx=%v", callers, ending), func(b *testing.B) {
				direct, pooled := both(b, servertest.NewMemcached(b).Addr)
				packets := new(atomic.Int64)
				pooled.DialContext = counting(packets)
				ctx := context.Background()
				if ending {
					var cancel context.CancelFunc
					ctx, cancel = context.WithCancel(ctx)
					defer cancel()
				}
				const values = 4000
				direct.Timeout, pooled.Timeout = 10*time.Second, 10*time.Second
				updates := make([]*update, values)
				for i := range updates {
					updates[i] = &update{key: fmt.Sprint("value", i), value: make([]byte, 33)}
					pooled.Exchange(ctx, updates[i])
					if err := direct.Add(&memcache.Item{Key: "direct" + updates[i].key, Value: updates[i].value}); err != nil {
						b.Fatal(err)
					}
				}
				sides := []func(u *update){
					func(u *update) {
						item, err := direct.Get("direct" + u.key)
						if err == nil {
							err = direct.CompareAndSwap(item)
						}
						if err != nil {
							b.Error(err)
						}
					},
					func(u *update) {
						pooled.Exchange(ctx, u)
						if !u.result.Stored {
							b.Error("not stored", u.result.Err)
						}
					},
				}
				var times, cpu [2]time.Duration
				calls := 0
				packets.Store(0)
				for b.Loop() {
					for side, call := range sides {
						begin, used := time.Now(), processTime()
						round(callers, 2000/callers, updates, call)
						times[side] += time.Since(begin)
						cpu[side] += processTime() - used
					}
					calls += 2000 / callers * callers
				}
				b.ReportMetric(0, "ns/op") // of both together: says nothing
				for side, name := range []string{"direct", "pool"} {
					b.ReportMetric(float64(times[side].Nanoseconds())/1000/float64(calls), "us/"+name)
					b.ReportMetric(float64(cpu[side].Nanoseconds())/1000/float64(calls), "cpu-us/"+name)
				}
				b.ReportMetric(float64(times[1])/float64(times[0]), "x")
				b.ReportMetric(float64(calls)/float64(packets.Load()), "calls/packet")
			})
		}
	}
}

// counting is a net.Dialer's DialContext whose connections count what is written.
func counting(packets *atomic.Int64) dialFunc {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		nc, err := new(net.Dialer).DialContext(ctx, network, address)
		return &countingConn{nc, packets}, err
	}
}

type countingConn struct {
	net.Conn
	packets *atomic.Int64
}

func (c *countingConn) Write(b []byte) (int, error) {
	c.packets.Add(1)
	return c.Conn.Write(b)
}

// round has so many callers make so many calls each, at once, each of values of its
// own.
func round(callers, calls int, updates []*update, call func(*update)) {
	var running sync.WaitGroup
	for i := range callers {
		own := updates[i*len(updates)/callers : (i+1)*len(updates)/callers]
		running.Go(func() {
			for j := range calls {
				call(own[j%len(own)])
			}
		})
	}
	running.Wait()
}

// processTime returns how much of the processors this process has used.
func processTime() time.Duration {
	var used syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &used); err != nil {
		panic(err)
	}
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}
