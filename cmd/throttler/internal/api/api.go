// Package api implements the JSON API for programs in any language: decisions
// by the rules of a file, and a guard for logins. openapi.json describes it.
package api

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"mime"
	"net/http"
	"reflect"
	"strings"
	"sync/atomic"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/cmd/throttler/internal/rulefile"
	"github.com/adaptivethrottler/throttler/cmd/throttler/internal/seldom"
	"github.com/adaptivethrottler/throttler/login"
)

// Description is the OpenAPI description of the API.
//
//go:embed openapi.json
var Description []byte

// The bounds of a request's body and of the requests under way. Beyond these
// the answer is 413 or 503.
const (
	MaxBody     = 64 << 10
	MaxUnderWay = 512
)

// MinSecret is the least length of a secret, in bytes.
const MinSecret = 16

// Options configure an API.
type Options struct {
	Rules     *rulefile.Source
	Throttler *throttler.Throttler
	Guard     *login.Guard

	// Tokens counts used tokens. It has the backend of Throttler, and no
	// Fallback.
	Tokens *throttler.Throttler

	// Secret seals tokens, and is the same in all replicas. Default: random, so
	// that tokens are valid in this process only.
	Secret string

	// Keys are the keys of callers, sent as Authorization: Bearer KEY. Default:
	// none; callers need a certificate that the server has verified.
	Keys []string

	// Turned is called when a caller is turned away. Default: none.
	Turned func(Reason)

	// Released is called when a caller has given a lease back, also a second time. Default: none.
	Released func()

	Log *slog.Logger
}

// A Reason is why a caller was turned away.
type Reason string

// The reasons.
const (
	WrongKey   Reason = "wrong_key"  // 401
	Overloaded Reason = "overloaded" // 503
)

type api struct {
	Options
	tokens *tokens
	keys   [][sha256.Size]byte
	places chan struct{} // of requests under way
	told   seldom.Minute // for logging an error

	strangers     atomic.Int64  // requests with a wrong key since strangersTold
	strangersTold seldom.Minute // for logging them

	pending pending // of Dovecot
}

// New returns the handler of the API. The error says which secret is too short.
func New(o Options) (http.Handler, error) {
	if o.Secret == "" {
		o.Secret = rand.Text()
	}
	a := &api{Options: o, places: make(chan struct{}, MaxUnderWay)}
	if len(o.Secret) < MinSecret {
		return nil, fmt.Errorf("the token key has %d bytes, want %d or more", len(o.Secret), MinSecret)
	}
	for _, key := range o.Keys {
		if len(key) < MinSecret {
			return nil, fmt.Errorf("an API key has %d bytes, want %d or more", len(key), MinSecret)
		}
		a.keys = append(a.keys, sha256.Sum256([]byte(key)))
	}
	var err error
	a.tokens, err = newTokens(o.Secret, o.Tokens)
	return a.handler(), err
}

func (a *api) handler() http.Handler {
	mux := http.NewServeMux()
	for path, handler := range a.operations() {
		a.handle(mux, http.MethodPost, path, a.admit(handler))
	}
	a.handle(mux, http.MethodPost, "/v1/dovecot", a.admit(http.HandlerFunc(a.dovecot)))
	a.handle(mux, http.MethodGet, "/v1/openapi.json", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.Write(Description)
	}))
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		a.fail(w, r, &failure{"no-such-operation", "There is no such operation. GET /v1/openapi.json lists them, each to be sent by POST."})
	})
	return mux
}

// handle answers the requests for path that have the method, and refuses others.
func (a *api) handle(mux *http.ServeMux, method, path string, handler http.Handler) {
	mux.Handle(method+" "+path, handler)
	mux.HandleFunc(path, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Allow", method)
		a.fail(w, r, &failure{"wrong-method", fmt.Sprintf("%s takes %s.", path, method)})
	})
}

// operations returns the operations by path.
func (a *api) operations() map[string]http.Handler {
	return map[string]http.Handler{
		"/v1/authorize":       operation(a, a.authorize),
		"/v1/peek":            operation(a, a.peek),
		"/v1/cancel":          operation(a, a.cancel),
		"/v1/settle":          operation(a, a.settle),
		"/v1/acquire":         operation(a, a.acquire),
		"/v1/renew":           operation(a, a.renew),
		"/v1/release":         operation(a, a.release),
		"/v1/reset":           operation(a, a.reset),
		"/v1/ban":             operation(a, a.ban),
		"/v1/login/begin":     operation(a, a.begin),
		"/v1/login/succeed":   operation(a, a.end("succeeded", (*login.Attempt).Succeed)),
		"/v1/login/fail":      operation(a, a.end("failed", (*login.Attempt).Fail)),
		"/v1/login/cancel":    operation(a, a.end("canceled", (*login.Attempt).Cancel)),
		"/v1/login/challenge": operation(a, a.end("challenged", (*login.Attempt).Challenge)),
		"/v1/login/lift":      operation(a, a.lift),
		"/v1/login/recognize": operation(a, a.recognize),
	}
}

// admit passes the requests of known callers on.
func (a *api) admit(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !a.knows(r) {
			a.turned(WrongKey)
			a.tellStranger(r)
			w.Header().Set("WWW-Authenticate", "Bearer")
			a.fail(w, r, &failure{"unknown-caller", "Send a key of this service: Authorization: Bearer KEY."})
			return
		}
		next.ServeHTTP(w, r)
	})
}

func (a *api) turned(why Reason) {
	if a.Turned != nil {
		a.Turned(why)
	}
}

// tellStranger logs that callers have a wrong key, at most once a minute.
func (a *api) tellStranger(r *http.Request) {
	a.strangers.Add(1)
	if a.strangersTold.Due() {
		a.Log.Warn("a caller of the JSON API has no valid key", "peer", r.RemoteAddr, "path", r.URL.Path, "requests", a.strangers.Swap(0))
	}
}

// knows reports whether the caller has a key or, if there are no keys, a
// verified certificate.
func (a *api) knows(r *http.Request) bool {
	if len(a.keys) == 0 {
		return r.TLS != nil && len(r.TLS.VerifiedChains) > 0
	}
	scheme, key, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	sum := sha256.Sum256([]byte(key))
	known := 0
	for i := range a.keys {
		known |= subtle.ConstantTimeCompare(sum[:], a.keys[i][:])
	}
	return known == 1 && strings.EqualFold(scheme, "Bearer")
}

// operation returns a handler that decodes a question and answers with the
// result of do.
func operation[Question, Answer any](a *api, do func(context.Context, *Question) (Answer, error)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		question := new(Question)
		if err := read(w, r, question); err != nil {
			a.fail(w, r, err)
			return
		}
		a.respond(w, r, func() (any, error) { return do(r.Context(), question) })
	})
}

// respond answers with the result of do, unless too many requests are under way. Call it
// when the body has been read: a slow caller holds no place.
func (a *api) respond(w http.ResponseWriter, r *http.Request, do func() (any, error)) {
	select {
	case a.places <- struct{}{}:
		defer func() { <-a.places }()
	default:
		a.turned(Overloaded)
		a.fail(w, r, unavailable("Too many requests are under way."))
		return
	}
	answer, err := do()
	if err != nil {
		a.fail(w, r, err)
		return
	}
	write(w, http.StatusOK, "application/json", answer)
}

// read decodes the body of a request: one JSON value without unknown fields.
func read(w http.ResponseWriter, r *http.Request, question any) error {
	if err := checkType(r); err != nil {
		return err
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, MaxBody))
	if errors.As(err, new(*http.MaxBytesError)) {
		return &failure{"too-large", fmt.Sprintf("The body has more than %d bytes.", MaxBody)}
	}
	if err == nil {
		err = decode(body, question)
	}
	if err != nil {
		return invalid("The body cannot be read: %s.", inWords(err))
	}
	return nil
}

// checkType returns an error unless a request is of the type of JSON, which a web page cannot send
// to another site without a CORS preflight.
func checkType(r *http.Request) error {
	if kind, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type")); kind != "application/json" {
		return &failure{"wrong-media-type", "Send Content-Type: application/json."}
	}
	return nil
}

// decode decodes one JSON value without unknown fields and without null, which
// would count as an empty text.
func decode(body []byte, question any) error {
	d := json.NewDecoder(bytes.NewReader(body))
	d.DisallowUnknownFields()
	if err := d.Decode(question); err != nil {
		return err
	}
	if d.More() {
		return errors.New("more than one JSON value")
	}
	for d := json.NewDecoder(bytes.NewReader(body)); ; {
		switch token, err := d.Token(); {
		case err == io.EOF:
			return nil
		case err != nil:
			return err
		case token == nil:
			return fmt.Errorf("null at byte %d: leave the field out, or send a text", d.InputOffset())
		}
	}
}

// inWords returns the text of an error of encoding/json, without Go types.
func inWords(err error) string {
	var kind *json.UnmarshalTypeError
	switch {
	case errors.As(err, &kind) && kind.Field == "":
		return fmt.Sprintf("%s at byte %d, want an object", valueOf(kind), kind.Offset)
	case errors.As(err, &kind):
		return fmt.Sprintf("%s is %s, want %s", fieldOf(kind), valueOf(kind), kinds[kind.Type.Kind()])
	case errors.Is(err, io.ErrUnexpectedEOF):
		return "it ends too early"
	case errors.Is(err, io.EOF):
		return "it is empty"
	}
	return strings.TrimPrefix(err.Error(), "json: ")
}

// fieldOf returns the name of a field as in JSON: encoding/json begins with the
// name of an embedded struct.
func fieldOf(err *json.UnmarshalTypeError) string {
	return strings.TrimPrefix(err.Field, "subject.")
}

// valueOf returns what was sent, with its article.
func valueOf(err *json.UnmarshalTypeError) string {
	if err.Value == "array" || err.Value == "object" {
		return "an " + err.Value
	}
	return "a " + err.Value
}

// kinds are the kinds of a question's fields, in JSON's words.
var kinds = map[reflect.Kind]string{
	reflect.String: "a text", reflect.Int: "a whole number", reflect.Map: "an object", reflect.Struct: "an object",
}

func write(w http.ResponseWriter, status int, contentType string, answer any) {
	w.Header().Set("Content-Type", contentType)
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	json.NewEncoder(w).Encode(answer) // an error means that the caller has gone
}

// A failure is an error response.
type failure struct{ kind, text string }

// statuses has the status of each kind of failure. A kind is the last part of a problem's type.
var statuses = map[string]int{
	"invalid-request":   http.StatusBadRequest,
	"wrong-token":       http.StatusBadRequest,
	"unknown-caller":    http.StatusUnauthorized,
	"no-such-operation": http.StatusNotFound,
	"wrong-method":      http.StatusMethodNotAllowed,
	"token-used":        http.StatusConflict,
	"token-expired":     http.StatusGone,
	"lease-lost":        http.StatusGone,
	"too-large":         http.StatusRequestEntityTooLarge,
	"wrong-media-type":  http.StatusUnsupportedMediaType,
	"unavailable":       http.StatusServiceUnavailable,
}

// A problem is how a failure is written: RFC 9457. It has no status, which is that of a
// decision in other answers.
type problem struct {
	Type   string `json:"type"`
	Title  string `json:"title"`
	Detail string `json:"detail"`
}

func (f *failure) Error() string { return f.text }

func invalid(format string, args ...any) *failure {
	return &failure{"invalid-request", fmt.Sprintf(format, args...)}
}

func unavailable(text string) *failure {
	return &failure{"unavailable", text}
}

// fail answers with the error err.
func (a *api) fail(w http.ResponseWriter, r *http.Request, err error) {
	var f *failure
	if !errors.As(err, &f) {
		a.tell(r, err)
		f = unavailable("The request failed. The service's log says why.")
	}
	status := statuses[f.kind]
	if status == http.StatusServiceUnavailable {
		w.Header().Set("Retry-After", "1")
	}
	title := strings.ToUpper(f.kind[:1]) + strings.ReplaceAll(f.kind[1:], "-", " ")
	write(w, status, "application/problem+json", problem{"urn:throttler:" + f.kind, title, f.text})
}

// tell logs an error, at most once a minute, unless the caller has hung up.
func (a *api) tell(r *http.Request, err error) {
	if r.Context().Err() == nil && a.told.Due() {
		a.Log.Error("a request failed, and perhaps others within a minute", "path", r.URL.Path, "err", err)
	}
}
