package httpthrottle_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bradfitz/gomemcache/memcache"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/httpthrottle"
	"github.com/adaptivethrottler/throttler/internal/servertest"
	"github.com/adaptivethrottler/throttler/memstore"
)

// A script answers requests one after the other, and the last answer for ever. It records what
// arrives.
type script struct {
	mu      sync.Mutex
	answers []string // a status and fields, by line
	arrived []time.Time
	bodies  []string
	open    atomic.Int64  // bodies of answers that are not closed
	way     time.Duration // until an answer arrives
}

func (s *script) RoundTrip(r *http.Request) (*http.Response, error) {
	body := ""
	if r.Body != nil {
		b, err := io.ReadAll(r.Body)
		if err != nil {
			return nil, err
		}
		r.Body.Close()
		body = string(b)
	}
	defer time.Sleep(s.way)
	s.mu.Lock()
	defer s.mu.Unlock()
	answer := s.answers[0]
	if len(s.answers) > 1 {
		s.answers = s.answers[1:]
	}
	s.arrived = append(s.arrived, time.Now())
	s.bodies = append(s.bodies, body)
	lines := strings.Split(answer, "\n")
	response := &http.Response{Header: http.Header{}, ContentLength: 4, Request: r}
	for _, status := range []int{200, 403, 429, 503} {
		if lines[0] == http.StatusText(status) {
			response.StatusCode = status
		}
	}
	for _, line := range lines[1:] {
		name, value, _ := strings.Cut(line, ": ")
		response.Header.Add(name, value)
	}
	s.open.Add(1)
	response.Body = &counted{strings.NewReader("text"), &s.open, sync.Once{}}
	return response, nil
}

// times returns when requests arrived, since then.
func (s *script) times(since time.Time) (all []time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, at := range s.arrived {
		all = append(all, at.Sub(since))
	}
	return all
}

// A counted body counts down when it is closed.
type counted struct {
	io.Reader
	open *atomic.Int64
	once sync.Once
}

func (c *counted) Close() error {
	c.once.Do(func() { c.open.Add(-1) })
	return nil
}

const (
	okay    = "OK"
	tooMany = "Too Many Requests"
)

// scripted returns a Transport whose requests get these answers.
func scripted(store throttler.Client, answers ...string) (*httpthrottle.Transport, *script) {
	s := &script{answers: answers}
	return &httpthrottle.Transport{Base: s, Throttler: throttler.New(store), Rule: outgoing(100, time.Second)}, s
}

// call sends a request and returns the status of the answer, or the error.
func call(ctx context.Context, t *httpthrottle.Transport) (int, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://api.example/", nil)
	if err != nil {
		return 0, err
	}
	response, err := t.RoundTrip(r)
	if err != nil {
		return 0, err
	}
	return response.StatusCode, response.Body.Close()
}

// repeated returns n times each of the answers, in turns.
func repeated(n int, answers ...string) (all []string) {
	for range n {
		all = append(all, answers...)
	}
	return all
}

// named returns a rule whose condition has this name.
func named(name string) func(*http.Request) throttler.Rule {
	return func(*http.Request) throttler.Rule {
		return throttler.Rule{Identifier: "api", Either: []throttler.Condition{{Name: name, Max: 1, TTL: time.Second}}}
	}
}

// Calls one after the other, each of which is sent at least once.
var callTests = map[string]struct {
	answers []string
	calls   int
	want    []time.Duration // when requests arrive, in seconds
	change  func(*httpthrottle.Transport)
}{
	"nothing is said": {[]string{okay}, 3, []time.Duration{0, 0, 0}, nil},
	"an outage":       {[]string{"Service Unavailable"}, 3, []time.Duration{0, 0, 0}, nil},
	"forbidden":       {[]string{"Forbidden\nX-RateLimit-Remaining: 5\nX-RateLimit-Reset: 60"}, 3, []time.Duration{0, 0, 0}, nil},
	"some are left":   {[]string{okay + "\nRateLimit: \"a\";r=5;t=60"}, 3, []time.Duration{0, 0, 0}, nil},
	"none is left, nobody knows for how long": {[]string{okay + "\nX-RateLimit-Remaining: 0"}, 3, []time.Duration{0, 0, 0}, nil},
	"nobody knows what is left":               {[]string{okay + "\nX-RateLimit-Reset: 60"}, 3, []time.Duration{0, 0, 0}, nil},
	"the reset, and not a minute":             {[]string{okay + "\nRateLimit-Policy: \"a\";q=5;w=60\nRateLimit: \"a\";r=0;t=5", okay}, 2, []time.Duration{0, 5}, nil},
	"the reset, and not a day":                {[]string{okay + "\nRateLimit-Policy: \"a\";q=1000;w=86400\nRateLimit: \"a\";r=0;t=5", okay}, 2, []time.Duration{0, 5}, nil},
	"a limit and its window":                  {[]string{okay + "\nRateLimit-Policy: \"a\";q=2;w=10"}, 5, []time.Duration{0, 0, 10, 10, 20}, nil},
	"the lower of two in turns":               {repeated(9, okay+"\nRateLimit-Policy: \"a\";q=9;w=10", okay+"\nRateLimit-Policy: \"b\";q=3;w=10"), 8, []time.Duration{0, 0, 0, 10, 10, 10, 20, 20}, nil},
	"a limit of 0":                            {[]string{okay + "\nRateLimit-Policy: \"a\";q=0;w=1"}, 3, []time.Duration{0, 0, 0}, nil},
	"a window of 3 million years":             {[]string{okay + "\nRateLimit-Policy: \"a\";q=1;w=99999999999999"}, 3, []time.Duration{0, 0, 0}, nil},
	"a window of no time":                     {[]string{okay + "\nRateLimit-Policy: \"a\";q=1;w=0.0000001"}, 3, []time.Duration{0, 0, 0}, nil},
	"a limit of bytes":                        {[]string{okay + "\nRateLimit-Policy: \"a\";q=1;w=10;qu=\"content-bytes\""}, 3, []time.Duration{0, 0, 0}, nil},
	"a pause of 30,000 years":                 {[]string{tooMany + "\nRetry-After: 999999999999", okay}, 1, []time.Duration{0, 3600}, nil},
	"MaxPause":                                {[]string{tooMany + "\nRetry-After: 999999999999", okay}, 1, []time.Duration{0, 300}, func(t *httpthrottle.Transport) { t.MaxPause = 5 * time.Minute }},
	"MaxPause, with its margin":               {[]string{tooMany + "\nRetry-After: 2", okay}, 1, []time.Duration{0, 2}, func(t *httpthrottle.Transport) { t.MaxPause, t.Margin = 2*time.Second, time.Second }},
	"a pause, and its margin":                 {[]string{tooMany + "\nRetry-After: 2", okay}, 1, []time.Duration{0, 3}, func(t *httpthrottle.Transport) { t.Margin = time.Second }},
	"pauses that grow":                        {[]string{tooMany}, 1, []time.Duration{0, 1, 3, 7, 15, 31, 63, 123, 183}, func(t *httpthrottle.Transport) { t.MaxRetries = 8 }},
	"pauses that begin again":                 {append(repeated(2, tooMany, tooMany, okay), okay), 2, []time.Duration{0, 1, 3, 3, 4, 6}, nil},
	"retries end":                             {[]string{tooMany + "\nRetry-After: 1"}, 1, []time.Duration{0, 1, 2, 3}, nil},
	"as MaxRetries says":                      {[]string{tooMany + "\nRetry-After: 1"}, 1, []time.Duration{0, 1}, func(t *httpthrottle.Transport) { t.MaxRetries = 1 }},
	"no retries":                              {[]string{tooMany + "\nRetry-After: 1"}, 1, []time.Duration{0}, func(t *httpthrottle.Transport) { t.MaxRetries = -1 }},
	"unlimited": {[]string{tooMany + "\nRetry-After: 10"}, 3, []time.Duration{0, 0, 0}, func(t *httpthrottle.Transport) {
		t.Rule = func(*http.Request) throttler.Rule { return httpthrottle.Unlimited() }
	}},
	"a rule in shadow, which must not repeat requests": {[]string{tooMany + "\nRetry-After: 10"}, 3, []time.Duration{0, 0, 0}, func(t *httpthrottle.Transport) {
		t.Rule = func(*http.Request) throttler.Rule {
			return throttler.Rule{Identifier: "api", Shadow: true, Either: []throttler.Condition{{Name: "window", Max: 1, TTL: time.Hour}}}
		}
	}},
	"a rule of All, one of which is open": {[]string{tooMany + "\nRetry-After: 10", okay}, 4, []time.Duration{0, 10, 10, 11, 11}, func(t *httpthrottle.Transport) {
		t.Rule = func(*http.Request) throttler.Rule { return throttler.Rule{Identifier: "api", All: oneAndTwo} }
	}},
	"a rule of First": {[]string{tooMany + "\nRetry-After: 10", okay}, 4, []time.Duration{0, 10, 10, 10, 11}, func(t *httpthrottle.Transport) {
		t.Rule = func(*http.Request) throttler.Rule { return throttler.Rule{Identifier: "api", First: oneAndTwo} }
	}},
}

var oneAndTwo = []throttler.Condition{
	{Name: "one", Value: "1", Max: 1, TTL: time.Second}, {Name: "two", Value: "2", Max: 2, TTL: time.Second},
}

func TestRequestsAreSentWhenTheServerWantsThem(t *testing.T) {
	for name, test := range callTests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				began := time.Now()
				transport, s := scripted(memstore.New(), test.answers...)
				transport.Margin = -1
				if test.change != nil {
					test.change(transport)
				}
				for range test.calls {
					_, err := call(t.Context(), transport)
					require.NoError(t, err)
				}
				require.Equal(t, test.want, inSeconds(s.times(began)))
				require.Zero(t, s.open.Load(), "no body is leaked")
			})
		})
	}
}

// Requests that were under way when the first was refused say nothing more than it does.
func TestRefusalsAtTheSameMomentCountAsOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		answers := []string{okay}
		for range 10 {
			answers = append(answers, tooMany)
		}
		transport, s := scripted(memstore.New(), append(answers, okay)...)
		transport.MaxRetries, s.way = -1, 10*time.Millisecond
		_, err := call(t.Context(), transport)
		require.NoError(t, err)
		var all sync.WaitGroup
		for range 10 {
			all.Go(func() {
				status, err := call(t.Context(), transport)
				assert.NoError(t, err)
				assert.Equal(t, http.StatusTooManyRequests, status)
			})
		}
		all.Wait()
		refused := time.Now()
		_, err = call(t.Context(), transport)
		require.NoError(t, err)
		require.Equal(t, time.Second, s.times(refused)[11].Truncate(100*time.Millisecond))
	})
}

// The first refusal begins the pause, before other processes know of it.
func TestRefusalsCountAsOneBeforeThePauseIsStored(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sent := time.Now()
		time.Sleep(10 * time.Millisecond)
		require.Equal(t, []time.Duration{1, 1, 1}, inSeconds(httpthrottle.BackOffs(sent, 3)))
	})
}

func inSeconds(times []time.Duration) []time.Duration {
	for i := range times {
		times[i] /= time.Second
	}
	return times
}

// Over memcached, with a pool for each process: first a pause, then the limit that was told with it.
func TestProcessesPauseAndKeepToALimitTogether(t *testing.T) {
	for name, open := range backends {
		t.Run(name, func(t *testing.T) {
			server := servertest.NewMemcached(t).Addr
			first, _ := scripted(open(t, server), tooMany+"\nRetry-After: 1000\nRateLimit-Policy: \"a\";q=5;w=1000")
			first.MaxRetries = -1
			status, err := call(t.Context(), first)
			require.NoError(t, err)
			require.Equal(t, http.StatusTooManyRequests, status)

			other, _ := scripted(open(t, server), okay)
			other.MaxWait = -1
			var limit *throttler.BlockedError
			_, err = call(t.Context(), other)
			require.ErrorAs(t, err, &limit)
			require.Greater(t, limit.Decision.RetryAfter, 900*time.Second)

			require.NoError(t, other.Throttler.Reset(t.Context(), throttler.Rule{Identifier: "api", Either: []throttler.Condition{
				{Name: "server", Max: 1, TTL: time.Second},
			}}))
			sent := 0
			for range 10 {
				if _, err := call(t.Context(), other); err == nil {
					sent++
				}
			}
			require.Equal(t, 5, sent, "a refused request is not counted")
		})
	}
}

func TestALimitComesBackWhenItIsNotToldAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		transport, s := scripted(memstore.New(), okay+"\nRateLimit-Policy: \"a\";q=5;w=1", okay)
		transport.MaxWait = -1
		sent := func() (n int) {
			for range 200 {
				if _, err := call(t.Context(), transport); err == nil {
					n++
				}
			}
			return n
		}
		require.Equal(t, 5, sent())
		time.Sleep(30 * time.Second)
		require.Equal(t, 5, sent())
		time.Sleep(time.Minute)
		require.Equal(t, 100, sent(), "the rule's again")
		require.Len(t, s.arrived, 110)
	})
}

// What the server says holds for the Identifier and the Values of a rule.
func TestAPauseIsSharedByTheSameValuesOnly(t *testing.T) {
	for _, test := range []struct {
		first, other []string
		shared       bool
	}{
		{[]string{"a"}, []string{"a", "a"}, true},
		{[]string{"a", "b"}, []string{"a", "b", "a"}, true},
		{[]string{"a"}, []string{"b"}, false},
		{[]string{"a", "b"}, []string{"a"}, false},
		{[]string{"a", "b"}, []string{"a&b"}, false},
		{[]string{"a&b"}, []string{"a%26b"}, false},
		{[]string{"", "a"}, []string{"&a"}, false},
	} {
		t.Run(fmt.Sprint(test.first, test.other), func(t *testing.T) {
			store := memstore.New()
			first, _ := scripted(store, tooMany+"\nRetry-After: 10")
			first.Rule, first.MaxRetries = valued(test.first), -1
			_, err := call(t.Context(), first)
			require.NoError(t, err)
			other, _ := scripted(store, okay)
			other.Rule, other.MaxWait = valued(test.other), -1
			_, err = call(t.Context(), other)
			require.Equal(t, test.shared, err != nil)
		})
	}
}

// valued returns a rule whose conditions have these Values.
func valued(values []string) func(*http.Request) throttler.Rule {
	rule := throttler.Rule{Identifier: "api"}
	for i, value := range values {
		rule.Either = append(rule.Either, throttler.Condition{Name: fmt.Sprint("c", i), Value: value, Max: 10, TTL: time.Second})
	}
	return func(*http.Request) throttler.Rule { return rule }
}

func TestARefusedRequestIsSentAgainOnlyIfThatIsSafe(t *testing.T) {
	repeatable := func() (io.ReadCloser, error) { return io.NopCloser(strings.NewReader("body")), nil }
	for _, test := range []struct {
		name    string
		method  string
		header  http.Header
		body    string
		getBody func() (io.ReadCloser, error)
		sent    int
	}{
		{"GET", "GET", nil, "", nil, 3},
		{"no method", "", nil, "", nil, 3},
		{"PUT with a body", "PUT", nil, "body", repeatable, 3},
		{"PUT with a body that is gone", "PUT", nil, "body", nil, 1},
		{"PUT with a body that fails", "PUT", nil, "body", func() (io.ReadCloser, error) { return nil, errors.New("gone") }, 1},
		{"POST", "POST", nil, "body", repeatable, 1},
		{"POST without a body", "POST", nil, "", nil, 1},
		{"POST with a key", "POST", http.Header{"Idempotency-Key": {"1"}}, "body", repeatable, 3},
		{"POST with an empty key", "POST", http.Header{"X-Idempotency-Key": nil}, "body", repeatable, 3},
		{"PATCH", "PATCH", nil, "body", repeatable, 1},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				began := time.Now()
				transport, s := scripted(memstore.New(), tooMany+"\nRetry-After: 1", tooMany+"\nRetry-After: 2", okay)
				r, err := http.NewRequest(test.method, "http://api.example/", nil)
				require.NoError(t, err)
				r.Header, r.GetBody = test.header, test.getBody
				if test.body != "" {
					r.Body = io.NopCloser(strings.NewReader(test.body))
				}
				before := *r
				response, err := transport.RoundTrip(r)
				require.NoError(t, err)
				require.NoError(t, response.Body.Close())
				require.Equal(t, before.Header, r.Header, "the request is left as it is")
				require.True(t, before.Body == r.Body)
				require.Same(t, r, response.Request)
				require.Zero(t, s.open.Load(), "no body is leaked")
				require.Equal(t, []time.Duration{0, 1, 3}[:test.sent], inSeconds(s.times(began)))
				for _, body := range s.bodies {
					require.Equal(t, test.body, body)
				}
			})
		})
	}
}

// The refusal itself is the answer if there is no time to wait.
func TestARetryThatWouldComeTooLateIsNotWaitedFor(t *testing.T) {
	for _, test := range []struct {
		name     string
		maxWait  time.Duration
		deadline time.Duration
	}{
		{"MaxWait", 9 * time.Second, time.Hour},
		{"nobody waits", -1, time.Hour},
		{"deadline", 0, 9 * time.Second},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				began := time.Now()
				transport, s := scripted(memstore.New(), tooMany+"\nRetry-After: 10", okay)
				transport.MaxWait = test.maxWait
				ctx, cancel := context.WithTimeout(t.Context(), test.deadline)
				defer cancel()
				status, err := call(ctx, transport)
				require.NoError(t, err)
				require.Equal(t, http.StatusTooManyRequests, status)
				require.Zero(t, time.Since(began))

				// And so is no further request.
				_, err = call(ctx, transport)
				var limit *throttler.BlockedError
				require.ErrorAs(t, err, &limit)
				require.Equal(t, 10*time.Second, limit.Decision.RetryAfter.Truncate(time.Second))
				require.Equal(t, test.name == "deadline", errors.Is(err, context.DeadlineExceeded), err)
				require.Contains(t, err.Error(), "httpthrottle: not sent: throttler: blocked: ")
				require.Contains(t, err.Error(), "The server wants no requests for now.")
				require.Len(t, s.arrived, 1)
			})
		})
	}
}

func TestARequestThatIsNotSentHasItsBodyClosed(t *testing.T) {
	var open atomic.Int64
	for name, change := range map[string]func(*httpthrottle.Transport){
		"no Throttler":  func(t *httpthrottle.Transport) { t.Throttler = nil },
		"no Rule":       func(t *httpthrottle.Transport) { t.Rule = nil },
		"invalid rule":  func(t *httpthrottle.Transport) { t.Rule = outgoing(0, time.Second) },
		"reserved name": func(t *httpthrottle.Transport) { t.Rule = named("server") },
		"reserved too":  func(t *httpthrottle.Transport) { t.Rule = named("server-1s") },
		"in flight": func(t *httpthrottle.Transport) {
			t.Rule = func(*http.Request) throttler.Rule {
				return throttler.Rule{Identifier: "api", Either: []throttler.Condition{{Name: "calls", Max: 1, TTL: time.Second, Algorithm: throttler.InFlight}}}
			}
		},
		"full": func(t *httpthrottle.Transport) { t.MaxWait = -1; t.Rule = outgoing(1, time.Hour) },
	} {
		t.Run(name, func(t *testing.T) {
			transport, s := scripted(memstore.New(), okay)
			change(transport)
			for i := range 2 {
				open.Add(1)
				r, err := http.NewRequest(http.MethodPost, "http://api.example/", &counted{strings.NewReader("body"), &open, sync.Once{}})
				require.NoError(t, err)
				response, err := transport.RoundTrip(r)
				if name == "full" && i == 0 {
					require.NoError(t, err)
					require.NoError(t, response.Body.Close())
					continue
				}
				require.Error(t, err)
				require.Zero(t, open.Load())
				require.Equal(t, name == "full", len(s.arrived) > 0)
			}
		})
	}
}

func TestAProcessObeysWhatItWasToldWhileTheStoreIsAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		transport, s := scripted(failingStore{errors.New("the store is away")}, tooMany+"\nRetry-After: 10", okay+"\nRateLimit-Policy: \"a\";q=2;w=1", okay)
		for range 6 {
			status, err := call(t.Context(), transport)
			require.NoError(t, err)
			require.Equal(t, http.StatusOK, status)
		}
		times := s.times(began)
		require.GreaterOrEqual(t, times[1], 10*time.Second)
		require.Greater(t, times[6]-times[1], 2*time.Second, "2 a second")
	})
}

func TestARuleInShadowWaitsForNothingWhileTheStoreIsAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		transport, _ := scripted(failingStore{errors.New("the store is away")}, tooMany+"\nRetry-After: 10", okay)
		transport.Rule = func(*http.Request) throttler.Rule {
			return throttler.Rule{Identifier: "api", Shadow: true, Either: oneAndTwo}
		}
		for range 2 {
			_, err := call(t.Context(), transport)
			require.NoError(t, err)
		}
		require.Zero(t, time.Since(began))
	})
}

func TestAForeignItemInPlaceOfLimitsIsReplaced(t *testing.T) {
	for _, value := range []string{"", "text", "{}", `[{"max":-1}]`, `[{"max":1,"ttl":1000000000,"told":"9999-01-01T00:00:00Z"}]`, "[1]", "null"} {
		synctest.Test(t, func(t *testing.T) {
			store := memstore.New()
			key := throttler.RecordKey("api", "server-limits", "")
			require.NoError(t, store.Add(&memcache.Item{Key: key, Value: []byte(value)}))
			transport, _ := scripted(store, okay+"\nRateLimit-Policy: \"a\";q=5;w=1")
			transport.MaxWait = -1
			sent := 0
			for range 10 {
				if _, err := call(t.Context(), transport); err == nil {
					sent++
				}
			}
			require.Equal(t, 5, sent, value)
			item, err := store.Get(key)
			require.NoError(t, err)
			require.Contains(t, string(item.Value), `"max":5`)
		})
	}
}

func TestAContextThatEndsWhileARequestWaitsEndsIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		transport, s := scripted(memstore.New(), okay)
		transport.Rule = outgoing(1, time.Hour)
		_, err := call(t.Context(), transport)
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		began := time.Now()
		_, err = call(ctx, transport)
		require.ErrorIs(t, err, context.Canceled)
		var limit *throttler.BlockedError
		require.ErrorAs(t, err, &limit)
		require.Equal(t, time.Second, time.Since(began))
		require.Len(t, s.arrived, 1)
	})
}

func TestARequestThatOneConditionHoldsBackUsesUpNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		transport, s := scripted(memstore.New(), okay)
		transport.MaxWait = -1
		transport.Rule = func(*http.Request) throttler.Rule {
			return throttler.Rule{Identifier: "api", Either: []throttler.Condition{
				{Name: "minute", Max: 3, TTL: time.Minute}, {Name: "second", Max: 1, TTL: time.Second},
			}}
		}
		for range 3 {
			for range 5 {
				call(t.Context(), transport)
			}
			time.Sleep(2 * time.Second)
		}
		require.Len(t, s.arrived, 3)
	})
}

// A request that has passed what Transport adds to a rule of All or First may wait long for that
// rule. Meanwhile another one may be refused.
func TestAPauseHoldsForRequestsThatWaitForTheRuleAlready(t *testing.T) {
	for name, rule := range map[string]throttler.Rule{
		"Either": {Either: []throttler.Condition{{Name: "second", Max: 1, TTL: time.Second}}},
		"All":    {All: []throttler.Condition{{Name: "second", Max: 1, TTL: time.Second}}},
		"First":  {First: []throttler.Condition{{Name: "second", Max: 1, TTL: time.Second}}},
	} {
		for name, store := range map[string]throttler.Client{
			name: memstore.New(), name + " while the store is away": failingStore{errors.New("the store is away")},
		} {
			t.Run(name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					began := time.Now()
					transport, s := scripted(store, tooMany+"\nRetry-After: 20", okay)
					transport.MaxRetries, transport.Margin, s.way = -1, -1, 300*time.Millisecond
					rule.Identifier = "api"
					transport.Rule = func(*http.Request) throttler.Rule { return rule }
					var all sync.WaitGroup
					for range 3 {
						all.Go(func() { call(t.Context(), transport) })
					}
					all.Wait()
					times := s.times(began)
					require.Len(t, times, 3)
					require.Zero(t, times[0])
					require.GreaterOrEqual(t, times[1], 20*time.Second)
					require.GreaterOrEqual(t, times[2], times[1]+time.Second)
				})
			})
		}
	}
}

// A process takes a longer list than it would store for something else.
func TestOnlySoManyLimitsAreStoredAsAreRead(t *testing.T) {
	store := memstore.New()
	policy := okay
	for window := range 12 {
		policy += fmt.Sprintf("\nRateLimit-Policy: \"%d\";q=5;w=%d", window, window+1)
	}
	transport, _ := scripted(store, policy)
	_, err := call(t.Context(), transport)
	require.NoError(t, err)
	item, err := store.Get(throttler.RecordKey("api", "server-limits", ""))
	require.NoError(t, err)
	require.Equal(t, 8, strings.Count(string(item.Value), `"max":5`))
	other, _ := scripted(store, okay)
	other.MaxWait = -1
	sent := 0
	for range 10 {
		if _, err := call(t.Context(), other); err == nil {
			sent++
		}
	}
	require.Equal(t, 4, sent, "the first process has sent one")
}

// hasty ends the context of a request when its answer is there.
type hasty struct {
	http.RoundTripper
	leave context.CancelFunc
}

func (h hasty) RoundTrip(r *http.Request) (*http.Response, error) {
	defer h.leave()
	return h.RoundTripper.RoundTrip(r)
}

func TestARefusalTeachesOthersThoughItsCallerHasLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, began := memstore.New(), time.Now()
		first, _ := scripted(plain{store}, tooMany+"\nRetry-After: 10\nRateLimit-Policy: \"a\";q=1;w=1\nRateLimit: \"a\";r=0;t=1")
		ctx, cancel := context.WithCancel(t.Context())
		first.Base = hasty{first.Base, cancel}
		first.MaxRetries = -1
		_, err := call(ctx, first)
		require.NoError(t, err)

		other, s := scripted(store, okay)
		for range 2 {
			_, err := call(t.Context(), other)
			require.NoError(t, err)
		}
		require.Equal(t, []time.Duration{10, 11}, inSeconds(s.times(began)))
	})
}

// plain hides that a memstore is more than a Client.
type plain struct{ throttler.Client }

// What is not sent, and what the server refuses, uses up nothing.
func TestRefusedRequestsAreNotCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		transport, _ := scripted(memstore.New(), tooMany+"\nRetry-After: 1", okay)
		transport.Rule = outgoing(3, time.Hour)
		transport.MaxWait = 10 * time.Second
		sent := 0
		for range 10 {
			if status, err := call(t.Context(), transport); err == nil && status == http.StatusOK {
				sent++
			}
		}
		require.Equal(t, 3, sent)
	})
}

func TestAResetLiftsAPauseAndForgetsLimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New()
		first, _ := scripted(store, tooMany+"\nRetry-After: 1000\nRateLimit-Policy: \"a\";q=1;w=1")
		first.MaxRetries = -1
		_, err := call(t.Context(), first)
		require.NoError(t, err)

		other, s := scripted(store, okay)
		began := time.Now()
		time.AfterFunc(30*time.Second, func() {
			assert.NoError(t, other.Throttler.Reset(t.Context(), throttler.Rule{Identifier: "api", Either: []throttler.Condition{
				{Name: "server", Max: 1, TTL: time.Second}, {Name: "server-limits", Max: 1, TTL: time.Second},
			}}))
		})
		for range 100 {
			_, err := call(t.Context(), scriptedBy(s, store))
			require.NoError(t, err)
		}
		require.Equal(t, []time.Duration{60, 60}, inSeconds([]time.Duration{s.times(began)[0], s.times(began)[99]}), "it asks again after a minute")
	})
}

// scriptedBy returns a Transport of a new process with the answers of s.
func scriptedBy(s *script, store throttler.Client) *httpthrottle.Transport {
	return &httpthrottle.Transport{Base: s, Throttler: throttler.New(store), Rule: outgoing(100, time.Second)}
}
