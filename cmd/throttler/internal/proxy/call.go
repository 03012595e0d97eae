package proxy

import (
	"context"
	"crypto/rand"
	"errors"
	"io"
	"math"
	"net/http"
	"net/http/httptrace"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/adaptivethrottler/throttler/cmd/throttler/internal/rulefile"
	"github.com/adaptivethrottler/throttler/login"
)

// A call is one request on its way to the server and back.
type call struct {
	proxy   *Proxy
	file    *rulefile.File
	request *http.Request
	addr    netip.Addr
	client  string // the address, or its network, as bodies are counted by

	login   *rulefile.Login
	others  []*rulefile.Login // that the server may take the path or the host for
	name    string
	named   bool // it tries name
	basic   bool // which is that of Basic authentication
	device  string
	attempt *login.Attempt         // nil: none, or its credentials are known to be right
	done    func(rulefile.Verdict) // for the next with the same credentials; nil: none
	ended   sync.Once

	held        int       // bytes of its body
	isNotBanned bool      // as far as was looked
	written     io.Closer // a body that is written while it is read; nil: none
	body        *trackedBody
	reached     atomic.Bool     // there was a connection to the server
	detached    context.Context // of the request to the server; nil: that of the client
	stop        func()          // keeps the time limit of the answer from ending it
	leave       func()          // ends it
}

type callKey struct{}

func callOf(ctx context.Context) *call { return ctx.Value(callKey{}).(*call) }

// outgoing returns the request to pass on.
func (c *call) outgoing() *http.Request {
	ctx := context.WithValue(c.request.Context(), callKey{}, c)
	if c.hasBody() {
		c.body = &trackedBody{ReadCloser: c.request.Body, left: c.request.ContentLength}
		c.request.Body = c.body
	}
	if c.attempt != nil {
		ctx = c.detach(ctx)
	}
	return c.request.WithContext(ctx)
}

// errTimeout is the cause of the end of a request that was not answered in time.
var errTimeout = errors.New("the server did not answer in time")

// detach returns a ctx that does not end with the client, who could otherwise have a
// guess verified and hang up before it is counted. It ends when the server has not
// answered in time after it has got the request, or after the client has gone.
func (c *call) detach(ctx context.Context) context.Context {
	client := ctx
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	var once sync.Once // the time starts once, and not after it was stopped
	timer := time.AfterFunc(math.MaxInt64, func() { cancel(errTimeout) })
	start := func() { once.Do(func() { timer.Reset(c.file.Proxy.Timeout) }) }
	if c.body == nil || c.request.GetBody != nil {
		start()
	}
	gone := context.AfterFunc(client, start)
	c.stop = func() {
		gone()
		once.Do(func() {})
		timer.Stop()
	}
	c.leave = func() { c.stop(); cancel(context.Canceled) }
	c.detached = ctx
	return httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		GotConn:      func(httptrace.GotConnInfo) { c.reached.Store(true) },
		WroteRequest: func(httptrace.WroteRequestInfo) { start() },
	})
}

// close ends what is left of c when it has been answered.
func (c *call) close() {
	c.end((*login.Attempt).Fail, rulefile.Neither) // as after a panic: not for nothing
	if c.leave != nil {
		c.leave()
	}
	if c.written != nil {
		c.written.Close()
	}
	c.proxy.bodies.hold(c.client, -c.held)
	c.held = 0
}

// end ends the attempt by how, if there is one. v is for the next with the same credentials.
// A second call does nothing.
func (c *call) end(how func(*login.Attempt, context.Context) error, v rulefile.Verdict) {
	c.ended.Do(func() {
		if c.done != nil {
			defer c.done(v)
		}
		if c.attempt == nil {
			return
		}
		if err := how(c.attempt, c.request.Context()); err != nil && c.proxy.servers.Due() {
			c.proxy.Log.Warn("an attempt could not be ended", "err", err)
		}
	})
}

// cancel ends an attempt that the server has not seen.
func (c *call) cancel() { c.end((*login.Attempt).Cancel, rulefile.Neither) }

// keep ends an attempt whose answer says nothing of the password, or did not come. It stays
// counted: a server may answer so to wrong passwords alone. But the same guess counts once,
// so that nobody is locked out who tries again while the server fails. v is as for end.
func (c *call) keep(v rulefile.Verdict) {
	c.end(func(a *login.Attempt, ctx context.Context) error {
		if id, whole := c.guess(); whole && c.proxy.unanswered.add(id) {
			return a.Cancel(ctx)
		}
		return a.Keep(ctx)
	}, v)
}

// guess identifies the credentials that c tries: those of Basic authentication, or else all
// of the request. whole is false if it is too long to be read as a whole.
func (c *call) guess() (id credential, whole bool) {
	switch {
	case c.basic:
		return c.proxy.basic.id(c), true
	case c.hasBody() && c.request.GetBody == nil:
		return "", false
	}
	return c.proxy.basic.idOf(c), true
}

// answered ends the attempt by the server's answer.
func (c *call) answered(answer *http.Response) {
	if c.stop != nil { // from now on the request ends with its client
		c.stop()
		context.AfterFunc(c.request.Context(), c.leave)
	}
	if !c.named {
		return
	}
	switch v := c.login.Verdict(answer); {
	case v == rulefile.Right && c.asksNobody():
		c.keep(rulefile.Neither)
	case v == rulefile.Right && c.basic && c.hasCookie():
		c.keep(rulefile.Right)
	case v == rulefile.Right:
		c.succeed(answer)
	case v == rulefile.Wrong:
		c.end((*login.Attempt).Fail, rulefile.Wrong)
	default:
		c.keep(rulefile.Neither)
	}
}

// asksNobody reports whether servers may answer the method of c before they look at a
// password.
func (c *call) asksNobody() bool {
	return c.request.Method == http.MethodOptions || c.request.Method == http.MethodTrace
}

// hasCookie reports whether c has a cookie. Beside Basic authentication it may be that of
// somebody's session, which some servers look at first.
func (c *call) hasCookie() bool { return len(c.request.Header["Cookie"]) > 0 }

// succeed ends the attempt by a right password, and gives the client a device.
func (c *call) succeed(answer *http.Response) {
	c.end(func(a *login.Attempt, ctx context.Context) error {
		if c.basic { // such a client keeps no cookies
			return a.Succeed(ctx)
		}
		device := rand.Text()
		defer c.proxy.devices.set(answer.Header, c.request, c.name, device)
		return a.Succeed(login.WithDevice(ctx, device))
	}, rulefile.Right)
}

// A trackedBody remembers the error that reading it had.
type trackedBody struct {
	io.ReadCloser
	left int64 // of its length, or negative if that is not known
	err  atomic.Pointer[error]
}

func (n *trackedBody) Read(p []byte) (int, error) {
	read, err := n.ReadCloser.Read(p)
	if n.left -= int64(read); n.left == 0 && errors.Is(err, http.ErrBodyReadAfterClose) {
		// Its last byte was read, and net/http has closed it because the answer begins. An
		// error would end the connection to the server, and so the answer.
		err = io.EOF
	}
	if err != nil && err != io.EOF && !errors.Is(err, http.ErrBodyReadAfterClose) {
		n.err.Store(&err)
	}
	return read, err
}

// failure returns the error that reading the body had, or nil.
func (n *trackedBody) failure() error {
	if n == nil || n.err.Load() == nil {
		return nil
	}
	return *n.err.Load()
}
