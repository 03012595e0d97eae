package proxy

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/adaptivethrottler/throttler/cmd/throttler/internal/rulefile"
)

// A client that uses Basic authentication sends name and password with every request,
// several at once. So credentials that were right are passed on for a time without an
// attempt, and of requests with the same ones, one at a time is an attempt.

// verifiedFor is how long credentials stay known, and maxVerified how many do.
const (
	verifiedFor = 5 * time.Minute
	maxVerified = 10_000
)

// verified are credentials by their HMAC.
type verified struct {
	key []byte
	mu  sync.Mutex
	all map[credentials]*entry
}

type credentials [sha256.Size]byte

type entry struct {
	until time.Time     // they are known
	turn  chan struct{} // full: an attempt is under way
	users int           // that wait for it or have it
}

func newVerified() *verified {
	v := &verified{key: make([]byte, 32), all: make(map[credentials]*entry)}
	rand.Read(v.key)
	return v
}

// knownID identifies what is known to be right: Basic credentials, and whether a cookie came with
// them. An answer beside a cookie may be to its session, and so says nothing of the same
// credentials without one.
func (v *verified) knownID(c *call) credentials {
	if c.hasCookie() {
		return v.id(c, "cookie")
	}
	return v.id(c)
}

// id identifies the Basic credentials that a client at an address sends to a login. Other
// logins and hosts may know the same name with another password.
func (v *verified) id(c *call, more ...string) credentials {
	mac := hmac.New(sha256.New, v.key)
	x, standard := c.forwardedHosts()
	hosts := []string{c.request.Host, strings.Join(x, ","), strings.Join(standard, ",")}
	parts := append([]string{c.addr.String(), c.login.Place, c.request.Header.Get("Authorization")}, hosts...)
	io.WriteString(mac, strings.Join(append(parts, more...), "\n"))
	return credentials(mac.Sum(nil))
}

// take reports whether credentials are known to be right. If they are not, it returns
// when no attempt with them is under way. Call done with what the answer says. The error is
// ctx's.
func (v *verified) take(ctx context.Context, id credentials) (known bool, done func(rulefile.Verdict), err error) {
	e := v.use(id)
	if !v.known(e) {
		select {
		case e.turn <- struct{}{}:
		case <-ctx.Done():
			v.leave(id, e, rulefile.Neither)
			return false, nil, ctx.Err()
		}
		if !v.known(e) {
			return false, func(verdict rulefile.Verdict) { v.leave(id, e, verdict); <-e.turn }, nil
		}
		<-e.turn
	}
	return true, func(verdict rulefile.Verdict) {
		if verdict == rulefile.Right { // for as long as was said when they were verified
			verdict = rulefile.Neither
		}
		v.leave(id, e, verdict)
	}, nil
}

func (v *verified) use(id credentials) *entry {
	v.mu.Lock()
	defer v.mu.Unlock()
	e := v.all[id]
	if e == nil {
		e = &entry{turn: make(chan struct{}, 1)}
		v.all[id] = e
	}
	e.users++
	return e
}

func (v *verified) known(e *entry) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return time.Now().Before(e.until)
}

// leave notes what the answer to one of e's users says.
func (v *verified) leave(id credentials, e *entry, verdict rulefile.Verdict) {
	v.mu.Lock()
	defer v.mu.Unlock()
	switch verdict {
	case rulefile.Right:
		e.until = time.Now().Add(verifiedFor)
	case rulefile.Wrong:
		e.until = time.Time{}
	}
	if e.users--; e.users == 0 && !time.Now().Before(e.until) {
		delete(v.all, id)
	}
	v.bound()
}

// bound forgets credentials that nobody uses, if there are too many: those whose time is
// over, or else any.
func (v *verified) bound() {
	if len(v.all) <= maxVerified {
		return
	}
	for id, e := range v.all {
		if e.users == 0 && !time.Now().Before(e.until) {
			delete(v.all, id)
		}
	}
	for id, e := range v.all {
		if len(v.all) <= maxVerified*9/10 {
			return
		}
		if e.users == 0 {
			delete(v.all, id)
		}
	}
}
