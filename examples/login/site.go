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

// A site is what visitors see.
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

// secured adds to h what all pages have in common. A form that another site
// sends is refused: by Sec-Fetch-Site, which every browser sends since 2023, or
// by Origin, which older ones do.
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

// A loginPage is what the login form shows.
type loginPage struct {
	Name    string // as it was typed
	Wrong   bool   // name or password were
	Blocked bool
	Retry   time.Duration // until it is worth trying again, if Blocked
	Bye     bool          // the visitor has just signed out

	Forgotten bool // and their browser is not known any more
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
	s.keep(w, s.devices(r))
	query := r.URL.Query()
	render(w, s.log, http.StatusOK, "login.html", loginPage{Bye: query.Has("bye"), Forgotten: query.Has("forgotten")})
}

// devices returns what the visitor's browser is known by, or may be.
func (s *site) devices(r *http.Request) devices {
	return parseDevices(s.cookies.get(r, deviceCookie))
}

// keep has the browser keep d, through logins and logouts.
func (s *site) keep(w http.ResponseWriter, d devices) {
	s.cookies.set(w, deviceCookie, d.String(), deviceKnown)
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
		s.keep(w, known)
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
			s.log.Print(err) // it counts all the same
		}
		s.keep(w, known)
		s.wrong(w, name)
		return
	}
	device := rand.Text()
	if err := attempt.SucceedDevice(ctx, device); err != nil {
		s.log.Print(err) // the hit expires in its time
	}
	s.keep(w, known.with(counted, device))
	s.sessions.end(s.cookies.get(r, sessionCookie))
	s.cookies.set(w, sessionCookie, s.sessions.start(account.name), sessionLength)
	http.Redirect(w, r, "/", http.StatusSeeOther)
}

// spelling returns the one spelling of name that the guard is told. No two accounts
// here are one name by login.Normalize, so what is typed " ALICE" is alice's, and
// she is known by it. A name that is too long stays so.
func spelling(name string) string {
	if len(name) > login.MaxName {
		return name
	}
	return login.Normalize(name)
}

// wrong answers an attempt whose name or password is wrong.
func (s *site) wrong(w http.ResponseWriter, name string) {
	render(w, s.log, http.StatusForbidden, "login.html", loginPage{Name: name, Wrong: true})
}

// tooMany answers an attempt that was blocked. The password was not looked at.
func (s *site) tooMany(w http.ResponseWriter, name string, retry time.Duration) {
	w.Header().Set("Retry-After", strconv.Itoa(wholeSeconds(retry)))
	render(w, s.log, http.StatusTooManyRequests, "login.html", loginPage{Name: name, Blocked: true, Retry: retry})
}

// fail answers a login that could not be decided.
func (s *site) fail(w http.ResponseWriter, err error) {
	if !errors.Is(err, context.Canceled) { // else nobody reads the answer
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

// forget signs out and has the browser no longer known, for the name that is signed
// in: others who use it stay known. It takes a session, not only the cookie.
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
	s.keep(w, known.without(counted))
	s.endSession(w, r)
	http.Redirect(w, r, "/login?forgotten", http.StatusSeeOther)
}

// render answers with a page, as a whole or not at all.
func render(w http.ResponseWriter, logger *log.Logger, status int, name string, data any) {
	var page bytes.Buffer
	if err := templates.ExecuteTemplate(&page, name, data); err != nil {
		logger.Print(err)
		http.Error(w, "Something went wrong on our side. Please try again later.", http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(status)
	page.WriteTo(w) // an error is the visitor's, who has gone
}

// visible returns value, quoted as in Go and in ASCII if it has a character that
// cannot be seen or turns other text round.
func visible(value string) string {
	if !utf8.ValidString(value) || strings.ContainsFunc(value, hidden) {
		return strconv.QuoteToASCII(value)
	}
	return value
}

// hidden reports whether r cannot be seen. Some that count as printable cannot, such
// as fillers of Hangul, selectors of variants and the empty pattern of Braille.
func hidden(r rune) bool {
	return !strconv.IsPrint(r) || r == '\u2800' ||
		unicode.In(r, unicode.Other_Default_Ignorable_Code_Point, unicode.Variation_Selector)
}

// wholeSeconds returns d for Retry-After: rounded up, and 1 at least. A ban of 10
// minutes, which the records round up to a tenth of a millisecond, is 600 s.
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
