package pool_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/adaptivethrottler/throttler/exchange"
	"github.com/adaptivethrottler/throttler/internal/servertest"
	"github.com/adaptivethrottler/throttler/pool"
	"github.com/bradfitz/gomemcache/memcache"
	"github.com/stretchr/testify/require"
)

// A recorder notes the verbs of what is sent by the connections that it dials.
type recorder struct {
	mu    sync.Mutex
	verbs []string
}

func (r *recorder) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	nc, err := new(net.Dialer).DialContext(ctx, network, address)
	return recorded{nc, r}, err
}

// since returns the verbs since it was last called.
func (r *recorder) since() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	verbs := r.verbs
	r.verbs = nil
	return verbs
}

type recorded struct {
	net.Conn
	r *recorder
}

func (c recorded) Write(b []byte) (int, error) {
	c.r.mu.Lock()
	for line := range strings.Lines(string(b)) {
		verb, _, _ := strings.Cut(strings.TrimSpace(line), " ")
		if slices.Contains([]string{"add", "cas", "ms", "gets", "version"}, verb) {
			c.r.verbs = append(c.r.verbs, verb)
		}
	}
	c.r.mu.Unlock()
	return c.Conn.Write(b)
}

// inTurn proposes the items one after the other on what the last exchange found.
func inTurn(t *testing.T, p *pool.Pool, key string, n int) exchange.Result {
	t.Helper()
	last := run(t, p, &scripted{key: key})
	for i := range n {
		item := valued(fmt.Sprint(i), 0)
		if last.Found != nil {
			item.CasID = last.Found.CasID
		}
		last = run(t, p, &scripted{key: key, propose: always(item)})
		require.NoError(t, last.Err)
		require.True(t, last.Stored)
		require.Equal(t, fmt.Sprint(i), string(last.Found.Value))
		require.Equal(t, uint32(7), last.Found.Flags)
	}
	return last
}

func TestWritesThatAreStoredAreSoonNotReadBack(t *testing.T) {
	server := servertest.NewMemcached(t)
	p, sent := patient(t, server.Addr), new(recorder)
	p.DialContext = sent.DialContext
	inTurn(t, p, "key", 500)
	require.NotContains(t, sent.since(), "ms", "a few writes say nothing")
	inTurn(t, p, "key", 500)
	require.Contains(t, sent.since(), "ms")

	last := inTurn(t, p, "key", 10)
	require.Equal(t, slices.Concat([]string{"gets"}, slices.Repeat([]string{"ms"}, 10)), sent.since())
	item, err := p.Get("key")
	require.NoError(t, err)
	require.Equal(t, last.Found, item, "the token too")
	added := inTurn(t, p, "other", 2)
	require.Equal(t, []string{"gets", "gets", "ms", "ms"}, sent.since())
	require.NotZero(t, added.Found.CasID)

	for range 30 { // as where others write too
		r := run(t, p, &scripted{key: "key", propose: always(valued("mine", 0))})
		require.NoError(t, r.Err)
		require.False(t, r.Stored)
		require.True(t, r.Read)
		require.Equal(t, item, r.Found)
	}
	verbs := sent.since()
	require.Equal(t, []string{"ms", "gets"}, verbs[:2], "what was refused is read after all")
	require.Equal(t, []string{"add", "gets"}, verbs[len(verbs)-2:], "and soon in one round trip")
}

// Classic commands, which the first writes go by, and meta sets.
func TestAWriteThatIsRefusedBringsTheRecord(t *testing.T) {
	for _, trust := range []func(*pool.Pool){func(*pool.Pool) {}, (*pool.Pool).TrustWrites} {
		server := servertest.NewMemcached(t)
		p, other := patient(t, server.Addr), patient(t, server.Addr)
		mine := inTurn(t, p, "key", 10)
		trust(p)
		mine = inTurn(t, p, "key", 10)
		theirs := run(t, other, &scripted{key: "key", propose: always(valued("theirs", mine.Found.CasID))})
		require.True(t, theirs.Stored)

		trust(p)
		conflict := run(t, p, &scripted{key: "key", propose: always(valued("mine", mine.Found.CasID))})
		require.Equal(t, exchange.Result{Conn: mine.Conn, Read: true, Found: theirs.Found}, conflict)
		trust(p)
		taken := run(t, p, &scripted{key: "key", propose: always(valued("mine", 0))})
		require.Equal(t, exchange.Result{Conn: mine.Conn, Read: true, Found: theirs.Found}, taken)
		require.NoError(t, other.Delete("key"))
		trust(p)
		gone := run(t, p, &scripted{key: "key", propose: always(valued("mine", theirs.Found.CasID))})
		require.Equal(t, exchange.Result{Conn: mine.Conn, Read: true}, gone)
	}
}

// A metaServer answers the question whether it knows meta sets, and a meta set, as it is
// told. Everything else it stores and reads as one that has no other callers.
type metaServer struct {
	station
	question, answer string
	asked            int
}

func newMetaServer(question, answer string) *metaServer {
	s := &metaServer{question: question, answer: answer}
	s.station.answer = func(conn net.Conn, request string) {
		verb, rest, _ := strings.Cut(request, " ")
		key, _, _ := strings.Cut(rest, " ")
		switch {
		case verb == "ms" && key == pool.ProbeKey:
			s.asked++
			io.WriteString(conn, s.question)
		case verb == "ms":
			io.WriteString(conn, s.answer)
		case verb == "gets":
			answer := ""
			for key := range strings.FieldsSeq(rest) {
				answer += "VALUE " + key + " 7 5 9\r\nvalue\r\n"
			}
			io.WriteString(conn, answer+"END\r\n")
		default:
			io.WriteString(conn, "STORED\r\n")
		}
	}
	return s
}

// trusting returns a pool of s that has asked it, if it asks.
func (s *metaServer) trusting(t *testing.T) *pool.Pool {
	t.Helper()
	p := s.newPool(t, one)
	for range 2 { // the first connects, the second asks
		r := run(t, p, &scripted{key: "key", propose: always(valued("value", 9))})
		require.NoError(t, r.Err)
		require.True(t, r.Stored)
		p.TrustWrites()
	}
	require.Equal(t, 1, s.asked)
	s.heard()
	return p
}

func TestServersThatGiveNoTokenAreWrittenToByClassicCommands(t *testing.T) {
	for _, question := range []string{
		"ERROR\r\nERROR\r\n", "ERROR\r\n", "CLIENT_ERROR bad data chunk\r\nERROR\r\n",
		"HD\r\n", "HD c0\r\n", "HD k\r\n", "SERVER_ERROR out of memory storing object\r\n",
	} {
		bubble(t, func(t *testing.T) {
			s := newMetaServer(question, "")
			p := s.trusting(t)
			for range 5 {
				require.True(t, run(t, p, &scripted{key: "key", propose: always(valued("value", 9))}).Stored)
			}
			require.Len(t, s.dialled(), 1, question)
			require.False(t, slices.ContainsFunc(s.heard(), func(r string) bool { return strings.HasPrefix(r, "ms ") }))
		})
	}
}

// A meta set for which there is no memory deletes what was stored.
func TestAServerWithoutMemoryForgetsOneRecordAtMost(t *testing.T) {
	server := servertest.NewMemcached(t, "-m", "2", "-M")
	p := patient(t, server.Addr)
	inTurn(t, p, "first", 3)
	inTurn(t, p, "second", 3)
	large := strings.Repeat("x", 1000)
	for i := 0; ; i++ {
		require.Less(t, i, 10_000)
		if err := p.Add(&memcache.Item{Key: fmt.Sprint(i), Value: []byte(large), Expiration: 600}); err != nil {
			require.ErrorContains(t, err, "out of memory")
			break
		}
	}
	kept := 0
	for _, key := range []string{"first", "second", "first", "second"} {
		p.TrustWrites()
		before := run(t, p, &scripted{key: key})
		require.NoError(t, before.Err)
		if before.Found == nil {
			continue
		}
		r := run(t, p, &scripted{key: key, propose: always(valued(large, before.Found.CasID))})
		require.ErrorContains(t, r.Err, "out of memory")
		if r.Found != nil {
			kept++
		}
	}
	require.GreaterOrEqual(t, kept, 2, "the one that was not the first")
}

func TestMetaSetsThatAreRefusedTogetherReadTheirRecordsByOneCommand(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newMetaServer("HD c5\r\n", "")
		p := s.trusting(t)
		answers := s.station.answer
		s.now(func(conn net.Conn, request string) {
			if strings.HasPrefix(request, "ms key2 ") {
				io.WriteString(conn, "EX\r\nNF\r\nEX\r\n")
			}
			if !strings.HasPrefix(request, "ms ") {
				answers(conn, request)
			}
		})
		var xs []exchange.Exchange
		for i := range 3 {
			xs = append(xs, &scripted{key: fmt.Sprint("key", i), propose: always(valued("mine", 9))})
		}
		p.Exchange(context.Background(), xs...)
		for _, x := range xs {
			require.NoError(t, result(t, x).Err)
			require.False(t, result(t, x).Stored)
			require.Equal(t, "value", string(result(t, x).Found.Value))
		}
		require.Equal(t, []string{"gets key0 key1 key2"}, s.heard()[3:])
	})
}

// How a write was to be sent on a connection that is lost by then says nothing of the next.
func TestAWriteThatWasNotSentIsSentAsTheNextConnectionHasIt(t *testing.T) {
	for _, asked := range []int{0, 1} { // 0: it was to be sent with the question
		bubble(t, func(t *testing.T) {
			s := newMetaServer("HD c5\r\n", "HD c6\r\n")
			p := s.newPool(t, one)
			if asked == 1 {
				p = s.trusting(t)
			}
			answers := s.station.answer
			s.now(hangs)
			var first sync.WaitGroup
			first.Add(1)
			p.Start(&scripted{key: "first", then: first.Done}) // so that the loss is noticed
			synctest.Wait()
			p.TrustWrites()
			x := &scripted{key: "key"}
			x.propose = func(exchange.Turn) *memcache.Item {
				if len(x.turns) == 1 {
					s.now(answers)
					s.hangUp()
					time.Sleep(time.Millisecond)
				}
				return valued("mine", 9)
			}
			r := run(t, p, x)
			first.Wait()
			require.True(t, r.Stored)
			require.Len(t, x.turns, 2)
			require.NotEqual(t, x.turns[0].Conn, x.turns[1].Conn)
			require.True(t, x.turns[1].NotStored)
			require.Len(t, s.dialled(), 2)
			require.Contains(t, s.heard(), "cas key 7 600 4 9")
			require.Equal(t, asked, s.asked)
			require.Equal(t, uint64(1), p.Stats()[0].Retries, "it was never sent on the first")
		})
	}
}

// FuzzMetaAnswers lets a server say anything to three meta sets at once. Each ends, once,
// and is stored only with a token that the server has said.
func FuzzMetaAnswers(f *testing.F) {
	for _, answers := range []string{
		"HD c6\r\nHD c7\r\nHD c8\r\n", "HD c6\r\nEX\r\nNF\r\n", "NS\r\nNS\r\nNS\r\n", "HD\r\n", "HD c0\r\n",
		"HD c18446744073709551616\r\n", "SERVER_ERROR a\r\nHD c6\r\nCLIENT_ERROR b\r\n", "EN\r\n", "HD c6 \r\n", "STORED\r\nSTORED\r\n",
	} {
		f.Add([]byte(answers))
	}
	f.Fuzz(func(t *testing.T, answers []byte) {
		bubble(t, func(t *testing.T) {
			s := newMetaServer("HD c5\r\n", "")
			p := s.trusting(t)
			classic, first := s.station.answer, true
			s.now(func(conn net.Conn, request string) {
				switch {
				case !strings.HasPrefix(request, "ms "):
					classic(conn, request)
				case first:
					first = false
					conn.Write(answers)
				}
			})
			var xs []exchange.Exchange
			for i := range 3 {
				xs = append(xs, &scripted{key: fmt.Sprint("key", i), propose: always(valued("value", 9))})
			}
			require.LessOrEqual(t, took(func() { p.Exchange(context.Background(), xs...) }), 2*timeout+2*pool.DefaultDialTimeout)
			for _, x := range xs {
				x := x.(*scripted)
				require.Len(t, x.results, 1)
				if r := x.results[0]; r.Stored && r.Found.CasID != 9 {
					require.Contains(t, string(answers), fmt.Sprint(r.Found.CasID))
				}
			}
		})
	})
}
