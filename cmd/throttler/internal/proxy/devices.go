package proxy

import (
	"cmp"
	"crypto/rand"
	"net/http"
	"slices"
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
	return devices{key: []byte("throttler device " + cmp.Or(secret, rand.Text()))}
}

// cookie returns the name of name's cookie. A device is known to one spelling of a name.
func (d devices) cookie(name string) string {
	return devicePrefix + mac(d.key, name)[:24]
}

// isDevice reports whether a cookie is one of a device, by its name.
func isDevice(cookie string) bool { return strings.HasPrefix(cookie, devicePrefix) }

// of returns the device to log in with as name, or "".
func (d devices) of(r *http.Request, name string) string {
	cookie, err := r.Cookie(d.cookie(name))
	if err != nil {
		return ""
	}
	return cookie.Value
}

// set adds the device of name to an answer, and drops the oldest of too many.
func (d devices) set(answer http.Header, r *http.Request, name, device string) {
	own, others := d.cookie(name), []string{}
	for _, cookie := range r.Cookies() { // browsers send the oldest first
		if isDevice(cookie.Name) && cookie.Name != own {
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

// removeCookies removes cookies by their names from the fields of a request.
func removeCookies(h http.Header, goes func(name string) bool) {
	pairs := strings.Split(strings.Join(h["Cookie"], "; "), ";")
	kept := slices.DeleteFunc(slices.Clone(pairs), func(pair string) bool {
		name, _, _ := strings.Cut(pair, "=")
		return goes(strings.TrimSpace(name))
	})
	switch cookies := strings.TrimSpace(strings.Join(kept, ";")); {
	case len(kept) == len(pairs):
	case cookies == "":
		h.Del("Cookie")
	default:
		h.Set("Cookie", cookies)
	}
}
