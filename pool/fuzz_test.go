package pool_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"regexp"
	"slices"
	"testing"

	"github.com/adaptivethrottler/throttler/exchange"
	"github.com/adaptivethrottler/throttler/pool"
	"github.com/bradfitz/gomemcache/memcache"
	"github.com/stretchr/testify/require"
)

// FuzzAnswers lets a server say anything, in pieces of any size, to several requests
// at once. Each of them ends, within the time that it has, and none is given an
// item that the server did not say to be its own.
func FuzzAnswers(f *testing.F) {
	for _, answers := range []string{
		"END\r\nSTORED\r\nVALUE b 7 1 2\r\nb\r\nEND\r\nVALUE c 0 1 3\r\nc\r\nVALUE d 0 2 4\r\ndd\r\nEND\r\n",
		"VALUE a 0 5 1\r\nvalue\r\nEND\r\nEXISTS\r\nVALUE b 0 0 9\r\n\r\nEND\r\nEND\r\n",
		"VALUE b 0 1 1\r\nx\r\nEND\r\n",
		"SERVER_ERROR out of memory\r\nSERVER_ERROR a\r\nSERVER_ERROR b\r\nEND\r\n",
		"ERROR\r\n", "CLIENT_ERROR bad\r\nEND\r\n",
		"VALUE a 0 4294967295 1\r\n", "VALUE a 0 -1 1\r\n", "VALUE a 4294967296 1 1\r\na\r\nEND\r\n",
		"VALUE a 0 1\r\na\r\nEND\r\n", "STORED\r\nSTORED\r\nSTORED\r\n", "\r\n\r\n", "END\nEND\n",
		"VALUE a 0 9 1\r\nVALUE b 0\r\nEND\r\n",
		"END\r\nEND\r\nEND\r\nEND\r\nEND\r\n",
		"STORED\r\nEXISTS\r\nVALUE a 0 1 1\r\na\r\nVALUE b 7 1 2\r\nb\r\nVALUE e 7 1 2\r\ne\r\nEND\r\n",
		"STORED\r\nSTORED\r\nVALUE b 7 1 2\r\nb\r\nVALUE a 0 1 1\r\na\r\nVALUE a 0 1 1\r\na\r\nEND\r\n",
		"STORED\r\nSERVER_ERROR a\r\nSERVER_ERROR b\r\nEND\r\nVALUE c 0 1 3\r\nc\r\nEND\r\n",
	} {
		f.Add([]byte(answers), byte(0))
		f.Add([]byte(answers), byte(7))
	}
	f.Fuzz(func(t *testing.T, answers []byte, piece byte) {
		bubble(t, func(t *testing.T) {
			p, err := pool.New(one)
			require.NoError(t, err)
			defer p.Close()
			p.DialContext = (&script{answers, int(piece)}).DialContext
			a := &scripted{key: "a"}
			b := &scripted{key: "b", propose: always(valued("b", 0))}
			e := &scripted{key: "e", propose: always(valued("e", 9))}
			group := []exchange.Exchange{a, b, e}
			var read map[string]*memcache.Item
			took := took(func() {
				items := make(chan map[string]*memcache.Item, 1)
				go func() {
					found, _ := p.GetMulti([]string{"c", "d"})
					items <- found
				}()
				p.Exchange(context.Background(), group...)
				read = <-items
			})
			require.LessOrEqual(t, took, 2*timeout+2*pool.DefaultDialTimeout)
			for key, item := range read {
				require.Equal(t, key, item.Key)
				requireSaid(t, answers, item)
			}
			for _, x := range []*scripted{a, b, e} {
				require.Len(t, x.results, 1)
				if found := x.results[0].Found; found != nil {
					require.Equal(t, x.key, found.Key)
					requireSaid(t, answers, found)
				}
			}
		})
	})
}

// requireSaid requires that the server has said that item is that of its key: with its
// flags, length, token and value, in one piece.
func requireSaid(t *testing.T, answers []byte, item *memcache.Item) {
	token := fmt.Sprintf(" 0*%d", item.CasID)
	if item.CasID == 0 {
		token = "( 0+)?" // it may be left out
	}
	line := regexp.MustCompile(fmt.Sprintf("VALUE %s 0*%d 0*%d%s\r?\n", regexp.QuoteMeta(item.Key), item.Flags, len(item.Value), token))
	said := slices.ContainsFunc(line.FindAllIndex(answers, -1), func(place []int) bool {
		return bytes.HasPrefix(answers[place[1]:], slices.Concat(item.Value, []byte("\r\n")))
	})
	require.True(t, said, "%+v", item)
}

// A script answers the first request of each connection with all that it has, in
// pieces of so many bytes; 0: in one.
type script struct {
	answers []byte
	piece   int
}

func (s *script) DialContext(context.Context, string, string) (net.Conn, error) {
	here, there := net.Pipe()
	go s.serve(there)
	return here, nil
}

func (s *script) serve(conn net.Conn) {
	lines := newLines(conn)
	if line, ok := lines.next(); !ok || line != "version" {
		return
	}
	io.WriteString(conn, "VERSION 1.6.18\r\n")
	lines.next()
	go io.Copy(io.Discard, lines)
	for rest := s.answers; len(rest) > 0; {
		n := len(rest)
		if s.piece > 0 {
			n = min(n, s.piece)
		}
		if _, err := conn.Write(rest[:n]); err != nil {
			return
		}
		rest = rest[n:]
	}
}
