package main

import (
	"context"
	"errors"
	"log"
	"net/http"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/login"
	"github.com/adaptivethrottler/throttler/tally"
)

// An operator is the page of whoever runs the site.
type operator struct {
	limits  *throttler.Throttler
	guard   *login.Guard
	blocked *blocked
	log     *log.Logger
}

func newOperator(limits *throttler.Throttler, guard *login.Guard, counts *tally.Tally, b *blocked, logger *log.Logger) http.Handler {
	o := &operator{limits, guard, b, logger}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", o.page)
	mux.HandleFunc("POST /lift", o.lift)
	mux.HandleFunc("POST /help", o.help)
	mux.Handle("GET /static/{file}", http.FileServerFS(static))
	pages := secured(mux, false)
	return local(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/tally" {
			counts.ServeHTTP(w, r) // it brings its own headers, for its own style
			return
		}
		pages.ServeHTTP(w, r)
	}))
}

// local refuses requests for another host than this machine. A page elsewhere
// could otherwise have its own name point here, and then be of the same origin.
func local(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !loopback(r.Host) {
			http.Error(w, "This page is for the operator alone.", http.StatusForbidden)
			return
		}
		h.ServeHTTP(w, r)
	})
}

// An operatorPage is what the operator's page shows.
type operatorPage struct {
	Blocked []blockedNow
	Lifted  bool // somebody has just been let in
	Gone    bool // what was to be lifted is not in the list any more
	Nothing bool // nothing counts against the name or address that was typed
	Bad     bool // the address that was typed is none
}

// blockedNow is a value that would be blocked if it came now.
type blockedNow struct {
	Condition, Value string
	Banned           bool
	Retry            time.Duration
}

func (o *operator) page(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	render(w, o.log, http.StatusOK, "operator.html", operatorPage{
		Blocked: o.now(r.Context()), Lifted: query.Has("lifted"), Gone: query.Has("gone"), Nothing: query.Has("nothing"), Bad: query.Has("bad"),
	})
}

// now returns those who were blocked lately and still would be, last ones first.
func (o *operator) now(ctx context.Context) []blockedNow {
	var now []blockedNow
	for _, rule := range o.blocked.lately() {
		d, err := o.limits.Peek(ctx, rule)
		if err != nil || d.Status == throttler.Authorized {
			continue
		}
		c, outcome := rule.Either[0], d.Outcomes[0]
		now = append(now, blockedNow{Condition: c.Name, Value: c.Value, Banned: outcome.Banned, Retry: outcome.RetryAfter})
	}
	return now
}

// lift lets in a value that is in the list.
func (o *operator) lift(w http.ResponseWriter, r *http.Request) {
	r.Body = http.MaxBytesReader(w, r.Body, maxForm)
	found := "gone"
	condition, value := r.PostFormValue("condition"), r.PostFormValue("value")
	for _, rule := range o.blocked.lately() {
		if c := rule.Either[0]; c.Name != condition || c.Value != value {
			continue
		}
		if err := o.limits.Reset(r.Context(), rule); err != nil {
			o.fail(w, err)
			return
		}
		found = "lifted"
	}
	http.Redirect(w, r, "/?"+found, http.StatusSeeOther)
}

// help lets in somebody who has asked for it, by name, address or both.
func (o *operator) help(w http.ResponseWriter, r *http.Request) {
	r.Body = http.MaxBytesReader(w, r.Body, maxForm)
	var addr netip.Addr
	if text := r.PostFormValue("address"); text != "" {
		var err error
		if addr, err = netip.ParseAddr(text); err != nil {
			http.Redirect(w, r, "/?bad", http.StatusSeeOther)
			return
		}
	}
	name := r.PostFormValue("name")
	before, err := o.guard.Peek(r.Context(), name, addr)
	if errors.Is(err, login.ErrNameTooLong) {
		http.Redirect(w, r, "/?nothing", http.StatusSeeOther)
		return
	}
	if err = errors.Join(err, o.guard.Lift(r.Context(), name, addr)); err != nil {
		o.fail(w, err)
		return
	}
	if counts(before) {
		http.Redirect(w, r, "/?lifted", http.StatusSeeOther)
		return
	}
	http.Redirect(w, r, "/?nothing", http.StatusSeeOther)
}

// counts reports whether d, a Peek, has anything to lift.
func counts(d throttler.Decision) bool {
	return slices.ContainsFunc(d.Outcomes, func(o throttler.Outcome) bool { return o.Blocked || o.Remaining < o.Limit-1 })
}

func (o *operator) fail(w http.ResponseWriter, err error) {
	o.log.Print(err)
	http.Error(w, "The ban could not be lifted: "+err.Error(), http.StatusBadGateway)
}

// maxBlocked is how many values the operator's page knows at most.
const maxBlocked = 100

// blocked are the values that were blocked last, each as a rule of its own.
type blocked struct {
	mu    sync.Mutex
	rules []throttler.Rule // the last one last
}

func newBlocked() *blocked { return new(blocked) }

// observe takes note of what blocks d.
func (b *blocked) observe(rule throttler.Rule, d throttler.Decision) {
	if d.Status == throttler.Authorized || len(rule.Either) == 0 {
		return // all that blocks a login is an Either
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for i, outcome := range d.Outcomes {
		if !outcome.Blocked {
			continue
		}
		c := rule.Either[i]
		b.rules = slices.DeleteFunc(b.rules, func(r throttler.Rule) bool {
			return r.Either[0].Name == c.Name && r.Either[0].Value == c.Value
		})
		one := rule
		one.Either = []throttler.Condition{c}
		b.rules = append(b.rules, one)
	}
	if n := len(b.rules) - maxBlocked; n > 0 {
		b.rules = slices.Delete(b.rules, 0, n)
	}
}

// lately returns the rules of those that were blocked, last ones first.
func (b *blocked) lately() []throttler.Rule {
	b.mu.Lock()
	defer b.mu.Unlock()
	rules := slices.Clone(b.rules)
	slices.Reverse(rules)
	return rules
}
