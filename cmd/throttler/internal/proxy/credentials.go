package proxy

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/adaptivethrottler/throttler/cmd/throttler/internal/rulefile"
	"github.com/adaptivethrottler/throttler/memstore"
	"github.com/bradfitz/gomemcache/memcache"
)

// A client that uses Basic authentication sends name and password with every request, several at
// once. So credentials that were right are passed on for a time without an attempt, and of requests
// with the same ones, one at a time is an attempt. Guesses that a server has not answered are
// remembered too, since the same guess counts once.

// How long credentials are known to be right, and guesses remembered, and how many of each are.
const (
	knownFor  = 5 * time.Minute
	guessFor  = time.Hour
	maxRecent = 10_000
)

// A credential stands for what a client sends, by its HMAC with a key of this process.
type credential string

// A recent remembers credentials for a time, and only the newest if there are too many.
type recent struct {
	lasts time.Duration
	store *memstore.Store
}

func newRecent(lasts time.Duration) recent {
	return recent{lasts, &memstore.Store{MaxItems: maxRecent}}
}

// has reports whether a credential was added lately.
func (r recent) has(c credential) bool {
	_, err := r.store.Get(string(c))
	return err == nil
}

// add adds a credential, and reports whether it was there. Its time begins anew.
func (r recent) add(c credential) (had bool) {
	lasts := int32(r.lasts / time.Second)
	if r.store.Add(&memcache.Item{Key: string(c), Expiration: lasts}) == nil {
		return false
	}
	if item, err := r.store.Get(string(c)); err == nil {
		item.Expiration = lasts
		r.store.CompareAndSwap(item) // or else another call has just done the same
	}
	return true
}

func (r recent) remove(c credential) { r.store.Delete(string(c)) }

// A basicLogins has requests with the same Basic credentials take turns while these are unknown.
type basicLogins struct {
	key      []byte
	known    recent
	mu       sync.Mutex
	underWay map[credential]chan struct{} // attempts; closed when they have ended
}

func newBasicLogins() *basicLogins {
	return &basicLogins{key: []byte(rand.Text()), known: newRecent(knownFor), underWay: make(map[credential]chan struct{})}
}

// knownID identifies what is known to be right: Basic credentials, and whether a cookie came with
// them. An answer beside a cookie may be to its session, and so says nothing of the same
// credentials without one.
func (b *basicLogins) knownID(c *call) credential {
	if c.hasCookie() {
		return b.id(c, "cookie")
	}
	return b.id(c)
}

// id identifies the Basic credentials that a client at an address sends to a login. Other
// logins and hosts may know the same name with another password.
func (b *basicLogins) id(c *call, more ...string) credential {
	x, standard := c.forwardedHosts()
	parts := []string{c.addr.String(), c.login.Place, c.request.Header.Get("Authorization"), c.request.Host, strings.Join(x, ","), strings.Join(standard, ",")}
	return credential(mac(b.key, append(parts, more...)...))
}

// idOf identifies a request whose body can be read again. All that the server gets belongs to
// it, or an attacker could send the password where it does not count.
func (b *basicLogins) idOf(c *call) credential {
	r := c.request
	var rest strings.Builder
	r.Header.Write(&rest)
	if r.GetBody != nil {
		body, _ := r.GetBody() // it is in memory
		io.Copy(&rest, body)
	}
	return credential(mac(b.key, c.addr.String(), r.Method+" "+r.Host+" "+r.URL.RequestURI(), rest.String()))
}

// mac returns the HMAC of parts.
func mac(key []byte, parts ...string) string {
	h := hmac.New(sha256.New, key)
	io.WriteString(h, strings.Join(parts, "\n"))
	return hex.EncodeToString(h.Sum(nil))
}

// take reports whether credentials are known to be right. If they are not, it returns
// when no attempt with them is under way. Call done with what the answer says. The error is
// ctx's.
func (b *basicLogins) take(ctx context.Context, id credential) (known bool, done func(rulefile.Verdict), err error) {
	for {
		b.mu.Lock()
		known = b.known.has(id)
		other := b.underWay[id]
		if !known && other == nil {
			b.underWay[id] = make(chan struct{})
		}
		b.mu.Unlock()
		if known || other == nil {
			return known, func(v rulefile.Verdict) { b.end(id, v, !known) }, nil
		}
		select {
		case <-other:
		case <-ctx.Done():
			return false, nil, ctx.Err()
		}
	}
}

// end notes what an answer says of credentials: right ones stay known for as long as was said
// first. It ends their attempt, if it was one.
func (b *basicLogins) end(id credential, v rulefile.Verdict, wasAttempt bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case v == rulefile.Wrong:
		b.known.remove(id)
	case v == rulefile.Right && wasAttempt:
		b.known.add(id)
	}
	if wasAttempt {
		close(b.underWay[id])
		delete(b.underWay, id)
	}
}
