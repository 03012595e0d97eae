package httpthrottle

import (
	"bytes"
	"context"
	"fmt"
	"html"
	"net/http"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/adaptivethrottler/throttler"
)

// maxDelayed is the number of requests that wait at once for their refusal.
// Each holds a goroutine, and a connection or a stream of one.
const maxDelayed = 100

// A Refusal configures the response to a rejected request. The zero Refusal
// uses the default status of the type that embeds it, and these header fields:
//
//	Retry-After: 12          (seconds until it could be allowed, rounded up, at least 1;
//	                         absent if it never could)
//	Cache-Control: no-store
//
// The body says the same and has the messages of the conditions that block. It
// is problem details (application/problem+json, RFC 9457), plain text or HTML,
// by the request's Accept; if that has no preference, problem details. In place of
// a condition without a Message it says "Too many requests." If a condition that
// blocks is in Public, the problem details have violated-policies, and the type of
// quota-exceeded.
type Refusal struct {
	// Status is the status code, 200 to 999. Default: that of the embedding
	// type.
	Status int

	// Answer writes the response, Status included. The header fields above are
	// set already, and may be changed. To add to the default response, call the
	// WriteAnswer of the embedding type. Default: that one.
	Answer func(w http.ResponseWriter, r *http.Request, d throttler.Decision)

	// Delay is the time that a client waits for its refusal. It slows down a
	// client that sends its requests one after the other. It must be shorter
	// than the server's WriteTimeout. The wait ends early with the request's
	// context, but the server notices that an HTTP/1 client has gone only after
	// the body was read. Up to 100 requests wait at once; further ones are
	// refused without delay. Zero means the default of the embedding type;
	// negative disables it.
	Delay time.Duration
}

// check panics if an option is invalid.
func (f *Refusal) check() {
	if f.Status != 0 && (f.Status < 200 || f.Status > 999) {
		panic(fmt.Sprintf("httpthrottle: Status is %d, want 200 to 999", f.Status))
	}
}

// refuse answers r, which d blocks, by Answer or else by write.
func (f *Refusal) refuse(w http.ResponseWriter, r *http.Request, d *throttler.Decision, status int, violated []string) {
	v := new(values)
	v.setRetryAfter(w.Header(), d.RetryAfter)
	if r.ProtoMajor == 1 && r.Body != nil && r.Body != http.NoBody {
		// Otherwise the server reads up to 256 kB of the body before it sends
		// the response, and waits for them without a limit. Not with HTTP/2,
		// where this would close the connection for all streams.
		v.set(w.Header(), "Connection", "close")
	}
	if f.Answer != nil {
		f.Answer(w, r, *d)
		return
	}
	f.write(w, r, d, v, status, violated)
}

// values are those of the header fields of a refusal: an http.Header has a slice for each,
// and these are parts of one allocation.
type values struct {
	all [6]string
	n   int
}

// set sets the field of that name, in canonical form, to value.
func (v *values) set(h http.Header, name, value string) {
	v.all[v.n] = value
	h[name] = v.all[v.n : v.n+1 : v.n+1]
	v.n++
}

// setRetryAfter is [SetRetryAfter].
func (v *values) setRetryAfter(h http.Header, wait time.Duration) {
	v.set(h, "Cache-Control", "no-store")
	if wait > 0 {
		v.set(h, "Retry-After", strconv.FormatInt(retrySeconds(wait), 10))
	}
}

// SetRetryAfter sets Retry-After, and Cache-Control to no-store, for a handler
// that itself answers a request that d refuses. Call it before the status is
// written:
//
//	if d.Status == throttler.Blocked {
//		httpthrottle.SetRetryAfter(w, d)
//		http.Error(w, "Too many attempts.", http.StatusTooManyRequests)
//		return
//	}
//
// Retry-After is d.RetryAfter in whole seconds, rounded up. It is not set if
// d.RetryAfter is 0: then d authorizes the request, or it can never be
// authorized.
func SetRetryAfter(w http.ResponseWriter, d throttler.Decision) {
	new(values).setRetryAfter(w.Header(), d.RetryAfter)
}

// write writes the status, the default body, and the header fields that tell of
// it, which it adds to v. violated are the policies to name in the body.
func (f *Refusal) write(w http.ResponseWriter, r *http.Request, d *throttler.Decision, v *values, status int, violated []string) {
	if f.Status != 0 {
		status = f.Status
	}
	contentType, body := defaultBody(r.Header["Accept"], status, d, violated)
	h := w.Header()
	v.set(h, "Content-Length", strconv.Itoa(len(body)))
	v.set(h, "Content-Type", contentType)
	v.set(h, "X-Content-Type-Options", "nosniff")
	w.WriteHeader(status)
	if r.Method != http.MethodHead {
		w.Write(body) // an error means that the client has gone
	}
}

// retrySeconds returns d in whole seconds, rounded up, at least 1.
func retrySeconds(d time.Duration) int64 { return max(seconds(d), 1) }

// recordTick is the resolution of a throttler's records: a window of 60 s may
// end after 60.0001 s.
const recordTick = 100 * time.Microsecond

// seconds returns d in whole seconds, rounded up. Less than recordTick over is
// rounded down, or a window of 60 s would often be told as 61.
func seconds(d time.Duration) int64 {
	s := int64(d / time.Second)
	if d%time.Second >= recordTick {
		s++ // (d + time.Second - 1) / time.Second would overflow for the longest bans
	}
	return s
}

const (
	plainText = "text/plain; charset=utf-8"
	htmlText  = "text/html; charset=utf-8"
	problem   = "application/problem+json"
)

// defaultBody returns the body for a refused request with these Accept fields.
func defaultBody(accept []string, status int, d *throttler.Decision, violated []string) (contentType string, body []byte) {
	title := http.StatusText(status)
	if title == "" {
		title = "Request Refused" // 509 and other unregistered codes
	}
	switch negotiate(accept) {
	case offerHTML:
		return htmlText, htmlBody(title, d)
	case offerPlain:
		return plainText, plainBody(title, d)
	}
	return problem, problemBody(title, status, d, violated)
}

func plainBody(title string, d *throttler.Decision) []byte {
	var b bytes.Buffer
	fmt.Fprintln(&b, title)
	for _, message := range d.Messages {
		fmt.Fprintln(&b, message)
	}
	fmt.Fprintln(&b, advice(d))
	return b.Bytes()
}

func htmlBody(title string, d *throttler.Decision) []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, `<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>%[1]s</title>
<style>:root { color-scheme: light dark; font: 1.1rem/1.5 system-ui, sans-serif } body { max-width: 34rem; margin: 15vh auto; padding: 0 1rem }</style>
</head>
<body>
<h1>%[1]s</h1>
`, html.EscapeString(title))
	for _, message := range d.Messages {
		fmt.Fprintf(&b, "<p>%s</p>\n", html.EscapeString(message))
	}
	fmt.Fprintf(&b, "<p>%s</p>\n</body>\n</html>\n", advice(d))
	return b.Bytes()
}

// advice returns a sentence that tells a client when to try again.
func advice(d *throttler.Decision) string {
	if d.RetryAfter == 0 {
		return "This request is larger than the limit ever allows."
	}
	return "Try again in " + inWords(retrySeconds(d.RetryAfter)) + "."
}

// inWords returns a time for people: exact up to two minutes, then rounded up
// to minutes, hours or days.
func inWords(seconds int64) string {
	switch {
	case seconds == 1:
		return "1 second"
	case seconds <= 120:
		return fmt.Sprintf("%d seconds", seconds)
	case seconds <= 2*3600:
		return fmt.Sprintf("%d minutes", (seconds+59)/60)
	case seconds <= 2*86400:
		return fmt.Sprintf("%d hours", (seconds+3599)/3600)
	}
	return fmt.Sprintf("%d days", (seconds+86399)/86400)
}

// later returns d as it is after some more time. A RetryAfter stays above 0,
// since 0 would mean never.
func later(d throttler.Decision, by time.Duration) throttler.Decision {
	if by <= 0 {
		return d
	}
	if d.RetryAfter > 0 {
		d.RetryAfter = max(d.RetryAfter-by, 1)
	}
	d.Outcomes = slices.Clone(d.Outcomes)
	for i := range d.Outcomes {
		o := &d.Outcomes[i]
		o.RetryAfter = max(o.RetryAfter-by, 0)
		o.ResetAfter = max(o.ResetAfter-by, 0)
	}
	return d
}

// A tarpit makes a bounded number of requests wait.
type tarpit struct {
	waiting atomic.Int64
}

// wait returns after delay, or earlier if ctx ends, and returns the time that
// it took. It returns at once if maxDelayed requests wait already.
func (t *tarpit) wait(ctx context.Context, delay time.Duration) time.Duration {
	if delay <= 0 {
		return 0
	}
	defer t.waiting.Add(-1)
	if t.waiting.Add(1) > maxDelayed {
		return 0
	}
	start := time.Now()
	timer := time.NewTimer(delay)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
	return time.Since(start)
}
