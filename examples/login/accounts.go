package main

import (
	"context"
	"crypto/rand"
	"crypto/subtle"

	"golang.org/x/crypto/argon2"

	"github.com/adaptivethrottler/throttler/login"
)

// accounts are those who can sign in.
type accounts struct {
	byName  map[string]account // by what login.Normalize makes of the name
	nobody  account            // for names that there is no account of
	hashing chan struct{}      // holds an element for each password that is being hashed
}

// An account is one person's.
type account struct {
	name string
	salt []byte
	hash []byte
}

// maxHashing is how many passwords are hashed at once. Each takes 19 MiB, so
// that without a bound a flood of passwords would be one of memory.
const maxHashing = 4

// demonstration returns the accounts that this site has. A real one has them in
// a database, in which the hashes are all there is of the passwords.
func demonstration() *accounts {
	a := &accounts{
		byName:  make(map[string]account),
		nobody:  newAccount("", rand.Text()),
		hashing: make(chan struct{}, maxHashing),
	}
	a.byName["alice"] = newAccount("Alice", "correct horse")
	a.byName["bob"] = newAccount("Bob", "battery staple")
	return a
}

func newAccount(name, password string) account {
	salt := make([]byte, 16)
	rand.Read(salt) // never fails
	return account{name: name, salt: salt, hash: hash(password, salt)}
}

// hash returns the Argon2id hash of password, with the parameters that OWASP
// recommends: 19 MiB of memory, 2 passes, 1 thread.
func hash(password string, salt []byte) []byte {
	return argon2.IDKey([]byte(password), salt, 2, 19<<10, 1, 32)
}

// verify returns the account of name if password is its password. It takes as
// long for a name that does not exist as for one that does. The error is that of
// ctx, which ended before it was the turn of this password.
func (a *accounts) verify(ctx context.Context, name, password string) (account, bool, error) {
	select {
	case a.hashing <- struct{}{}:
		defer func() { <-a.hashing }()
	case <-ctx.Done():
		return account{}, false, ctx.Err()
	}
	// The name is looked up as the guard counts it: a spelling that finds the
	// account has no guesses of its own.
	found, exists := a.byName[login.Normalize(name)]
	if !exists {
		found = a.nobody
	}
	right := subtle.ConstantTimeCompare(hash(password, found.salt), found.hash) == 1
	return found, right && exists, nil
}
