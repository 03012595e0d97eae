package items

import (
	"hash/maphash"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestAnIndexFindsWhatIsInIt(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		x := index{nodes: new(slab), seed: maphash.MakeSeed()}
		all := make(map[string]*node)
		for _, i := range rapid.SliceOfN(rapid.IntRange(0, 60), 0, 300).Draw(t, "keys") {
			key := strconv.Itoa(i)
			hash := maphash.String(x.seed, key)
			require.Same(t, all[key], x.find(hash, key))
			if e := all[key]; e != nil {
				x.remove(e)
				x.nodes.giveBack(e)
				delete(all, key)
			} else {
				e = x.nodes.take()
				e.key, all[key] = key, e
				x.add(e, hash)
			}
			require.Equal(t, len(all), x.n)
			require.LessOrEqual(t, x.n, len(x.chains))
			longest := 0
			for _, i := range x.chains {
				n := 0
				for ; i != 0; i = x.nodes.at(i).next {
					n++
				}
				longest = max(longest, n)
			}
			require.Less(t, longest, 16)
		}
		for key, e := range all {
			require.Same(t, e, x.find(maphash.String(x.seed, key), key))
		}
	})
}
