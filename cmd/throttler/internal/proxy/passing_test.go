package proxy_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// This file has what is passed on as it is.

func TestWhatIsPassedOn(t *testing.T) {
	s := newSite(t)
	const direct = "trust: [192.0.2.1]\n"
	const said = "X-Forwarded-For: 203.0.113.7\r\nX-Forwarded-Proto: https\r\nX-Real-Ip: 192.0.2.9\r\n"
	const odd = "X_Forwarded_For: attack\r\nx-forwarded_for: attack\r\nTransfer_Encoding: attack\r\nX.Forwarded.For: attack\r\nX!Original!Url: attack\r\n" +
		"X-Rewrite~Url: attack\r\nx|own: attack\r\nX-Original-URL: attack\r\nx-rewrite-url: attack\r\nX-Own-2: kept\r\n"
	for _, c := range []struct {
		file, target, fields string
		want                 []string // lines
	}{
		{"", "/a?b=1;c&d=%zz&user=x&user=y", "X-Own: 1\r\n", []string{"PUT /a?b=1;c&d=%zz&user=x&user=y user=a&us", "X-Own: 1", "Host: example.org"}},
		{"", "/a%2Fb//c/../d;e", "", []string{"PUT /a%2Fb//c/../d;e user=a&us"}},
		{"", "//a", "", []string{"PUT //a user=a&us"}},
		{"", "/A%20b?", "", []string{"PUT /A%20b? user=a&us"}},
		// who the client is
		{"", "/page", said, []string{"X-Forwarded-For: 203.0.113.7, 127.0.0.1", "X-Forwarded-Proto: https"}},
		{"forwarded: X-Real-Ip\n", "/page", said + "Connection: X-Forwarded-For, X-Real-Ip\r\n", []string{"X-Forwarded-For: 203.0.113.7, 127.0.0.1", "X-Real-Ip: 192.0.2.9"}}, // nobody can hide
		{direct + "forwarded: X-Real-Ip\n", "/page", said, []string{"X-Forwarded-For: 127.0.0.1", "X-Forwarded-Proto: http", "X-Real-Ip: 127.0.0.1"}},
		// fields that servers take for others
		{"", "/page", odd, []string{"X-Own-2: kept"}},
		{direct, "/page", odd, []string{"X-Own-2: kept"}},
	} {
		g := guardSite(t, s.URL, logins+c.file)
		status, body := g.tell(t, "PUT "+c.target+" HTTP/1.1\r\nHost: example.org\r\nContent-Length: 9\r\n"+c.fields+"\r\nuser=a&us")
		assert.Equal(t, http.StatusOK, status, c.target)
		lines := strings.Split(strings.ReplaceAll(body, "\r", ""), "\n")
		assert.Subset(t, lines, c.want, "%+v", c)
		assert.NotContains(t, body, "attack")
	}
	g := guardSite(t, s.URL, logins+direct)
	for i := range 20 {
		g.guess(t, "alice", "wrong", fmt.Sprintf("203.0.113.%d", i))
	}
	assert.EqualValues(t, 5, s.verified.Load(), "a client that is no proxy cannot choose its address")
}

// Their values come after the fields are passed on.
func TestTrailersAreNotPassedOn(t *testing.T) {
	trailers := make(chan http.Header, 1)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		trailers <- r.Trailer
	}))
	defer server.Close()
	g := guardSite(t, server.URL, logins)
	assert.Equal(t, http.StatusOK, g.ask(t, "POST /page HTTP/1.1\r\nHost: a\r\nTrailer: X-Sum\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\nX-Sum: 1\r\n\r\n"))
	assert.Empty(t, <-trailers)
}

// streaming answers with parts that come when the client asks for them, speaks another
// protocol if it is asked to, and tells its own protocol.
func streaming(t *testing.T, next <-chan struct{}) *httptest.Server {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if protocol := r.Header.Get("Upgrade"); protocol != "" {
			w.Header().Set("Upgrade", protocol)
			w.Header().Set("Connection", "Upgrade")
			w.WriteHeader(http.StatusSwitchingProtocols)
			conn, both, err := http.NewResponseController(w).Hijack()
			if assert.NoError(t, err) {
				defer conn.Close()
				line, _ := both.ReadString('\n')
				fmt.Fprint(conn, "echo "+line)
			}
			return
		}
		for i := range 3 {
			fmt.Fprintf(w, "part %d\n", i)
			http.NewResponseController(w).Flush()
			select {
			case <-next:
			case <-r.Context().Done():
			}
		}
	}))
	t.Cleanup(s.Close)
	return s
}

func TestStreamsArriveAsTheyAreSent(t *testing.T) {
	next := make(chan struct{})
	g := guardSite(t, streaming(t, next).URL, logins)
	for _, h2 := range []bool{false, true} {
		transport := &http.Transport{Protocols: new(http.Protocols)}
		transport.Protocols.SetHTTP1(!h2)
		transport.Protocols.SetUnencryptedHTTP2(h2)
		if h2 {
			g.Server.Close()
			g.Config.Protocols = transport.Protocols
			g = guardedAs(t, g)
		}
		answer, err := (&http.Client{Transport: transport}).Get(g.URL + "/events")
		require.NoError(t, err)
		assert.Equal(t, map[bool]int{false: 1, true: 2}[h2], answer.ProtoMajor)
		lines := bufio.NewReader(answer.Body)
		for i := range 3 {
			line, err := lines.ReadString('\n')
			require.NoError(t, err)
			assert.Equal(t, fmt.Sprintf("part %d\n", i), line)
			next <- struct{}{}
		}
		answer.Body.Close()
		transport.CloseIdleConnections()
	}
}

func TestARequestWithoutABodyHasNoneOverHTTP2Either(t *testing.T) {
	server, wrong := oracle(t, instead["hangs up"])
	g := guardSite(t, server, logins)
	transport := &http.Transport{Protocols: new(http.Protocols)}
	transport.Protocols.SetUnencryptedHTTP2(true)
	defer transport.CloseIdleConnections()
	g.Server.Close()
	g.Config.Protocols = transport.Protocols
	g = guardedAs(t, g)
	get := func(path, kind string) int {
		r, err := http.NewRequestWithContext(t.Context(), "GET", g.URL+path, nil)
		require.NoError(t, err)
		r.Header.Set("Content-Type", kind)
		if kind == "" {
			r.SetBasicAuth("alice", "guess")
		}
		r.Header.Set("X-Forwarded-For", "203.0.113.7")
		answer, err := transport.RoundTrip(r)
		require.NoError(t, err)
		answer.Body.Close()
		assert.Equal(t, 2, answer.ProtoMajor)
		return answer.StatusCode
	}
	assert.Equal(t, http.StatusBadGateway, get("/login", "application/json"), "no attempt, which passes")
	assert.EqualValues(t, 1, wrong.Swap(0))
	for range 10 {
		assert.Equal(t, http.StatusBadGateway, get("/dav/x", ""), "it is sent as a whole, so nobody is banned")
	}
	assert.EqualValues(t, 10, wrong.Load())
}

// guardedAs starts the handler of g again, with its protocols.
func guardedAs(t *testing.T, g *guarded) *guarded {
	t.Helper()
	server := httptest.NewUnstartedServer(g.Config.Handler)
	server.Config.Protocols = g.Config.Protocols
	server.Start()
	t.Cleanup(server.Close)
	again := *g
	again.Server = server
	return &again
}

func TestWebSocketsPassAndOtherUpgradesDoNot(t *testing.T) {
	next := make(chan struct{})
	close(next)
	g := guardSite(t, streaming(t, next).URL, logins)
	for protocol, want := range map[string]int{"websocket": 101, "WebSocket": 101, "h2c": 200, "foo": 200} {
		conn, err := net.Dial("tcp", strings.TrimPrefix(g.URL, "http://"))
		require.NoError(t, err)
		require.NoError(t, conn.SetDeadline(time.Now().Add(30*time.Second)))
		fmt.Fprintf(conn, "GET /socket HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: %s\r\n\r\n", protocol)
		text := bufio.NewReader(conn)
		answer, err := http.ReadResponse(text, nil)
		require.NoError(t, err)
		assert.Equal(t, want, answer.StatusCode, protocol)
		if want == 101 {
			fmt.Fprint(conn, "hello\n")
			line, err := text.ReadString('\n')
			assert.NoError(t, err)
			assert.Equal(t, "echo hello\n", line)
		}
		conn.Close()
	}
}
