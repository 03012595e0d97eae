package throttler_test

import (
	"bufio"
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

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/internal/servertest"
	"github.com/adaptivethrottler/throttler/memstore"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// What becomes of calls over a plain client whose server has as many connections as it
// may have.

// fullServer is what memcached answers then. errRefused is how gomemcache reports it.
const fullServer = "ERROR Too many open connections"

func errRefused(op string) error {
	switch op {
	case "get", "multi":
		return fmt.Errorf("memcache: unexpected line in get response: %q", fullServer+"\r\n")
	case "delete":
		return fmt.Errorf("memcache: unexpected response line: %q", fullServer+"\r\n")
	}
	return fmt.Errorf("memcache: unexpected response line from %q: %q", op, fullServer+"\r\n")
}

// refusing returns a before that refuses ops for d, for keys that hold part.
func refusing(d time.Duration, part string, ops ...string) func(string, ...string) error {
	until := time.Now().Add(d)
	return func(op string, keys ...string) error {
		if time.Now().Before(until) && slices.Contains(ops, op) && strings.Contains(strings.Join(keys, " "), part) {
			return errRefused(op)
		}
		return nil
	}
}

var allOps = []string{"get", "multi", "add", "cas", "delete"}

func TestARefusedConnectionIsWaitedFor(t *testing.T) {
	const full = 700 * time.Millisecond
	for name, rule := range map[string]throttler.Rule{"one condition": either(condition("a", 5, time.Minute)), "two": both()} {
		for _, ops := range [][]string{{"get", "multi"}, {"multi"}, {"add"}, {"cas"}, {"delete"}, allOps} {
			t.Run(fmt.Sprint(name, " ", ops), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					client := newFaulty()
					th := throttler.New(client)
					before := remaining(authorize(t, th, rule))
					client.before = refusing(full, "", ops...)
					begin := time.Now()
					d := authorize(t, th, rule)
					require.NoError(t, d.Err)
					for i := range before {
						require.Equal(t, before[i]-1, remaining(d)[i], "it is counted once")
					}
					require.NoError(t, th.Reset(t.Context(), rule))
					require.LessOrEqual(t, time.Since(begin), full+100*time.Millisecond)
					require.Less(t, len(client.took()), 60, "it does not ask all the time")
					require.Equal(t, before, remaining(authorize(t, th, rule)))
				})
			})
		}
	}
}

func TestAServerThatGivesNobodyAConnectionIsUnavailable(t *testing.T) {
	for _, ops := range [][]string{allOps, {"cas"}} {
		synctest.Test(t, func(t *testing.T) {
			client := newFaulty()
			th := throttler.New(client)
			for _, rule := range []throttler.Rule{valued("hot"), both()} {
				d := authorize(t, th, rule)
				client.before = refusing(time.Minute, "", ops...)
				begin := time.Now()
				failed := authorize(t, th, rule)
				require.ErrorIs(t, failed.Err, throttler.ErrUnavailable)
				require.NotErrorIs(t, failed.Err, throttler.ErrOverloaded)
				require.ErrorContains(t, failed.Err, fullServer)
				require.Equal(t, time.Second, time.Since(begin))
				require.ErrorIs(t, th.Cancel(t.Context(), d), throttler.ErrUnavailable)
				client.before = failing(nil, "")
				require.NoError(t, th.Cancel(t.Context(), failed))
				require.NoError(t, th.Cancel(t.Context(), d))
				require.Equal(t, remaining(d), remaining(authorize(t, th, rule)), "what was refused was not counted")
			}
			client.before = refusing(time.Minute, "", ops...)
			if err := th.Reset(t.Context(), both()); slices.Contains(ops, "delete") {
				require.ErrorIs(t, err, throttler.ErrUnavailable)
			}
		})
	}
}

// The connections that this process has serve others meanwhile.
func TestACallWithoutAConnectionIsOverloadedWhileOthersAreAnswered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := newFaulty()
		th := throttler.New(client)
		client.before = refusing(time.Minute, "#poor", allOps...)
		var calls sync.WaitGroup
		for i := range 10 {
			calls.Go(func() {
				begin := time.Now()
				d, err := th.Authorize(t.Context(), valued(fmt.Sprint("poor", i)))
				assert.NoError(t, err)
				assert.ErrorIs(t, d.Err, throttler.ErrOverloaded)
				assert.NotErrorIs(t, d.Err, throttler.ErrUnavailable)
				assert.Equal(t, time.Second, time.Since(begin))
			})
		}
		time.Sleep(time.Second / 2)
		require.NoError(t, authorize(t, th, valued("rich")).Err)
		calls.Wait()

		// Their own failures were no answers.
		require.ErrorIs(t, authorize(t, th, valued("poor")).Err, throttler.ErrUnavailable)
	})
}

// A call with ctx leaves earlier. What it waited for is given up by itself.
func TestACallLeavesAServerWithoutAConnectionAtItsDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := over(memstore.New())
		client.before = refusing(time.Minute, "", allOps...)
		th := throttler.New(client)
		ctx, cancel := context.WithTimeout(t.Context(), hungDeadline)
		defer cancel()
		begin := time.Now()
		d, err := th.Authorize(ctx, valued("hot"))
		require.NoError(t, err)
		require.ErrorIs(t, d.Err, context.DeadlineExceeded)
		require.Equal(t, hungDeadline, time.Since(begin))
		time.Sleep(time.Second)
		synctest.Wait()
		require.Zero(t, th.Stats().Remembered)
	})
}

// takeConnections makes connections to server until it refuses them, and returns what
// gives them back.
func takeConnections(t *testing.T, server *servertest.Memcached) (giveBack func()) {
	t.Helper()
	var taken []net.Conn
	giveBack = sync.OnceFunc(func() {
		for _, conn := range taken {
			conn.Close()
		}
	})
	t.Cleanup(giveBack)
	for range 100 {
		conn, err := net.Dial("tcp", server.Addr)
		require.NoError(t, err)
		taken = append(taken, conn)
		_, _ = io.WriteString(conn, "version\r\n")
		if line, _ := bufio.NewReader(conn).ReadString('\n'); strings.HasPrefix(line, fullServer) {
			return giveBack
		}
	}
	require.Fail(t, "the server takes more connections than -c says")
	return nil
}

func TestTooManyConnectionsToARealServer(t *testing.T) {
	server := servertest.NewMemcached(t, "-c", "64")
	for name, rule := range map[string]throttler.Rule{"one condition": either(condition("a", 5, time.Minute)), "two": both()} {
		t.Run(name, func(t *testing.T) {
			rule.Identifier = uniqueID()
			giveBack := takeConnections(t, server)
			client := over(clientOf(t, server.Addr))
			th := throttler.New(client)
			th.QueueTimeout = 50 * time.Millisecond
			d := authorize(t, th, rule)
			require.ErrorIs(t, d.Err, throttler.ErrUnavailable, "nobody gave a connection back")
			client.took()

			th = throttler.New(client)
			th.QueueTimeout = 30 * time.Second
			done := make(chan throttler.Decision, 1)
			go func() {
				d, _ := th.Authorize(context.Background(), rule)
				done <- d
			}()
			tries := 0
			require.Eventually(t, func() bool { tries += len(client.took()); return tries > 5 }, 30*time.Second, time.Millisecond)
			giveBack()
			d = <-done
			require.NoError(t, d.Err)
			for _, o := range d.Outcomes {
				require.Equal(t, o.Limit-1, o.Remaining, "it is counted once")
			}
		})
	}
}

// The connection of the read is closed before the write, which needs another one.
func TestARealServerRefusesAWriteAndThenTakesIt(t *testing.T) {
	server := servertest.NewMemcached(t, "-c", "64")
	client := over(clientOf(t, server.Addr))
	rule := either(condition("a", 5, time.Minute))
	rule.Identifier = uniqueID()
	var once sync.Once
	var giveBack func()
	refused := 0
	client.before = func(op string, _ ...string) error {
		if op != "add" {
			return nil
		}
		once.Do(func() {
			client.Client.(io.Closer).Close()
			giveBack = takeConnections(t, server)
		})
		return nil
	}
	client.after = func(op string, err error) error {
		if op == "add" && err != nil {
			if refused++; refused == 3 {
				giveBack()
			}
		}
		return err
	}
	th := throttler.New(client)
	th.QueueTimeout = 30 * time.Second
	d := authorize(t, th, rule)
	require.NoError(t, d.Err)
	require.Equal(t, []int{4}, remaining(d))
	require.GreaterOrEqual(t, refused, 3)
	require.Equal(t, []int{3}, remaining(peek(t, th, rule)), "one hit, and this look")
}
