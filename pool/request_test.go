package pool_test

import (
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/adaptivethrottler/throttler/exchange"
	"github.com/adaptivethrottler/throttler/pool"
	"github.com/bradfitz/gomemcache/memcache"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// What an exchange sends next, whatever became of what it sent before. In a dialogue
// "cas=EXISTS" is a command and its answer: "lost" if the connection is lost instead, with a
// "+" if it is lost right after, before anything else is sent; "." is a blank. "server" and "proxy" are what
// further connections lead to.
func TestWhatAnExchangeSendsNext(t *testing.T) {
	for _, test := range []struct{ dialogue, turns, result string }{
		{"server cas=STORED gets=value", "guess", "stored read"},
		{"server cas=EXISTS gets=value", "guess", "read"},
		{"server cas=STORED gets=lost", "guess", "stored failed"},
		{"server cas=lost cas=lost", "guess guess", "unknown failed"},
		{"server cas=lost cas=STORED gets=value", "guess guess", "stored read"},
		{"server cas=lost cas=EXISTS gets=lost", "guess guess", "unknown failed"},
		{"server cas=lost proxy gets=value cas=EXISTS gets=value", "guess known", "read conn=0"},
		{"server cas=SERVER_ERROR gets=value", "guess", "read failed"},
		{"server cas=SERVER_ERROR gets=SERVER_ERROR", "guess", "failed"},
		{"server cas=EXISTS gets=lost cas=STORED gets=value", "guess guess:notStored", "stored read"},
		{"server cas=EXISTS gets=another cas=STORED gets=value", "guess guess", "stored read"},
		{"server cas=EXISTS gets=lost cas=EXISTS gets=lost", "guess guess:notStored", "failed"},
		{"server cas=lost cas=STORED gets=lost", "guess guess", "stored failed"},
		{"server cas=lost cas=EXISTS gets=value", "guess guess", "read"},
		{"server cas=STORED gets=another cas=STORED gets=another", "guess guess", "unknown failed"},
		{"server cas=STORED gets=twice", "guess", "unknown failed"},
		{"server cas=STORED gets=TUESDAY", "guess", "unknown failed"},
		{"server cas=STORED gets=huge", "guess", "stored failed"},
		{"server cas=TUESDAY gets=value", "guess", "unknown failed"},
		{"server cas=half gets=value", "guess", "unknown failed"},
		{"server cas=CLIENT_ERROR gets=value", "guess", "failed"},
		{"server cas=EXISTS gets=lost proxy gets=value cas=STORED gets=value", "guess known:notStored", "stored read conn=0"},

		{"asking ms=HD cas=STORED gets=value", "guess", "stored read"},
		{"asking ms=lost cas=STORED gets=value", "guess guess", "stored read"},
		{"trusted ms=HD", "guess", "stored read"},
		{"trusted ms=EX gets=value", "guess", "read"},
		{"trusted ms=SERVER_ERROR gets=value", "guess", "read failed"},
		{"trusted ms=HD.", "guess", "unknown failed"},
		{"trusted ms=HD.c0", "guess", "unknown failed"},
		{"trusted ms=HD.x1", "guess", "unknown failed"},
		{"trusted ms=HD.c", "guess", "unknown failed"},
		{"trusted ms=HD.c1.x", "guess", "unknown failed"},
		{"trusted ms=STORED", "guess", "unknown failed"},
		{"trusted ms=", "guess", "unknown failed"},
		{"asking ms=TUESDAY cas=STORED", "guess", "unknown failed"},
		{"trusted ms=lost cas=STORED gets=value", "guess guess", "stored read"},
		{"trusted ms=lost proxy gets=value cas=STORED gets=value", "guess known", "stored read conn=0"},
		{"trusted ms=EX gets=lost cas=STORED gets=value", "guess guess:notStored", "stored read"},
		{"trusted ms=EX gets=another cas=STORED gets=value", "guess guess", "stored read"},
		{"trusted ms=EX gets=lost proxy gets=value cas=STORED gets=value", "guess known:notStored", "stored read conn=0"},
		{"trusted ms=EX+ gets=value", "guess", "read conn=next"},
		{"trusted ms=EX+ gets=lost cas=STORED gets=value", "guess guess:notStored", "stored read"},
		{"trusted ms=EX+ proxy gets=lost gets=value cas=STORED gets=value", "guess known:notStored", "stored read conn=0"},
		{"trusted ms=EX+ proxy gets=value cas=STORED gets=value", "guess known:notStored", "stored read conn=0"},
		{"trusted ms=EX+ proxy gets=value+ server cas=STORED gets=value", "guess known:notStored", "stored read conn=0"},
		{"trusted ms=SERVER_ERROR+ proxy gets=value", "guess", "read failed conn=0"},

		{"proxy gets=value cas=STORED gets=value", "known", "stored read conn=0"},
		{"proxy gets=value cas=EXISTS gets=value", "known", "read conn=0"},
		{"proxy gets=SERVER_ERROR", "", "failed conn=0"},
		{"proxy gets=lost gets=value cas=STORED gets=value", "known", "stored read conn=0"},
		{"proxy gets=lost server cas=STORED gets=value", "guess", "stored read"},
		{"proxy gets=value+ cas=STORED gets=value", "known", "stored read conn=0"},
		{"proxy gets=value+ server cas=STORED gets=value", "known", "stored read conn=0"},
		{"proxy gets=value cas=lost gets=value cas=STORED gets=value", "known known", "stored read conn=0"},
		{"proxy gets=value cas=lost server cas=STORED gets=value", "known guess", "stored read"},
		{"proxy gets=value cas=EXISTS gets=lost gets=value cas=STORED gets=value", "known known:notStored", "stored read conn=0"},
		{"proxy gets=value cas=SERVER_ERROR gets=value", "known", "read unknown failed conn=0"},
		{"proxy gets=value cas=SERVER_ERROR gets=SERVER_ERROR", "known", "unknown failed conn=0"},
		{"proxy gets=value cas=memory gets=value", "known", "read failed conn=0"},
		{"proxy gets=value cas=large gets=value", "known", "read failed conn=0"},
		{"proxy gets=value cas=SERVER_ERROR gets=lost gets=value cas=STORED gets=value", "known known", "stored read conn=0"},
	} {
		t.Run(test.dialogue, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				p, end := dialogue(t, test.dialogue)
				x := &scripted{key: "key", propose: always(valued("mine", 9))}
				r := run(t, p, x)
				end()
				turns, result := inWords(x.turns, r)
				require.Equal(t, test.turns, turns)
				require.Equal(t, test.result, result)
			})
		})
	}
}

// What a method of the client returns. If its answer was lost, any other than success is in doubt.
func TestWhatAMethodReturnsThatIsSentAgain(t *testing.T) {
	for _, test := range []struct {
		operation, dialogue string
		want                error
		maybe               bool
	}{
		{"Get", "server gets=lost gets=value", nil, false},
		{"Add", "server add=lost add=STORED", nil, false},
		{"Add", "server add=NOT_STORED", memcache.ErrNotStored, false},
		{"Add", "server add=lost add=NOT_STORED", memcache.ErrNotStored, true},
		{"CompareAndSwap", "server cas=lost cas=STORED", nil, false},
		{"CompareAndSwap", "server cas=EXISTS", memcache.ErrCASConflict, false},
		{"CompareAndSwap", "server cas=lost cas=EXISTS", memcache.ErrCASConflict, true},
		{"CompareAndSwap", "server cas=lost cas=NOT_FOUND", memcache.ErrCacheMiss, true},
		{"Delete", "server delete=lost delete=DELETED", nil, false},
		{"Delete", "server delete=NOT_FOUND", memcache.ErrCacheMiss, false},
		{"Delete", "server delete=lost delete=NOT_FOUND", memcache.ErrCacheMiss, true},
	} {
		t.Run(test.operation+" "+test.dialogue, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				p, end := dialogue(t, test.dialogue)
				err := operations[test.operation](p, "key")
				end()
				require.ErrorIs(t, err, test.want)
				require.Equal(t, test.maybe, maybeDone(err))
				require.Zero(t, p.Stats()[0].Failures)
			})
		})
	}
}

// maybeDone reports whether err leaves open what was done, as a package asks that
// does not know this one.
func maybeDone(err error) bool {
	var lost interface {
		error
		MaybeDone() bool
	}
	return errors.As(err, &lost) && lost.MaybeDone()
}

// dialogue returns a pool whose server leads a dialogue, and what requires that it is at its end.
// One that is "trusted" knows that the server knows meta sets, one that is "asking" is about to ask.
func dialogue(t *testing.T, left string) (p *pool.Pool, end func()) {
	s := newMetaServer("HD c5\r\n", "")
	switch state, rest, _ := strings.Cut(left, " "); state {
	case "trusted":
		p, left = s.trusting(t), rest
	case "asking":
		p, left = s.newPool(t, one), rest
		run(t, p, &scripted{key: "key"})
		p.TrustWrites()
	default:
		left = s.leadsTo(left)
		p = s.newPool(t, one)
	}
	s.now(func(conn net.Conn, request string) {
		var word string
		word, left, _ = strings.Cut(left, " ")
		verb, _, _ := strings.Cut(request, " ")
		said, ok := strings.CutPrefix(word, verb+"=")
		assert.True(t, ok, "%s, want %s", request, word)
		left = s.leadsTo(left)
		say(conn, said)
	})
	return p, func() {
		synctest.Wait() // for what is left of a packet
		require.Empty(t, left)
	}
}

// leadsTo has further connections lead to what the dialogue begins with, if it says that, and
// returns the rest.
func (s *station) leadsTo(dialogue string) (rest string) {
	for kind, line := range map[string]string{"server ": "VERSION 1.6.18", "proxy ": "VERSION mcrouter 0.41.0"} {
		if rest, ok := strings.CutPrefix(dialogue, kind); ok {
			s.greets(line)
			return rest
		}
	}
	return dialogue
}

// say says what a word of a dialogue stands for.
func say(conn net.Conn, word string) {
	answer, ends := strings.CutSuffix(word, "+")
	switch answer {
	case "lost":
		conn.Close()
	case "value":
		answer = "VALUE key 7 5 9\r\nvalue\r\nEND"
	case "another":
		answer = "VALUE another 7 5 9\r\nvalue\r\nEND"
	case "twice":
		answer = strings.Repeat("VALUE key 7 5 9\r\nvalue\r\n", 2) + "END"
	case "huge":
		answer = "VALUE key 7 2000000 9"
	case "half":
		time.Sleep(time.Millisecond)
		io.WriteString(conn, "TUES")
		return
	case "memory":
		answer = "SERVER_ERROR out of memory storing object"
	case "large":
		answer = "SERVER_ERROR object too large for cache"
	case "HD":
		answer = "HD c5"
	}
	if ends {
		answer += "\r\nEND" // which nobody asked for
	}
	io.WriteString(conn, strings.ReplaceAll(answer, ".", " ")+"\r\n")
}

// inWords returns what an exchange was told at its turns, and in the end: "conn=next" is a
// connection that it had no turn on.
func inWords(turns []exchange.Turn, r exchange.Result) (told, ended string) {
	last := exchange.Turn{}
	for _, last = range turns {
		told += map[bool]string{false: " guess", true: " known"}[last.Known]
		told += map[bool]string{true: ":notStored"}[last.NotStored]
	}
	ended += map[bool]string{true: " stored"}[r.Stored]
	ended += map[bool]string{true: " read"}[r.Read]
	ended += map[bool]string{true: " unknown"}[r.Unknown]
	ended += map[bool]string{true: " failed"}[r.Err != nil]
	switch r.Conn {
	case 0:
		ended += " conn=0"
	case last.Conn:
	default:
		ended += " conn=next"
	}
	return strings.TrimSpace(told), strings.TrimSpace(ended)
}
