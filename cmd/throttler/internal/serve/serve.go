// Package serve implements the service. It answers proxies that ask whether a
// request may pass (forward authentication): nginx, Traefik, Caddy and HAProxy.
package serve

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/cmd/throttler/internal/rulefile"
	"github.com/adaptivethrottler/throttler/cmd/throttler/internal/seldom"
	"github.com/adaptivethrottler/throttler/httpthrottle"
	"github.com/adaptivethrottler/throttler/robots"
)

// StatusField is the header field with the status for the client, in every
// decided answer. A proxy may be unable to pass that status on itself.
const StatusField = "X-Throttler-Status"

// A Service decides requests by the rules of a file.
type Service struct {
	rules     *rulefile.Source
	throttler *throttler.Throttler
	log       *slog.Logger
	current   atomic.Pointer[chain] // of the last rules
	distrust  seldom.Minute         // for logging an untrusted peer
	seen      func(robots.Identity) // is told who asks, if the file says who robots are; may be nil
}

// New returns a Service that counts with t and logs mistakes to log.
func New(rules *rulefile.Source, t *throttler.Throttler, log *slog.Logger) *Service {
	return &Service{rules: rules, throttler: t, log: log}
}

// Handler returns the handler for proxies:
//
//	/auth         answers 200, or the response for the client. It reads X-Forwarded-Method,
//	              -Uri, -Host and -For.
//	/auth/nginx   answers 200, or 403 with the client's status in X-Throttler-Status: nginx
//	              turns any other into 500. It reads X-Original-Method, -Uri, -Host and
//	              X-Forwarded-For.
//
// Each reads only its own fields, since a client can send the others.
func (s *Service) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("/auth", s.answer("X-Forwarded-", 0))
	mux.Handle("/auth/nginx", s.answer("X-Original-", http.StatusForbidden))
	return mux
}

// answer decides requests that a proxy describes in header fields with prefix. refusal, if
// it is not 0, replaces the status of refusals.
func (s *Service) answer(prefix string, refusal int) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c := s.chain()
		if !c.file.Trusts(r.RemoteAddr) {
			s.tellDistrust(r.RemoteAddr)
			http.Error(w, "This proxy is not trusted. Add its address to trust in the rule file.", http.StatusInternalServerError)
			return
		}
		request := c.describe(r, prefix)
		if c.file.Robots != nil && s.seen != nil {
			s.seen(request.Identity(c.file))
		}
		c.handler.ServeHTTP(&telling{ResponseWriter: w, refusal: refusal}, r.WithContext(withRequest(r.Context(), request)))
	})
}

// tellDistrust logs that peer is not trusted, at most once a minute.
func (s *Service) tellDistrust(peer string) {
	if s.distrust.Due() {
		s.log.Error("asked by a proxy that is not trusted: add its address to trust in the rule file", "peer", peer)
	}
}

// telling is a ResponseWriter that adds StatusField, and replaces the status of
// refusals if refusal is set.
type telling struct {
	http.ResponseWriter
	refusal int
	told    bool
}

func (t *telling) WriteHeader(status int) {
	if !t.told {
		t.told = true
		t.Header().Set(StatusField, strconv.Itoa(status))
		t.bound()
		if t.refusal != 0 && status >= 400 {
			status = t.refusal
		}
	}
	t.ResponseWriter.WriteHeader(status)
}

// maxPublished is the largest size of the RateLimit fields together, in bytes.
// A proxy takes an answer that overflows its buffer, 4 KiB for nginx, for a
// failure, and may let the request pass.
const maxPublished = 2 << 10

// bound removes RateLimit fields that are too large.
func (t *telling) bound() {
	size := 0
	for _, name := range []string{"Ratelimit", "Ratelimit-Policy"} {
		for _, line := range t.Header()[name] {
			size += len(line)
		}
	}
	if size > maxPublished {
		t.Header().Del("Ratelimit")
		t.Header().Del("Ratelimit-Policy")
	}
}

func (t *telling) Write(b []byte) (int, error) {
	if !t.told {
		t.WriteHeader(http.StatusOK)
	}
	return t.ResponseWriter.Write(b)
}

// Unwrap is for http.ResponseController.
func (t *telling) Unwrap() http.ResponseWriter { return t.ResponseWriter }

// A chain is the rules of a file as nested handlers.
type chain struct {
	file    *rulefile.File
	source  httpthrottle.Source
	handler http.Handler
}

// chain returns the chain of the current rules.
func (s *Service) chain() *chain {
	file := s.rules.File()
	if c := s.current.Load(); c != nil && c.file == file {
		return c
	}
	c := s.newChain(file)
	s.current.Store(c)
	return c
}

func (s *Service) newChain(file *rulefile.File) *chain {
	c := &chain{file: file, source: file.Source()}
	c.handler = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusOK) })
	for i := len(file.Rules) - 1; i >= 0; i-- {
		c.handler = s.apply(file.Rules[i], file.Closed, c.handler)
	}
	return c
}

// apply returns a handler that decides by rule.
func (s *Service) apply(rule *rulefile.Rule, closed bool, next http.Handler) http.Handler {
	m := httpthrottle.New(s.throttler, func(r *http.Request) throttler.Rule {
		filled, ok := rule.Fill(requestFrom(r.Context()))
		if !ok {
			return httpthrottle.Unlimited()
		}
		return filled
	})
	m.Public = rule.Public
	m.Refusal.Status = rule.Answer.Status
	if answer := rule.Answer; answer.Body != "" {
		m.Refusal.Answer = func(w http.ResponseWriter, _ *http.Request, _ throttler.Decision) {
			w.Header().Set("Content-Type", answer.Type)
			w.Header().Set("X-Content-Type-Options", "nosniff")
			w.WriteHeader(answer.Status)
			io.WriteString(w, answer.Body) // an error means that the client has gone
		}
	}
	m.Failed = func(w http.ResponseWriter, _ *http.Request, err error) {
		s.log.Error("the rule is invalid for this request", "rule", rule.Name, "err", err)
		http.Error(w, http.StatusText(http.StatusInternalServerError), http.StatusInternalServerError)
	}
	if closed {
		next = failClosed(next)
	}
	return m.Handler(next)
}

// failClosed refuses requests whose decision the backend failed.
func failClosed(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		d, decided := httpthrottle.DecisionFrom(r.Context())
		if decided && d.Err != nil { // of this rule: after a failure of an earlier one the request does not come here
			w.Header().Set("Retry-After", "1")
			http.Error(w, "Please try again later.", http.StatusServiceUnavailable)
			return
		}
		next.ServeHTTP(w, r)
	})
}

type requestKey struct{}

func withRequest(ctx context.Context, r *rulefile.Request) context.Context {
	return context.WithValue(ctx, requestKey{}, r)
}

func requestFrom(ctx context.Context) *rulefile.Request {
	r, _ := ctx.Value(requestKey{}).(*rulefile.Request)
	return r
}

// describe returns the request that a proxy describes in header fields with
// prefix.
func (c *chain) describe(r *http.Request, prefix string) *rulefile.Request {
	get := func(name, otherwise string) string {
		if value := r.Header.Get(prefix + name); value != "" {
			return value
		}
		return otherwise
	}
	header := r.Header.Clone()
	for name := range header {
		if strings.HasPrefix(name, prefix) {
			delete(header, name)
		}
	}
	return &rulefile.Request{
		Addr:   c.source.Addr(r),
		Method: get("Method", r.Method),
		Host:   get("Host", r.Host),
		Target: get("Uri", "/"),
		Header: header,
	}
}
