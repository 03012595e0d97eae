package httpthrottle_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strconv"
	"time"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/httpthrottle"
	"github.com/adaptivethrottler/throttler/memstore"
)

// Three requests an hour from each address, and everybody may know it.
func Example() {
	t := throttler.New(memstore.New())
	var source httpthrottle.Source // no proxy: the peer is the client
	limit := httpthrottle.New(t, source.PerAddress("site", 3, time.Hour))
	limit.Public = []string{"address"}

	site := limit.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintln(w, "Welcome.")
	}))

	for range 4 {
		answer := httptest.NewRecorder()
		request := httptest.NewRequest("GET", "/", nil)
		request.Header.Set("Accept", "text/plain")
		site.ServeHTTP(answer, request)
		fmt.Print(answer.Code, " ", answer.Header().Get("RateLimit"), "\n", answer.Body)
	}
	// Output:
	// 200 "address";r=2;t=3600
	// Welcome.
	// 200 "address";r=1;t=3600
	// Welcome.
	// 200 "address";r=0;t=3600
	// Welcome.
	// 429 "address";r=0;t=3600
	// Too Many Requests
	// Too many requests from this address.
	// Try again in 60 minutes.
}

// A rule of one's own: searches are limited per address, narrowly, and for
// everybody together; nothing else is limited.
func ExampleNew() {
	t := throttler.New(memstore.New())
	var source httpthrottle.Source
	rule := func(r *http.Request) throttler.Rule {
		if r.URL.Path != "/search" {
			return httpthrottle.Unlimited()
		}
		return throttler.Rule{
			Identifier: "search",
			Either: []throttler.Condition{
				{Name: "address", Value: source.Key(r), Max: 2, TTL: time.Minute, Message: "You search a lot."},
				{Name: "all", Max: 1000, TTL: time.Minute, Message: "Many people are searching."},
			},
		}
	}
	site := httpthrottle.New(t, rule).Handler(http.NotFoundHandler())

	for _, path := range []string{"/search", "/search", "/search", "/"} {
		answer := httptest.NewRecorder()
		site.ServeHTTP(answer, httptest.NewRequest("GET", path, nil))
		fmt.Println(path, answer.Code)
	}
	// Output:
	// /search 404
	// /search 404
	// /search 429
	// / 404
}

// A handler that would rather not go on while the backend is down.
func ExampleDecisionFrom() {
	t := throttler.New(memstore.New())
	limit := httpthrottle.New(t, httpthrottle.Source{}.PerAddress("payments", 10, time.Minute))

	pay := limit.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		d, _ := httpthrottle.DecisionFrom(r.Context())
		if d.Err != nil {
			http.Error(w, "Not now.", http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "Paid,", d.Outcomes[0].Remaining, "more this minute.")
	}))

	answer := httptest.NewRecorder()
	pay.ServeHTTP(answer, httptest.NewRequest("POST", "/", nil))
	fmt.Print(answer.Body)
	// Output:
	// Paid, 9 more this minute.
}

// A status of one's own, and something done besides.
func ExampleRefusal() {
	t := throttler.New(memstore.New())
	limit := httpthrottle.New(t, httpthrottle.Source{}.PerAddress("site", 1, time.Minute))
	limit.Status = http.StatusForbidden
	limit.Answer = func(w http.ResponseWriter, r *http.Request, d throttler.Decision) {
		fmt.Println("refused:", d.Messages)
		limit.WriteAnswer(w, r, d)
	}
	site := limit.Handler(http.NotFoundHandler())

	for range 2 {
		answer := httptest.NewRecorder()
		site.ServeHTTP(answer, httptest.NewRequest("GET", "/", nil))
		fmt.Println(answer.Code)
	}
	// Output:
	// 404
	// refused: [Too many requests from this address.]
	// 403
}

// A handler that asks a throttler itself, since what it limits stands in the
// form, answers with the time to wait.
func ExampleSetRetryAfter() {
	t := throttler.New(memstore.New())
	invite := func(w http.ResponseWriter, r *http.Request) {
		d, err := t.Authorize(r.Context(), throttler.Rule{
			Identifier: "invitations",
			Either:     []throttler.Condition{{Name: "to", Value: r.FormValue("to"), Max: 1, TTL: time.Hour}},
		})
		if err != nil {
			http.Error(w, "Mistake.", http.StatusInternalServerError)
			return
		}
		if d.Status == throttler.Blocked {
			httpthrottle.SetRetryAfter(w, d)
			http.Error(w, "They have been invited already.", http.StatusTooManyRequests)
			return
		}
		fmt.Fprintln(w, "Invited.")
	}

	for range 2 {
		answer := httptest.NewRecorder()
		invite(answer, httptest.NewRequest("POST", "/?to=alice", nil))
		fmt.Print(answer.Code, " ", answer.Header().Get("Retry-After"), " ", answer.Body)
	}
	// Output:
	// 200  Invited.
	// 429 3600 They have been invited already.
}

// Ten items a minute, however many requests they come in. A request for more
// than ten can never be allowed, and is told so.
func ExampleMiddleware_cost() {
	t := throttler.New(memstore.New())
	var source httpthrottle.Source
	limit := httpthrottle.New(t, func(r *http.Request) throttler.Rule {
		items, err := strconv.Atoi(r.URL.Query().Get("items"))
		if err != nil {
			items = 1 // the handler refuses it, and it counts all the same
		}
		return throttler.Rule{Identifier: "export", Either: []throttler.Condition{
			{Name: "items", Value: source.Key(r), Max: 10, TTL: time.Minute, Cost: items, Message: "Ten items a minute."},
		}}
	})
	export := limit.Handler(http.NotFoundHandler())

	answer := httptest.NewRecorder()
	request := httptest.NewRequest("GET", "/?items=11", nil)
	request.Header.Set("Accept", "text/plain")
	export.ServeHTTP(answer, request)
	fmt.Printf("%d, Retry-After %q\n%s", answer.Code, answer.Header().Get("Retry-After"), answer.Body)
	// Output:
	// 429, Retry-After ""
	// Too Many Requests
	// Ten items a minute.
	// This request is larger than the limit ever allows.
}

// The fields that many clients know.
func ExampleMiddleware_xRateLimit() {
	t := throttler.New(memstore.New())
	limit := httpthrottle.New(t, httpthrottle.Source{}.PerAddress("site", 3, time.Hour))
	limit.Public = []string{"address"}
	limit.XRateLimit = true

	answer := httptest.NewRecorder()
	limit.Handler(http.NotFoundHandler()).ServeHTTP(answer, httptest.NewRequest("GET", "/", nil))
	for _, field := range []string{"X-RateLimit-Limit", "X-RateLimit-Remaining"} { // and X-RateLimit-Reset, a Unix time
		fmt.Printf("%s: %s\n", field, answer.Header().Get(field))
	}
	// Output:
	// X-RateLimit-Limit: 3
	// X-RateLimit-Remaining: 2
}

// Limits that are configured are checked when the program starts.
func ExampleMiddleware_Check() {
	configured := 0 // requests a minute
	limit := httpthrottle.New(throttler.New(memstore.New()), func(r *http.Request) throttler.Rule {
		return throttler.Rule{Identifier: "site", Either: []throttler.Condition{
			{Name: "all", Max: configured, TTL: time.Minute},
		}}
	})
	fmt.Println(limit.Check(httptest.NewRequest("GET", "/", nil)))
	// Output:
	// httpthrottle: throttler: invalid rule "site": condition "all": Either[0].Max is 0, want 1 to 1000000
}

// What stands in the header field is believed only as far as trusted proxies
// have written it.
func ExampleSource() {
	source := httpthrottle.Source{
		Trusted: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")},
		Header:  "X-Forwarded-For",
	}
	request := httptest.NewRequest("GET", "/", nil)
	request.RemoteAddr = "10.0.0.1:50000"
	request.Header.Set("X-Forwarded-For", "6.6.6.6, 2001:db8:1:2::3, 10.0.0.2")

	fmt.Println(source.Addr(request))
	fmt.Println(source.Key(request))
	// Output:
	// 2001:db8:1:2::3
	// 2001:db8:1:2::/64
}

// Two requests an hour over each connection.
func ExampleConnections() {
	perConnection := httpthrottle.NewConnections(2, time.Hour)
	perConnection.Delay = 10 * time.Millisecond // one second by default

	server := httptest.NewUnstartedServer(perConnection.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		io.WriteString(w, "Welcome.")
	})))
	server.Config.ConnContext = perConnection.ConnContext
	server.Start()
	defer server.Close()

	client := server.Client() // keeps the connection alive
	for i := range 4 {
		if i == 3 {
			client.CloseIdleConnections()
		}
		response, err := client.Get(server.URL)
		if err != nil {
			fmt.Println(err)
			return
		}
		io.Copy(io.Discard, response.Body)
		response.Body.Close()
		fmt.Println(response.Status)
	}
	// Output:
	// 200 OK
	// 200 OK
	// 503 Service Unavailable
	// 200 OK
}

// An API allows fewer requests than this program believes, and refuses the third. It is sent
// again when the API wants it.
func ExampleTransport() {
	limits := throttler.New(memstore.New()) // or a pool of memcached servers, for many processes
	client := &http.Client{Transport: &httpthrottle.Transport{
		Throttler: limits,
		Rule: func(r *http.Request) throttler.Rule {
			return throttler.Rule{Identifier: "example-api", Either: []throttler.Condition{
				{Name: "second", Value: r.URL.Host, Max: 10, TTL: time.Second},
			}}
		},
	}}

	arrived := 0
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if arrived++; arrived == 3 {
			w.Header().Set("Retry-After", "1")
			w.WriteHeader(http.StatusTooManyRequests)
		}
	}))
	defer api.Close()

	for i := range 3 {
		began := time.Now()
		answer, err := client.Get(api.URL)
		if err != nil {
			fmt.Println(err)
			return
		}
		answer.Body.Close()
		fmt.Println(answer.StatusCode)
		if i == 2 {
			fmt.Println("after at least a second:", time.Since(began) >= time.Second)
		}
	}
	// Output:
	// 200
	// 200
	// 200
	// after at least a second: true
}
