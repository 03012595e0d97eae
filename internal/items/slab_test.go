package items

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestASlabUsesAgainWhatIsGivenBack(t *testing.T) {
	var s slab
	var all []*node
	for range 3 * slabPiece {
		e := s.take()
		require.Same(t, e, s.at(e.place))
		require.NotContains(t, all, e)
		e.key, e.value, e.newer, e.older, e.index = "k", []byte("v"), 1, 2, 3
		all = append(all, e)
	}
	pieces := len(s.pieces)
	for range 2 {
		for _, e := range all {
			s.giveBack(e)
		}
		for range all {
			e := s.take()
			require.Equal(t, node{place: e.place}, *e)
			require.Same(t, e, s.at(e.place))
		}
	}
	require.Len(t, s.pieces, pieces)
}
