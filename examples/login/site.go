package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"embed"
	"errors"
	"fmt"
	"html/template"
	"log"
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/httpthrottle"
	"github.com/adaptivethrottler/throttler/login"
)

//go:embed static
var static embed.FS

//go:embed templates
var files embed.FS

var templates = template.Must(template.New("").Funcs(template.FuncMap{
	"seconds": wholeSeconds,
	"wait":    wait,
	"visible": visible,
}).ParseFS(files, "templates/*.html"))

const (
	sessionCookie = "session"
	deviceCookie  = "device"
	deviceKnown   = 365 * 24 * time.Hour
	maxForm       = 8 << 10 // bytes of a form
)

// A site serves the pages for visitors.
type site struct {
	guard    *login.Guard
	source   httpthrottle.Source
	accounts *accounts
	sessions *sessions
	cookies  jar
	log      *log.Logger
}

func newSite(guard *login.Guard, o *options, logger *log.Logger) http.Handler {
	s := &site{
		guard:    guard,
		source:   o.source,
		accounts: demonstration(),
		sessions: new(sessions),
		cookies:  jar{o.https},
		log:      logger,
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", s.home)
	mux.HandleFunc("GET /login", s.form)
	mux.HandleFunc("POST /login", s.logIn)
	mux.HandleFunc("POST /logout", s.logOut)
	mux.HandleFunc("POST /forget", s.forget)
	mux.Handle("GET /static/{file}", http.FileServerFS(static))
	return secured(mux, o.https)
}

// secured adds the header fields of all pages. It refuses forms from other
// sites: by Sec-Fetch-Site, which all browsers send since 2023, or by Origin.
func secured(h http.Handler, https bool) http.Handler {
	h = http.NewCrossOriginProtection().Handler(h)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		header := w.Header()
		header.Set("Content-Security-Policy", "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; "+
			"form-action 'self'; base-uri 'none'; frame-ancestors 'none'")
		header.Set("X-Content-Type-Options", "nosniff")
		header.Set("X-Frame-Options", "DENY")
		header.Set("Referrer-Policy", "same-origin")
		header.Set("Cross-Origin-Opener-Policy", "same-origin")
		header.Set("Cross-Origin-Resource-Policy", "same-origin")
		header.Set("Cache-Control", "no-store")
		if https {
			header.Set("Strict-Transport-Security", "max-age=63072000")
		}
		h.ServeHTTP(w, r)
	})
}

// A loginPage is the data of the login form.
type loginPage struct {
	Name    string // as it was typed
	Wrong   bool   // the name or the password
	Blocked bool
	Retry   time.Duration // if Blocked
	Bye     bool          // the visitor has just signed out

	Forgotten bool // and their browser is no longer known
}

func (s *site) home(w http.ResponseWriter, r *http.Request) {
	name, ok := s.sessions.name(s.cookies.get(r, sessionCookie))
	if !ok {
		http.Redirect(w, r, "/login", http.StatusSeeOther)
		return
	}
	render(w, s.log, http.StatusOK, "home.html", name)
}

func (s *site) form(w http.ResponseWriter, r *http.Request) {
	if _, ok := s.sessions.name(s.cookies.get(r, sessionCookie)); ok {
		http.Redirect(w, r, "/", http.StatusSeeOther)
		return
	}
	s.keep(w, r, s.devices(r))
	query := r.URL.Query()
	render(w, s.log, http.StatusOK, "login.html", loginPage{Bye: query.Has("bye"), Forgotten: query.Has("forgotten")})
}

// devices returns the devices in the visitor's cookie.
func (s *site) devices(r *http.Request) devices {
	return parseDevices(s.cookies.get(r, deviceCookie))
}

// keep stores d in the visitor's cookie, which lasts through logins and
// logouts. It leaves a cookie that is d already: the answer to an older request
// must not set a replaced device back.
func (s *site) keep(w http.ResponseWriter, r *http.Request, d devices) {
	if s.cookies.get(r, deviceCookie) != d.String() {
		s.cookies.set(w, deviceCookie, d.String(), deviceKnown)
	}
}

func (s *site) logIn(w http.ResponseWriter, r *http.Request) {
	r.Body = http.MaxBytesReader(w, r.Body, maxForm)
	if err := r.ParseForm(); err != nil {
		http.Error(w, "The form cannot be read.", http.StatusBadRequest)
		return
	}
	ctx, name, known := r.Context(), r.PostForm.Get("name"), s.devices(r)
	counted := spelling(name)
	attempt, err := s.guard.BeginDevice(ctx, counted, s.source.Addr(r), known.of(counted))
	if errors.Is(err, login.ErrNameTooLong) {
		s.wrong(w, "")
		return
	}
	if err != nil {
		s.fail(w, err)
		return
	}
	if attempt.Decision.Status == throttler.Blocked {
		s.keep(w, r, known)
		s.tooMany(w, name, attempt.Decision.RetryAfter)
		return
	}
	account, right, err := s.accounts.verify(ctx, name, r.PostForm.Get("password"))
	if err != nil {
		if err := attempt.Cancel(ctx); err != nil {
			s.log.Print(err)
		}
		s.fail(w, err)
		return
	}
	if !right {
		if err := attempt.Fail(ctx); err != nil {
			s.log.Print(err) // the failure counts all the same
		}
		s.keep(w, r, known)
		s.wrong(w, name)
		return
	}
	device := rand.Text()
	if err := attempt.SucceedDevice(ctx, device); err != nil {
		s.log.Print(err) // hits that stay expire
	}
	s.keep(w, r, known.with(counted, device))
	s.sessions.end(s.cookies.get(r, sessionCookie))
	s.cookies.set(w, sessionCookie, s.sessions.start(account.name), sessionLength)
	http.Redirect(w, r, "/", http.StatusSeeOther)
}

// spelling returns the spelling of name that the guard gets: one for each
// account. Here no two accounts have the same name by login.Normalize. So "
// ALICE" is alice's, and known as such. A name that is too long is left as it
// is.
func spelling(name string) string {
	if len(name) > login.MaxName {
		return name
	}
	return login.Normalize(name)
}

// wrong answers an attempt with a wrong name or password.
func (s *site) wrong(w http.ResponseWriter, name string) {
	render(w, s.log, http.StatusForbidden, "login.html", loginPage{Name: name, Wrong: true})
}

// tooMany answers a blocked attempt. The password was not looked at.
func (s *site) tooMany(w http.ResponseWriter, name string, retry time.Duration) {
	w.Header().Set("Retry-After", strconv.Itoa(wholeSeconds(retry)))
	render(w, s.log, http.StatusTooManyRequests, "login.html", loginPage{Name: name, Blocked: true, Retry: retry})
}

// fail answers a login that could not be decided.
func (s *site) fail(w http.ResponseWriter, err error) {
	if !errors.Is(err, context.Canceled) { // the client has gone
		s.log.Print(err)
	}
	http.Error(w, "Something went wrong on our side. Please try again later.", http.StatusInternalServerError)
}

func (s *site) logOut(w http.ResponseWriter, r *http.Request) {
	s.endSession(w, r)
	http.Redirect(w, r, "/login?bye", http.StatusSeeOther)
}

func (s *site) endSession(w http.ResponseWriter, r *http.Request) {
	s.sessions.end(s.cookies.get(r, sessionCookie))
	s.cookies.set(w, sessionCookie, "", -time.Second)
}

// forget signs out, and makes the browser unknown for the signed-in name. Other
// names on this browser stay known. It needs a session, not only the cookie.
func (s *site) forget(w http.ResponseWriter, r *http.Request) {
	name, ok := s.sessions.name(s.cookies.get(r, sessionCookie))
	if !ok {
		http.Redirect(w, r, "/login", http.StatusSeeOther)
		return
	}
	counted, known := spelling(name), s.devices(r)
	if err := s.guard.Forget(r.Context(), counted, known.of(counted)); err != nil {
		s.fail(w, err)
		return
	}
	s.keep(w, r, known.without(counted))
	s.endSession(w, r)
	http.Redirect(w, r, "/login?forgotten", http.StatusSeeOther)
}

// render answers with a whole page or an error.
func render(w http.ResponseWriter, logger *log.Logger, status int, name string, data any) {
	var page bytes.Buffer
	if err := templates.ExecuteTemplate(&page, name, data); err != nil {
		logger.Print(err)
		http.Error(w, "Something went wrong on our side. Please try again later.", http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(status)
	page.WriteTo(w) // an error means that the visitor has gone
}

// visible returns value, quoted in ASCII if it has a character that is
// invisible or reverses text.
func visible(value string) string {
	if !utf8.ValidString(value) || strings.ContainsFunc(value, hidden) {
		return strconv.QuoteToASCII(value)
	}
	return value
}

// hidden reports whether r is invisible. Some characters that count as
// printable are: fillers of Hangul, variation selectors, the empty Braille
// pattern.
func hidden(r rune) bool {
	return !strconv.IsPrint(r) || r == '\u2800' ||
		unicode.In(r, unicode.Other_Default_Ignorable_Code_Point, unicode.Variation_Selector)
}

// wholeSeconds returns d for Retry-After: rounded up, and at least 1. It drops
// less than a millisecond, by which records are rounded up, so a ban of 10
// minutes is 600 s.
func wholeSeconds(d time.Duration) int {
	return max(1, int(math.Ceil(d.Truncate(time.Millisecond).Seconds())))
}

// wait returns d in words: "1 minute 5 seconds".
func wait(d time.Duration) string {
	seconds := wholeSeconds(d)
	parts := []struct {
		n    int
		unit string
	}{{seconds / 3600, "hour"}, {seconds / 60 % 60, "minute"}, {seconds % 60, "second"}}
	text := ""
	for _, p := range parts {
		if p.n == 0 {
			continue
		}
		if text != "" {
			text += " "
		}
		text += fmt.Sprint(p.n, " ", p.unit)
		if p.n > 1 {
			text += "s"
		}
	}
	return text
}
