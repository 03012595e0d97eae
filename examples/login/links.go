package main

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"strconv"
	"strings"
	"time"

	"github.com/adaptivethrottler/throttler"
)

// linkLasts is how long the link in a mail may be used.
const linkLasts = time.Hour

// errLink is the error of a link that the site has not made, or whose time is up.
var errLink = errors.New("not a link of this site, too old, or used already")

// links are the links in mails. Each names an account, and is signed, so nobody
// else can make one. It may be used once.
type links struct {
	key    []byte // of the site
	limits *throttler.Throttler
}

// sign returns the token of a link for name, as the guard counts it.
func (l links) sign(name string, until time.Time) string {
	payload := rand.Text() + "." + strconv.FormatInt(until.Unix(), 10) + "." + name
	encode := base64.RawURLEncoding.EncodeToString
	return encode([]byte(payload)) + "." + encode(l.mac(payload))
}

// mac returns the signature of payload. Its text begins unlike that of a device.
func (l links) mac(payload string) []byte {
	mac := hmac.New(sha256.New, l.key)
	mac.Write([]byte("link " + payload))
	return mac.Sum(nil)
}

// read returns the name in token, and its id.
func (l links) read(token string) (name, id string, err error) {
	text, signature, _ := strings.Cut(token, ".")
	payload, err := base64.RawURLEncoding.DecodeString(text)
	mac, badly := base64.RawURLEncoding.DecodeString(signature)
	if err != nil || badly != nil || !hmac.Equal(mac, l.mac(string(payload))) {
		return "", "", errLink
	}
	parts := strings.SplitN(string(payload), ".", 3) // as sign has made it
	until, err := strconv.ParseInt(parts[1], 10, 64)
	if err != nil || !time.Now().Before(time.Unix(until, 0)) {
		return "", "", errLink
	}
	return parts[2], parts[0], nil
}

// use is read of a link that was not used yet. If do fails, it may be used again.
func (l links) use(ctx context.Context, token string, do func(name string) error) error {
	name, id, err := l.read(token)
	if err != nil {
		return err
	}
	d, err := l.limits.Authorize(ctx, throttler.Rule{
		Identifier: "login-link",
		Either:     []throttler.Condition{{Name: "used", Value: id, Max: 1, TTL: linkLasts}},
	})
	if err != nil {
		return err
	}
	if d.Status == throttler.Blocked {
		return errLink
	}
	if err := do(name); err != nil {
		return errors.Join(err, l.limits.Cancel(ctx, d))
	}
	return nil
}
