package proxy

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"strings"
	"time"
)

// devices are the devices in a visitor's cookies: one for each name that has logged in
// there, under a name that tells nobody whose it is.
type devices struct{ key []byte }

const (
	devicePrefix = "__Host-throttler-"
	deviceKnown  = 365 * 24 * time.Hour
	maxDevices   = 16 // in one browser, so that a request is never too large
)

// newDevices returns devices under names that depend on secret. Empty: random.
func newDevices(secret string) devices {
	if secret == "" {
		secret = rand.Text()
	}
	return devices{key: []byte("throttler device " + secret)}
}

// cookie returns the name of name's cookie. A device is known to one spelling of a name.
func (d devices) cookie(name string) string {
	mac := hmac.New(sha256.New, d.key)
	mac.Write([]byte(name))
	return devicePrefix + hex.EncodeToString(mac.Sum(nil)[:12])
}

// of returns the device to log in with as name, or "".
func (d devices) of(r *http.Request, name string) string {
	cookie, err := r.Cookie(d.cookie(name))
	if err != nil || !isDevice(cookie.Value) {
		return ""
	}
	return cookie.Value
}

// isDevice reports whether s has the form of rand.Text.
func isDevice(s string) bool {
	return len(s) == 26 && strings.Trim(s, "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567") == ""
}

// set adds the device of name to an answer, and drops the oldest of too many.
func (d devices) set(answer http.Header, r *http.Request, name, device string) {
	own, others := d.cookie(name), []string{}
	for _, cookie := range r.Cookies() { // browsers send the oldest first
		if strings.HasPrefix(cookie.Name, devicePrefix) && cookie.Name != own {
			others = append(others, cookie.Name)
		}
	}
	for _, other := range others[:max(0, len(others)-(maxDevices-1))] {
		add(answer, other, "", -1)
	}
	add(answer, own, device, int(deviceKnown/time.Second))
}

func add(answer http.Header, name, value string, maxAge int) {
	cookie := http.Cookie{Name: name, Value: value, Path: "/", MaxAge: maxAge, Secure: true, HttpOnly: true, SameSite: http.SameSiteLaxMode}
	answer.Add("Set-Cookie", cookie.String())
}

// stripDevices removes devices from the fields of a request: they are not the server's.
func stripDevices(h http.Header) {
	removeCookies(h, func(name string) bool { return strings.HasPrefix(name, devicePrefix) })
}

// removeCookies removes cookies by their names from the fields of a request.
func removeCookies(h http.Header, goes func(name string) bool) {
	var kept []string
	removed := false
	for _, line := range h["Cookie"] {
		for pair := range strings.SplitSeq(line, ";") {
			pair = strings.TrimSpace(pair)
			name, _, _ := strings.Cut(pair, "=")
			switch {
			case goes(strings.TrimSpace(name)):
				removed = true
			case pair != "":
				kept = append(kept, pair)
			}
		}
	}
	switch {
	case !removed:
	case len(kept) == 0:
		h.Del("Cookie")
	default:
		h.Set("Cookie", strings.Join(kept, "; "))
	}
}
