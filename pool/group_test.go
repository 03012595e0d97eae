package pool_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/adaptivethrottler/throttler/exchange"
	"github.com/stretchr/testify/require"
)

// writes returns exchanges that add an item each, at the given keys.
func writes(keys ...string) (xs []exchange.Exchange) {
	for _, key := range keys {
		xs = append(xs, &scripted{key: key, propose: always(valued("mine", 0))})
	}
	return xs
}

// reads returns exchanges that only read.
func reads(keys ...string) (xs []exchange.Exchange) {
	for _, key := range keys {
		xs = append(xs, &scripted{key: key})
	}
	return xs
}

func result(t *testing.T, x exchange.Exchange) exchange.Result {
	t.Helper()
	results := x.(*scripted).results
	require.Len(t, results, 1)
	return results[0]
}

// numbered returns n keys.
func numbered(n int) (keys []string) {
	for i := range n {
		keys = append(keys, fmt.Sprintf("key%02d", i))
	}
	return keys
}

// holds answers as a server does that takes every write, and has a value at the
// given keys.
func holds(keys ...string) func(net.Conn, string) {
	return func(conn net.Conn, request string) {
		list, gets := strings.CutPrefix(request, "gets ")
		if !gets {
			io.WriteString(conn, "STORED\r\n")
			return
		}
		answer := ""
		for _, key := range strings.Fields(list) {
			if len(keys) == 0 || strings.Contains(strings.Join(keys, " "), key) {
				answer += fmt.Sprintf("VALUE %s 0 %d 7\r\n%s\r\n", key, len(key), key)
			}
		}
		io.WriteString(conn, answer+"END\r\n")
	}
}

// memcached answers 20 commands before it looks at its other connections.
func TestExchangesAtOnceReadTheirRecordsByOneCommand(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := &station{answer: holds()}
		p := s.newPool(t, one)
		keys := numbered(40)
		xs := writes(keys...)
		p.Exchange(context.Background(), xs...)
		var verbs []string
		heard := s.heard()
		for _, request := range heard {
			verbs = append(verbs, strings.Fields(request)[0])
		}
		turn := strings.Repeat("add ", 19) + "gets "
		require.Equal(t, strings.Fields(turn+turn+"add add gets"), verbs)
		require.Equal(t, keys, keysRead(heard))
		for i, x := range xs {
			r := result(t, x)
			require.NoError(t, r.Err)
			require.True(t, r.Stored && r.Read)
			require.Equal(t, keys[i], string(r.Found.Value))
		}
	})
}

// A read that is no exchange's comes between those of two groups.
func TestAReadBetweenExchangesIsInTheirGroup(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := &station{answer: holds(), dial: func(context.Context) error {
			time.Sleep(time.Millisecond) // so that all are in one packet
			return nil
		}}
		p := s.newPool(t, one)
		xs := writes("key00", "key01")
		p.Start(xs[0])
		go p.Get("read")
		synctest.Wait()
		p.Start(xs[1])
		time.Sleep(timeout)
		synctest.Wait()
		for _, x := range xs {
			require.NoError(t, result(t, x).Err)
			require.Equal(t, x.Key(), string(result(t, x).Found.Value))
		}
		require.Contains(t, s.heard(), "gets key00 read key01")
		require.Zero(t, p.Stats()[0].Retries)
	})
}

// Two Throttlers may share a Pool and ask for the same record.
func TestTheSameKeyTwiceAtOnceIsReadTwice(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := &station{answer: holds()}
		p := s.newPool(t, one)
		xs := writes("key", "other", "key")
		p.Exchange(context.Background(), xs...)
		for _, x := range xs {
			require.NoError(t, result(t, x).Err)
			require.True(t, result(t, x).Read)
		}
		heard := s.heard()
		require.Equal(t, []string{"gets key other", "gets key"}, []string{heard[2], heard[4]})
	})
}

// An old server takes a longer one for a mistake.
func TestTheCommandOfAGroupIsAShortLine(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := &station{answer: holds()}
		p := s.newPool(t, one)
		var keys []string
		for i := range 10 {
			keys = append(keys, fmt.Sprintf("%0*d", 150, i))
		}
		p.Exchange(context.Background(), writes(keys...)...)
		heard := s.heard()
		require.Equal(t, keys, keysRead(heard))
		for _, request := range heard {
			require.LessOrEqual(t, len(request)+len("\r\n"), 1024)
		}
		require.Len(t, heard, 10+2)

		for last, reads := range map[int]int{201: 1, 202: 2} { // 1024 bytes are allowed, with the line's end
			keys := []string{strings.Repeat("x", last)}
			for i := range 4 {
				keys = append(keys, fmt.Sprintf("%0*d", 203, i))
			}
			p.Exchange(context.Background(), writes(keys...)...)
			require.Len(t, s.heard(), len(keys)+reads, "%d bytes", len("gets\r\n")+4*204+1+last)
		}
	})
}

// answering returns a station that answers one request of a kind with something
// else, once.
func answering(prefix, answer string) *station {
	used := false
	return &station{answer: func(conn net.Conn, request string) {
		if !used && strings.HasPrefix(request, prefix) {
			used = true
			io.WriteString(conn, answer)
			return
		}
		holds()(conn, request)
	}}
}

// What becomes of a group of four, to which something else is answered once: of those that write,
// and of those that only read. One is "failed" with the text of err.
func TestAnErrorInAGroup(t *testing.T) {
	const again = "guess guess stored read"
	reread := [4]string{"guess guess read", "guess guess read", "guess guess read", "guess guess read"}
	bubbles(t, map[string]struct {
		prefix, answer string // to the first request with that prefix
		err            string
		writes, reads  [4]string // the zero value: not tried
	}{
		"a write that the server cannot take": {
			prefix: "add key01", answer: "SERVER_ERROR out of memory storing object\r\n", err: "out of memory",
			writes: [4]string{"guess stored read", "guess read failed", "guess stored read", "guess stored read"},
		},
		"a write that the server does not understand": {
			prefix: "add key01", answer: "CLIENT_ERROR bad data chunk\r\n", err: "bad data chunk",
			writes: [4]string{"guess stored failed", "guess failed", again, again},
		},
		"an answer to a write that is none": {
			prefix: "add key01", answer: "TUESDAY\r\n", err: "not an answer of memcached",
			writes: [4]string{again, "guess unknown failed", again, again},
		},
		"an answer to a write that does not end": {
			prefix: "add key01", answer: strings.Repeat("x", 3000), err: "not an answer of memcached",
			writes: [4]string{again, "guess unknown failed", again, again},
		},
		"a command that the server does not understand": {
			prefix: "gets", answer: "CLIENT_ERROR line too long\r\n", err: "line too long",
			writes: [4]string{"guess stored failed", "guess stored failed", "guess stored failed", "guess stored failed"},
		},
		"records that the server cannot send": {
			prefix: "gets", answer: "SERVER_ERROR out of memory writing get response\r\n", err: "out of memory",
			writes: [4]string{"guess stored failed", "guess stored failed", "guess stored failed", "guess stored failed"},
		},
		"a record that is too large": {
			prefix: "gets", answer: "VALUE key00 0 1 1\r\nx\r\nVALUE key02 0 99999999 1\r\n", err: "99999999 bytes",
			writes: [4]string{"guess stored failed", "guess stored failed", "guess stored failed", "guess stored failed"},
			reads:  [4]string{reread[0], reread[1], "guess failed", reread[3]},
		},
		"a record that comes twice": {
			prefix: "gets", answer: "VALUE key00 0 1 1\r\nx\r\n" + strings.Repeat("VALUE key02 0 1 1\r\nx\r\n", 2) + "END\r\n",
			err:   "more items than were asked for",
			reads: [4]string{reread[0], reread[1], "guess failed", reread[3]},
		},
		"a record of another key": {
			prefix: "gets", answer: "VALUE key00 0 1 1\r\nx\r\nVALUE victim 0 1 1\r\nx\r\nEND\r\n",
			writes: [4]string{again, again, again, again},
			reads:  reread,
		},
		"nonsense among the records": { // whose it would have been is not known
			prefix: "gets", answer: "VALUE key01 0 1 1\r\nx\r\nTUESDAY\r\n", err: "TUESDAY",
			writes: [4]string{"guess unknown failed", again, again, again},
			reads:  [4]string{"guess failed", reread[1], reread[2], reread[3]},
		},
	}, func(t *testing.T, c struct {
		prefix, answer string
		err            string
		writes, reads  [4]string
	}) {
		for _, test := range []struct {
			want [4]string
			xs   []exchange.Exchange
		}{{c.writes, writes(numbered(4)...)}, {c.reads, reads(numbered(4)...)}} {
			if test.want == [4]string{} {
				continue
			}
			s := answering(c.prefix, c.answer)
			p := s.newPool(t, one)
			p.Exchange(context.Background(), test.xs...)
			lost := false
			for i, x := range test.xs {
				r := result(t, x)
				turns, ended := inWords(x.(*scripted).turns, r)
				require.Equal(t, test.want[i], turns+" "+ended, "%d: %v", i, r.Err)
				if r.Err != nil {
					require.ErrorContains(t, r.Err, c.err)
					require.Less(t, len(r.Err.Error()), 250)
				}
				if r.Err == nil {
					require.Equal(t, x.Key(), string(r.Found.Value))
				}
				lost = lost || len(x.(*scripted).turns) == 2
			}
			require.NoError(t, run(t, p, &scripted{key: "key"}).Err)
			if lost {
				require.Len(t, s.dialled(), 2)
			}
		}
	})
}

// The error of a member's write is told, not that of the records, which came later.
func TestAMemberKeepsTheErrorOfItsWrite(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := (&station{answer: func(conn net.Conn, request string) {
			io.WriteString(conn, "SERVER_ERROR of "+request+"\r\n")
		}}).newPool(t, one)
		xs := writes(numbered(2)...)
		xs = append(xs, &scripted{key: "read"})
		p.Exchange(context.Background(), xs...)
		for i, want := range []string{"add key00", "add key01", "gets key00 key01 read"} {
			require.ErrorContains(t, result(t, xs[i]).Err, "SERVER_ERROR of "+want)
		}
	})
}

// requireFailsAlone requires that the exchange at index failed has failed with the given
// text, and that the others have read their records.
func requireFailsAlone(t *testing.T, xs []exchange.Exchange, failed int, text string) {
	t.Helper()
	for i, x := range xs {
		if i == failed {
			require.ErrorContains(t, result(t, x).Err, text)
			continue
		}
		require.NoError(t, result(t, x).Err)
		require.Equal(t, x.Key(), string(result(t, x).Found.Value))
	}
}

func TestRecordsMayComeInAnyOrderOrBeMissing(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := (&station{answer: func(conn net.Conn, request string) {
			keys := strings.Fields(request)[1:]
			slices.Reverse(keys)
			holds("key00", "key02", "key03")(conn, "gets "+strings.Join(keys, " "))
		}}).newPool(t, one)
		keys := numbered(5)
		xs := reads(keys...)
		p.Exchange(context.Background(), xs...)
		for i, x := range xs {
			require.NoError(t, result(t, x).Err)
			require.True(t, result(t, x).Read)
			if i == 1 || i == 4 {
				require.Nil(t, result(t, x).Found)
			} else {
				require.Equal(t, x.Key(), string(result(t, x).Found.Value))
			}
		}
		items, err := p.GetMulti(keys)
		require.NoError(t, err)
		require.Len(t, items, 3)
		for key, item := range items {
			require.Equal(t, key, string(item.Value))
		}
	})
}

// A proxy may send the keys of one command to several servers: behind one, each
// record is read by itself.
func TestNothingIsReadTogetherBehindAProxy(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := &station{answer: holds()}
		p := s.newPool(t, one)
		p.Proxy = true
		xs := writes(numbered(3)...)
		p.Exchange(context.Background(), xs...)
		_, err := p.GetMulti(numbered(3))
		require.NoError(t, err)
		for _, request := range s.heard() {
			require.LessOrEqual(t, len(keysRead([]string{request})), 1)
		}
	})
}

// As the comment of Pool says, an answer may take Timeout for each of its parts.
func TestEachPartOfTheAnswersToAGroupMayTakeTheTimeout(t *testing.T) {
	bubble(t, func(t *testing.T) {
		const each = timeout - 1
		s := &station{answer: func(conn net.Conn, request string) {
			verb, keys, _ := strings.Cut(request, " ")
			if verb == "add" {
				time.Sleep(each)
				io.WriteString(conn, "STORED\r\n")
				return
			}
			for _, key := range strings.Fields(keys) {
				time.Sleep(each)
				fmt.Fprintf(conn, "VALUE %s 0 1 7\r\nx\r\n", key)
			}
			time.Sleep(each)
			io.WriteString(conn, "END\r\n")
		}}
		p := s.newPool(t, one)
		p.DialContext = deepConns(s, nil)
		p.QueueTimeout = time.Hour
		xs := writes(numbered(2)...)
		require.Equal(t, (2*2+1)*each, took(func() { p.Exchange(context.Background(), xs...) }))
		for _, x := range xs {
			require.NoError(t, result(t, x).Err)
		}
	})
}
