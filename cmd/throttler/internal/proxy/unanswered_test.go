package proxy_test

import (
	"context"
	"encoding/base64"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/adaptivethrottler/throttler/login"
	"github.com/adaptivethrottler/throttler/memstore"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// This file has servers whose answers say nothing of a password: to all while they fail, or
// to wrong ones alone.

// oracle is a server that does something else than answering to wrong passwords, and counts
// these.
func oracle(t *testing.T, instead func(w http.ResponseWriter)) (url string, wrong *atomic.Int64) {
	t.Helper()
	wrong = new(atomic.Int64)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, password, basic := r.BasicAuth()
		if !basic {
			password = r.PostFormValue("password")
		}
		if password != "right" {
			wrong.Add(1)
			instead(w)
			return
		}
		w.Header().Set("Set-Cookie", "session=a")
		if !basic {
			w.WriteHeader(http.StatusSeeOther)
		}
	}))
	t.Cleanup(s.Close)
	return s.URL, wrong
}

// instead are what a server may do to wrong passwords, so that its answer says nothing.
var instead = map[string]func(w http.ResponseWriter){
	"fails":  func(w http.ResponseWriter) { w.WriteHeader(http.StatusInternalServerError) },
	"is odd": func(w http.ResponseWriter) { w.WriteHeader(http.StatusTeapot) },
	"hangs up": func(w http.ResponseWriter) {
		conn, _, err := http.NewResponseController(w).Hijack()
		if err == nil {
			conn.Close()
		}
	},
	"hangs up by a reset": func(w http.ResponseWriter) {
		conn, _, err := http.NewResponseController(w).Hijack()
		if err == nil {
			conn.(*net.TCPConn).SetLinger(0)
			conn.Close()
		}
	},
}

func TestAnAnswerThatSaysNothingIsNoFreeGuess(t *testing.T) {
	for what, how := range instead {
		t.Run(what, func(t *testing.T) {
			server, wrong := oracle(t, how)
			g := guardSite(t, server, logins)
			for i := range 10 {
				g.guess(t, "alice", fmt.Sprint(i), "203.0.113.7")
				g.dav(t, "GET", "bob", fmt.Sprint(i), "203.0.113.8", nil)
			}
			assert.EqualValues(t, 10, wrong.Swap(0), "5 guesses at each name")
			refused := g.guess(t, "alice", "right", "203.0.113.7")
			assert.Equal(t, http.StatusTooManyRequests, refused.StatusCode)
			assert.LessOrEqual(t, len(refused.Header.Get("Retry-After")), 2, "no ban")
			together(100, func(i int) { g.guess(t, "carol", fmt.Sprint(i), fmt.Sprintf("198.51.100.%d", i)) })
			assert.EqualValues(t, 24, wrong.Load())
			assert.Equal(t, map[login.Result]int{login.Canceled: 34, login.Refused: 87}, g.results())
		})
	}
}

func TestAServerThatDoesNotAnswerGivesNoFreeGuess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := &outage{hangs: true}
		g := guardUnserved(t, "http://127.0.0.1:1", "  timeout: 1s\n"+logins, memstore.New())
		g.proxy.SetTransport(server)
		for i := range 10 {
			want := map[bool]int{true: http.StatusGatewayTimeout, false: http.StatusTooManyRequests}[i < 5]
			assert.Equal(t, want, g.asks("alice", fmt.Sprint("&password=", i), "203.0.113.7"))
		}
		time.Sleep(time.Minute)
		assert.Equal(t, http.StatusSeeOther, g.asks("alice", "&password=right", "203.0.113.7"), "no ban")
	})
}

func TestTheSameGuessIsCountedOnceWhileTheServerFails(t *testing.T) {
	server, wrong := oracle(t, instead["fails"])
	g := guardSite(t, server, logins)
	const form = "application/x-www-form-urlencoded"
	for range 20 {
		assert.Equal(t, http.StatusInternalServerError, g.guess(t, "alice", "a", "203.0.113.7").StatusCode)
		assert.Equal(t, http.StatusInternalServerError, g.dav(t, "GET", "bob", "a", "203.0.113.7", nil).StatusCode)
		assert.Equal(t, http.StatusInternalServerError, g.dav(t, "PUT", "bob", "a", "203.0.113.7", strings.NewReader("body")).StatusCode)
	}
	assert.EqualValues(t, 60, wrong.Swap(0))
	for i := range 20 { // a password that is not in the form is another guess
		r := post(t, g.URL+"/login", form, "user=carol")
		r.Header.Set("Cookie", fmt.Sprint("password=", i))
		send(t, r, "203.0.113.8")
		send(t, post(t, g.URL+"/login?password="+fmt.Sprint(i), form, "user=dave"), "203.0.113.9")
	}
	assert.EqualValues(t, 10, wrong.Load())
}

// An outage is a server that may fail, in memory, so that a test decides how time passes.
type outage struct {
	fails bool // to answer
	hangs bool // unless the password is right
	asked int
}

func (o *outage) RoundTrip(r *http.Request) (*http.Response, error) {
	if trace := httptrace.ContextClientTrace(r.Context()); trace != nil && trace.GotConn != nil { // for an attempt
		trace.GotConn(httptrace.GotConnInfo{})
	}
	o.asked++
	form := url.Values{}
	if r.Body != nil {
		body, _ := io.ReadAll(r.Body)
		form, _ = url.ParseQuery(string(body))
	}
	_, password, basic := r.BasicAuth()
	answer := &http.Response{StatusCode: http.StatusSeeOther, Header: http.Header{"Set-Cookie": {"session=a"}}, Body: http.NoBody, Request: r}
	switch {
	case o.hangs && form.Get("password") != "right":
		<-r.Context().Done()
		return nil, r.Context().Err()
	case o.fails:
		answer.StatusCode = http.StatusInternalServerError
	case basic && password == "right":
		answer.StatusCode = http.StatusOK
	case basic:
		answer.StatusCode = http.StatusUnauthorized
	case form.Get("password") != "right":
		answer.StatusCode = http.StatusOK
	}
	return answer, nil
}

// A later is a server that answers before or after it has got all of the request.
type later struct {
	sent, answered, ended time.Duration // after it was asked
}

func (l later) RoundTrip(r *http.Request) (*http.Response, error) {
	trace := httptrace.ContextClientTrace(r.Context())
	trace.GotConn(httptrace.GotConnInfo{})
	time.AfterFunc(l.sent, func() { trace.WroteRequest(httptrace.WroteRequestInfo{}) })
	select {
	case <-r.Context().Done():
		return nil, r.Context().Err()
	case <-time.After(l.answered):
	}
	body, writer := io.Pipe()
	time.AfterFunc(l.ended-l.answered, func() {
		io.WriteString(writer, "whole")
		writer.Close()
	})
	context.AfterFunc(r.Context(), func() { writer.CloseWithError(r.Context().Err()) })
	return &http.Response{StatusCode: http.StatusOK, Header: http.Header{}, Body: body, ContentLength: -1, Request: r}, nil
}

func TestTheTimeOfAnAnswerIsFromTheEndOfTheRequestToTheBeginningOfTheAnswer(t *testing.T) {
	for _, c := range []struct {
		server later
		status int
		body   string
	}{
		{later{sent: time.Second, ended: 10 * time.Second}, http.StatusOK, "whole"}, // as a server of HTTP/2 may
		{later{sent: 2 * time.Hour, answered: 2*time.Hour + time.Second/2, ended: 3 * time.Hour}, http.StatusOK, "whole"},
		{later{sent: time.Second, answered: 3 * time.Second}, http.StatusGatewayTimeout, "Gateway Timeout\n"},
	} {
		synctest.Test(t, func(t *testing.T) {
			g := guardUnserved(t, "http://127.0.0.1:1", "  timeout: 1s\n"+logins, memstore.New())
			g.proxy.SetTransport(c.server)
			r := httptest.NewRequest("PUT", "/dav/x", strings.NewReader("file"))
			r.SetBasicAuth("alice", "right")
			r.RemoteAddr = "203.0.113.7:1234"
			w := httptest.NewRecorder()
			g.proxy.ServeHTTP(w, r)
			assert.Equal(t, c.status, w.Code, "%+v", c.server)
			assert.Equal(t, c.body, w.Body.String(), "%+v", c.server)
		})
	}
}

// asks returns the status of the answer to a form, or to Basic authentication if it has no
// fields.
func (g *guarded) asks(name, fields, addr string) int {
	r := httptest.NewRequest("POST", "/login", strings.NewReader("user="+name+fields))
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	if fields == "" {
		r = httptest.NewRequest("PROPFIND", "/dav/x", http.NoBody)
		r.Header.Set("Authorization", "Basic "+base64.StdEncoding.EncodeToString([]byte(name+":right")))
	}
	r.RemoteAddr = addr + ":1234"
	w := httptest.NewRecorder()
	g.proxy.ServeHTTP(w, r)
	return w.Code
}

func TestAnOutageOfTenMinutesLocksNobodyOut(t *testing.T) {
	for _, seconds := range []int{600, 630, 660} {
		synctest.Test(t, func(t *testing.T) {
			server := &outage{fails: true}
			g := guardUnserved(t, "http://127.0.0.1:1", logins, memstore.New())
			g.proxy.SetTransport(server)
			for second := range seconds {
				// A program asks each second. 20 people of an office try every 50 s, and a nervous
				// one every 30, each time with a form that has a token of its own.
				require.Equal(t, http.StatusInternalServerError, g.asks("robot", "", "203.0.113.7"))
				if person := second % 50; person < 20 {
					g.asks(fmt.Sprint("person", person), fmt.Sprint("&password=right&token=", second), "203.0.113.8")
				}
				if second%30 == 0 {
					require.Equal(t, http.StatusInternalServerError, g.asks("nervous", fmt.Sprint("&password=right&token=", second), "203.0.113.9"))
				}
				time.Sleep(time.Second)
			}
			server.fails = false
			assert.Equal(t, http.StatusOK, g.asks("robot", "", "203.0.113.7"), "at once")
			assert.Equal(t, http.StatusSeeOther, g.asks("nervous", "&password=right&token=x", "203.0.113.9"), "at once")
			restored := time.Now()
			for person := range 20 { // together they may have filled the limit of their address
				for g.asks(fmt.Sprint("person", person), "&password=right&token=x", "203.0.113.8") != http.StatusSeeOther {
					time.Sleep(time.Second)
				}
			}
			assert.LessOrEqual(t, time.Since(restored), 5*time.Minute)
		})
	}
}

func TestGuessesInAnOutageCountAfterIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := &outage{fails: true}
		g := guardUnserved(t, "http://127.0.0.1:1", logins, memstore.New())
		g.proxy.SetTransport(server)
		for i := range 600 {
			g.asks("alice", fmt.Sprint("&password=", i), fmt.Sprintf("203.0.113.%d", i%200))
			time.Sleep(time.Second)
		}
		server.fails = false
		for i := range 600 {
			g.asks("alice", fmt.Sprint("&password=", i), fmt.Sprintf("203.0.113.%d", i%200))
			time.Sleep(time.Second)
		}
		assert.LessOrEqual(t, server.asked, 24+1, "24 at once, then one an hour")
	})
}

// A server may answer when it has the last byte of a body, before the proxy has looked for its
// end. net/http closes the body when it begins to write the answer.
func TestABodyEndsThoughItsAnswerCameFirst(t *testing.T) {
	end := make(chan error, 1)
	g := guardSite(t, "http://127.0.0.1:1", logins)
	g.proxy.SetTransport(roundTrip(func(r *http.Request) (*http.Response, error) {
		_, err := io.ReadFull(r.Body, make([]byte, r.ContentLength))
		assert.NoError(t, err)
		body, w := io.Pipe()
		go func() {
			io.WriteString(w, "first")
			io.WriteString(w, "second") // after the first was sent
			_, err := r.Body.Read(make([]byte, 1))
			end <- err
			w.Close()
		}()
		return &http.Response{StatusCode: 200, ContentLength: -1, Header: http.Header{}, Body: body, Request: r}, nil
	}))
	answer := send(t, post(t, g.URL+"/page", "text/plain", strings.Repeat("0123456789", 100_000)), "203.0.113.7")
	text, err := io.ReadAll(answer.Body)
	require.NoError(t, err)
	require.Equal(t, "firstsecond", string(text))
	require.Equal(t, io.EOF, <-end)
}

// A roundTrip is a transport of one function.
type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }
