package fanout_test

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/adaptivethrottler/throttler/internal/fanout"
)

func TestByMakesOneGroupForEachServer(t *testing.T) {
	for _, test := range []struct {
		requests string // each a letter, capital ones of server true
		groups   map[bool]string
	}{
		{"", map[bool]string{}},
		{"a", map[bool]string{false: "a"}},
		{"ab", map[bool]string{false: "ab"}},
		{"aBcD", map[bool]string{false: "ac", true: "BD"}},
		{"BacDe", map[bool]string{false: "ace", true: "BD"}},
	} {
		groups := map[bool]string{}
		capital := func(r byte) bool { return r < 'a' }
		fanout.By([]byte(test.requests), capital, func(of bool, group []byte) {
			require.NotContains(t, groups, of)
			require.Equal(t, len(group), cap(group), "to append to it harms no other")
			slices.Sort(group)
			groups[of] = string(group)
		})
		require.Equal(t, test.groups, groups)
	}
}

func TestALatchOpensWhenItsLastRequestEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l fanout.Latch
		require.True(t, l.Open())
		for n := 1; n < 4; n++ {
			l.Hold(n)
			begun := time.Now()
			for i := range n {
				time.AfterFunc(time.Duration(1+i)*time.Second, func() {
					require.False(t, l.Open())
					l.Ended()
				})
			}
			require.True(t, l.Wait(t.Context()))
			require.True(t, l.Open())
			require.Equal(t, time.Duration(n)*time.Second, time.Since(begun))
		}
		l.Hold(1)
		time.AfterFunc(time.Second, l.Ended)
		require.True(t, l.Wait(context.Background()))
	})
}

func TestAWaitEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l fanout.Latch
		l.Hold(1)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		require.False(t, l.Wait(ctx))
		l.Ended()
		require.True(t, l.Wait(t.Context()), "it may be waited for again")
	})
}

func TestANilLatchIsForNobody(t *testing.T) {
	var l *fanout.Latch
	l.Ended()
	require.False(t, l.Open())
}

func TestABatchIsUsedAgainAsIfItWereNew(t *testing.T) {
	var batches fanout.Batches[int]
	for _, n := range []int{0, 1, 64, 65, 2} {
		b := batches.Get(n)
		require.Len(t, b.All, n)
		require.False(t, slices.ContainsFunc(b.All, func(r int) bool { return r != 0 }))
		require.Empty(t, b.Admitted)
		require.Empty(t, b.Refused)
		for i := range b.All {
			b.All[i] = i + 1
		}
		b.Admit(func(r *int) bool { return *r%2 > 0 })
		require.Len(t, b.Admitted, (n+1)/2)
		require.Len(t, b.Refused, n/2)
		for i, r := range b.Refused {
			require.Same(t, &b.All[2*i+1], r)
		}
		require.Same(t, b.Latch(0), b.Latch(0))
		batches.Put(b)
	}
}
