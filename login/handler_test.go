package login_test

import (
	"fmt"
	"math"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"strconv"
	"strings"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/httpthrottle"
	"github.com/adaptivethrottler/throttler/login"
	"github.com/adaptivethrottler/throttler/memstore"
)

// The handler of a login form. addr is the client's address: behind a reverse
// proxy list that in source.Trusted, or all visitors count as one.
func Example_handler() {
	guard := login.New(throttler.New(memstore.New())) // or a pool of memcached servers
	source := httpthrottle.Source{Trusted: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}, Header: "X-Forwarded-For"}

	handler := func(w http.ResponseWriter, r *http.Request) {
		ctx, name := r.Context(), login.Normalize(r.PostFormValue("name")) // one spelling of each account
		attempt, err := guard.Begin(ctx, name, source.Addr(r))
		if err != nil { // the name is too long, or the client has gone
			http.Error(w, "Wrong name or password.", http.StatusForbidden)
			return
		}
		if attempt.Decision.Status == throttler.Blocked { // do not look at the password
			w.Header().Set("Retry-After", strconv.Itoa(int(math.Ceil(attempt.Decision.RetryAfter.Seconds()))))
			http.Error(w, attempt.Decision.Messages[0], http.StatusTooManyRequests)
			return
		}
		if !passwordIsRight(name, r.PostFormValue("password")) {
			attempt.Fail(ctx) // an error is the backend's
			http.Error(w, "Wrong name or password.", http.StatusForbidden)
			return
		}
		attempt.Succeed(ctx)
		startSession(w, name)
	}

	for _, password := range []string{"1", "2", "3", "4", "5", "6"} {
		form := url.Values{"name": {" ALICE"}, "password": {password}}
		r := httptest.NewRequest("POST", "/login", strings.NewReader(form.Encode()))
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		w := httptest.NewRecorder()
		handler(w, r)
		fmt.Println(w.Code)
	}

	// Output:
	// 403
	// 403
	// 403
	// 403
	// 403
	// 429
}

func passwordIsRight(name, password string) bool {
	return name == "alice" && password == "correct horse"
}

func startSession(w http.ResponseWriter, name string) { fmt.Fprintln(w, "Welcome,", name) }
