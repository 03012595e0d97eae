package main

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"time"

	"github.com/adaptivethrottler/throttler/memstore"
	"github.com/bradfitz/gomemcache/memcache"
)

// sessionLength is the time after which a session ends.
const sessionLength = 12 * time.Hour

// sessions are the open sessions, in the memory of the process: names, by the hash of the
// token.
type sessions struct{ store *memstore.Store }

// key returns the key of token's session.
func key(token string) string {
	sum := sha256.Sum256([]byte(token))
	return hex.EncodeToString(sum[:])
}

// start returns the token of a new session. Each login gets a new one, so an
// attacker cannot make a user sign in to a session that the attacker knows.
func (s sessions) start(name string) (token string) {
	token = rand.Text()
	s.store.Add(&memcache.Item{Key: key(token), Value: []byte(name), Expiration: int32(sessionLength / time.Second)})
	return token
}

// name returns the name that is signed in with token.
func (s sessions) name(token string) (string, bool) {
	item, err := s.store.Get(key(token))
	if err != nil {
		return "", false
	}
	return string(item.Value), true
}

// end ends the session of token.
func (s sessions) end(token string) { s.store.Delete(key(token)) }

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
