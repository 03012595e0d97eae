package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/login"
	"github.com/adaptivethrottler/throttler/tally"
)

// An operator serves the operator's page.
type operator struct {
	limits  *throttler.Throttler
	guard   *login.Guard
	blocked *blocked
	log     *log.Logger
}

func newOperator(limits *throttler.Throttler, guard *login.Guard, counts *tally.Tally, b *blocked, m *mails, logger *log.Logger) http.Handler {
	o := &operator{limits, guard, b, logger}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", o.page)
	mux.HandleFunc("POST /lift", o.lift)
	mux.HandleFunc("POST /help", o.help)
	mux.HandleFunc("GET /mails", func(w http.ResponseWriter, r *http.Request) {
		render(w, logger, http.StatusOK, "mails.html", m.last())
	})
	mux.Handle("GET /static/{file}", http.FileServerFS(static))
	pages := secured(mux, false)
	return local(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/tally" {
			counts.ServeHTTP(w, r) // it sets its own header fields
			return
		}
		pages.ServeHTTP(w, r)
	}))
}

// local refuses requests for another host than this machine. Otherwise another
// site could point its own name here and read the page (DNS rebinding).
func local(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !loopback(r.Host) {
			http.Error(w, "This page is for the operator alone.", http.StatusForbidden)
			return
		}
		h.ServeHTTP(w, r)
	})
}

// An operatorPage is the data of the operator's page.
type operatorPage struct {
	Blocked []blockedNow
	Newer   string // the query of the page before this one; "": none
	Older   string // and of the one after it
	Lifted  bool   // a ban was just lifted
	Gone    bool   // the value is no longer in the list
	Nothing bool   // nothing counts against the name or address
	Bad     bool   // the address is invalid
}

// blockedNow is a value that would be blocked now.
type blockedNow struct {
	Condition, Value string
	Banned           bool
	Retry            time.Duration
}

func (o *operator) page(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	number, err := strconv.Atoi(query.Get("page"))
	if err != nil || number < 1 {
		number = 1
	}
	rules := o.blocked.lately()
	shown := rules[min((number-1)*onPage, len(rules)):min(number*onPage, len(rules))]
	p := operatorPage{
		Blocked: o.now(r.Context(), shown), Lifted: query.Has("lifted"), Gone: query.Has("gone"), Nothing: query.Has("nothing"), Bad: query.Has("bad"),
	}
	if number > 1 {
		p.Newer = fmt.Sprint("?page=", number-1)
	}
	if len(rules) > number*onPage {
		p.Older = fmt.Sprint("?page=", number+1)
	}
	render(w, o.log, http.StatusOK, "operator.html", p)
}

// now returns the values of rules that are still blocked.
func (o *operator) now(ctx context.Context, rules []throttler.Rule) []blockedNow {
	var now []blockedNow
	for _, rule := range rules {
		d, err := o.limits.Peek(ctx, rule)
		if err != nil || d.Status == throttler.Authorized {
			continue
		}
		c, outcome := rule.Either[0], d.Outcomes[0]
		now = append(now, blockedNow{Condition: c.Name, Value: c.Value, Banned: outcome.Banned, Retry: outcome.RetryAfter})
	}
	return now
}

// lift lifts the ban of a value in the list.
func (o *operator) lift(w http.ResponseWriter, r *http.Request) {
	r.Body = http.MaxBytesReader(w, r.Body, maxForm)
	found := "gone"
	condition, value := r.PostFormValue("condition"), r.PostFormValue("value")
	for _, rule := range o.blocked.lately() {
		if c := rule.Either[0]; c.Name != condition || c.Value != value {
			continue
		}
		// With what is counted beside it, or the next attempts would be banned again.
		if err := o.guard.LiftRecord(r.Context(), condition, value); err != nil {
			o.fail(w, err)
			return
		}
		found = "lifted"
	}
	http.Redirect(w, r, "/?"+found, http.StatusSeeOther)
}

// help lifts the bans of a name, an address, or both.
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

// counts reports whether d, from a Peek, has anything to lift.
func counts(d throttler.Decision) bool {
	return slices.ContainsFunc(d.Outcomes, func(o throttler.Outcome) bool { return o.Blocked || o.Remaining < o.Limit-1 })
}

func (o *operator) fail(w http.ResponseWriter, err error) {
	o.log.Print(err)
	http.Error(w, "The ban could not be lifted: "+err.Error(), http.StatusBadGateway)
}

const (
	maxBlocked = 10_000 // values in the list
	onPage     = 100    // of them
)

// blocked are the values that were blocked last, each in a rule of its own.
type blocked struct {
	mu    sync.Mutex
	rules *simplelru.LRU[[2]string, throttler.Rule] // by condition and value
}

func newBlocked() *blocked {
	rules, err := simplelru.NewLRU[[2]string, throttler.Rule](maxBlocked, nil)
	if err != nil {
		panic(err) // only for a size of 0
	}
	return &blocked{rules: rules}
}

// observe adds the values that block d.
func (b *blocked) observe(rule throttler.Rule, d throttler.Decision) {
	if d.Status == throttler.Authorized || len(rule.Either) == 0 {
		return // rules that block a login have Either
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for i, outcome := range d.Outcomes {
		if !outcome.Blocked {
			continue
		}
		c := rule.Either[i]
		one := rule
		one.Either = []throttler.Condition{c}
		b.rules.Add([2]string{c.Name, c.Value}, one)
	}
}

// lately returns the rules of the blocked values, the last first.
func (b *blocked) lately() []throttler.Rule {
	b.mu.Lock()
	defer b.mu.Unlock()
	rules := b.rules.Values()
	slices.Reverse(rules)
	return rules
}
