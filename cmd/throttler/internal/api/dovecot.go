package api

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/netip"
	"sync"
	"time"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/login"
)

// This file is an authentication policy server of Dovecot: it is asked with command=allow
// before a password is looked at, and told the result with command=report.

// policy is what Dovecot sends, as far as it is used. Other attributes are ignored.
type policy struct {
	Login    string `json:"login"`  // whose mail is asked for
	User     string `json:"user"`   // whose password it is: another one is a master user's
	Master   string `json:"master"` // the master user, once the password was right
	Remote   string `json:"remote"` // the client's address; empty: a local program
	Success  bool   `json:"success"`
	Rejected bool   `json:"policy_reject"` // there was no attempt
	Why      string `json:"fail_type"`     // since Dovecot 2.4
}

// master returns the master user that may log in with the password, or "".
func (p *policy) master() string {
	name := p.User
	if p.Success { // then User may be what Dovecot's data base calls the account
		name = p.Master
	}
	if name == p.Login {
		return ""
	}
	return name
}

// The answers to Dovecot.
const (
	policyAllow  = 0
	policyReject = -1
)

type policyAnswer struct {
	Status int    `json:"status"`
	Msg    string `json:"msg"`
}

// dovecot answers Dovecot. A request that cannot be understood is answered with an error:
// Dovecot then does as auth_policy_reject_on_fail says.
func (a *api) dovecot(w http.ResponseWriter, r *http.Request) {
	if err := checkType(r); err != nil {
		a.fail(w, r, err)
		return
	}
	var asked policy
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, MaxBody)).Decode(&asked); err != nil {
		a.fail(w, r, invalid("The body cannot be read: %s.", inWords(err)))
		return
	}
	a.respond(w, r, func() (any, error) {
		switch r.URL.Query().Get("command") {
		case "allow":
			return a.allow(r.Context(), &asked)
		case "report":
			return policyAnswer{Status: policyAllow}, a.pending.end(r.Context(), &asked)
		}
		return nil, invalid("Ask with ?command=allow or ?command=report.")
	})
}

// allow begins an attempt.
func (a *api) allow(ctx context.Context, asked *policy) (policyAnswer, error) {
	if asked.Remote == "" {
		return policyAnswer{Status: policyAllow}, nil
	}
	addr, err := netip.ParseAddr(asked.Remote)
	if err != nil {
		return policyAnswer{}, invalid("%q is no address.", asked.Remote)
	}
	// Dovecot may give up waiting and look at the password all the same.
	ctx = context.WithoutCancel(ctx)
	w := waiting{since: time.Now()}
	for _, name := range []string{asked.Login, asked.master()} {
		if name == "" && len(w.attempts) > 0 {
			break // no master user
		}
		attempt, err := a.Guard.Begin(ctx, name, addr)
		answer := policyAnswer{Status: policyReject}
		switch {
		case errors.Is(err, login.ErrNameTooLong):
			answer.Msg, err = "Wrong name or password.", nil
		case err != nil:
		case attempt.Decision.Status == throttler.Blocked:
			answer.Msg = attempt.Decision.Messages[0]
		default:
			if w.attempts = append(w.attempts, attempt); attempt.Decision.Err == nil || !a.Rules.File().Closed {
				continue
			}
			answer.Msg = "Please try again later."
		}
		w.end(ctx, (*login.Attempt).Cancel) // as far as the backend answers
		return answer, err
	}
	a.pending.add(asked, w)
	return policyAnswer{Status: policyAllow}, nil
}

// pending are attempts that Dovecot has not yet reported on, by name and address. Those
// of one name and address are alike, so any of them is ended by a report.
type pending struct {
	mu    sync.Mutex
	all   map[place][]waiting
	swept time.Time
}

// A place is where attempts wait for a report.
type place struct{ login, master, remote string }

// A waiting is a password that Dovecot looks at.
type waiting struct {
	attempts []*login.Attempt // at the account, and at the master user's, if there is one
	since    time.Time
}

// end ends the attempts by how.
func (w *waiting) end(ctx context.Context, how func(*login.Attempt, context.Context) error) (err error) {
	for _, attempt := range w.attempts {
		err = errors.Join(err, how(attempt, ctx))
	}
	return err
}

// pendingFor is how long an attempt is kept. After 30 s it counts as a failure anyway.
const pendingFor = time.Minute

func (p *pending) add(asked *policy, w waiting) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.all == nil {
		p.all = make(map[place][]waiting)
	}
	if w.since.Sub(p.swept) >= pendingFor {
		p.sweep(w.since)
	}
	at := place{asked.Login, asked.master(), asked.Remote}
	p.all[at] = append(p.all[at], w)
}

// sweep forgets attempts that are too old.
func (p *pending) sweep(now time.Time) {
	p.swept = now
	for at, list := range p.all {
		for len(list) > 0 && now.Sub(list[0].since) >= pendingFor {
			list = list[1:]
		}
		p.all[at] = list
		if len(list) == 0 {
			delete(p.all, at)
		}
	}
}

// take returns what asked is about, with no attempts if there is nothing. The User of an account may have
// changed since.
func (p *pending) take(asked *policy) waiting {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, master := range []string{asked.master(), ""} {
		at := place{asked.Login, master, asked.Remote}
		list := p.all[at]
		if len(list) == 0 {
			continue
		}
		if p.all[at] = list[1:]; len(list) == 1 {
			delete(p.all, at)
		}
		return list[0]
	}
	return waiting{}
}

// end ends the attempts that Dovecot reports on.
func (p *pending) end(ctx context.Context, asked *policy) error {
	if asked.Rejected {
		return nil
	}
	w := p.take(asked) // with none if they began at another replica, or before this one started
	switch {
	case asked.Success && len(w.attempts) > 1: // the master user's password says nothing of the account's
		return errors.Join(w.attempts[0].Cancel(ctx), w.attempts[1].Succeed(ctx))
	case asked.Success:
		return w.end(ctx, (*login.Attempt).Succeed)
	case asked.Why == "internal":
		return w.end(ctx, (*login.Attempt).Cancel)
	}
	return w.end(ctx, (*login.Attempt).Fail)
}
