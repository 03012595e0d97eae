package main

import (
	"context"
	"crypto/rand"
	"crypto/subtle"

	"golang.org/x/crypto/argon2"
)

// accounts are the accounts that can sign in.
type accounts struct {
	byName  map[string]account // by login.Normalize(name)
	nobody  account            // for names without an account
	hashing chan struct{}      // holds an element for each hashing under way
	hash    func(password string, salt []byte) []byte
}

// An account is the account of one person.
type account struct {
	name string
	mail string
	salt []byte
	hash []byte
}

// maxHashing is the number of passwords hashed at once. Each takes 19 MiB, so a
// flood of passwords would otherwise exhaust the memory.
const maxHashing = 4

// demonstration returns the accounts of this site. A real site has them in a
// database, with the hashes only.
func demonstration() *accounts {
	a := &accounts{
		byName:  make(map[string]account),
		nobody:  newAccount("", "", rand.Text()),
		hashing: make(chan struct{}, maxHashing),
		hash:    hash,
	}
	a.byName["alice"] = newAccount("Alice", "alice@library.example", "correct horse")
	a.byName["bob"] = newAccount("Bob", "bob@library.example", "battery staple")
	return a
}

func newAccount(name, mail, password string) account {
	salt := make([]byte, 16)
	rand.Read(salt) // never fails
	return account{name: name, mail: mail, salt: salt, hash: hash(password, salt)}
}

// hash returns the Argon2id hash of password, with the parameters that OWASP
// recommends: 19 MiB of memory, 2 passes, 1 thread.
func hash(password string, salt []byte) []byte {
	return argon2.IDKey([]byte(password), salt, 2, 19<<10, 1, 32)
}

// find returns the account of name, or nobody's. It looks the name up as the guard
// counts it, so that another spelling of it has no guesses of its own.
func (a *accounts) find(name string) (found account, exists bool) {
	if found, exists = a.byName[spelling(name)]; !exists {
		found = a.nobody
	}
	return found, exists
}

// verify returns the account of name, and whether password is its password. It
// takes the same time for a name without an account. The error is ctx's, if ctx
// ended while other passwords were hashed.
func (a *accounts) verify(ctx context.Context, name, password string) (account, bool, error) {
	select {
	case a.hashing <- struct{}{}:
		defer func() { <-a.hashing }()
	case <-ctx.Done():
		return account{}, false, ctx.Err()
	}
	found, exists := a.find(name)
	right := subtle.ConstantTimeCompare(a.hash(password, found.salt), found.hash) == 1
	return found, right && exists, nil
}
