package main

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"strings"
)

// devices are what one browser's cookie says: a token by which the guard tells it
// from others, and one for each name that has signed in there, the last one first.
// A success replaces its name's token and no other, so that several people can
// share a computer, and whoever has read the cookie knows nothing of use about a
// name after its next success.
type devices struct {
	browser string // worth nothing: no name is ever known from it
	owned   []owned
}

// An owned device is known to one name.
type owned struct {
	tag   string // of the name
	token string
}

// maxOwned is how many names one browser keeps, so that a cookie stays below 1 KB.
const maxOwned = 16

// parseDevices returns the devices of a cookie. What is none is left out, and a
// browser without a token gets one.
func parseDevices(cookie string) devices {
	browser, rest, _ := strings.Cut(cookie, ".")
	d := devices{browser: browser}
	if !isToken(browser) {
		return devices{browser: rand.Text()}
	}
	for text := range strings.SplitSeq(rest, ".") {
		tag, token, _ := strings.Cut(text, "-")
		if tag != "" && isToken(token) && len(d.owned) < maxOwned {
			d.owned = append(d.owned, owned{tag, token})
		}
	}
	return d
}

// isToken reports whether s looks like one of rand.Text.
func isToken(s string) bool {
	return len(s) == 26 && strings.Trim(s, "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567") == ""
}

// String returns the cookie.
func (d devices) String() string {
	var b strings.Builder
	b.WriteString(d.browser)
	for _, o := range d.owned {
		b.WriteString("." + o.tag + "-" + o.token)
	}
	return b.String()
}

// tag returns what tells name from others in this cookie. Another browser's tags
// are others, so that nobody is followed by them.
func (d devices) tag(name string) string {
	hash := sha256.Sum256([]byte(d.browser + name))
	return strings.ReplaceAll(base64.RawURLEncoding.EncodeToString(hash[:6]), "-", "~")
}

// of returns the device that name logs in with.
func (d devices) of(name string) string {
	for _, o := range d.owned {
		if o.tag == d.tag(name) {
			return o.token
		}
	}
	return d.browser
}

// with returns d with token as the device of name.
func (d devices) with(name, token string) devices {
	kept := d.without(name).owned
	kept = kept[:min(len(kept), maxOwned-1)]
	return devices{d.browser, append([]owned{{d.tag(name), token}}, kept...)}
}

// without returns d without a device of name.
func (d devices) without(name string) devices {
	var kept []owned
	for _, o := range d.owned {
		if o.tag != d.tag(name) {
			kept = append(kept, o)
		}
	}
	return devices{d.browser, kept}
}
