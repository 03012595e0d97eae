package storetest

import (
	"context"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/adaptivethrottler/throttler/exchange"
	"github.com/bradfitz/gomemcache/memcache"
	"github.com/stretchr/testify/require"
)

// A probe is an exchange that writes one item.
type probe struct {
	key   string
	item  func(exchange.Turn) *memcache.Item
	after func() // called by Done; nil: nothing

	turns, dones atomic.Int64
	turn         exchange.Turn
	result       exchange.Result
	done         chan struct{}
}

func (s *suite) probe(name string, item func(exchange.Turn) *memcache.Item) *probe {
	return &probe{key: s.key(name), item: item, done: make(chan struct{})}
}

func (p *probe) Key() string { return p.key }

func (p *probe) Propose(turn exchange.Turn) *memcache.Item {
	p.turns.Add(1)
	p.turn = turn
	if p.item == nil {
		return nil
	}
	return p.item(turn)
}

func (p *probe) Done(r exchange.Result) {
	p.result = r
	if p.dones.Add(1) == 1 {
		close(p.done)
	}
	if p.after != nil {
		p.after()
	}
}

// writing returns what proposes an item with a value: to replace the one with a token, or
// none. It proposes nothing if the turn says that the record is another one.
func (s *suite) writing(name, value string, token uint64) func(exchange.Turn) *memcache.Item {
	return func(turn exchange.Turn) *memcache.Item {
		item := &memcache.Item{Key: s.key(name), Value: []byte(value), Flags: 9, Expiration: 60, CasID: token}
		found := uint64(0)
		if turn.Found != nil {
			found = turn.Found.CasID
		}
		if turn.Known && found != token {
			return nil
		}
		return item
	}
}

// exchange checks a client that is an Exchanger.
func (s *suite) exchange() {
	x, ok := s.a.(exchange.Exchanger)
	if !ok {
		s.Skip("the client is no exchange.Exchanger: it reads and then writes")
	}
	s.exchangeOne(x)
	s.exchangeMany(x)
	s.exchangeLeft(x)
	s.exchangeAgain(x)
}

// run carries probes out and requires that each was done once, without an error.
func (s *suite) run(x exchange.Exchanger, probes ...*probe) {
	xs := make([]exchange.Exchange, len(probes))
	for i, p := range probes {
		xs[i] = p
	}
	x.Exchange(context.Background(), xs...)
	for _, p := range probes {
		require.EqualValues(s, 1, p.dones.Load(), "Done is called once, before Exchange returns")
		require.NoError(s, p.result.Err)
		require.False(s, p.result.Unknown)
		require.NotZero(s, p.turns.Load(), "Propose is called")
	}
}

// exchangeOne checks a read, an add, a swap and a conflict.
func (s *suite) exchangeOne(x exchange.Exchanger) {
	read := s.probe("one", nil)
	s.run(x, read)
	require.True(s, read.result.Read)
	require.Nil(s, read.result.Found)
	require.False(s, read.result.Stored)

	added := s.probe("one", s.writing("one", "first", 0))
	s.run(x, added)
	require.True(s, added.result.Stored)
	read = s.probe("one", nil)
	s.run(x, read)
	require.True(s, read.result.Read)
	require.Equal(s, "first", string(read.result.Found.Value))
	require.EqualValues(s, 9, read.result.Found.Flags)
	if added.result.Read {
		require.Equal(s, "first", string(added.result.Found.Value))
		require.Equal(s, read.result.Found.CasID, added.result.Found.CasID, "the token of what was written")
	}
	item, err := s.b.Get(s.key("one"))
	require.NoError(s, err)
	require.Equal(s, "first", string(item.Value))

	again := s.probe("one", s.writing("one", "second", 0))
	s.run(x, again)
	require.False(s, again.result.Stored, "an add where there is a record")
	swapped := s.probe("one", s.writing("one", "third", read.result.Found.CasID))
	s.run(x, swapped)
	require.True(s, swapped.result.Stored)
	late := s.probe("one", s.writing("one", "fourth", read.result.Found.CasID))
	s.run(x, late)
	require.False(s, late.result.Stored, "a swap of what has changed")
	if late.result.Read {
		require.Equal(s, "third", string(late.result.Found.Value))
	}
	if swapped.turn.Conn != 0 && swapped.turn.Conn == late.turn.Conn && swapped.result.Read {
		next := s.probe("one", s.writing("one", "fifth", swapped.result.Found.CasID))
		s.run(x, next)
		require.True(s, next.result.Stored, "the token of an exchange is good for the next")
	}
}

// exchangeMany checks several at once, from several goroutines.
func (s *suite) exchangeMany(x exchange.Exchanger) {
	var wg sync.WaitGroup
	all := make([][]*probe, 8)
	for g := range all {
		for i := range 40 {
			name := "many" + strconv.Itoa(g) + "-" + strconv.Itoa(i)
			all[g] = append(all[g], s.probe(name, s.writing(name, name, 0)))
		}
		wg.Go(func() {
			xs := make([]exchange.Exchange, len(all[g]))
			for i, p := range all[g] {
				xs[i] = p
			}
			x.Exchange(context.Background(), xs...)
		})
	}
	wg.Wait()
	for _, probes := range all {
		for _, p := range probes {
			require.EqualValues(s, 1, p.dones.Load())
			require.NoError(s, p.result.Err)
			require.True(s, p.result.Stored)
			item, err := s.a.Get(p.key)
			require.NoError(s, err)
			require.Equal(s, p.key, s.key(string(item.Value)), "each record has its own value")
		}
	}
}

// exchangeLeft checks that an exchange whose ctx has ended is carried out all the same.
func (s *suite) exchangeLeft(x exchange.Exchanger) {
	ended, end := context.WithCancel(context.Background())
	end()
	p := s.probe("left", s.writing("left", "x", 0))
	x.Exchange(ended, p)
	s.await(p)
	require.True(s, p.result.Stored)
}

// exchangeAgain checks Start, and that Done may call it.
func (s *suite) exchangeAgain(x exchange.Exchanger) {
	second := s.probe("again", nil)
	first := s.probe("again", s.writing("again", "x", 0))
	first.after = func() { x.Start(second) }
	x.Start(first)
	s.await(first)
	s.await(second)
	require.True(s, first.result.Stored)
	require.Equal(s, "x", string(second.result.Found.Value))
}

// await waits until p is done.
func (s *suite) await(p *probe) {
	select {
	case <-p.done:
	case <-time.After(10 * time.Second):
		require.Fail(s, "Done is not called")
	}
	require.NoError(s, p.result.Err)
}
