package api

import (
	"context"
	"crypto/cipher"
	"encoding/base64"
	"encoding/binary"
	"math"
	"strings"
	"time"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/cmd/throttler/internal/rulefile"
	"github.com/adaptivethrottler/throttler/internal/seal"
)

// TokenLife is the time for which the token of an attempt to log in is valid.
const TokenLife = time.Minute

// HitsLife is the time for which the token of what a call has counted is valid.
const HitsLife = 10 * time.Minute

// lives are the lives of the tokens that are valid once.
var lives = map[string]time.Duration{kindLogin: TokenLife, kindHits: HitsLife}

// tokens seals and uses tokens. A token lets another replica continue what one
// has begun. It is encrypted and authenticated (AES-256-GCM). Most are valid once:
// each use counts a hit, in a record that all replicas share, against a limit
// of one. That of a lease is opened as often as the lease is renewed.
type tokens struct {
	aead cipher.AEAD
	used *throttler.Throttler
}

// tokenRule is the identifier under which used tokens are counted.
const tokenRule = rulefile.Reserved + "token"

// The kinds of tokens. A token is valid for its own kind only.
const (
	kindHits  = "hits"
	kindLogin = "login"
	kindLease = "lease"
)

// newTokens returns tokens that all replicas with the same secret can read.
// used counts them. It must not have a Fallback, or each process would accept a
// token once.
func newTokens(secret string, used *throttler.Throttler) (*tokens, error) {
	aead, err := seal.New([]byte(secret), "throttler token")
	if err != nil {
		return nil, err
	}
	return &tokens{aead: aead, used: used}, nil
}

// tokenText is the encoding of tokens: strict, so that each has one spelling.
var tokenText = base64.RawURLEncoding.Strict()

// idSize is the number of bytes at the start of a token that identify it: the
// nonce.
const idSize = 12

// expirySize is the size of a token's expiry, in milliseconds since the Unix
// epoch.
const expirySize = 8

// seal returns a token of a kind with contents. One that is opened often is valid for ever.
func (t *tokens) seal(kind string, contents []byte) string {
	until := uint64(math.MaxInt64)
	if life, once := lives[kind]; once {
		until = uint64(time.Now().Add(life).UnixMilli())
	}
	plain := append(binary.BigEndian.AppendUint64(nil, until), contents...)
	return tokenText.EncodeToString(t.aead.Seal(nil, nil, plain, []byte(kind)))
}

// open returns the contents of a token, and what tells it from others.
func (t *tokens) open(kind, token string) (contents []byte, id string, err error) {
	sealed, err := tokenText.DecodeString(token)
	if err != nil || strings.ContainsAny(token, "\r\n") { // DecodeString skips them
		return nil, "", errNoToken
	}
	plain, err := t.aead.Open(nil, nil, sealed, []byte(kind))
	if err != nil || len(plain) < expirySize {
		return nil, "", errNoToken
	}
	if time.Now().UnixMilli() >= int64(binary.BigEndian.Uint64(plain)) {
		return nil, "", errExpired
	}
	return plain[expirySize:], tokenText.EncodeToString(sealed[:idSize]), nil
}

// use returns the contents of a token, once. It does not end with ctx, so that
// a caller who hangs up does not use up a token for nothing.
func (t *tokens) use(ctx context.Context, kind, token string) (contents []byte, err error) {
	contents, id, err := t.open(kind, token)
	if err != nil {
		return nil, err
	}
	d, err := t.used.Authorize(context.WithoutCancel(ctx), usedRule(kind, id))
	switch {
	case err != nil:
		return nil, err
	case d.Err != nil:
		return nil, unavailable("It is not known whether the token was used already. Nothing was done.")
	case d.Status == throttler.Blocked:
		return nil, errUsed
	}
	return contents, nil
}

// usedRule returns the rule that a token is counted by.
func usedRule(kind, id string) throttler.Rule {
	return throttler.Rule{Identifier: tokenRule, Either: []throttler.Condition{{
		Name: kind, Value: id, Max: 1, TTL: 2 * lives[kind], // twice, since clocks may differ
	}}}
}

// unuse makes a token valid again that was used for nothing.
func (t *tokens) unuse(ctx context.Context, kind, token string) error {
	_, id, err := t.open(kind, token)
	if err != nil {
		return err
	}
	return t.used.Reset(context.WithoutCancel(ctx), usedRule(kind, id))
}

// The errors of a token that cannot be used.
var (
	errNoToken = &failure{"wrong-token", "The token is not from this service, or not for this operation."}
	errExpired = &failure{"token-expired", "The token has expired."}
	errUsed    = &failure{"token-used", "The token was used already."}
)
