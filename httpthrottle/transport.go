package httpthrottle

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/adaptivethrottler/throttler/internal/record"
	lru "github.com/hashicorp/golang-lru/v2"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/internal/gate"
)

// defaultMaxRetries is the default of [Transport.MaxRetries].
const defaultMaxRetries = 3

// defaultMaxPause is the default of [Transport.MaxPause].
const defaultMaxPause = time.Hour

// Transport is an http.RoundTripper for programs that call APIs with limits. Each request
// waits for its turn by a rule. If the API refuses one all the same, no process that shares
// the records sends another one until the API wants it:
//
//	client := &http.Client{Transport: &httpthrottle.Transport{
//		Throttler: limits,
//		Rule: func(r *http.Request) throttler.Rule {
//			return throttler.Rule{Identifier: "example-api", Either: []throttler.Condition{
//				{Name: "second", Value: r.URL.Host, Max: 10, TTL: time.Second},
//			}}
//		},
//	}}
//
// # Waiting
//
// Requests of one process that wait for the same condition are sent first come, first
// served: see [throttler.Throttler.Wait]. A request that would wait longer than MaxWait, or
// past the deadline of its context, is not sent. The error is a [*throttler.BlockedError], by
// errors.As, which says when it could be sent. It also matches the error of the context if that
// has ended or would have, and [throttler.ErrOverloaded] if too many requests wait.
//
// The API counts requests when they arrive. So each TTL is longer by Margin.
//
// # What it learns
//
// A refusal is a 429, a 503 with Retry-After, or a 403 with Retry-After or with nothing left
// (GitHub). It stops the requests of all processes, by a ban of the condition "server", which
// is added to the rule. Its own hits are given back. The ban lasts for
//
//   - Retry-After, in seconds or as a date, or Retry-After-Ms, or else
//   - the time until all limits are reset of which the answer says that nothing is left, or
//     else
//   - a second, and twice as long after each further refusal, up to a minute.
//
// An answer to an allowed request that says that nothing is left, and when the limit is
// reset, stops all requests until then, too, unless the rule does so anyway.
//
// To lift a ban, Reset a rule with the Identifier, one condition "server", and the Value of
// the rule's conditions. If these have several, it is all of them, joined by &. In each, % is
// written as %25 and & as %26.
//
// These header fields are read:
//
//   - RateLimit-Policy and RateLimit (draft-ietf-httpapi-ratelimit-headers-11, and the
//     dictionary of draft 7),
//   - RateLimit-Limit, -Remaining and -Reset (draft 3),
//   - X-RateLimit-Limit, -Remaining and -Reset (Reset in seconds or as a Unix time),
//   - x-ratelimit-remaining-requests and its like (OpenAI).
//
// A limit of requests that an answer tells together with its window becomes a condition beside
// those of the rule. RateLimit-Policy does that ("a";q=100;w=60), and the Limit fields of
// draft 3 and of Envoy (100, 100;w=60). The limit is stored beside the records, and each process
// reads it once a second. Of two limits for a window the lower one
// holds until no answer has told it for a window. A limit is forgotten after ten windows, and a
// minute at least, in which no answer tells it.
//
// An answer from a cache says nothing: one with an Age, or an allowed one whose Date is more
// than a minute ago.
//
// If the backend fails, the process goes on with what it knows, at the pace of
// [throttler.Throttler.Wait].
//
// # Retries
//
// A refused request is sent again, up to MaxRetries times, if its body can be had again (it
// has none, or a GetBody) and its method is idempotent or it has an Idempotency-Key. As in
// net/http, a key with no values marks the request and is not sent. A request that is not
// sent again because of MaxWait or its deadline returns the refusal. So does one of a rule with
// Shadow, which waits for nothing.
//
// The exported fields are options, except Throttler and Rule, which are required. They must
// be set before the first request. A Transport is safe for concurrent use, and must not be
// copied after it.
type Transport struct {
	// Base sends the requests. Default: http.DefaultTransport.
	Base http.RoundTripper

	// Throttler decides when. Its records, and what is learned, are shared by all processes
	// that use the same servers.
	Throttler *throttler.Throttler

	// Rule returns the rule of a request: the limits that the API documents. It is called from
	// many goroutines at once, and must not change the request. A request of [Unlimited] is
	// sent at once, and nothing is learned from its answer. No condition may be named
	// "server" or begin with "server-", and none may be [throttler.InFlight]: use
	// [throttler.Throttler.Do] around a request for that.
	//
	// What is learned is kept for the Identifier and the Values of the conditions. An API
	// that counts by key, or by endpoint, needs Values with the key, or the endpoint.
	Rule func(r *http.Request) throttler.Rule

	// MaxWait is the longest time that a request waits for its turn. Default: as long as its
	// context allows. Negative: none waits.
	MaxWait time.Duration

	// MaxRetries is how often a refused request is sent again. Default: 3. Negative disables
	// it.
	MaxRetries int

	// MaxPause is the longest time for which one answer stops all requests, its Margin included.
	// An API that wants more is asked again after that. Default: 1 h.
	MaxPause time.Duration

	// Margin is added to the TTL of each condition. It makes up for the time to the API, which
	// differs from request to request, and for the clocks of several machines: a request that
	// arrives late and another one a TTL later that arrives early must not be in one window of
	// the API. Default: a fiftieth of the TTL, and 100 ms at most. Negative: none.
	Margin time.Duration

	begin sync.Once
	byKey *lru.Cache[string, *knowledge]
	own   *throttler.Throttler // has the pauses that could not be stored for all processes
}

// RoundTrip sends r when it is allowed, and again if it is refused. The error matches
// [throttler.ErrInvalidRule] if its rule is invalid, matches [throttler.ErrBlocked] if it was not
// sent, or is that of Base.
func (t *Transport) RoundTrip(r *http.Request) (*http.Response, error) {
	rule, err := t.ruleOf(r)
	if err != nil {
		closeBody(r)
		return nil, err
	}
	if gate.IsUnlimited(&rule) {
		return t.base().RoundTrip(r)
	}
	l, attempt := t.targetOf(rule), r
	for retries := 0; ; retries++ {
		allowed, err := t.admit(r.Context(), l)
		if err != nil {
			closeBody(attempt)
			return nil, err
		}
		sent := time.Now()
		response, err := t.base().RoundTrip(attempt)
		if err != nil {
			return nil, err // it may have been counted all the same
		}
		response.Request = r
		pause := t.learn(r.Context(), l, allowed, response, sent)
		if pause == 0 || rule.Shadow || retries >= t.maxRetries() || !t.inTime(r.Context(), pause) {
			return response, nil
		}
		next, ok := again(r)
		if !ok {
			return response, nil
		}
		discard(response)
		attempt = next
	}
}

// CloseIdleConnections closes the idle connections of Base, for http.Client.
func (t *Transport) CloseIdleConnections() {
	if base, ok := t.base().(interface{ CloseIdleConnections() }); ok {
		base.CloseIdleConnections()
	}
}

// ruleOf returns the rule of r, which is valid or Unlimited.
func (t *Transport) ruleOf(r *http.Request) (rule throttler.Rule, err error) {
	if t.Throttler == nil || t.Rule == nil {
		return rule, errors.New("httpthrottle: Transport without a Throttler or a Rule")
	}
	rule = t.Rule(r)
	if gate.IsUnlimited(&rule) {
		return rule, nil
	}
	if err := rule.Validate(); err != nil {
		return rule, fmt.Errorf("httpthrottle: %w", err)
	}
	for _, c := range rule.Conditions() {
		switch {
		case c.Name == closedCondition, strings.HasPrefix(c.Name, limitCondition):
			return rule, fmt.Errorf("httpthrottle: %w: the condition %q has a name that Transport itself uses", throttler.ErrInvalidRule, c.Name)
		case c.Algorithm == throttler.InFlight:
			return rule, fmt.Errorf("httpthrottle: %w: the condition %q is InFlight, which Transport does not hold; use Throttler.Do", throttler.ErrInvalidRule, c.Name)
		}
	}
	return rule, nil
}

// inTime reports whether a request may wait for that long.
func (t *Transport) inTime(ctx context.Context, pause time.Duration) bool {
	if t.MaxWait != 0 && pause > t.MaxWait {
		return false
	}
	deadline, ok := ctx.Deadline()
	return !ok || time.Now().Add(pause).Before(deadline)
}

// again returns r as it can be sent once more, or false if it cannot.
func again(r *http.Request) (*http.Request, bool) {
	if !repeatable(r) {
		return nil, false
	}
	next := r.WithContext(r.Context()) // a copy, since r must not be changed
	if r.Body == nil || r.Body == http.NoBody {
		return next, true
	}
	if r.GetBody == nil {
		return nil, false
	}
	body, err := r.GetBody()
	if err != nil {
		return nil, false
	}
	next.Body = body
	return next, true
}

// repeatable reports whether a request may arrive twice: its method is idempotent (RFC 9110,
// section 9.2.2), or it has a key by which the server knows it again.
func repeatable(r *http.Request) bool {
	switch r.Method {
	case "", http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodTrace, http.MethodPut, http.MethodDelete:
		return true
	}
	for _, name := range []string{"Idempotency-Key", "X-Idempotency-Key"} {
		if _, ok := r.Header[name]; ok {
			return true
		}
	}
	return false
}

// maxDiscarded is the length of a refusal that is read, so that its connection can be used
// again. A longer one costs the connection.
const maxDiscarded = 4096

// discard ends a response that nobody reads.
func discard(response *http.Response) {
	if length := response.ContentLength; length > 0 && length <= maxDiscarded {
		io.CopyN(io.Discard, response.Body, length) // an error means that the connection is of no use
	}
	response.Body.Close()
}

func closeBody(r *http.Request) {
	if r.Body != nil {
		r.Body.Close()
	}
}

func (t *Transport) base() http.RoundTripper {
	if t.Base == nil {
		return http.DefaultTransport
	}
	return t.Base
}

func (t *Transport) maxRetries() int {
	if t.MaxRetries == 0 {
		return defaultMaxRetries
	}
	return max(t.MaxRetries, 0)
}

func (t *Transport) maxPause() time.Duration {
	if t.MaxPause <= 0 {
		return defaultMaxPause
	}
	return t.MaxPause
}

// margin returns what is added to ttl.
func (t *Transport) margin(ttl time.Duration) time.Duration {
	margin := t.Margin
	if margin == 0 {
		margin = min(ttl/50, 100*time.Millisecond)
	}
	return min(max(margin, 0), record.MaxBucketTTL-min(ttl, record.MaxBucketTTL))
}

// notSent returns the error of a request whose waiting ended, or would have, with err. It is a
// part of ctx: if ctx has nothing to do with that, MaxWait has.
func notSent(ctx, waiting context.Context, d throttler.Decision, err error) error {
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		end, ok := ctx.Deadline()
		if part, _ := waiting.Deadline(); !ok || part.Before(end) {
			err = nil
		}
	}
	if err == nil {
		return fmt.Errorf("httpthrottle: not sent: %w", &throttler.BlockedError{Decision: d})
	}
	return fmt.Errorf("httpthrottle: not sent: %w: %w", &throttler.BlockedError{Decision: d}, err)
}
