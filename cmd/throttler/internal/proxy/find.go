package proxy

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"

	"github.com/adaptivethrottler/throttler/cmd/throttler/internal/loginname"
	"github.com/adaptivethrottler/throttler/cmd/throttler/internal/rulefile"
	"github.com/adaptivethrottler/throttler/cmd/throttler/internal/urlpath"
	"github.com/adaptivethrottler/throttler/login"
)

// This file finds the name that a request tries, and makes the request one that all servers read
// alike.

// The errors of find, besides those of package loginname and of bodies.
var (
	errNoName    = errors.New("there is no name in the body")
	errTooLarge  = errors.New("the body is too large")
	errWrong     = errors.New("the name does not match")
	errTwoLogins = fmt.Errorf("%w: the path or the host may be that of two logins", loginname.ErrUnreadable)
	errCrossSite = errors.New("a page of another site sends it")
	errClosed    = errors.New("the backend fails, and the rule file says failure: closed")
)

// find sets the name that c tries, if there is one, and rewrites the request to what was read.
func (c *call) find(w http.ResponseWriter) error {
	r := c.request
	switch {
	case slices.ContainsFunc(c.others, c.mayTry):
		return errTwoLogins
	case c.dropsFields():
		return fmt.Errorf("%w: Connection names fields", loginname.ErrUnreadable)
	}
	if c.login.Basic {
		name, password, named, err := loginname.Basic(r.Header)
		if err != nil {
			return err
		}
		if c.name, c.basic = name, named; named {
			r.SetBasicAuth(name, password)
		}
	}
	if c.named = c.basic; c.login.Finder != nil {
		if err := c.findInForm(w); err != nil {
			return err
		}
	}
	switch {
	case c.named && c.login.Names != nil && !c.login.Names.MatchString(c.name):
		return errWrong
	case c.named && c.isCrossSite():
		return errCrossSite
	}
	return nil
}

// dropsFields reports whether Connection names more fields than browsers name there. They are not
// passed on, and the server would read a request without them.
func (c *call) dropsFields() bool {
	names := strings.Split(strings.ToLower(strings.Join(c.request.Header["Connection"], ",")), ",")
	return slices.ContainsFunc(names, func(name string) bool {
		return !slices.Contains([]string{"", "close", "keep-alive", "upgrade", "http2-settings", "te"}, strings.TrimSpace(name))
	})
}

// mayTry reports whether the request could be an attempt at another login than c's.
func (c *call) mayTry(l *rulefile.Login) bool {
	return l.Basic && len(c.request.Header["Authorization"]) > 0 || l.Finder != nil && c.hasBody()
}

// hasBody reports whether there is a body. In HTTP/2, one of length 0 is none.
func (c *call) hasBody() bool {
	return c.request.Body != nil && c.request.Body != http.NoBody && c.request.ContentLength != 0
}

// findInForm finds the name in the body, and takes it out of all else that servers read fields of.
func (c *call) findInForm(w http.ResponseWriter) error {
	r, finder := c.request, c.login.Finder
	removeCookies(r.Header, finder.InCookie)
	isLink := !c.hasBody() && (r.Method == http.MethodGet || r.Method == http.MethodHead || r.Method == http.MethodOptions)
	query, err := finder.Query(r.URL.RawQuery, isLink)
	if err != nil {
		return err
	}
	if path, _ := urlpath.Text(r.URL.EscapedPath()); finder.InPath(path) {
		return fmt.Errorf("%w: a name behind an encoded question mark", loginname.ErrUnreadable)
	}
	r.URL.RawQuery = query
	if !c.hasBody() {
		return nil
	}
	encoded := func(coding string) bool { return !strings.EqualFold(coding, "identity") }
	if len(r.Header["Content-Type"]) > 1 || slices.ContainsFunc(r.Header["Content-Encoding"], encoded) {
		return fmt.Errorf("%w: two types, or an encoding", loginname.ErrUnreadable)
	}
	mayLackName := c.login.Pass || c.basic
	limit := MaxLogin
	if mayLackName && finder.IsWhole(r.Header.Get("Content-Type")) {
		limit = maxWhole
	}
	text, all, err := c.readBody(w, limit)
	switch {
	case err != nil:
		return err
	case all:
		return c.replace(text, mayLackName)
	case mayLackName:
		return c.stream(text)
	}
	return errTooLarge
}

// replace makes what was read of a body the one that is passed on.
func (c *call) replace(text []byte, mayLackName bool) error {
	r := c.request
	body, err := c.login.Finder.Read(r.Header.Get("Content-Type"), text, mayLackName)
	isOther := errors.Is(err, loginname.ErrOtherType)
	switch {
	case len(text) == 0 || isOther && mayLackName:
		body = &loginname.Body{Type: r.Header.Get("Content-Type"), Text: text}
	case isOther || err == nil && !body.Named && !mayLackName:
		return errNoName
	case err != nil:
		return err
	case body.Named && c.named:
		return fmt.Errorf("%w: a name beside Basic authentication", loginname.ErrUnreadable)
	case body.Named:
		c.name, c.named = body.Name, true
	}
	c.setType(body.Type)
	r.ContentLength, r.TransferEncoding = int64(len(body.Text)), nil
	r.Header.Del("Expect")
	r.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(body.Text)), nil }
	r.Body, err = r.GetBody()
	return err
}

// stream passes on a body that begins with first, and is longer than a login. In a form in parts
// there is no name then.
func (c *call) stream(first []byte) error {
	r, finder := c.request, c.login.Finder
	body := io.MultiReader(bytes.NewReader(first), r.Body)
	if newType, written, ok := finder.Parts(r.Header.Get("Content-Type"), body); ok {
		r.Body, r.ContentLength, c.written = written, -1, written
		c.setType(newType)
		return nil
	}
	if _, err := finder.Read(r.Header.Get("Content-Type"), first, true); !errors.Is(err, loginname.ErrOtherType) {
		return errTooLarge // as a form that has fields, or as JSON
	}
	r.Body = struct {
		io.Reader
		io.Closer
	}{body, r.Body}
	c.setType(r.Header.Get("Content-Type"))
	return nil
}

// setType sets the Content-Type to send. In a body without one some servers would read a form.
func (c *call) setType(contentType string) {
	c.request.Header.Set("Content-Type", cmp.Or(contentType, "application/octet-stream"))
}

// isCrossSite reports whether a page of another site has its visitor's browser send an attempt:
// that would lock the visitor out. A page of the same site may have the form of a login at another
// host.
func (c *call) isCrossSite() bool {
	r := c.request
	return r.Header.Get("Sec-Fetch-Site") != "same-site" && !slices.ContainsFunc(c.hosts(), func(host string) bool {
		return crossOrigin.Check(&http.Request{Method: r.Method, Header: r.Header, Host: strings.TrimSpace(host)}) == nil
	})
}

var crossOrigin http.CrossOriginProtection

// statusOf returns the status and the text of the answer to a request that is not passed on.
func statusOf(err error) (status int, text string) {
	switch {
	case errors.Is(err, loginname.ErrUnreadable):
		return http.StatusBadRequest, "This login can be read in different ways."
	case errors.Is(err, errNoName):
		return http.StatusBadRequest, "This login has no name."
	case errors.Is(err, errTooLarge):
		return http.StatusRequestEntityTooLarge, "This login is too large."
	case errors.Is(err, errWrong), errors.Is(err, login.ErrNameTooLong):
		return http.StatusForbidden, "Wrong name or password."
	case errors.Is(err, errCrossSite):
		return http.StatusForbidden, "This login comes from another site."
	case errors.Is(err, os.ErrDeadlineExceeded):
		return http.StatusRequestTimeout, "The request came too slowly."
	case errors.Is(err, errBody):
		return http.StatusBadRequest, "The body cannot be read."
	}
	return http.StatusServiceUnavailable, "Please try again later."
}
