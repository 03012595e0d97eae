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
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/httpthrottle"
	"github.com/adaptivethrottler/throttler/login"
	"github.com/adaptivethrottler/throttler/memstore"
)

//go:embed static
var static embed.FS

//go:embed templates
var files embed.FS

var templates = template.Must(template.New("").Funcs(template.FuncMap{
	"seconds": wholeSeconds,
	"wait":    wait,
}).ParseFS(files, "templates/*.html"))

const (
	sessionCookie = "session"
	maxForm       = 8 << 10 // bytes of a form
)

// A site serves the pages for visitors.
type site struct {
	guard    *login.Guard
	source   httpthrottle.Source
	accounts *accounts
	sessions sessions
	cookies  jar
	devices  devices
	mails    *mails
	log      *log.Logger
}

func newSite(guard *login.Guard, o *options, m *mails, logger *log.Logger) http.Handler {
	s := &site{
		guard:    guard,
		source:   o.source,
		accounts: demonstration(),
		sessions: sessions{memstore.New()},
		cookies:  jar{o.https},
		devices:  devices{jar{o.https}, o.key},
		mails:    m,
		log:      logger,
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", s.home)
	mux.HandleFunc("GET /login", s.form)
	mux.HandleFunc("POST /login", s.logIn)
	mux.HandleFunc("POST /logout", s.logOut)
	mux.HandleFunc("POST /forget", s.forget)
	mux.HandleFunc("GET /let-in", s.askToLetIn)
	mux.HandleFunc("POST /let-in", s.letIn)
	mux.Handle("GET /static/{file}", http.FileServerFS(static))
	return secured(http.MaxBytesHandler(mux, maxForm), o.https)
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
	Retry   time.Duration // if Blocked; 0: waiting is of no use
	Bye     bool          // the visitor has just signed out
	LetIn   bool          // or has used the link in a mail

	Forgotten bool // their browser is no longer known
}

func (s *site) home(w http.ResponseWriter, r *http.Request) {
	name, ok := s.sessions.name(s.cookies.get(r, sessionCookie))
	if !ok {
		http.Redirect(w, r, "/login", http.StatusSeeOther)
		return
	}
	// The browser has the cookie of the last login, so the one before is of no more
	// use to whoever has copied it.
	if counted := spelling(name); s.devices.has(r, counted) {
		if err := s.guard.ConfirmDevice(r.Context(), counted, s.devices.of(r, counted)); err != nil {
			s.log.Print(err) // it is confirmed when the page is next asked for
		}
	}
	render(w, s.log, http.StatusOK, "home.html", name)
}

func (s *site) form(w http.ResponseWriter, r *http.Request) {
	if _, ok := s.sessions.name(s.cookies.get(r, sessionCookie)); ok {
		http.Redirect(w, r, "/", http.StatusSeeOther)
		return
	}
	if !isToken(s.cookies.get(r, browserCookie)) {
		s.cookies.set(w, browserCookie, rand.Text(), deviceKnown)
	}
	query := r.URL.Query()
	render(w, s.log, http.StatusOK, "login.html", loginPage{
		Bye: query.Has("bye"), Forgotten: query.Has("forgotten"), LetIn: query.Has("let-in"),
	})
}

func (s *site) logIn(w http.ResponseWriter, r *http.Request) {
	if err := r.ParseForm(); err != nil {
		http.Error(w, "The form cannot be read.", http.StatusBadRequest)
		return
	}
	ctx, name, addr := r.Context(), r.PostForm.Get("name"), s.source.Addr(r)
	counted := spelling(name)
	attempt, err := s.guard.Begin(login.WithDevice(ctx, s.devices.of(r, counted)), counted, addr)
	if errors.Is(err, login.ErrNameTooLong) {
		s.wrong(w, "")
		return
	}
	if err != nil {
		s.fail(w, err)
		return
	}
	if attempt.Decision.Status == throttler.Blocked {
		owner, exists := s.accounts.find(counted)
		s.mails.tell(ctx, counted, owner, exists, addr)
		s.tooMany(w, name, attempt)
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
		s.wrong(w, name)
		return
	}
	device := rand.Text()
	if err := attempt.Succeed(login.WithDevice(ctx, device)); err != nil {
		s.log.Print(err) // hits that stay expire
	}
	s.devices.set(w, r, counted, device)
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
func (s *site) tooMany(w http.ResponseWriter, name string, blocked *login.Attempt) {
	page := loginPage{Name: name, Blocked: true}
	if !blocked.SecondStep {
		page.Retry = blocked.Decision.RetryAfter
		w.Header().Set("Retry-After", strconv.Itoa(wholeSeconds(page.Retry)))
	}
	render(w, s.log, http.StatusTooManyRequests, "login.html", page)
}

// askToLetIn shows the page of the link in a mail. It changes nothing: programs
// that look through mails open links too.
func (s *site) askToLetIn(w http.ResponseWriter, r *http.Request) {
	token := r.URL.Query().Get("token")
	if _, _, err := s.mails.links.read(token); err != nil {
		render(w, s.log, http.StatusGone, "letin.html", "")
		return
	}
	render(w, s.log, http.StatusOK, "letin.html", token)
}

// letIn makes a name known here, to somebody who has got its mail. They still need
// its password.
func (s *site) letIn(w http.ResponseWriter, r *http.Request) {
	ctx := r.Context()
	err := s.mails.links.use(ctx, r.PostFormValue("token"), func(name string) error {
		device := s.devices.of(r, name)
		if !s.devices.has(r, name) {
			device = rand.Text() // no name is ever known by the token of a browser
		}
		err := errors.Join(s.guard.Recognize(ctx, name, s.source.Addr(r), device), s.guard.Lift(ctx, name, netip.Addr{}))
		if err == nil {
			s.devices.set(w, r, name, device)
		}
		return err
	})
	switch {
	case errors.Is(err, errLink):
		render(w, s.log, http.StatusGone, "letin.html", "")
	case err != nil:
		s.fail(w, err)
	default:
		http.Redirect(w, r, "/login?let-in", http.StatusSeeOther)
	}
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
	counted := spelling(name)
	if err := s.guard.Forget(r.Context(), counted, s.devices.of(r, counted)); err != nil {
		s.fail(w, err)
		return
	}
	s.devices.forget(w, counted)
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
	var text []string
	for _, p := range parts {
		switch p.n {
		case 0:
		case 1:
			text = append(text, "1 "+p.unit)
		default:
			text = append(text, fmt.Sprint(p.n, " ", p.unit, "s"))
		}
	}
	return strings.Join(text, " ")
}
