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

// policy is what Dovecot sends by default, as far as it is used. Other attributes are ignored.
type policy struct {
	Login    string `json:"login"`
	Remote   string `json:"remote"` // the client's address; empty: a local program
	Success  bool   `json:"success"`
	Rejected bool   `json:"policy_reject"` // there was no attempt
	Why      string `json:"fail_type"`     // since Dovecot 2.4
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
	attempt, err := a.Guard.Begin(context.WithoutCancel(ctx), asked.Login, addr)
	if errors.Is(err, login.ErrNameTooLong) {
		return policyAnswer{policyReject, "Wrong name or password."}, nil
	}
	if err != nil {
		return policyAnswer{}, err
	}
	switch d := attempt.Decision; {
	case d.Status == throttler.Blocked:
		return policyAnswer{policyReject, login.DefaultMessage}, nil
	case d.Err != nil && a.Rules.File().Closed:
		attempt.Cancel(ctx) // as far as the backend answers
		return policyAnswer{policyReject, "Please try again later."}, nil
	}
	a.pending.add(asked, attempt)
	return policyAnswer{Status: policyAllow}, nil
}

// pending are attempts that Dovecot has not yet reported on, by name and address. Those
// of one name and address are alike, so any of them is ended by a report.
type pending struct {
	mu    sync.Mutex
	all   map[policy][]waiting
	swept time.Time
}

type waiting struct {
	attempt *login.Attempt
	since   time.Time
}

// pendingFor is how long an attempt is kept. After 30 s it counts as a failure anyway.
const pendingFor = time.Minute

func (p *pending) add(asked *policy, attempt *login.Attempt) {
	now := time.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.all == nil {
		p.all = make(map[policy][]waiting)
	}
	if now.Sub(p.swept) >= pendingFor {
		p.sweep(now)
	}
	key := keyOf(asked)
	p.all[key] = append(p.all[key], waiting{attempt, now})
}

func keyOf(asked *policy) policy { return policy{Login: asked.Login, Remote: asked.Remote} }

// sweep forgets attempts that are too old.
func (p *pending) sweep(now time.Time) {
	p.swept = now
	for key, list := range p.all {
		for len(list) > 0 && now.Sub(list[0].since) >= pendingFor {
			list = list[1:]
		}
		p.all[key] = list
		if len(list) == 0 {
			delete(p.all, key)
		}
	}
}

// take returns an attempt that asked is about, or nil.
func (p *pending) take(asked *policy) *login.Attempt {
	p.mu.Lock()
	defer p.mu.Unlock()
	key := keyOf(asked)
	list := p.all[key]
	if len(list) == 0 {
		return nil
	}
	if p.all[key] = list[1:]; len(list) == 1 {
		delete(p.all, key)
	}
	return list[0].attempt
}

// end ends the attempt that Dovecot reports on.
func (p *pending) end(ctx context.Context, asked *policy) error {
	if asked.Rejected {
		return nil
	}
	attempt := p.take(asked)
	switch {
	case attempt == nil: // begun at another replica, or before this one started
		return nil
	case asked.Success:
		return attempt.Succeed(ctx)
	case asked.Why == "internal":
		return attempt.Cancel(ctx)
	}
	return attempt.Fail(ctx)
}
