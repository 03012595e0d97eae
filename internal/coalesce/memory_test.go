package coalesce

import (
	"fmt"
	"hash/maphash"
	"runtime"
	"strings"
	"testing"

	"github.com/bradfitz/gomemcache/memcache"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// seenAs returns what a record was seen as: "" is none.
func seenAs(value string, n uint64) sighting {
	if value == "" {
		return sighting{known: true, conn: n}
	}
	return sighting{known: true, conn: n, item: &memcache.Item{Value: []byte(value), CasID: n + 1, Flags: uint32(n + 2)}}
}

// use gives the record of key to a coalescer, as acquire does. It reports whether it was remembered.
func (m *memory) use(seed maphash.Seed, key string) (s *coalescer, remembered bool) {
	hash := uint32(maphash.String(seed, key)) & 7 // several keys have the same one
	s = &coalescer{key: key}
	i := m.find(hash, key)
	if i == 0 {
		m.add(s, hash)
		return s, false
	}
	m.wake(i, s)
	m.at(i).used = true
	return s, true
}

func TestAMemoryKeepsTheLatestOfEachRecord(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := memory{most: rapid.IntRange(1, 60).Draw(t, "most"), perByte: 10}
		seed := maphash.MakeSeed()
		inUse, kept, paces := make(map[string]*coalescer), make(map[string]sighting), make(map[string]*pace)
		for n := range rapid.Uint64Range(0, 300).Draw(t, "steps") {
			key := fmt.Sprint("k", rapid.IntRange(0, 60).Draw(t, "key"))
			if s := inUse[key]; s != nil {
				delete(inUse, key)
				seen := seenAs(strings.Repeat(key, rapid.IntRange(0, 20).Draw(t, "length")), n)
				weight := m.weigh(seen)
				before := m.weight
				var own *pace
				if rapid.Bool().Draw(t, "paced") {
					own = new(pace)
				}
				m.rest(s, seen, own)
				require.Zero(t, s.place)
				if weight <= m.most {
					kept[key], paces[key] = seen, own
				}
				if before+weight <= m.most {
					require.Equal(t, before+weight, m.weight, "nothing is forgotten without need")
				}
			} else {
				s, remembered := m.use(seed, key)
				inUse[key] = s
				want, was := kept[key]
				delete(kept, key)
				require.True(t, was || !remembered)
				if !remembered {
					require.Nil(t, s.pace)
				} else {
					require.Same(t, paces[key], s.pace)
					require.Equal(t, want.conn, s.seen.conn)
					if want.item != nil {
						require.Equal(t, memcache.Item{Key: key, Value: want.item.Value, CasID: want.item.CasID, Flags: want.item.Flags}, *s.seen.item)
					} else {
						require.Nil(t, s.seen.item)
					}
				}
			}
			weight, paced := 0, 0
			for i := uint32(1); i <= m.n; i++ {
				p := m.at(i)
				if p.coalescer != nil {
					require.Same(t, inUse[p.coalescer.key], p.coalescer)
					require.Equal(t, i, p.coalescer.place)
					continue
				}
				key := string(p.text[:p.keyLen])
				require.Contains(t, kept, key)
				require.Equal(t, i, m.find(p.hash, key))
				weight += m.weigh(kept[key])
				if paces[key] != nil {
					paced++
				}
			}
			require.Len(t, m.paces, paced)
			require.Equal(t, weight, m.weight)
			require.LessOrEqual(t, weight, m.most)
			for key, s := range inUse {
				require.Equal(t, s.place, m.find(m.at(s.place).hash, key))
			}
		}
	})
}

func TestWhatWasNotUsedIsForgottenFirst(t *testing.T) {
	m := memory{most: 4, perByte: 1024}
	seed := maphash.MakeSeed()
	use := func(keys string) (remembered string) {
		for _, key := range keys {
			s, was := m.use(seed, string(key))
			if was {
				remembered += string(key)
			}
			m.rest(s, seenAs("v", 1), nil)
		}
		return remembered
	}
	require.Empty(t, use("abcd"))
	require.Equal(t, "bd", use("bd"))
	require.Empty(t, use("ef"), "a and c go, which were used once")
	require.Equal(t, "bdef", use("bdef"))
	require.Empty(t, use("a"), "all were used, and it is the turn of d, which comes after c")
	require.Equal(t, "befa", use("befa"))
}

// A record that shrinks does not keep the memory that it had.
func TestALargeRecordThatBecomesSmallIsSmall(t *testing.T) {
	m := memory{most: 100, perByte: 1024}
	seed := maphash.MakeSeed()
	for _, size := range []int{50_000, 1, 40, 50_000, 0} {
		s, _ := m.use(seed, "key")
		m.rest(s, seenAs(strings.Repeat("x", size), 1), nil)
		require.Less(t, cap(m.at(1).text), 2*size+2*slack)
	}
}

// nowhere is a store that is not asked.
type nowhere struct{ Exchanger }

// The comment of Throttler.RecordCache and docs/operations.md have these figures.
func TestARememberedRecordTakesFewBytes(t *testing.T) {
	const records = 130_000
	inUse := func() uint64 {
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	for size, most := range map[int]int{21: 140, 33: 155, 168: 300} { // windows of 1, 5 and 50 hits
		before := inUse()
		table := NewTable(nowhere{}, Config{Remembered: 2 * records, Counts: new(Counts)})
		for i := range records {
			s := table.acquire(fmt.Sprintf("login#ip#203.0.113.%06d", i))
			s.seen = seenAs(strings.Repeat("x", size), 1)
			s.release(1)
		}
		all, used := table.Size()
		require.Equal(t, records, all)
		require.Zero(t, used)
		each := int(inUse()-before) / records
		runtime.KeepAlive(table)
		require.Less(t, each, most)
		t.Logf("%d bytes for a key of %d and a record of %d", each, len("login#ip#203.0.113.000000"), size)
	}
}
