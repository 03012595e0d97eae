package api

import (
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"net/http"
	"strings"
	"time"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/cmd/throttler/internal/rulefile"
)

// TokenLife is how long a token is good for.
const TokenLife = time.Minute

// A token is what another replica needs to go on with what one has begun. It is
// encrypted and authenticated (AES-256-GCM), and good once: before it is used, a
// limit of one is counted for it where all replicas see that.
type tokens struct {
	aead cipher.AEAD
	used *throttler.Throttler
}

// tokenRule is the identifier under which used tokens are counted.
const tokenRule = rulefile.Reserved + "token"

// The kinds of tokens. One of a kind is none of another.
const (
	kindHits  = "hits"
	kindLogin = "login"
)

// newTokens returns tokens that replicas with the same secret understand. They are
// counted by used, which must not have a fallback: that would take a token once in
// each process.
func newTokens(secret string, used *throttler.Throttler) (*tokens, error) {
	key, err := hkdf.Key(sha256.New, []byte(secret), nil, "throttler token", 32)
	if err != nil {
		return nil, err
	}
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, err
	}
	aead, err := cipher.NewGCMWithRandomNonce(block)
	if err != nil {
		return nil, err
	}
	return &tokens{aead: aead, used: used}, nil
}

// tokenText is how tokens are written: each in one way.
var tokenText = base64.RawURLEncoding.Strict()

// idSize is how many bytes at the beginning of a token are its own: the nonce.
const idSize = 12

// expirySize is the length of a token's end, in milliseconds since the Unix epoch.
const expirySize = 8

// seal returns a token of a kind with these contents.
func (t *tokens) seal(kind string, contents []byte) string {
	ends := time.Now().Add(TokenLife).UnixMilli()
	plain := append(binary.BigEndian.AppendUint64(nil, uint64(ends)), contents...)
	return tokenText.EncodeToString(t.aead.Seal(nil, nil, plain, []byte(kind)))
}

// use returns the contents of a token, once. It does not end with ctx: a caller who
// hangs up must not use up a token that nothing is done with.
func (t *tokens) use(ctx context.Context, kind, token string) (contents []byte, err error) {
	sealed, err := tokenText.DecodeString(token)
	if err != nil || strings.ContainsAny(token, "\r\n") { // which are skipped
		return nil, errNoToken
	}
	plain, err := t.aead.Open(nil, nil, sealed, []byte(kind))
	if err != nil || len(plain) < expirySize {
		return nil, errNoToken
	}
	if time.Now().UnixMilli() >= int64(binary.BigEndian.Uint64(plain)) {
		return nil, errExpired
	}
	d, err := t.used.Authorize(context.WithoutCancel(ctx), throttler.Rule{Identifier: tokenRule, Either: []throttler.Condition{{
		Name: kind, Value: tokenText.EncodeToString(sealed[:idSize]),
		Max: 1, TTL: 2 * TokenLife, // as clocks may differ
	}}})
	switch {
	case err != nil:
		return nil, err
	case d.Err != nil:
		return nil, unavailable("It is not known whether the token was used already. Nothing was done.")
	case d.Status == throttler.Blocked:
		return nil, errUsed
	}
	return plain[expirySize:], nil
}

// The errors of a token that cannot be used.
var (
	errNoToken = &failure{status: http.StatusBadRequest, text: "This is no token of this service, or of another kind."}
	errExpired = &failure{status: http.StatusGone, text: "The token has expired."}
	errUsed    = &failure{status: http.StatusConflict, text: "The token was used already."}
)
