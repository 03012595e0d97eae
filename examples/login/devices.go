package main

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"strings"
	"time"
)

// devices are the tokens in a visitor's cookies: one for the browser, and one for
// each name that has signed in there. Each has a cookie of its own, so the answer
// to one login changes nothing of another one. A success replaces the token of its
// name only. So several people can share a computer, and a stolen cookie is
// worthless for a name soon after its next success.
type devices struct {
	jar jar
	key []byte // of the site
}

const (
	browserCookie = "browser"
	devicePrefix  = "device-" // and the tag of a name
	deviceKnown   = 365 * 24 * time.Hour
	maxDevices    = 16 // names in one browser, so that a request is never too large
)

// isToken reports whether s has the form of rand.Text.
func isToken(s string) bool {
	return len(s) == 26 && strings.Trim(s, "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567") == ""
}

// cookie returns the name of name's cookie. Who has stolen a cookie cannot find
// out by that whose it is: that takes the key of the site.
func (d devices) cookie(name string) string {
	mac := hmac.New(sha256.New, d.key)
	mac.Write([]byte("device " + name))
	return devicePrefix + hex.EncodeToString(mac.Sum(nil)[:12])
}

// of returns the device to log in with as name, "" if there is none.
func (d devices) of(r *http.Request, name string) string {
	for _, cookie := range []string{d.cookie(name), browserCookie} {
		if token := d.jar.get(r, cookie); isToken(token) {
			return token
		}
	}
	return ""
}

// has reports whether r has a device of name.
func (d devices) has(r *http.Request, name string) bool {
	return isToken(d.jar.get(r, d.cookie(name)))
}

// set sets token as the device of name, and drops the oldest of too many.
func (d devices) set(w http.ResponseWriter, r *http.Request, name, token string) {
	own, others := d.cookie(name), []string{}
	for _, cookie := range r.Cookies() { // browsers send the oldest first
		if other, isDevice := strings.CutPrefix(cookie.Name, d.jar.name(devicePrefix)); isDevice && devicePrefix+other != own {
			others = append(others, devicePrefix+other)
		}
	}
	for _, cookie := range others[:max(0, len(others)-(maxDevices-1))] {
		d.jar.set(w, cookie, "", -time.Second)
	}
	d.jar.set(w, own, token, deviceKnown)
}

// forget drops the device of name.
func (d devices) forget(w http.ResponseWriter, name string) {
	d.jar.set(w, d.cookie(name), "", -time.Second)
}
