package memstore

import (
	"hash/maphash"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestAnIndexFindsWhatIsInIt(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		x := index{seed: maphash.MakeSeed()}
		all := make(map[string]*node)
		for _, i := range rapid.SliceOfN(rapid.IntRange(0, 60), 0, 300).Draw(t, "keys") {
			key := strconv.Itoa(i)
			hash := maphash.String(x.seed, key)
			require.Same(t, all[key], find(&x, hash, key))
			require.Same(t, all[key], find(&x, hash, []byte(key)))
			if e := all[key]; e != nil {
				x.remove(e)
				delete(all, key)
			} else {
				all[key] = &node{key: key}
				x.add(all[key], hash)
			}
			require.Equal(t, len(all), x.n)
			require.LessOrEqual(t, x.n, len(x.chains))
			longest := 0
			for _, e := range x.chains {
				n := 0
				for ; e != nil; e = e.next {
					n++
				}
				longest = max(longest, n)
			}
			require.Less(t, longest, 16)
		}
		for key, e := range all {
			require.Same(t, e, find(&x, maphash.String(x.seed, key), key))
		}
	})
}
