package memstore_test

import (
	"math"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/adaptivethrottler/throttler/exchange"
	"github.com/adaptivethrottler/throttler/memstore"
	"github.com/bradfitz/gomemcache/memcache"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// model is a simple store: a list that is searched from end to end.
type model struct {
	maxItems, maxBytes int

	rows  []row // least recently used first
	cas   uint64
	stats memstore.Stats
}

type row struct {
	memcache.Item
	ends time.Time // zero: never
	due  time.Time // when to look whether it has expired: not later than ends; zero: never
}

func (r row) expired() bool { return !r.ends.IsZero() && !time.Now().Before(r.ends) }

// use moves the row of key to the end and returns it. It returns nil if there is none,
// and drops an expired one.
func (m *model) use(key string) *row {
	i := slices.IndexFunc(m.rows, func(r row) bool { return r.Key == key })
	if i < 0 {
		return nil
	}
	r := m.rows[i]
	m.rows = slices.Delete(m.rows, i, i+1)
	if r.expired() {
		return nil
	}
	m.rows = append(m.rows, r)
	return &m.rows[len(m.rows)-1]
}

func (m *model) Get(key string) (*memcache.Item, error) {
	if illegal(key) {
		return nil, memcache.ErrMalformedKey
	}
	r := m.use(key)
	if r == nil {
		return nil, memcache.ErrCacheMiss
	}
	it := r.Item
	it.Value = append([]byte{}, it.Value...)
	it.Expiration = 0
	return &it, nil
}

func (m *model) GetMulti(keys []string) (map[string]*memcache.Item, error) {
	if slices.ContainsFunc(keys, illegal) {
		return nil, memcache.ErrMalformedKey
	}
	got := map[string]*memcache.Item{}
	for _, key := range keys {
		if it, err := m.Get(key); err == nil {
			got[key] = it
		}
	}
	return got, nil
}

func (m *model) Add(it *memcache.Item) error {
	if err := m.refused(it); err != nil {
		return err
	}
	if m.use(it.Key) != nil {
		return memcache.ErrNotStored
	}
	m.store(it, row{})
	return nil
}

func (m *model) CompareAndSwap(it *memcache.Item) error {
	if err := m.refused(it); err != nil {
		return err
	}
	r := m.use(it.Key)
	switch {
	case r == nil:
		return memcache.ErrCacheMiss
	case r.CasID != it.CasID:
		return memcache.ErrCASConflict
	}
	old := *r
	m.rows = m.rows[:len(m.rows)-1]
	m.store(it, old)
	return nil
}

func (m *model) Delete(key string) error {
	if illegal(key) {
		return memcache.ErrMalformedKey
	}
	if m.use(key) == nil {
		return memcache.ErrCacheMiss
	}
	m.rows = m.rows[:len(m.rows)-1]
	return nil
}

func (m *model) refused(it *memcache.Item) error {
	switch {
	case illegal(it.Key):
		return memcache.ErrMalformedKey
	case len(it.Key)+len(it.Value) > m.maxBytes:
		return errOther
	}
	return nil
}

// store appends a row for it, in place of old, the zero row if there is none. Before that
// it drops up to two expired rows, and then further rows until the bounds hold: expired
// ones, and then those of next.
func (m *model) store(it *memcache.Item, old row) {
	r := row{Item: *it, ends: old.ends, due: old.due}
	r.Value = slices.Clone(it.Value)
	ends := endOf(it.Expiration)
	if (row{ends: ends}).expired() {
		return
	}
	m.cas++
	r.CasID = m.cas
	m.rows = append(m.rows, r)
	m.makeSpace(old.Key == "")
	if r := &m.rows[len(m.rows)-1]; r.due.IsZero() || ends.Before(r.due) {
		r.due = ends // else it stays as it is, though it may be earlier
	}
	m.rows[len(m.rows)-1].ends = ends
}

// endOf returns when an item stored now with this Expiration expires.
func endOf(expiration int32) time.Time {
	switch e := int64(expiration); {
	case e == 0:
		return time.Time{}
	case e > month:
		return time.Unix(e, 0)
	default:
		return time.Now().Add(time.Duration(e) * time.Second)
	}
}

// makeSpace drops rows for the last one, which is added or has taken another one's place.
func (m *model) makeSpace(added bool) {
	for spare := 2; ; spare-- {
		over := m.overfull()
		if !over && spare <= 0 {
			return
		}
		gone := m.expired(over, spare)
		if gone < 0 && !over {
			return
		}
		if gone < 0 {
			m.stats.Evictions++
			before := len(m.rows)
			if added {
				before--
			}
			gone = m.next(before)
			spare++
		}
		m.rows = slices.Delete(m.rows, gone, gone+1)
	}
}

// expired returns the index of the first row that is due and has expired, or -1. It looks
// at up to looks others before, or at all: what is due and has not expired is due again when
// it expires.
func (m *model) expired(all bool, looks int) int {
	for {
		first := -1
		for i, r := range m.rows {
			if !r.due.IsZero() && !time.Now().Before(r.due) && (first < 0 || r.before(m.rows[first])) {
				first = i
			}
		}
		if first < 0 || m.rows[first].expired() {
			return first
		}
		if looks--; looks < 0 && !all {
			return -1
		}
		m.rows[first].due = m.rows[first].ends
	}
}

// before reports whether r is looked at before other.
func (r row) before(other row) bool {
	return r.due.Before(other.due) || r.due.Equal(other.due) && r.Key < other.Key
}

// next returns the index of the row to evict. It is not the last one, and a ban only if
// more than half of the first n are, or the others are no more than the last one.
func (m *model) next(n int) int {
	bans := 0
	for _, r := range m.rows[:n] {
		if isBan(r) {
			bans++
		}
	}
	evictable := m.rows[:len(m.rows)-1]
	if i := slices.IndexFunc(evictable, func(r row) bool { return !isBan(r) }); i >= 0 && 2*bans <= n {
		return i
	}
	return slices.IndexFunc(evictable, isBan)
}

func isBan(r row) bool { return r.Flags >= exchange.BanFlag }

func (m *model) overfull() bool {
	return len(m.rows) > m.maxItems || m.bytes() > m.maxBytes
}

func (m *model) bytes() (n int) {
	for _, r := range m.rows {
		n += len(r.Key) + len(r.Value)
	}
	return n
}

func (m *model) Stats() memstore.Stats {
	return memstore.Stats{Items: len(m.rows), Bytes: m.bytes(), Evictions: m.stats.Evictions}
}

// illegal reports whether a key drawn here is illegal.
func illegal(key string) bool { return key == "b d" || key == "" }

// twins are two clients that get the same calls and must give the same answers. Their
// CAS tokens may differ, but two of a must be equal exactly if those of b are.
type twins struct {
	a, b client
	keys []string
	held [][2]*memcache.Item // read at the same time from a and b
	cas  map[uint64]uint64   // a's token to b's
	acs  map[uint64]uint64   // b's token to a's
}

func newTwins(a, b client, keys ...string) *twins {
	return &twins{a: a, b: b, keys: keys, cas: map[uint64]uint64{}, acs: map[uint64]uint64{}}
}

// same compares two items, and holds them for a later swap. Both may be nil.
func (w *twins) same(t *rapid.T, a, b *memcache.Item) {
	require.Equal(t, a == nil, b == nil, "%v, %v", a, b)
	if a == nil {
		return
	}
	if _, ok := w.cas[a.CasID]; !ok {
		w.cas[a.CasID] = b.CasID
	}
	if _, ok := w.acs[b.CasID]; !ok {
		w.acs[b.CasID] = a.CasID
	}
	require.NotZero(t, a.CasID)
	require.Equal(t, w.cas[a.CasID], b.CasID, "a's token has not changed, b's has")
	require.Equal(t, w.acs[b.CasID], a.CasID, "b's token has not changed, a's has")
	w.held = append(w.held, [2]*memcache.Item{a, b})
	plain := *a
	plain.CasID = b.CasID
	require.Equal(t, &plain, b)
}

func (w *twins) key(t *rapid.T) string { return rapid.SampledFrom(w.keys).Draw(t, "key") }

func (w *twins) get(t *rapid.T) {
	key := w.key(t)
	a, errA := w.a.Get(key)
	b, errB := w.b.Get(key)
	require.Equal(t, kind(errA), kind(errB))
	w.same(t, a, b)
}

func (w *twins) getMulti(t *rapid.T) {
	keys := rapid.SliceOfN(rapid.SampledFrom(w.keys), 0, 4).Draw(t, "keys")
	a, errA := w.a.GetMulti(keys)
	b, errB := w.b.GetMulti(keys)
	require.Equal(t, kind(errA), kind(errB))
	require.Len(t, b, len(a))
	require.Equal(t, a == nil, b == nil)
	for _, key := range keys {
		w.same(t, a[key], b[key])
	}
}

func (w *twins) delete(t *rapid.T) {
	key := w.key(t)
	require.Equal(t, kind(w.a.Delete(key)), kind(w.b.Delete(key)))
}

// add returns an action that adds an item of draw.
func (w *twins) add(draw func(*rapid.T) memcache.Item) func(*rapid.T) {
	return func(t *rapid.T) {
		it := draw(t)
		it.Key = w.key(t)
		require.Equal(t, kind(w.a.Add(&it)), kind(w.b.Add(&it)))
	}
}

// swap returns an action that swaps in an item of draw, with the token of an item that
// was read before: at its key or, to be refused, at another one.
func (w *twins) swap(draw func(*rapid.T) memcache.Item) func(*rapid.T) {
	return func(t *rapid.T) {
		a := draw(t)
		a.Key = w.key(t)
		b := a
		if n := len(w.held); n > 0 {
			held := w.held[n-1-min(n-1, rapid.IntRange(0, 5).Draw(t, "held"))]
			a.CasID, b.CasID = held[0].CasID, held[1].CasID
			if rapid.IntRange(0, 4).Draw(t, "other key") > 0 {
				a.Key, b.Key = held[0].Key, held[1].Key
			}
		}
		require.Equal(t, kind(w.a.CompareAndSwap(&a)), kind(w.b.CompareAndSwap(&b)))
	}
}

func (w *twins) actions(draw func(*rapid.T) memcache.Item) map[string]func(*rapid.T) {
	return map[string]func(*rapid.T){
		"Get": w.get, "GetMulti": w.getMulti, "Delete": w.delete,
		"Add": w.add(draw), "CompareAndSwap": w.swap(draw),
	}
}

func TestStoreDoesWhatTheModelDoes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		// The struct hides t.Deadline from rapid: a bubble does not allow it.
		rapid.Check(struct{ rapid.TB }{t}, func(t *rapid.T) {
			m := &model{
				maxItems: rapid.IntRange(1, 5).Draw(t, "MaxItems"),
				maxBytes: rapid.IntRange(10, 40).Draw(t, "MaxBytes"),
			}
			s := &memstore.Store{MaxItems: m.maxItems, MaxBytes: m.maxBytes}
			w := newTwins(s, m, "a", "b", "c", "d", "e", "ff", "b d", "")
			draw := func(t *rapid.T) memcache.Item {
				now := int32(time.Now().Unix())
				return memcache.Item{
					Value:      rapid.SliceOfN(rapid.Byte(), 0, 12).Draw(t, "value"),
					Flags:      rapid.SampledFrom([]uint32{0, 1, exchange.BanFlag, math.MaxUint32}).Draw(t, "flags"),
					Expiration: rapid.SampledFrom([]int32{0, -1, math.MinInt32, 1, 2, 3, month, month + 1, now, now + 1, now + 2, now + 2*month, math.MaxInt32}).Draw(t, "expiration"),
				}
			}
			actions := w.actions(draw)
			actions["Visit"] = func(t *rapid.T) {
				it := memcache.Item{Key: w.key(t)}
				store := rapid.Bool().Draw(t, "store")
				v := &visitor{visit: func(_ time.Time, found []byte) *memcache.Item {
					if was, err := m.Get(it.Key); err == nil {
						require.Equal(t, was.Value, append([]byte{}, found...))
						it.CasID = was.CasID
					} else {
						require.Empty(t, found)
					}
					if !store {
						return nil
					}
					drawn := draw(t)
					it.Value, it.Flags, it.Expiration = drawn.Value, drawn.Flags, drawn.Expiration
					return &it
				}}
				inside := s.Inside(s)
				head, tail := inside.Head(it.Key)
				kept, err := inside.Visit(head, tail, time.Now(), v.Visit)
				var want error
				switch {
				case !store:
				case it.CasID != 0:
					want = m.CompareAndSwap(&it)
				default:
					want = m.Add(&it)
				}
				require.Equal(t, kind(want), kind(err))
				if now, missing := m.Get(it.Key); err != nil || missing != nil {
					require.Zero(t, kept)
				} else {
					require.Equal(t, now.Key, kept)
				}
				_, _ = s.Get(it.Key) // as the model was asked
			}
			actions["Exchange"] = func(t *rapid.T) {
				x := &proposal{key: w.key(t)}
				if rapid.Bool().Draw(t, "store") {
					it := draw(t)
					it.Key = x.key
					x.item = &it
				}
				s.Start(x)
				require.Equal(t, 1, x.dones)
				was, err := m.Get(x.key)
				if kind(err) == memcache.ErrMalformedKey {
					require.Equal(t, exchange.Result{Err: err}, x.result)
					return
				}
				require.Equal(t, []any{true, time.Now()}, []any{x.turn.Known, x.turn.Now})
				w.same(t, x.turn.Found, was)
				switch {
				case x.item == nil:
					require.Equal(t, exchange.Result{Read: true, Found: x.turn.Found}, x.result)
					return
				case was == nil:
					err = m.Add(x.item)
				default:
					x.item.CasID = was.CasID
					err = m.CompareAndSwap(x.item)
				}
				require.Equal(t, kind(err), kind(x.result.Err))
				require.Equal(t, err == nil, x.result.Stored)
			}
			actions["time passes"] = func(t *rapid.T) {
				time.Sleep(rapid.SampledFrom([]time.Duration{1, 300 * time.Millisecond, time.Second - 1, time.Second}).Draw(t, "sleep"))
			}
			actions[""] = func(t *rapid.T) { require.Equal(t, m.Stats(), s.Stats()) }
			t.Repeat(actions)
		})
	})
}

// The same with a server. Nothing is evicted, and no item expires so soon that the
// server's whole seconds matter.
func TestStoreDoesWhatRealMemcachedDoes(t *testing.T) {
	server := realClient(t)
	large := make([]byte, 1<<20)
	rapid.Check(t, func(t *rapid.T) {
		require.NoError(t, server.FlushAll())
		w := newTwins(memstore.New(), server, "a", "b", "c", "\xff#é", "b d")
		t.Repeat(w.actions(func(t *rapid.T) memcache.Item {
			now := int32(time.Now().Unix())
			it := memcache.Item{
				Value:      rapid.SliceOfN(rapid.Byte(), 0, 300).Draw(t, "value"),
				Flags:      rapid.Uint32().Draw(t, "flags"),
				Expiration: rapid.SampledFrom([]int32{0, 0, 0, -1, 1000, month, month + 1, now - 10, now + 1000}).Draw(t, "expiration"),
			}
			if rapid.IntRange(0, 19).Draw(t, "large") == 0 {
				it.Value = large[:valueLimit("a")-rapid.IntRange(-3, 6).Draw(t, "below the limit")]
			}
			return it
		}))
	})
}
