package main

import (
	"crypto/rand"
	"crypto/sha256"
	"net/http"
	"sync"
	"time"
)

// sessionLength is how long a person stays signed in.
const sessionLength = 12 * time.Hour

// sessions are those who are signed in, in the memory of the process.
type sessions struct {
	mu    sync.Mutex
	names map[[sha256.Size]byte]session // by the hash of the token
}

type session struct {
	name string
	end  time.Time
}

// start returns the token of a new session. There is one for each login and none
// before it, so that nobody can be made to sign in to a session that somebody
// else knows.
func (s *sessions) start(name string) (token string) {
	token = rand.Text()
	now := time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.names == nil {
		s.names = make(map[[sha256.Size]byte]session)
	}
	for key, old := range s.names {
		if !old.end.After(now) {
			delete(s.names, key)
		}
	}
	s.names[sha256.Sum256([]byte(token))] = session{name, now.Add(sessionLength)}
	return token
}

// name returns who is signed in with token, if anybody is.
func (s *sessions) name(token string) (string, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	found, ok := s.names[sha256.Sum256([]byte(token))]
	if !ok || !found.end.After(time.Now()) {
		return "", false
	}
	return found.name, true
}

// end ends the session of token.
func (s *sessions) end(token string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.names, sha256.Sum256([]byte(token)))
}

// A jar makes the site's cookies: no script sees them, no other site has them
// sent, and with HTTPS they never travel without it.
type jar struct {
	https bool
}

func (j jar) name(name string) string {
	if j.https {
		return "__Host-" + name // browsers take it from this host by HTTPS alone
	}
	return name
}

// set sets a cookie that lasts for a while; a negative one deletes it.
func (j jar) set(w http.ResponseWriter, name, value string, lasts time.Duration) {
	http.SetCookie(w, &http.Cookie{
		Name:     j.name(name),
		Value:    value,
		Path:     "/",
		MaxAge:   int(lasts / time.Second),
		Secure:   j.https,
		HttpOnly: true,
		SameSite: http.SameSiteLaxMode,
	})
}

// get returns a cookie's value, "" if there is none.
func (j jar) get(r *http.Request, name string) string {
	cookie, err := r.Cookie(j.name(name))
	if err != nil {
		return ""
	}
	return cookie.Value
}
