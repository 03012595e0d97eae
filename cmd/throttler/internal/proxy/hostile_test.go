package proxy_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/adaptivethrottler/throttler/cmd/throttler/internal/proxy"
	"github.com/adaptivethrottler/throttler/internal/servertest"
	"github.com/adaptivethrottler/throttler/login"
	"github.com/bradfitz/gomemcache/memcache"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// This file has servers that do not answer, and clients that do not wait.

// nowhere returns an address at which nobody listens. Its port is none that the proxy itself, or
// a connection, gets by chance.
func nowhere(t *testing.T) string {
	t.Helper()
	address, err := servertest.FreeAddr(servertest.OtherPorts)
	require.NoError(t, err)
	return address
}

func TestAServerThatIsDownCostsNobodyAnAttempt(t *testing.T) {
	address := nowhere(t)
	g := guardSite(t, "http://"+address, logins)
	for range 50 {
		assert.Equal(t, http.StatusBadGateway, g.guess(t, "alice", "wrong", "203.0.113.7").StatusCode)
	}
	assert.Equal(t, map[login.Result]int{login.Canceled: 50}, g.results())
	back, err := net.Listen("tcp", address)
	require.NoError(t, err)
	s := newSite(t)
	server := &http.Server{Handler: s.Config.Handler}
	go server.Serve(back)
	defer server.Close()
	together(20, func(i int) { g.guess(t, "alice", fmt.Sprint(i), "203.0.113.7") })
	assert.EqualValues(t, 5, s.verified.Load(), "none of the five was used up")
}

func TestNoClientKeepsAServerThatIsDownOutOfTheLog(t *testing.T) {
	g := guardSite(t, "http://"+nowhere(t), logins)
	assert.Equal(t, http.StatusBadRequest, send(t, post(t, g.URL+"/login", "application/x-www-form-urlencoded", "user=a&user=b"), "203.0.113.7").StatusCode)
	assert.Contains(t, g.log.String(), "client=203.0.113.7 ", "not the proxy in front")
	assert.Equal(t, http.StatusBadGateway, g.guess(t, "alice", "wrong", "203.0.113.7").StatusCode)
	assert.Contains(t, g.log.String(), "the server does not answer")
}

func TestAnUploadThatIsMalformedIsNoLoginInTheLog(t *testing.T) {
	g := guardSite(t, newSite(t).URL, logins)
	assert.Equal(t, http.StatusBadRequest, g.ask(t, "POST /page HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nnonsense\r\n"))
	assert.NotContains(t, g.log.String(), "login")
}

// raw is a server that answers each connection by how.
func raw(t *testing.T, how func(net.Conn)) string {
	t.Helper()
	return "http://" + servertest.Serve(t, func(conn net.Conn) {
		r, err := http.ReadRequest(bufio.NewReader(conn))
		if err != nil {
			return
		}
		if r.ContentLength < 1<<10 { // or closing would be a reset
			io.Copy(io.Discard, r.Body)
		}
		how(conn)
	})
}

func TestWhatAnAttemptCostsWithoutAnAnswer(t *testing.T) {
	says := func(text string) string { return raw(t, func(conn net.Conn) { io.WriteString(conn, text) }) }
	resets := raw(t, func(conn net.Conn) { conn.(*net.TCPConn).SetLinger(0) })
	untrusted := httptest.NewTLSServer(http.NotFoundHandler())
	defer untrusted.Close()
	guess := func(g *guarded) *http.Request {
		return post(t, g.URL+"/login", "application/x-www-form-urlencoded", "user=alice&password=guess")
	}
	basic := func(body string) func(*guarded) *http.Request {
		return func(g *guarded) *http.Request {
			r := post(t, g.URL+"/dav/x", "application/x-www-form-urlencoded", body)
			r.SetBasicAuth("alice", "guess")
			return r
		}
	}
	for what, c := range map[string]struct {
		server  string
		request func(*guarded) *http.Request
		want    login.Result
	}{
		"no HTTP":               {says("nonsense\r\n\r\n"), guess, login.Failed},
		"too long a field":      {says("HTTP/1.1 200 OK\r\nX: " + strings.Repeat("a", 11<<20) + "\r\n\r\n"), guess, login.Failed},
		"no connection":         {untrusted.URL, guess, login.Canceled}, // its certificate is not trusted
		"a reset":               {resets, guess, login.Canceled},        // the password is in the form
		"a reset after Basic":   {resets, basic(""), login.Canceled},
		"a reset beside a form": {resets, basic("a=b"), login.Failed}, // the server may have answered before the form came
	} {
		g := guardSite(t, c.server, basicOrForm)
		assert.Equal(t, http.StatusBadGateway, send(t, c.request(g), "203.0.113.7").StatusCode, what)
		assert.Equal(t, map[login.Result]int{c.want: 1}, g.results(), what)
	}
}

func TestAnAnswerThatIsLostBecauseTheBodyIsLargeCostsTheAttempt(t *testing.T) {
	g := guardSite(t, raw(t, func(conn net.Conn) {
		io.WriteString(conn, "HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\n\r\n")
		conn.(*net.TCPConn).SetLinger(0)
	}), logins)
	for i := range 5 {
		status := g.dav(t, "PUT", "alice", fmt.Sprint(i), "203.0.113.7", io.LimitReader(zeros{}, 5<<20)).StatusCode
		assert.Contains(t, []int{http.StatusUnauthorized, http.StatusBadGateway}, status)
	}
	assert.Equal(t, map[login.Result]int{login.Failed: 5}, g.results())
	assert.Equal(t, http.StatusTooManyRequests, g.dav(t, "PUT", "alice", "x", "203.0.113.7", nil).StatusCode)
}

func TestAClientThatHangsUpGetsNoGuessForNothing(t *testing.T) {
	s := newSite(t)
	g := guardSite(t, s.URL, logins)
	form := url.Values{"user": {"alice"}, "password": {"wrong"}}.Encode()
	for _, request := range []string{
		"Content-Length: %d\r\n\r\n" + form,
		"Content-Length: 1%d\r\n\r\n" + form, // more than comes
		"Transfer-Encoding: chunked\r\n\r\n%x\r\n" + form + "\r\n0\r\n\r\n",
	} {
		for range 10 {
			conn, err := net.Dial("tcp", strings.TrimPrefix(g.URL, "http://"))
			require.NoError(t, err)
			fmt.Fprintf(conn, "POST /login HTTP/1.1\r\nHost: a\r\nX-Forwarded-For: 203.0.113.7\r\nContent-Type: application/x-www-form-urlencoded\r\n"+request, len(form))
			conn.Close()
		}
	}
	require.Eventually(t, func() bool {
		return g.guess(t, "alice", "wrong", "203.0.113.7").Header.Get("Retry-After") > "5"
	}, 30*time.Second, 20*time.Millisecond, "banned")
	assert.LessOrEqual(t, s.verified.Load(), int64(5))
}

func TestAClientThatHangsUpGetsNoGuessForNothingAtASlowServer(t *testing.T) {
	var asked atomic.Int64
	slow := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		select {
		case <-r.Context().Done():
		case <-time.After(300 * time.Millisecond):
		}
	}))
	defer slow.Close()
	g := guardSite(t, slow.URL, logins)
	ctx, cancel := context.WithCancel(t.Context())
	for range 5 {
		go func() {
			r := post(t, g.URL+"/login", "application/x-www-form-urlencoded", "user=alice&password=x").WithContext(ctx)
			client.Do(r)
		}()
	}
	require.Eventually(t, func() bool { return asked.Load() == 5 }, 30*time.Second, time.Millisecond)
	cancel()
	failed := 0
	require.Eventually(t, func() bool { failed += g.results()[login.Failed]; return failed == 5 }, 30*time.Second, 10*time.Millisecond)
	assert.Equal(t, http.StatusTooManyRequests, g.guess(t, "alice", "x", "127.0.0.1").StatusCode)
}

func TestAClientThatHangsUpAfterARightPasswordHasSucceeded(t *testing.T) {
	asked := make(chan struct{})
	slow := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		close(asked)
		time.Sleep(200 * time.Millisecond)
		w.Header().Set("Set-Cookie", "session=a")
		w.WriteHeader(http.StatusSeeOther)
	}))
	defer slow.Close()
	g := guardSite(t, slow.URL, logins)
	ctx, cancel := context.WithCancel(t.Context())
	go client.Do(post(t, g.URL+"/login", "application/x-www-form-urlencoded", "user=alice&password=x").WithContext(ctx))
	<-asked
	cancel()
	select {
	case e := <-g.events:
		assert.Equal(t, login.Succeeded, e.Result)
	case <-time.After(30 * time.Second):
		assert.Fail(t, "the attempt did not end")
	}
}

func TestTheRestOfALongBodyMayTakeItsTime(t *testing.T) {
	const timeout = 500 * time.Millisecond
	proxy.SetFirstTimeout(t, timeout)
	first, rest := "user=alice&password=right&x="+strings.Repeat("x", 100_000), strings.Repeat("x", 1000)
	status := http.StatusRequestTimeout
	for try := 0; try < 10 && status == http.StatusRequestTimeout; try++ { // the first bytes are late on a busy machine
		g := guardSite(t, newSite(t).URL, everywhere)
		body, w := io.Pipe()
		go func() {
			io.WriteString(w, first)
			time.Sleep(timeout + timeout/4) // longer than the first bytes may take
			io.WriteString(w, rest)
			w.Close()
		}()
		r := post(t, g.URL+"/page", "text/plain", "")
		r.Body, r.ContentLength = body, int64(len(first)+len(rest))
		status = send(t, r, "203.0.113.7").StatusCode
	}
	assert.Equal(t, http.StatusOK, status)
}

func TestABodyThatComesTooSlowlyIsRefused(t *testing.T) {
	proxy.SetFirstTimeout(t, 500*time.Millisecond)
	s := newSite(t)
	g := guardSite(t, s.URL, logins)
	conn, err := net.Dial("tcp", strings.TrimPrefix(g.URL, "http://"))
	require.NoError(t, err)
	defer conn.Close()
	require.NoError(t, conn.SetDeadline(time.Now().Add(30*time.Second)))
	fmt.Fprint(conn, "POST /login HTTP/1.1\r\nHost: a\r\nContent-Type: application/x-www-form-urlencoded\r\nContent-Length: 100\r\n\r\nuser=alice")
	answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
	require.NoError(t, err)
	assert.Equal(t, http.StatusRequestTimeout, answer.StatusCode)
	assert.Zero(t, s.served.Load())
}

// stopped opens n connections of a client that stop after 8,100 bytes of a body, and returns how many
// of them are answered with each status.
func (g *guarded) stopped(t *testing.T, n int, addr string) map[int]int {
	t.Helper()
	statuses := make(chan int, n)
	together(n, func(int) {
		statuses <- g.ask(t, "POST /login HTTP/1.1\r\nHost: a\r\nX-Forwarded-For: "+addr+
			"\r\nContent-Type: application/x-www-form-urlencoded\r\nContent-Length: 60000\r\n\r\n"+strings.Repeat("x", 8100))
	})
	counts := map[int]int{}
	for range n {
		counts[<-statuses]++
	}
	return counts
}

func TestBodiesThatStopAreBounded(t *testing.T) {
	proxy.SetFirstTimeout(t, 2*time.Second)
	g := guardSite(t, newSite(t).URL, logins)
	g.guard.Limits = map[string]login.Limit{"address": {Max: 3}}
	for i := range 4 {
		g.guess(t, fmt.Sprint("name", i), "wrong", "203.0.113.7")
	}
	require.Equal(t, map[login.Result]int{login.Failed: 3, login.Refused: 1}, g.results())
	assert.Equal(t, map[int]int{429: 8, 408: 32}, g.stopped(t, 40, "203.0.113.7"), "8 KiB each, 256 KiB of one that is banned")
	assert.Equal(t, map[int]int{408: 40}, g.stopped(t, 40, "203.0.113.8"), "and of one that is not")

	proxy.SetMaxHeld(t, 256<<10, 128<<10)
	assert.Equal(t, map[int]int{503: 4, 408: 16}, g.stopped(t, 20, "203.0.113.9"), "128 KiB of one")
	var running sync.WaitGroup
	refused := new(atomic.Int64)
	for i := range 3 {
		running.Go(func() { refused.Add(int64(g.stopped(t, 16, fmt.Sprint("198.51.100.", i))[503])) })
	}
	running.Wait()
	assert.EqualValues(t, 16, refused.Load(), "256 KiB in all")
	assert.Equal(t, http.StatusSeeOther, g.guess(t, "alice", "right", "203.0.113.9").StatusCode, "nothing is held any more")
}

// broken is a store whose operations fail.
type broken struct{}

var errBroken = errors.New("broken")

func (broken) Get(string) (*memcache.Item, error)                   { return nil, errBroken }
func (broken) GetMulti([]string) (map[string]*memcache.Item, error) { return nil, errBroken }
func (broken) Add(*memcache.Item) error                             { return errBroken }
func (broken) CompareAndSwap(*memcache.Item) error                  { return errBroken }
func (broken) Delete(string) error                                  { return errBroken }

func TestWhileTheStoreFailsLoginsPassOrNot(t *testing.T) {
	s := newSite(t)
	assert.Equal(t, http.StatusSeeOther, guardWith(t, s.URL, logins, broken{}).guess(t, "alice", "right", "203.0.113.7").StatusCode)
	closed := guardWith(t, s.URL, logins+"failure: closed\n", broken{})
	answer := closed.guess(t, "alice", "right", "203.0.113.7")
	assert.Equal(t, http.StatusServiceUnavailable, answer.StatusCode)
	assert.Equal(t, "1", answer.Header.Get("Retry-After"))
	assert.EqualValues(t, 1, s.verified.Load())
}

// endless has no end.
type endless struct{}

func (endless) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = 'x'
	}
	return len(p), nil
}

// What the server did not read of a body is no other request.
func TestTheRestOfABodyIsNoRequest(t *testing.T) {
	first := "user=alice&password=x&x="
	first += strings.Repeat("x", proxy.MaxLogin+1-len(first)) + "GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n"
	for name, server := range map[string]string{
		"down": "http://" + nowhere(t),
		"too large": "http://" + servertest.Serve(t, func(conn net.Conn) {
			if _, err := http.ReadRequest(bufio.NewReader(conn)); err == nil {
				io.WriteString(conn, "HTTP/1.1 413 Content Too Large\r\nContent-Length: 0\r\n\r\n")
			}
		}),
	} {
		for _, length := range []string{"Content-Length: 1000000000000\r\n\r\n", "Transfer-Encoding: chunked\r\n\r\n10000000000\r\n"} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				g := guardSite(t, server, everywhere)
				conn, err := net.Dial("tcp", strings.TrimPrefix(g.URL, "http://"))
				require.NoError(t, err)
				defer conn.Close()
				require.NoError(t, conn.SetDeadline(time.Now().Add(time.Minute)))
				request := "POST /login HTTP/1.1\r\nHost: a\r\nContent-Type: text/plain\r\n" + length + first
				go io.Copy(conn, io.MultiReader(strings.NewReader(request), endless{}))
				r := bufio.NewReader(conn)
				answer, err := http.ReadResponse(r, nil)
				require.NoError(t, err)
				require.GreaterOrEqual(t, answer.StatusCode, 400)
				require.True(t, answer.Close)
				_, err = io.Copy(io.Discard, answer.Body)
				require.NoError(t, err)
				_, err = http.ReadResponse(r, nil)
				require.Error(t, err)
				require.NotErrorIs(t, err, os.ErrDeadlineExceeded)
			})
		}
	}
}
