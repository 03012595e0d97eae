package pool_test

import (
	"bufio"
	"cmp"
	"context"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/adaptivethrottler/throttler/pool"
	"github.com/stretchr/testify/require"
)

// A station stands at the other end of a pool's connections, which are
// net.Pipes, so that time can be held. It does as it is told and is no model of
// memcached: what memcached answers is tested with memcached.
type station struct {
	// answer answers a request, which it gets as its command line, on the
	// connection that it came by. Once in use, it is changed by now.
	answer func(conn net.Conn, request string)

	// dial, if not nil, is called before a connection is made.
	dial func(ctx context.Context) error

	// version is what it answers when a connection is made: a memcached's answer
	// if it is empty.
	version string

	mu       sync.Mutex
	addrs    []string // of all dials
	requests []string
	conns    []net.Conn

	told []string // by its pool, of outages
}

const silent = "silent" // for a version that is never answered

type dialFunc = func(ctx context.Context, network, address string) (net.Conn, error)

// newPool returns a pool of the given servers, all of which are s.
func (s *station) newPool(t *testing.T, servers ...string) *pool.Pool {
	t.Helper()
	p, err := pool.New(servers...)
	require.NoError(t, err)
	p.DialContext = s.DialContext
	t.Cleanup(func() { p.Close() })
	return p
}

func (s *station) DialContext(ctx context.Context, _, addr string) (net.Conn, error) {
	s.mu.Lock()
	s.addrs = append(s.addrs, addr)
	dial := s.dial
	s.mu.Unlock()
	if dial != nil {
		if err := dial(ctx); err != nil {
			return nil, err
		}
	}
	here, there := net.Pipe()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.conns = append(s.conns, there)
	go s.serve(there)
	return here, nil
}

func (s *station) serve(there net.Conn) {
	defer there.Close()
	conn := &peer{Conn: there}
	r := bufio.NewReader(conn)
	for {
		request, err := r.ReadString('\n')
		if err != nil {
			return
		}
		request = strings.TrimRight(request, "\r\n")
		if request == "version" { // which comes before all requests
			s.mu.Lock()
			version := cmp.Or(s.version, "VERSION 1.6.18")
			s.mu.Unlock()
			if version != silent {
				io.WriteString(conn, version+"\r\n")
			}
			continue
		}
		if verb, _, _ := strings.Cut(request, " "); verb == "add" || verb == "cas" || verb == "ms" {
			if _, err := r.ReadString('\n'); err != nil { // of one line
				return
			}
		}
		s.mu.Lock()
		s.requests = append(s.requests, request)
		answer := s.answer
		s.mu.Unlock()
		answer(conn, request)
		if conn.gone {
			return
		}
	}
}

// A peer notes that nobody is there any more to be answered.
type peer struct {
	net.Conn
	gone bool
}

func (p *peer) Write(b []byte) (int, error) {
	n, err := p.Conn.Write(b)
	p.gone = p.gone || err != nil
	return n, err
}

// now has further requests answered by answer.
func (s *station) now(answer func(net.Conn, string)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.answer = answer
}

// greets has it answer the version of further connections with line.
func (s *station) greets(line string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.version = line
}

// heal has it be well, as a server that misses all keys.
func (s *station) heal() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.answer, s.dial, s.version = misses, nil, ""
}

// hangUp closes the station's end of all connections.
func (s *station) hangUp() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, conn := range s.conns {
		conn.Close()
	}
	s.conns = nil
}

// heard returns the requests since it was last called.
func (s *station) heard() []string {
	synctest.Wait() // a connection that is closed may still be read from
	s.mu.Lock()
	defer s.mu.Unlock()
	heard := s.requests
	s.requests = nil
	return heard
}

// keysRead returns the keys of requests that read.
func keysRead(requests []string) (keys []string) {
	for _, request := range requests {
		if list, ok := strings.CutPrefix(request, "gets "); ok {
			keys = append(keys, strings.Fields(list)...)
		}
	}
	return keys
}

// dialled returns the addresses that were dialled since it was last called.
func (s *station) dialled() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	addrs := s.addrs
	s.addrs = nil
	return addrs
}

// says answers each request with the same.
func says(answer string) func(net.Conn, string) {
	return func(conn net.Conn, _ string) { io.WriteString(conn, answer) }
}

// misses answers as a server does that has nothing and takes nothing.
func misses(conn net.Conn, request string) {
	verb, _, _ := strings.Cut(request, " ")
	io.WriteString(conn, map[string]string{
		"gets": "END\r\n", "add": "NOT_STORED\r\n", "cas": "NOT_FOUND\r\n", "delete": "NOT_FOUND\r\n",
	}[verb])
}

// slowly answers after a millisecond, so that calls at once need a connection each.
func slowly(answer func(net.Conn, string)) func(net.Conn, string) {
	return func(conn net.Conn, request string) {
		time.Sleep(time.Millisecond)
		answer(conn, request)
	}
}

// hangs answers nothing.
func hangs(net.Conn, string) {}

// hangsUp ends the connection instead of answering.
func hangsUp(conn net.Conn, _ string) { conn.Close() }

// bubble runs f in a synctest bubble. When f has ended and its pools are closed no
// goroutine may be left, but for a station's that has yet to notice.
func bubble(t *testing.T, f func(t *testing.T)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		t.Cleanup(func() { time.Sleep(timeout) }) // the last cleanup of all
		f(t)
	})
}

// bubbles runs f on each row of a table, in a bubble of its own.
func bubbles[R any](t *testing.T, rows map[string]R, f func(t *testing.T, row R)) {
	t.Helper()
	for name, row := range rows {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) { f(t, row) })
		})
	}
}

// took returns how long f takes, in the bubble's time.
func took(f func()) time.Duration {
	begin := time.Now()
	f()
	return time.Since(begin)
}

// atOnce runs n calls of f at once and returns how long each took.
func atOnce(n int, f func(i int)) []time.Duration {
	times := make([]time.Duration, n)
	var calls sync.WaitGroup
	for i := range n {
		calls.Go(func() { times[i] = took(func() { f(i) }) })
	}
	calls.Wait()
	return times
}

// lines are the lines that come by a connection.
type lines struct{ *bufio.Reader }

func newLines(conn net.Conn) lines { return lines{bufio.NewReader(conn)} }

// next returns the next line, without its end.
func (l lines) next() (string, bool) {
	line, err := l.ReadString('\n')
	return strings.TrimRight(line, "\r\n"), err == nil
}
