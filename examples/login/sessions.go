package main

import (
	"crypto/rand"
	"crypto/sha256"
	"net/http"
	"sync"
	"time"
)

// sessionLength is the time after which a session ends.
const sessionLength = 12 * time.Hour

// sessions are the open sessions, in the memory of the process.
type sessions struct {
	mu    sync.Mutex
	names map[[sha256.Size]byte]session // by the hash of the token
}

type session struct {
	name string
	end  time.Time
}

// start returns the token of a new session. Each login gets a new one, so an
// attacker cannot make a user sign in to a session that the attacker knows.
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

// name returns the name that is signed in with token.
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

// A jar sets the site's cookies. Scripts cannot read them, other sites cannot
// have them sent, and with -https they are sent by HTTPS only.
type jar struct {
	https bool
}

func (j jar) name(name string) string {
	if j.https {
		return "__Host-" + name // browsers accept it only from this host by HTTPS
	}
	return name
}

// set sets a cookie for a time. A negative time deletes it.
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

// get returns the value of a cookie, or "".
func (j jar) get(r *http.Request, name string) string {
	cookie, err := r.Cookie(j.name(name))
	if err != nil {
		return ""
	}
	return cookie.Value
}
