package proxy

import (
	"crypto/hmac"
	"crypto/sha256"
	"io"
	"net/http"
	"net/netip"
	"sync"
	"time"
)

// How long guesses are remembered at least, if there are not too many, and how many are at
// most.
const (
	guessesFor = time.Hour
	maxGuesses = 10_000
)

// guesses are those that the server has given no answer to, as far as they are remembered.
// The zero value is empty.
type guesses struct {
	mu          sync.Mutex
	since       time.Time
	recent, old map[credentials]bool
}

// add reports whether a guess is none that is remembered, and remembers it.
func (g *guesses) add(id credentials) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.recent == nil || time.Since(g.since) >= guessesFor || len(g.recent) >= maxGuesses/2 {
		g.recent, g.old, g.since = make(map[credentials]bool), g.recent, time.Now()
	}
	known := g.recent[id] || g.old[id]
	g.recent[id] = true
	return !known
}

// idOf identifies a request of a client at addr, whose body can be read again. All that the
// server gets belongs to it, or an attacker could send the password where it does not count.
func (v *verified) idOf(addr netip.Addr, r *http.Request) credentials {
	mac := hmac.New(sha256.New, v.key)
	io.WriteString(mac, addr.String()+"\n"+r.Method+" "+r.Host+" "+r.RequestURI+"\n")
	r.Header.Write(mac)
	io.WriteString(mac, "\n")
	if r.GetBody != nil {
		body, _ := r.GetBody() // it is in memory
		io.Copy(mac, body)
	}
	return credentials(mac.Sum(nil))
}
