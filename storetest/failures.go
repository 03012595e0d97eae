package storetest

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"sync/atomic"

	"github.com/adaptivethrottler/throttler"
	"github.com/bradfitz/gomemcache/memcache"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A faulty client loses requests and answers, and returns errors.
type faulty struct {
	throttler.Client
	faults atomic.Int64
}

// errFaulty is an error of a server that answers.
var errFaulty = errors.New("storetest: SERVER_ERROR")

// lose returns an error instead of an answer, once in ten times. done says that the
// request is carried out all the same.
func (f *faulty) lose() (done bool, err error) {
	fate := rand.IntN(60)
	if fate >= 6 {
		return true, nil
	}
	f.faults.Add(1)
	return fate%2 == 0, []error{io.EOF, os.ErrDeadlineExceeded, errFaulty}[fate/2]
}

func (f *faulty) write(do func() error) error {
	done, lost := f.lose()
	if !done {
		return lost
	}
	if err := do(); lost == nil {
		return err
	}
	return lost
}

func (f *faulty) Add(item *memcache.Item) error {
	return f.write(func() error { return f.Client.Add(item) })
}

func (f *faulty) CompareAndSwap(item *memcache.Item) error {
	return f.write(func() error { return f.Client.CompareAndSwap(item) })
}

func (f *faulty) Delete(key string) error {
	return f.write(func() error { return f.Client.Delete(key) })
}

func (f *faulty) Get(key string) (*memcache.Item, error) {
	if _, err := f.lose(); err != nil {
		return nil, err
	}
	return f.Client.Get(key)
}

func (f *faulty) GetMulti(keys []string) (map[string]*memcache.Item, error) {
	if _, err := f.lose(); err != nil {
		return nil, err
	}
	return f.Client.GetMulti(keys)
}

// failures checks that errors admit nobody too many: an admission without an error has
// been counted, and there are no more than Max.
func (s *suite) failures() {
	const most, values = 20, 10
	client := &faulty{Client: s.a}
	th := throttler.New(client)
	other := throttler.New(s.b)
	admitted := make([]atomic.Int64, values)
	var failed atomic.Int64
	var wg sync.WaitGroup
	for range 8 {
		for _, th := range []*throttler.Throttler{th, other} {
			wg.Go(func() {
				for i := range 4 * values {
					d, err := th.Authorize(context.Background(), s.rule(strconv.Itoa(i%values), most))
					switch {
					case !assert.NoError(s, err):
						return
					case d.Err != nil:
						failed.Add(1)
					case d.Status == throttler.Authorized:
						admitted[i%values].Add(1)
					}
				}
			})
		}
	}
	wg.Wait()
	require.NotZero(s, client.faults.Load())
	require.NotZero(s, failed.Load())
	for i := range admitted {
		n := admitted[i].Load()
		require.LessOrEqual(s, n, int64(most), "admitted without an error")
		d, err := other.Peek(context.Background(), s.rule(strconv.Itoa(i), most+1))
		require.NoError(s, err)
		require.NoError(s, d.Err)
		require.LessOrEqual(s, n, int64(most-d.Outcomes[0].Remaining), "each hit that was admitted is stored")
	}
}
