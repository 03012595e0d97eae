// Package seal encrypts and authenticates what another process is to read that has the
// same secret.
package seal

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/sha256"
)

// New returns AES-256-GCM with a key that HKDF derives from secret for one purpose: what
// was sealed for another one does not open. The nonce is random. It is the first 12 bytes of
// what Seal returns, and the one that is passed to Seal and Open must be empty.
//
// New fails only for a secret of less than 14 bytes, and only with GODEBUG=fips140=only.
func New(secret []byte, purpose string) (cipher.AEAD, error) {
	key, err := hkdf.Key(sha256.New, secret, nil, purpose, 32)
	if err != nil {
		return nil, err
	}
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, err
	}
	return cipher.NewGCMWithRandomNonce(block)
}
