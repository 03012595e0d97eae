package main

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"strings"
)

// devices are the tokens in a browser's cookie: one for the browser, and one
// for each name that has signed in there, the last one first. A success
// replaces the token of its name only. So several people can share a computer,
// and a stolen cookie is worthless for a name after its next success.
type devices struct {
	browser string // no name is ever known from it
	owned   []owned
}

// An owned device is known for one name.
type owned struct {
	tag   string // of the name
	token string
}

// maxOwned is the number of names in a cookie, to keep it below 1 KB.
const maxOwned = 16

// parseDevices parses a cookie. It skips what is invalid, and gives a browser
// without a token a new one.
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

// isToken reports whether s has the form of rand.Text.
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

// tag identifies name in this cookie. Each browser has other tags, so they
// cannot be used to track a name.
func (d devices) tag(name string) string {
	hash := sha256.Sum256([]byte(d.browser + name))
	return strings.ReplaceAll(base64.RawURLEncoding.EncodeToString(hash[:6]), "-", "~")
}

// of returns the device to log in with as name.
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
