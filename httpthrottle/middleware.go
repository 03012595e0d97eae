// Package httpthrottle limits the requests of an http.Handler.
//
// A [Middleware] makes a rule of each request and asks a [throttler.Throttler].
// It calls the handler, or refuses the request, by default with 429 Too Many
// Requests:
//
//	source := httpthrottle.Source{Trusted: proxies}
//	limit := httpthrottle.New(t, source.PerAddress("site", 100, time.Minute))
//	http.ListenAndServe(":8080", limit.Handler(mux))
//
// # By task
//
//   - Limit requests: [New], [Middleware.Handler], by address: [Source.PerAddress].
//     Cheapest, by one value: [PerValue]. Robots: package robots.
//   - Find the client, also behind proxies: [Source.Addr], [Source.Key].
//   - Limit bytes: [BodyCost]. Leave requests out: [Unlimited].
//   - Choose the answer: [Refusal], [Middleware.Public], [SetRetryAfter].
//   - Find mistakes: [Middleware.Check].
//   - Limit each connection by itself, without a Throttler: [Connections].
//   - Call an API that has limits: [Transport].
//
// # What is done to a request
//
// The handler of an allowed request gets the server's ResponseWriter unchanged:
// HTTP/2, streaming, trailers, http.ResponseController and hijacked connections
// work as without the Middleware. The request's context holds the Decision: see
// [DecisionFrom].
//
// The body of a refused request is not read. If it has one, an HTTP/1 connection
// is closed.
//
// A request that can never be allowed (Condition.Cost above Max, or negative) is
// refused without Retry-After.
//
// If the backend fails, requests pass. If a request's context ends before it is
// decided, the answer is 503 and the handler is not called. Otherwise a client
// could reset each request right after sending it and have it done uncounted.
//
// # Any router
//
// Most routers take Handler as it is. examples/routers has programs with chi, echo and gin.
package httpthrottle

import (
	"context"
	"fmt"
	"log"
	"net/http"
	"slices"
	"time"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/internal/gate"
)

// A Middleware limits the requests to the handlers that it wraps. All of them
// count together.
//
// The exported fields, and those of the embedded [Refusal], are options. They
// must be set before Handler is called. A Middleware is safe for concurrent
// use.
type Middleware struct {
	// Refusal configures the response to a rejected request. Its default Status
	// is 429. It has no Delay by default.
	Refusal

	// Public lists the names of the conditions that clients may know. The
	// header fields RateLimit-Policy and RateLimit of every answer, allowed or
	// refused, hold the state of those that the rule has. A rule with Shadow
	// adds no fields. With one Middleware inside another, a name that both use
	// becomes "identifier/name". Default: none, no such fields.
	//
	// Do not list a condition that counts attempts at a user's account. Its
	// fields would tell an attacker whether the owner has been there.
	Public []string

	// XRateLimit adds the header fields X-RateLimit-Limit,
	// X-RateLimit-Remaining and X-RateLimit-Reset, which no standard describes
	// and many clients read. They hold one of the Public conditions: the one
	// that blocks first in Either, and the one that blocks last in All or
	// First. Reset is the Unix time when a full condition takes a hit again, or
	// when another one is empty again.
	XRateLimit bool

	// Peek reports whether a request only asks what is left. It is not counted
	// and not refused. The fields of Public, and its Decision, are those of
	// [throttler.Throttler.Peek], but say what is left before a hit. Default:
	// every request counts.
	Peek func(r *http.Request) bool

	// PassPreflights lets CORS preflights pass uncounted, those of attackers
	// too. Otherwise they count as other requests, and browsers cannot read the
	// refusal of one: put the handler that answers them around the Middleware,
	// or set this if it is inside.
	PassPreflights bool

	// NoDecision leaves the Decision out of the context of an allowed request:
	// the handler gets the request itself, not a copy, unless it is counted in
	// flight. Over a memstore, a request then costs [PerValue] no allocation.
	NoDecision bool

	// RefuseOverloaded answers 503 Service Unavailable, with Retry-After, to a
	// request that could not be decided because the process asks more than the
	// servers can carry (throttler.ErrOverloaded). The options of Refusal do
	// not apply to it. It has no effect if the Throttler has a Fallback, which
	// decides such a request. Default: the request passes.
	RefuseOverloaded bool

	// Failed answers a request whose rule is invalid; err says why. Default: err
	// goes to the ErrorLog of the request's http.Server, or else the standard
	// logger, and the answer is 500.
	Failed func(w http.ResponseWriter, r *http.Request, err error)

	throttler *throttler.Throttler
	rule      func(*http.Request) throttler.Rule
	limit     *throttler.Limit           // of PerValue, or nil
	limitRule throttler.Rule             // its rule, without a Value
	value     func(*http.Request) string // of its requests
	tarpit    tarpit
}

// New returns a Middleware that decides each request by the rule that the
// function rule returns. rule is called from many goroutines at once. To leave
// a request unlimited, it returns [Unlimited]. New panics if t or rule is nil.
func New(t *throttler.Throttler, rule func(*http.Request) throttler.Rule) *Middleware {
	if t == nil {
		panic("httpthrottle: New with a nil Throttler")
	}
	if rule == nil {
		panic("httpthrottle: New with a nil rule")
	}
	return &Middleware{throttler: t, rule: rule}
}

// Handler returns a handler that calls next for each allowed request and
// answers the others itself. It panics if next is nil or an option is invalid.
func (m *Middleware) Handler(next http.Handler) http.Handler {
	if next == nil {
		panic("httpthrottle: Handler with a nil next handler")
	}
	m.check()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		m.serve(w, r, next)
	})
}

// check panics if an option is invalid.
func (m *Middleware) check() {
	m.Refusal.check()
	for i, name := range m.Public {
		if slices.Contains(m.Public[:i], name) {
			panic(fmt.Sprintf("httpthrottle: Public names %q twice", name))
		}
	}
}

func (m *Middleware) serve(w http.ResponseWriter, r *http.Request, next http.Handler) {
	if m.PassPreflights && isPreflight(r) {
		next.ServeHTTP(w, r)
		return
	}
	ctx := r.Context()
	options := gate.Options{Look: m.Peek != nil && m.Peek(r), RefuseOverloaded: m.RefuseOverloaded}
	rule := m.limitRule
	var d throttler.Decision
	var action gate.Action
	var err error
	if m.limit != nil && m.NoDecision && !options.Look {
		var o throttler.Outcome
		if action = gate.Take(ctx, m.limit, &rule, m.value(r), &o, &d, options); action == gate.Pass {
			m.publish(w, &rule, &throttler.Decision{Status: throttler.Authorized, Outcomes: []throttler.Outcome{o}}) // on the stack
			next.ServeHTTP(w, r)
			return
		}
	} else {
		rule = m.rule(r)
		action, err = gate.Decide(ctx, m.throttler, &rule, &d, options)
	}
	switch action {
	case gate.Unlimited:
		next.ServeHTTP(w, r)
	case gate.Pass:
		m.publish(w, &rule, &d)
		held, release := ctx, func() {}
		if !options.Look {
			held, release = gate.Hold(ctx, m.throttler, &rule, &d)
		}
		defer release() // even if next panics
		q := r
		switch {
		case !m.NoDecision:
			q = withDecision(r, held, &d, nil)
		case held != ctx:
			q = r.WithContext(held)
		}
		defer returnForm(r, q)
		next.ServeHTTP(w, q)
	case gate.Invalid:
		fail(m.Failed, w, r, err)
	default:
		m.reject(w, r, action, &rule, d)
	}
}

// reject answers a request that does not pass.
func (m *Middleware) reject(w http.ResponseWriter, r *http.Request, action gate.Action, rule *throttler.Rule, d throttler.Decision) {
	switch action {
	case gate.Overloaded:
		unavailable(w, r, "The server has too many requests to decide this one.")
		return
	case gate.Ended:
		// If a timeout ended the context, the client may still read the answer.
		unavailable(w, r, "The request ended before it was decided.")
		return
	}
	ctx := r.Context()
	d = later(d, m.tarpit.wait(ctx, m.Delay))
	violated := m.publish(w, rule, &d)
	q := r
	if m.Answer != nil {
		q = withDecision(r, ctx, &d, violated)
	}
	defer returnForm(r, q)
	m.refuse(w, q, &d, http.StatusTooManyRequests, violated)
}

// isPreflight reports whether r is a browser's question before a cross-origin
// request (Fetch, section 3.3.2).
func isPreflight(r *http.Request) bool {
	return r.Method == http.MethodOptions && r.Header["Origin"] != nil && r.Header["Access-Control-Request-Method"] != nil
}

// returnForm gives r the form that was parsed of its copy q, for net/http, which removes the
// files of r's: over HTTP/2 even after a panic, over HTTP/1 if that was recovered from. It
// writes to r only if there is one: others may read r.
func returnForm(r, q *http.Request) {
	if q.MultipartForm != r.MultipartForm {
		r.MultipartForm = q.MultipartForm
	}
}

// publish sets the header fields of the Public conditions. It returns the names
// of the policies that d violates.
func (m *Middleware) publish(w http.ResponseWriter, rule *throttler.Rule, d *throttler.Decision) (violated []string) {
	if len(m.Public) == 0 || rule.Shadow {
		return nil
	}
	public := publicNames(m.Public)
	if m.XRateLimit {
		public.publishX(w.Header(), rule, d)
	}
	return public.publish(w.Header(), rule, d)
}

// undecidedRetry is the Retry-After of a request that could not be decided. It
// is a guess: most bursts are short.
const undecidedRetry = time.Second

// unavailable answers a request that could not be decided.
func unavailable(w http.ResponseWriter, r *http.Request, message string) {
	d := throttler.Decision{Messages: []string{message}, RetryAfter: undecidedRetry}
	new(Refusal).refuse(w, r, &d, http.StatusServiceUnavailable, nil)
}

// WriteAnswer writes the default response to a refused request, by the other
// options of [Refusal]. Call it in an Answer that only adds to the response.
func (m *Middleware) WriteAnswer(w http.ResponseWriter, r *http.Request, d throttler.Decision) {
	var violated []string
	if c := decidedContextOf(r.Context()); c != nil {
		violated = c.violated
	}
	m.write(w, r, &d, new(values), http.StatusTooManyRequests, violated)
}

// A decidedRequest is a request with the Decision on it, and its context. They are one
// allocation; with context.WithValue they would be three.
type decidedRequest struct {
	request http.Request
	context decidedContext
}

// withDecision returns a copy of r whose context is a child of ctx that holds d.
func withDecision(r *http.Request, ctx context.Context, d *throttler.Decision, violated []string) *http.Request {
	if r.Trailer == nil && len(r.TransferEncoding) > 0 {
		r.Trailer = make(http.Header) // shared: net/http puts trailers that were not announced into r's
	}
	x := &decidedRequest{context: decidedContext{ctx, *d, violated}}
	x.request = *r.WithContext(&x.context)
	return &x.request
}

// A decidedContext is the context of a decided request.
type decidedContext struct {
	context.Context
	decision throttler.Decision
	violated []string // the names of the violated policies, as in the header
}

type decisionKey struct{}

func (c *decidedContext) Value(key any) any {
	if key == (decisionKey{}) {
		return c
	}
	return c.Context.Value(key)
}

// decidedContextOf returns the innermost decidedContext in ctx, or nil.
func decidedContextOf(ctx context.Context) *decidedContext {
	c, _ := ctx.Value(decisionKey{}).(*decidedContext)
	return c
}

// DecisionFrom returns the Decision on the request that ctx belongs to. The
// second result is false if there is none: no Middleware has decided the
// request, or all rules were [Unlimited]. With one Middleware inside another,
// the innermost Decision is returned. Do not change its slices.
func DecisionFrom(ctx context.Context) (throttler.Decision, bool) {
	c := decidedContextOf(ctx)
	if c == nil {
		return throttler.Decision{}, false
	}
	return c.decision, true
}

// fail answers a request that failed with err, a mistake in the program.
func fail(failed func(http.ResponseWriter, *http.Request, error), w http.ResponseWriter, r *http.Request, err error) {
	if failed != nil {
		failed(w, r, err)
		return
	}
	logTo(r, err)
	http.Error(w, http.StatusText(http.StatusInternalServerError), http.StatusInternalServerError)
}

// logTo writes err to the log of r's server.
func logTo(r *http.Request, err error) {
	logger := log.Default()
	if server, ok := r.Context().Value(http.ServerContextKey).(*http.Server); ok && server.ErrorLog != nil {
		logger = server.ErrorLog
	}
	// The URL is left out, as it may hold secrets.
	logger.Printf("httpthrottle: %v", err)
}
