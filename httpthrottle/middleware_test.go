package httpthrottle_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"log"
	"mime/multipart"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/bradfitz/gomemcache/memcache"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/httpthrottle"
	"github.com/adaptivethrottler/throttler/memstore"
)

// perMinute returns a Middleware that allows n requests a minute from an
// address.
func perMinute(n int) *httpthrottle.Middleware {
	return httpthrottle.New(throttler.New(memstore.New()), httpthrottle.Source{}.PerAddress("test", n, time.Minute))
}

// withRule returns a Middleware that decides every request by rule.
func withRule(rule throttler.Rule) *httpthrottle.Middleware {
	return httpthrottle.New(throttler.New(memstore.New()), func(*http.Request) throttler.Rule { return rule })
}

var hello = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "hello") })

// get has h answer a GET request with the fields, given as name and value in
// turn.
func get(h http.Handler, fields ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(http.MethodGet, "/", nil)
	for i := 0; i < len(fields); i += 2 {
		r.Header.Add(fields[i], fields[i+1])
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

// So streams, trailers, http.ResponseController and hijacked connections work as without it.
func TestTheHandlerGetsTheServersWriterAndBody(t *testing.T) {
	var w http.ResponseWriter = httptest.NewRecorder()
	r := httptest.NewRequest(http.MethodPost, "/", strings.NewReader("body"))
	perMinute(1).Handler(http.HandlerFunc(func(of http.ResponseWriter, q *http.Request) {
		require.Same(t, w, of)
		require.True(t, r.Body == q.Body)
		io.WriteString(of, "hello")
	})).ServeHTTP(w, r)
	require.Equal(t, "hello", w.(*httptest.ResponseRecorder).Body.String())
}

func TestDecisionIsInTheContext(t *testing.T) {
	var d throttler.Decision
	var ok bool
	h := perMinute(3).Handler(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		d, ok = httpthrottle.DecisionFrom(r.Context())
	}))
	get(h)
	require.True(t, ok)
	require.Equal(t, throttler.Authorized, d.Status)
	require.Len(t, d.Outcomes, 1)
	require.Equal(t, 2, d.Outcomes[0].Remaining)

	d, ok = httpthrottle.DecisionFrom(t.Context())
	require.False(t, ok)
	require.Zero(t, d)
}

func TestContextKeepsItsValuesAndItsEnd(t *testing.T) {
	type key struct{}
	ctx, cancel := context.WithCancel(context.WithValue(t.Context(), key{}, "value"))
	h := perMinute(1).Handler(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		assert.Equal(t, "value", r.Context().Value(key{}))
		child, stop := context.WithCancel(r.Context())
		defer stop()
		cancel()
		<-child.Done()
		assert.ErrorIs(t, child.Err(), context.Canceled)
	}))
	h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/", nil).WithContext(ctx))
	require.Error(t, ctx.Err())
}

func TestDecisionOfTheInnerMiddlewareIsInTheContext(t *testing.T) {
	var d throttler.Decision
	inner := perMinute(7).Handler(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		d, _ = httpthrottle.DecisionFrom(r.Context())
	}))
	get(perMinute(3).Handler(inner))
	require.Equal(t, 7, d.Outcomes[0].Limit)
}

func TestUnlimitedRequestsAreNotCounted(t *testing.T) {
	store := memstore.New()
	m := httpthrottle.New(throttler.New(store), func(*http.Request) throttler.Rule { return httpthrottle.Unlimited() })
	m.Public = []string{"address"}
	h := m.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, ok := httpthrottle.DecisionFrom(r.Context())
		assert.False(t, ok)
	}))
	for range 10 {
		w := get(h)
		require.Equal(t, http.StatusOK, w.Code)
		require.Empty(t, w.Header())
	}
	require.ErrorIs(t, httpthrottle.Unlimited().Validate(), throttler.ErrInvalidRule)
}

func TestInvalidRulesAre500(t *testing.T) {
	for name, rule := range map[string]throttler.Rule{
		"zero":                     {},
		"no conditions":            {Identifier: "test"},
		"Unlimited with an excess": {Identifier: httpthrottle.Unlimited().Identifier, All: []throttler.Condition{{}}},
	} {
		t.Run(name, func(t *testing.T) {
			called := false
			m := withRule(rule)
			h := m.Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { called = true }))
			var logged bytes.Buffer
			server := &http.Server{ErrorLog: log.New(&logged, "", 0)}
			r := httptest.NewRequest(http.MethodGet, "/?password=secret", nil)
			w := httptest.NewRecorder()
			h.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), http.ServerContextKey, server)))
			require.Equal(t, http.StatusInternalServerError, w.Code)
			require.False(t, called)
			require.Contains(t, logged.String(), "httpthrottle: throttler: invalid rule")
			require.NotContains(t, logged.String(), "secret")
			require.NotContains(t, w.Body.String(), "rule")
		})
	}
}

func TestFailedAnswersInvalidRules(t *testing.T) {
	m := withRule(throttler.Rule{})
	m.Failed = func(w http.ResponseWriter, _ *http.Request, err error) {
		assert.ErrorIs(t, err, throttler.ErrInvalidRule)
		w.WriteHeader(http.StatusTeapot)
	}
	require.Equal(t, http.StatusTeapot, get(m.Handler(hello)).Code)
}

// failingStore fails at everything, with the same error.
type failingStore struct{ err error }

func (s failingStore) Get(string) (*memcache.Item, error)                   { return nil, s.err }
func (s failingStore) GetMulti([]string) (map[string]*memcache.Item, error) { return nil, s.err }
func (s failingStore) Add(*memcache.Item) error                             { return s.err }
func (s failingStore) CompareAndSwap(*memcache.Item) error                  { return s.err }
func (s failingStore) Delete(string) error                                  { return s.err }

var errOverloaded = fmt.Errorf("waited 1 s: %w", throttler.ErrOverloaded)

func TestMisusePanics(t *testing.T) {
	rule := httpthrottle.Source{}.PerAddress("test", 1, time.Minute)
	require.PanicsWithValue(t, "httpthrottle: New with a nil Throttler", func() { httpthrottle.New(nil, rule) })
	require.PanicsWithValue(t, "httpthrottle: New with a nil rule", func() { httpthrottle.New(throttler.New(memstore.New()), nil) })
	require.PanicsWithValue(t, "httpthrottle: Handler with a nil next handler", func() { perMinute(1).Handler(nil) })
	m := perMinute(1)
	m.Status = 99
	require.PanicsWithValue(t, "httpthrottle: Status is 99, want 200 to 999", func() { m.Handler(hello) })
	m = perMinute(1)
	m.Public = []string{"address", "address"}
	require.PanicsWithValue(t, `httpthrottle: Public names "address" twice`, func() { m.Handler(hello) })
}

// serve starts a server with h, for HTTP/2 if that is set, and returns it with a
// client of its own.
func serve(t *testing.T, h http.Handler, http2 bool) (*httptest.Server, *http.Client) {
	t.Helper()
	server := httptest.NewUnstartedServer(h)
	server.EnableHTTP2 = http2
	if http2 {
		server.StartTLS()
	} else {
		server.Start()
	}
	t.Cleanup(server.Close)
	client := server.Client()
	client.Timeout = 20 * time.Second
	return server, client
}

// eachProtocol runs a test over HTTP/1.1 and over HTTP/2.
func eachProtocol(t *testing.T, test func(t *testing.T, http2 bool)) {
	t.Run("HTTP=1.1", func(t *testing.T) { test(t, false) })
	t.Run("HTTP=2", func(t *testing.T) { test(t, true) })
}

func TestRealServer(t *testing.T) {
	eachProtocol(t, func(t *testing.T, http2 bool) {
		m := perMinute(1)
		m.Public = []string{"address"}
		server, client := serve(t, m.Handler(hello), http2)
		for i, want := range []int{200, 429, 429} {
			response, err := client.Get(server.URL)
			require.NoError(t, err)
			body, err := io.ReadAll(response.Body)
			require.NoError(t, err)
			response.Body.Close()
			require.Equal(t, http2, response.ProtoMajor == 2)
			require.Equal(t, want, response.StatusCode)
			require.Equal(t, `"address";q=1;w=60`, response.Header.Get("RateLimit-Policy"))
			require.Regexp(t, `^"address";r=0;t=(60|5\d)$`, response.Header.Get("RateLimit"), "5x on a busy machine")
			if i > 0 {
				require.Contains(t, string(body), "quota-exceeded")
				require.Regexp(t, `^(60|5\d)$`, response.Header.Get("Retry-After"))
				require.False(t, response.Close)
			}
		}
	})
}

func TestUploadedFilesAreRemovedAfterTheRequest(t *testing.T) {
	eachProtocol(t, func(t *testing.T, http2 bool) {
		dir := t.TempDir()
		t.Setenv("TMPDIR", dir)
		parse := func(w http.ResponseWriter, r *http.Request) {
			assert.NoError(t, r.ParseMultipartForm(1))
			files, err := os.ReadDir(dir)
			assert.NoError(t, err)
			fmt.Fprint(w, len(files))
			panic("after the answer")
		}
		m := perMinute(1)
		m.Answer = func(w http.ResponseWriter, r *http.Request, _ throttler.Decision) { parse(w, r) }
		limited := m.Handler(http.HandlerFunc(parse))
		server, client := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			defer func() { assert.Equal(t, "after the answer", recover()) }()
			limited.ServeHTTP(w, r)
		}), http2)
		for range 2 { // allowed, and refused
			var form bytes.Buffer
			upload := multipart.NewWriter(&form)
			file, err := upload.CreateFormFile("file", "name")
			require.NoError(t, err)
			_, err = io.WriteString(file, "beyond one byte")
			require.NoError(t, err)
			require.NoError(t, upload.Close())
			response, err := client.Post(server.URL, upload.FormDataContentType(), &form)
			require.NoError(t, err)
			stored, err := io.ReadAll(response.Body)
			require.NoError(t, err)
			response.Body.Close()
			require.Equal(t, "1", string(stored))
			require.Eventually(t, func() bool {
				files, err := os.ReadDir(dir)
				return err == nil && len(files) == 0
			}, 20*time.Second, time.Millisecond)
		}
	})
}

func TestTrailersThatWereNotAnnouncedReachTheHandler(t *testing.T) {
	server, _ := serve(t, perMinute(1).Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, err := io.Copy(w, r.Body)
		assert.NoError(t, err)
		io.WriteString(w, r.Trailer.Get("Sum"))
	})), false)
	connection := dial(t, server)
	_, err := io.WriteString(connection, "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"+
		"4\r\nbody\r\n0\r\nSum: trailer\r\n\r\n")
	require.NoError(t, err)
	response, err := http.ReadResponse(bufio.NewReader(connection), nil)
	require.NoError(t, err)
	body, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	require.Equal(t, "bodytrailer", string(body))
}

// dial opens a connection to server that lasts for 20 s at most.
func dial(t *testing.T, server *httptest.Server) net.Conn {
	t.Helper()
	var conn net.Conn
	var err error
	if server.TLS != nil {
		conn, err = tls.Dial("tcp", server.Listener.Addr().String(), &tls.Config{InsecureSkipVerify: true})
	} else {
		conn, err = net.Dial("tcp", server.Listener.Addr().String())
	}
	require.NoError(t, err)
	t.Cleanup(func() { conn.Close() })
	conn.SetDeadline(time.Now().Add(20 * time.Second))
	return conn
}

func TestRefusedRequestIsAnsweredThoughItsBodyNeverComes(t *testing.T) {
	server, client := serve(t, perMinute(1).Handler(hello), false)
	response, err := client.Get(server.URL)
	require.NoError(t, err)
	response.Body.Close()

	conn := dial(t, server)
	io.WriteString(conn, "POST / HTTP/1.1\r\nHost: test\r\nContent-Length: 1000\r\n\r\nonly this")
	response, err = http.ReadResponse(bufio.NewReader(conn), nil)
	require.NoError(t, err)
	require.Equal(t, http.StatusTooManyRequests, response.StatusCode)
	require.True(t, response.Close)
}

func TestRefusedRequestWithABodyKeepsTheHTTP2Connection(t *testing.T) {
	server, client := serve(t, perMinute(1).Handler(hello), true)
	connections := make(map[string]bool)
	server.Config.Handler = recordPeer(server.Config.Handler, connections)
	for i := range 4 {
		response, err := client.Post(server.URL, "text/plain", strings.NewReader("a body"))
		require.NoError(t, err)
		response.Body.Close()
		require.Equal(t, i > 0, response.StatusCode == http.StatusTooManyRequests)
	}
	require.Len(t, connections, 1)
}

// recordPeer notes the peer of each request in peers. The requests must come one
// after the other.
func recordPeer(next http.Handler, peers map[string]bool) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		peers[r.RemoteAddr] = true
		next.ServeHTTP(w, r)
	})
}
