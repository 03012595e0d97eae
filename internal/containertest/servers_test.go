package containertest_test

import (
	"bufio"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/adaptivethrottler/throttler/internal/containertest"
	"github.com/adaptivethrottler/throttler/internal/servertest"
	"github.com/adaptivethrottler/throttler/internal/skiptest"
)

// servers are the ways to start a server of one's own. All behave alike.
var servers = map[string]func(testing.TB, ...string) *servertest.Memcached{
	"process":   servertest.NewMemcached,
	"socket":    servertest.NewMemcachedSocket,
	"container": containertest.Memcached,
}

func TestMain(m *testing.M) { os.Exit(skiptest.Run(m)) }

// eachServer runs test with a fresh server of each kind.
func eachServer(t *testing.T, test func(*testing.T, *servertest.Memcached)) {
	for name, start := range servers {
		t.Run(name, func(t *testing.T) { test(t, start(t)) })
	}
}

func TestAnswers(t *testing.T) {
	eachServer(t, func(t *testing.T, s *servertest.Memcached) {
		require.NoError(t, s.Ping(time.Minute))
		assert.Equal(t, []string{"STORED"}, s.Command(t, "set k 5 0 5\r\nE\r\nND"))
		assert.Equal(t, []string{"VALUE k 5 5", "E\r\nND"}, s.Command(t, "get k"))
		require.EventuallyWithT(t, func(c *assert.CollectT) {
			// The crawler skips an item that has just been touched.
			assert.Contains(c, strings.Join(s.Command(t, "lru_crawler metadump all"), "\n"), "key=k exp=-1 ")
		}, time.Minute, 10*time.Millisecond)
		assert.Equal(t, []string{"OK"}, s.Command(t, "flush_all"))
		assert.Empty(t, s.Command(t, "get k"))
		assert.Equal(t, []string{"ERROR"}, s.Command(t, "nonsense"))
		assert.NotContains(t, s.Command(t, "stats"), "END")
	})
}

func TestStopAndStartKeepTheAddress(t *testing.T) {
	eachServer(t, func(t *testing.T, s *servertest.Memcached) {
		addr := s.Addr
		for _, end := range []func(){s.Stop, s.Kill} {
			s.Command(t, "set k 0 0 1\r\nx")
			end()
			require.Error(t, s.Ping(time.Second), "ended")
			end() // once more does nothing
			s.Start()
			require.NoError(t, s.Ping(time.Minute), "started again")
			require.Empty(t, s.Command(t, "get k"), "a new server is empty")
		}
		require.Equal(t, addr, s.Addr)
	})
}

func TestStopClosesConnections(t *testing.T) {
	eachServer(t, func(t *testing.T, s *servertest.Memcached) {
		conn := dial(t, s)
		s.Stop()
		haveTime(t, conn)
		_, err := conn.Read(make([]byte, 1))
		require.Error(t, err)
		require.NotErrorIs(t, err, os.ErrDeadlineExceeded, "closed, not silent")
	})
}

func TestPausedServerHangsUntilResumed(t *testing.T) {
	eachServer(t, func(t *testing.T, s *servertest.Memcached) {
		s.Command(t, "set k 0 0 1\r\nx")
		old := dial(t, s)
		s.Pause()

		begin := time.Now()
		require.Error(t, s.Ping(100*time.Millisecond))
		require.GreaterOrEqual(t, time.Since(begin), 100*time.Millisecond, "it accepts and does not answer")
		haveTime(t, old)
		_, err := old.Write([]byte("get k\r\n"))
		require.NoError(t, err)

		s.Resume()
		haveTime(t, old)
		line, err := bufio.NewReader(old).ReadString('\n')
		require.NoError(t, err, "what was sent meanwhile is answered")
		require.Equal(t, "VALUE k 0 1\r\n", line)
	})
}

func TestPausedServerCanBeEnded(t *testing.T) {
	eachServer(t, func(t *testing.T, s *servertest.Memcached) {
		for _, end := range []func(){s.Stop, s.Kill} {
			s.Pause()
			end()
			require.Error(t, s.Ping(time.Second))
			s.Start()
		}
		s.Pause() // and the test's own end is not held up
	})
}

func TestArgsReachTheServer(t *testing.T) {
	for name, start := range servers {
		t.Run(name, func(t *testing.T) {
			s := start(t, "-m", "2", "-C")
			stats := s.Command(t, "stats settings")
			require.Contains(t, stats, "STAT maxbytes 2097152")
			require.Contains(t, stats, "STAT cas_enabled no")
		})
	}
}

func TestServerEndsWithItsTest(t *testing.T) {
	for name, start := range servers {
		var s *servertest.Memcached
		t.Run(name, func(t *testing.T) { s = start(t) })
		if s != nil { // nil if the subtest was skipped
			require.Error(t, s.Ping(time.Second))
		}
	}
}

func dial(t *testing.T, s *servertest.Memcached) net.Conn {
	network := "tcp"
	if strings.Contains(s.Addr, "/") {
		network = "unix"
	}
	conn, err := net.Dial(network, s.Addr)
	require.NoError(t, err)
	t.Cleanup(func() { conn.Close() })
	haveTime(t, conn)
	_, err = conn.Write([]byte("version\r\n"))
	require.NoError(t, err)
	line, err := bufio.NewReader(conn).ReadString('\n')
	require.NoError(t, err)
	require.Contains(t, line, "VERSION ")
	return conn
}

// haveTime has what conn does next end after a minute: what was done before may take longer.
func haveTime(t *testing.T, conn net.Conn) {
	require.NoError(t, conn.SetDeadline(time.Now().Add(time.Minute)))
}

func TestAnyMayBeAContainer(t *testing.T) {
	s := containertest.Memcached(t) // or the test is skipped
	t.Setenv("PATH", t.TempDir())
	t.Setenv("THROTTLER_MEMCACHED_ADDR", "")
	require.NotEqual(t, s.Addr, servertest.AnyMemcached(t).Addr)
}
