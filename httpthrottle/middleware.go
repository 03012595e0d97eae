// Package httpthrottle limits the requests of an http.Handler.
//
// A [Middleware] makes a rule of each request, asks a [throttler.Throttler]
// whether it may happen, and either calls the handler that it wraps or refuses
// the request, by default with 429 Too Many Requests:
//
//	source := httpthrottle.Source{Trusted: proxies}
//	limit := httpthrottle.New(t, source.PerAddress("site", 100, time.Minute))
//	http.ListenAndServe(":8080", limit.Handler(mux))
//
// A [Source] says who is calling, behind proxies too, and has ready-made rules.
// [Connections] limits each connection for itself, with no Throttler.
//
// # What is done to a request
//
// The handler of an allowed request gets the ResponseWriter of the server as it
// is, so that HTTP/2, streaming, trailers, http.ResponseController and hijacked
// connections work as they do without the Middleware. Its context holds the
// Decision, see [DecisionFrom].
//
// A refused request costs little. Nothing of its body is read; with HTTP/1 that
// means that the connection is closed if there is one, since the next request
// would only come after it.
//
// A request that costs more than a condition ever holds (Condition.Cost above
// Max, or negative) is refused with no Retry-After, since it can never happen.
//
// A request whose context ends before it is decided is not handed on but
// answered with 503, though a Throttler fails open on it: otherwise a client
// that resets its requests as soon as they are sent would have each of them
// done and none counted.
//
// # Any router
//
// Handler has the shape func(http.Handler) http.Handler, that most routers take
// as it is; examples/routers has programs with chi, echo and gin.
package httpthrottle

import (
	"context"
	"fmt"
	"log"
	"net/http"
	"slices"
	"sync/atomic"
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
	// Refusal is how a request is answered that may not happen. Its default
	// Status is 429, its default Delay none.
	Refusal

	// Public holds the names of the conditions whose limits everybody may
	// know: their state is told in the header fields RateLimit-Policy and
	// RateLimit of allowed and refused answers. Empty: no such fields.
	//
	// A condition that counts what does not belong to the client, such as
	// the tries at an account's password, must not be public: its fields
	// would tell an attacker whether the owner has been there. Nothing is
	// told of a rule with Shadow set, which limits nothing.
	//
	// Each name must be that of a condition of every rule, so that a
	// misspelt one is noticed: Check returns it, and the first request whose
	// rule lacks it has it written to the log.
	Public []string

	// XRateLimit tells the state of one of the Public conditions in
	// X-RateLimit-Limit, X-RateLimit-Remaining and X-RateLimit-Reset too: of
	// the one that blocks first. Its Reset is when a full condition takes a
	// hit again, and else when it is as good as new. Default: NoXRateLimit.
	XRateLimit XRateLimit

	// RefuseOverloaded answers 503 Service Unavailable, with Retry-After, to
	// a request that could not be decided since the process asks more than
	// the servers can carry (throttler.ErrOverloaded). The other options of
	// the answer do not apply. It has no effect on a Throttler with a
	// Fallback, which decides such a request. Default: it is handed on.
	RefuseOverloaded bool

	// Failed answers a request whose rule is invalid, which is err. Nil:
	// err is written to the ErrorLog of the request's http.Server, or else
	// the standard logger, and the answer is 500.
	Failed func(w http.ResponseWriter, r *http.Request, err error)

	throttler *throttler.Throttler
	rule      func(*http.Request) throttler.Rule
	tarpit    tarpit
	misnamed  atomic.Bool // Public was found to be wrong, and that was logged
}

// New returns a Middleware that decides each request by the rule that rule makes
// of it. rule is called from many goroutines at once; it returns [Unlimited]'s
// result for a request that is not to be limited. New panics if t or rule is
// nil.
func New(t *throttler.Throttler, rule func(*http.Request) throttler.Rule) *Middleware {
	if t == nil {
		panic("httpthrottle: New with a nil Throttler")
	}
	if rule == nil {
		panic("httpthrottle: New with a nil rule")
	}
	return &Middleware{throttler: t, rule: rule}
}

// Unlimited returns what a rule function returns for a request that is not to be
// limited: it is handed on at once, nothing is counted, and its context has no
// Decision.
//
// It is a rule of its own, and not the zero Rule, so that a forgotten return
// value or an empty list of conditions stays what it is, a mistake that is
// answered with 500. Any Throttler takes it for an invalid rule.
func Unlimited() throttler.Rule { return gate.Unlimited() }

// Handler returns a handler that calls next for each request that may happen,
// and answers the others itself. It panics if next is nil or an option makes no
// sense.
func (m *Middleware) Handler(next http.Handler) http.Handler {
	if next == nil {
		panic("httpthrottle: Handler with a nil next handler")
	}
	m.check()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		m.serve(w, r, next)
	})
}

// check panics if an option makes no sense.
func (m *Middleware) check() {
	m.Refusal.check()
	if m.XRateLimit < NoXRateLimit || m.XRateLimit > XRateLimitEpoch {
		panic(fmt.Sprintf("httpthrottle: XRateLimit is %d, want NoXRateLimit, XRateLimitSeconds or XRateLimitEpoch", m.XRateLimit))
	}
	for i, name := range m.Public {
		if slices.Contains(m.Public[:i], name) {
			panic(fmt.Sprintf("httpthrottle: Public names %q twice", name))
		}
	}
}

// Check returns what is wrong with the rule that is made of r, or with Public
// for this rule, or nil. Nothing is counted and no backend is asked. A program
// whose rules come from its configuration calls it when it starts, with a
// request of each kind that it limits, since Handler can answer the requests of
// an invalid rule only with 500:
//
//	r, _ := http.NewRequest("GET", "/search", nil)
//	r.RemoteAddr = "192.0.2.1:1"
//	if err := limit.Check(r); err != nil {
//		log.Fatal(err)
//	}
func (m *Middleware) Check(r *http.Request) error {
	rule := m.rule(r)
	if gate.IsUnlimited(&rule) {
		return nil
	}
	err := gate.Validate(&rule)
	if err == nil {
		err = m.misnaming(&rule)
	}
	if err != nil {
		return fmt.Errorf("httpthrottle: %w", err)
	}
	return nil
}

// misnaming returns an error about the first name in Public that rule has no
// condition of, or nil.
func (m *Middleware) misnaming(rule *throttler.Rule) error {
	conditions := gate.Conditions(rule)
	for _, name := range m.Public {
		if !slices.ContainsFunc(conditions, func(c throttler.Condition) bool { return c.Name == name }) {
			return fmt.Errorf("the name %q in Public is that of no condition of the rule %q", name, rule.Identifier)
		}
	}
	return nil
}

func (m *Middleware) serve(w http.ResponseWriter, r *http.Request, next http.Handler) {
	rule := m.rule(r)
	d, verdict, err := gate.Decide(r.Context(), m.throttler, &rule)
	if verdict == gate.Overloaded && !m.RefuseOverloaded {
		verdict = gate.Passed
	}
	switch verdict {
	case gate.Free:
		next.ServeHTTP(w, r)
	case gate.Passed:
		m.publish(w, r, &rule, &d)
		next.ServeHTTP(w, withDecision(r, &d, nil))
	case gate.Refused, gate.TooLarge:
		d = later(d, m.tarpit.wait(r.Context(), m.Delay, m.maxDelayed()))
		violated := m.publish(w, r, &rule, &d)
		m.refuse(w, withDecision(r, &d, violated), d, m.WriteAnswer)
	case gate.Overloaded:
		unavailable(w, r, "There are too many requests to decide this one.")
	case gate.Ended:
		// Whoever set the context an end may still be there to read an answer.
		unavailable(w, r, "The request ended before it was decided.")
	default:
		fail(m.Failed, w, r, err)
	}
}

// publish tells in the header what is public of d, and returns the names of the
// policies that it violates.
func (m *Middleware) publish(w http.ResponseWriter, r *http.Request, rule *throttler.Rule, d *throttler.Decision) (violated []string) {
	if len(m.Public) == 0 || rule.Shadow {
		return nil
	}
	if !m.misnamed.Load() {
		if err := m.misnaming(rule); err != nil && m.misnamed.CompareAndSwap(false, true) {
			logTo(r, err)
		}
	}
	public := publicNames(m.Public)
	if m.XRateLimit != NoXRateLimit {
		m.XRateLimit.publishX(w.Header(), public, rule, d)
	}
	return public.publish(w.Header(), rule, d)
}

// undecidedRetry is when a client may come back whose request could not be
// decided. Nobody knows better: a burst is over soon.
const undecidedRetry = time.Second

// unavailable answers a request that could not be decided.
func unavailable(w http.ResponseWriter, r *http.Request, message string) {
	var f Refusal
	d := throttler.Decision{Messages: []string{message}, RetryAfter: undecidedRetry}
	f.refuse(w, r, d, func(w http.ResponseWriter, r *http.Request, d throttler.Decision) {
		f.write(w, r, d, http.StatusServiceUnavailable, nil)
	})
}

// WriteAnswer writes the default answer to a refused request, as the other
// options have it, for an Answer that only adds to it.
func (m *Middleware) WriteAnswer(w http.ResponseWriter, r *http.Request, d throttler.Decision) {
	var violated []string
	if c := decidedContextOf(r.Context()); c != nil {
		violated = c.violated
	}
	m.write(w, r, d, http.StatusTooManyRequests, violated)
}

// A decidedContext is the context of a request that has been decided. It is one
// allocation, where context.WithValue and a Decision would be two.
type decidedContext struct {
	context.Context
	decision throttler.Decision
	violated []string // the public policies that it violates, as they are told
}

type decisionKey struct{}

func (c *decidedContext) Value(key any) any {
	if key == (decisionKey{}) {
		return c
	}
	return c.Context.Value(key)
}

// withDecision returns r with d in its context.
func withDecision(r *http.Request, d *throttler.Decision, violated []string) *http.Request {
	return r.WithContext(&decidedContext{r.Context(), *d, violated})
}

// decidedContextOf returns the innermost decidedContext in ctx, nil if there is
// none.
func decidedContextOf(ctx context.Context) *decidedContext {
	c, _ := ctx.Value(decisionKey{}).(*decidedContext)
	return c
}

// DecisionFrom returns the Decision on the request that ctx belongs to, and
// whether there is one: none if no Middleware has decided the request, or only
// with [Unlimited] rules. With one Middleware inside another it is that of the
// innermost which has. Its slices must not be changed.
func DecisionFrom(ctx context.Context) (throttler.Decision, bool) {
	c := decidedContextOf(ctx)
	if c == nil {
		return throttler.Decision{}, false
	}
	return c.decision, true
}

// fail answers a request that failed with err, a programmer's mistake.
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
	// Not the URL: it may hold what does not belong in a log.
	logger.Printf("httpthrottle: %v", err)
}
