package proxy

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/adaptivethrottler/throttler/cmd/throttler/internal/loginname"
	"github.com/adaptivethrottler/throttler/cmd/throttler/internal/rulefile"
	"github.com/adaptivethrottler/throttler/login"
)

// This file finds the name that a request tries.

// MaxFirst is how many bytes of a body are read before it is passed on. The name must
// stand in them.
const MaxFirst = 64 << 10

// firstTimeout is the time for these bytes to come.
var firstTimeout = 10 * time.Second

// The errors of find, besides those of package loginname.
var (
	errNoName  = errors.New("there is no name in the body")
	errTooFar  = errors.New("there is no name in the first bytes of the body")
	errWrong   = errors.New("the name does not match")
	errTooSlow = errors.New("the body came too slowly")
	errPath    = errors.New("the path or the host may be that of two logins")
)

// find sets the name that c tries, if there is one. It reads the first part of a body.
func (c *call) find(w http.ResponseWriter) error {
	c.dropConnection()
	if slices.ContainsFunc(c.others, c.mayTry) {
		return errPath
	}
	finder := &loginname.Finder{Field: c.login.Form, Keys: c.login.JSON, Asks: c.onlyAsks()}
	if c.login.Basic {
		if err := finder.Basic(c.request.Header); err != nil {
			return err
		}
		_, c.basic = finder.Name()
	}
	c.dropCookies(finder)
	for _, query := range c.queries() {
		err := finder.Query(query)
		if err == nil && !finder.Asks {
			err = finder.QueryBesideJSON(query)
		}
		if err != nil {
			return err
		}
	}
	if c.login.Body() && c.hasBody() {
		if err := c.findInBody(w, finder); err != nil {
			return err
		}
	}
	c.name, c.named = finder.Name()
	if c.named && c.login.Names != nil && !c.login.Names.MatchString(c.name) {
		return errWrong
	}
	return nil
}

// dropConnection removes the fields that Connection names, as they are not passed on: what
// the server does not get says nothing.
func (c *call) dropConnection() {
	for _, line := range c.request.Header["Connection"] {
		for name := range strings.SplitSeq(line, ",") {
			if name = strings.TrimSpace(name); !strings.EqualFold(name, "Upgrade") && !c.isForwarded(name) {
				c.request.Header.Del(name)
			}
		}
	}
}

// mayTry reports whether the request could be an attempt at another login than c's.
func (c *call) mayTry(l *rulefile.Login) bool {
	return l.Basic && len(c.request.Header["Authorization"]) > 0 ||
		l.Body() && (c.hasBody() || len(c.queries()) > 0)
}

// queries returns what servers may take for the query, each once: also that of a field which
// they take the path from, and what follows an encoded question mark.
func (c *call) queries() []string {
	var queries []string
	for _, target := range append(rulefile.PathFields(c.request.Header), c.request.URL.EscapedPath()+"?"+c.request.URL.RawQuery) {
		path, query, _ := strings.Cut(target, "?")
		for _, query := range []string{query, encodedQuery(path)} {
			if query != "" && !slices.Contains(queries, query) {
				queries = append(queries, query)
			}
		}
	}
	return queries
}

// encodedQuery returns what follows the first question mark in a path that is decoded once or
// twice.
func encodedQuery(path string) string {
	for range 2 {
		decoded, err := url.PathUnescape(path)
		if err != nil || decoded == path {
			return ""
		}
		if _, query, found := strings.Cut(decoded, "?"); found {
			return query
		}
		path = decoded
	}
	return ""
}

// dropCookies removes the cookies that servers may take for the name: PHP does without its
// configuration file, and prefers them to a form.
func (c *call) dropCookies(finder *loginname.Finder) {
	removeCookies(c.request.Header, func(name string) bool {
		if decoded, err := url.QueryUnescape(name); err == nil {
			name = decoded
		}
		return finder.IsField(name)
	})
}

// hasBody reports whether there is a body. In HTTP/2, one of length 0 is none.
func (c *call) hasBody() bool {
	return c.request.Body != nil && c.request.Body != http.NoBody && c.request.ContentLength != 0
}

// onlyAsks reports whether the request only asks for a page. Then no field of the query alone is
// taken for a key of JSON, or for one of ASP.NET's, since other pages may have fields of that name.
func (c *call) onlyAsks() bool {
	switch c.request.Method {
	case http.MethodGet, http.MethodHead, http.MethodOptions:
		return !c.hasBody()
	}
	return false
}

// findInBody finds the name in the body.
func (c *call) findInBody(w http.ResponseWriter, finder *loginname.Finder) error {
	scan, err := finder.Body(c.request.Header)
	if err != nil {
		return err
	}
	mayLackName := c.login.Pass || c.basic
	if scan == nil {
		if !mayLackName { // also if the query has one: a server may read the body whatever its type
			return errNoName
		}
		return nil
	}
	_, inQuery := finder.Name()
	// An error: the server sets no deadlines, so a slow client is waited for.
	control := http.NewResponseController(w)
	control.SetReadDeadline(time.Now().Add(firstTimeout))
	body, err := scan.Inspect(c.request.Body, MaxFirst)
	control.SetReadDeadline(time.Time{})
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return errTooSlow
	}
	if err != nil {
		return err
	}
	if scan.Unread(body) {
		c.request.Header.Set("Content-Type", "application/octet-stream") // so that no server reads a form
	}
	c.take(body)
	finder.Seal()
	_, named := finder.Name()
	if named && !(inQuery && scan.Lax) || mayLackName || body.Whole && len(body.First) == 0 {
		return nil
	}
	if body.Whole {
		return errNoName
	}
	return errTooFar
}

// take makes body the one that is passed on: with its length, if all of it is there.
func (c *call) take(body *loginname.Body) {
	r := c.request
	if !body.Whole {
		r.Body, c.inspected = body, body
		return
	}
	r.ContentLength, r.TransferEncoding = int64(len(body.First)), nil
	r.Header.Del("Expect")
	r.Body = io.NopCloser(bytes.NewReader(body.First))
	r.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(body.First)), nil }
}

// statusOf returns the status and the text of the answer to a request that was not passed
// on.
func statusOf(err error) (status int, text string) {
	switch {
	case errors.Is(err, loginname.ErrAmbiguous), errors.Is(err, errPath):
		return http.StatusBadRequest, "This login can be read in different ways."
	case errors.Is(err, loginname.ErrUnreadable):
		return http.StatusUnsupportedMediaType, "This login cannot be read."
	case errors.Is(err, errNoName):
		return http.StatusBadRequest, "This login has no name."
	case errors.Is(err, errTooFar):
		return http.StatusRequestEntityTooLarge, "This login is too large."
	case errors.Is(err, errWrong), errors.Is(err, login.ErrNameTooLong):
		return http.StatusForbidden, "Wrong name or password."
	case errors.Is(err, errTooSlow):
		return http.StatusRequestTimeout, "The request came too slowly."
	}
	return http.StatusServiceUnavailable, "Please try again later."
}
