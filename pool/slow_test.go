package pool_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/pool"
	"github.com/bradfitz/gomemcache/memcache"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const megabyte = 1 << 20

// trickles answers a request that has the key huge with a value of a megabyte, which
// takes so long, and others as other does.
func trickles(long time.Duration, other func(net.Conn, string)) func(net.Conn, string) {
	const pieces = 100
	return func(conn net.Conn, request string) {
		if request != "gets huge" {
			other(conn, request)
			return
		}
		answer := fmt.Sprintf("VALUE huge 0 %d 7\r\n%s\r\nEND\r\n", megabyte, strings.Repeat("v", megabyte))
		for i := range pieces {
			time.Sleep(long / pieces)
			piece := answer[i*len(answer)/pieces : (i+1)*len(answer)/pieces]
			if _, err := io.WriteString(conn, piece); err != nil {
				return
			}
		}
	}
}

// behind makes calls that come a millisecond after one another, the first of them for
// the huge value. It returns when each has ended, and the error of that one.
func behind(p *pool.Pool, call func(i int)) (ended []time.Duration, err error) {
	p.Get("connect")
	begin := time.Now()
	ended = make([]time.Duration, 8)
	atOnce(len(ended), func(i int) {
		time.Sleep(time.Duration(i) * time.Millisecond)
		if i == 0 {
			_, err = p.Get("huge")
		} else {
			call(i)
		}
		ended[i] = time.Since(begin)
	})
	return ended, err
}

// A huge value delays the calls behind it for as long as its bytes take, or its own
// timeout, and fails none of them.
func TestAHugeValueFailsNoCallBehindIt(t *testing.T) {
	for long, c := range map[time.Duration]struct {
		ends  time.Duration
		fails bool
	}{
		100 * time.Millisecond: {ends: 100 * time.Millisecond},
		400 * time.Millisecond: {ends: timeout, fails: true},
	} {
		t.Run(long.String(), func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				s := &station{answer: trickles(long, holds())}
				p := s.newPool(t, one)
				p.DialContext = deepConns(s, nil)
				p.BreakerFailures = 2
				ended, err := behind(p, func(i int) {
					key := fmt.Sprint("key", i)
					if i%2 == 0 {
						x := writes(key)[0]
						p.Exchange(context.Background(), x)
						assert.NoError(t, x.(*scripted).results[0].Err)
						assert.True(t, x.(*scripted).results[0].Stored)
						return
					}
					item, err := p.Get(key)
					if assert.NoError(t, err) {
						assert.Equal(t, key, string(item.Value))
					}
				})
				for _, end := range ended {
					require.Equal(t, c.ends, end)
				}
				stats := p.Stats()[0]
				require.False(t, stats.Down)
				if !c.fails {
					require.NoError(t, err)
					require.Len(t, s.dialled(), 1)
					return
				}
				require.ErrorContains(t, err, "timeout")
				require.ErrorIs(t, err, throttler.ErrUnavailable)
				require.Len(t, s.dialled(), 2)
				require.Equal(t, uint64(1), stats.Failures)
				require.Equal(t, uint64(7), stats.Retries)
			})
		})
	}
}

// What was written behind a huge value may have been stored, as after any connection
// that is lost.
func TestAWriteBehindAHugeValueIsMadeAgain(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := &station{answer: trickles(time.Second, misses)}
		p := s.newPool(t, one)
		p.DialContext = deepConns(s, nil)
		ended, _ := behind(p, func(i int) {
			err := p.Add(item(fmt.Sprint("key", i)))
			assert.ErrorIs(t, err, memcache.ErrNotStored)
			assert.True(t, maybeDone(err))
		})
		for _, end := range ended {
			require.Equal(t, timeout, end)
		}
	})
}

// A call is sent twice at most: it ends in time if the second connection is no better.
func TestACallBehindAnswersThatNeverEndIsEndedInTime(t *testing.T) {
	bubbles(t, map[string]func(net.Conn, string){
		"a byte now and then": func(conn net.Conn, request string) {
			_, err := fmt.Fprintf(conn, "VALUE %s 0 1000 7\r\n", strings.Fields(request)[1])
			for err == nil {
				time.Sleep(timeout / 10)
				_, err = io.WriteString(conn, "x")
			}
		},
		"nothing after the first bytes": func(conn net.Conn, request string) {
			time.Sleep(time.Millisecond)
			fmt.Fprintf(conn, "VALUE %s 0 1000 7\r\n", strings.Fields(request)[1])
			io.Copy(io.Discard, conn)
		},
	}, func(t *testing.T, answer func(net.Conn, string)) {
		s := &station{answer: misses}
		p := s.newPool(t, one)
		p.DialContext = deepConns(s, nil)
		p.Get("connect")
		s.now(answer)
		for i, took := range atOnce(20, func(i int) {
			time.Sleep(time.Duration(i) * time.Millisecond)
			_, err := p.Get(fmt.Sprint("key", i))
			assert.ErrorContains(t, err, "timeout")
			assert.ErrorIs(t, err, throttler.ErrUnavailable)
		}) {
			require.LessOrEqual(t, took, 2*timeout, "call %d", i)
		}
		require.Len(t, s.dialled(), 2)
	})
}

// In a group the one whose record it is fails, and the others are made again.
func TestARecordThatComesSlowlyFailsNobodyElseInItsGroup(t *testing.T) {
	bubble(t, func(t *testing.T) {
		slow := true
		s := &station{answer: func(conn net.Conn, request string) {
			if !slow {
				holds()(conn, request)
				return
			}
			slow = false
			_, err := io.WriteString(conn, "VALUE key00 0 1 7\r\nx\r\nVALUE key02 0 1000 7\r\n")
			for err == nil {
				time.Sleep(timeout / 10)
				_, err = io.WriteString(conn, "x")
			}
		}}
		p := s.newPool(t, one)
		xs := reads(numbered(4)...)
		require.Equal(t, timeout, took(func() { p.Exchange(context.Background(), xs...) }))
		requireFailsAlone(t, xs, 2, "timeout")
		require.Equal(t, uint64(3), p.Stats()[0].Retries)
	})
}
