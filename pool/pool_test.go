package pool_test

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	crand "crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"math/big"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/internal/servertest"
	"github.com/adaptivethrottler/throttler/internal/skiptest"
	"github.com/adaptivethrottler/throttler/pool"
	"github.com/bradfitz/gomemcache/memcache"
	"github.com/stretchr/testify/require"
)

var _ throttler.Client = (*pool.Pool)(nil)

func TestNew(t *testing.T) {
	for _, servers := range [][]string{
		{"127.0.0.1:11211"},
		{"localhost:11211", "127.0.0.1:11211", "127.0.0.1:11212"},
		{"[::1]:11211", "[2001:db8::1]:11211"},
		{"/run/memcached.sock", "unix:/run/other.sock", "unix:memcached.sock"},
	} {
		p, err := pool.New(servers...)
		require.NoError(t, err, "%q", servers)
		require.Len(t, p.Stats(), len(servers))
		require.NoError(t, p.Close())
		_, err = p.Get("key")
		require.ErrorIs(t, err, pool.ErrClosed)
	}
}

func TestNewRefuses(t *testing.T) {
	for name, tc := range map[string]struct {
		servers []string
		text    string
	}{
		"none":              {nil, "no servers"},
		"empty":             {[]string{""}, "missing"},
		"no port":           {[]string{one, "192.0.2.7"}, "192.0.2.7: missing port"},
		"no host":           {[]string{":11211"}, "no host"},
		"empty port":        {[]string{"192.0.2.1:"}, "no port"},
		"port 0":            {[]string{"192.0.2.1:0"}, "no port"},
		"bare IPv6":         {[]string{"::1:11211"}, "too many colons"},
		"port too high":     {[]string{"192.0.2.1:70000"}, "192.0.2.1:70000"},
		"no name known":     {[]string{"memcached.invalid:11211", "other.invalid:11211"}, "other.invalid"},
		"bad port":          {[]string{"192.0.2.1:memcached-port"}, "memcached-port"},
		"no path":           {[]string{"unix:"}, "no path"},
		"URL of the web":    {[]string{"http://192.0.2.1:11211"}, "pool: server http://…: a URL, want host:port"},
		"URL":               {[]string{one, "memcached://user:secret@192.0.2.1:11211"}, "pool: server memcached://…: a URL, want host:port"},
		"URL of Redis":      {[]string{"redis://user:secret@192.0.2.1:6379"}, "redisstore.Open"},
		"twice":             {[]string{one, two, one}, one + ": given twice"},
		"twice in disguise": {[]string{"/run/memcached.sock", "unix:/run/memcached.sock"}, "given twice"},
	} {
		t.Run(name, func(t *testing.T) {
			p, err := pool.New(tc.servers...)
			require.ErrorContains(t, err, tc.text)
			require.ErrorContains(t, err, "pool: ")
			require.Nil(t, p)
		})
	}
}

// A name may be there later than the program that uses it.
func TestNewKnowsSomeOfTheNames(t *testing.T) {
	p, err := pool.New("memcached.invalid:11211", one)
	require.NoError(t, err)
	defer p.Close()
	s := &station{answer: misses}
	p.DialContext = s.DialContext // by which the name resolves
	stats := p.Stats()
	require.ErrorContains(t, stats[0].LastError, "memcached.invalid")
	require.NoError(t, stats[1].LastError)
	_, err = p.GetMulti([]string{"a", "b", "c", "d", "e"})
	require.NoError(t, err)
	require.Len(t, s.dialled(), 2)
}

// patient returns a pool of servers with patience for any machine.
func patient(t *testing.T, servers ...string) *pool.Pool {
	t.Helper()
	p, err := pool.New(servers...)
	require.NoError(t, err)
	t.Cleanup(func() { p.Close() })
	p.Timeout, p.DialTimeout = 10*time.Second, 10*time.Second
	return p
}

// A pool answers as the memcache.Client does, error by error.
func TestItAnswersAsTheClientItIsMadeOf(t *testing.T) {
	direct := func(t *testing.T) client {
		c := memcache.New(servertest.NewMemcached(t).Addr)
		t.Cleanup(func() { c.Close() })
		c.Timeout = 10 * time.Second
		return c
	}
	overTCP := func(t *testing.T) client { return patient(t, servertest.NewMemcached(t).Addr) }
	overSocket := func(t *testing.T) client { return patient(t, "unix:"+servertest.NewMemcachedSocket(t).Addr) }
	overSeveral := func(t *testing.T) client {
		return patient(t, servertest.NewMemcached(t).Addr, servertest.NewMemcachedSocket(t).Addr, servertest.NewMemcached(t).Addr)
	}
	overTLS := func(t *testing.T) client {
		addr, dial := terminated(t, servertest.NewMemcached(t).Addr)
		p := patient(t, addr)
		p.DialContext = dial
		return p
	}
	for name, connect := range map[string]func(*testing.T) client{
		"direct": direct, "tcp": overTCP, "socket": overSocket, "several": overSeveral, "tls": overTLS,
	} {
		t.Run(name, func(t *testing.T) { contract(t, connect(t)) })
	}
}

func contract(t *testing.T, c client) {
	_, err := c.Get("a")
	require.Equal(t, memcache.ErrCacheMiss, err)
	require.Equal(t, memcache.ErrCacheMiss, c.Delete("a"))
	require.Equal(t, memcache.ErrCacheMiss, c.CompareAndSwap(item("a")))

	hostile := []byte("x\r\nEND\r\nSTORED\r\n\x00")
	require.NoError(t, c.Add(&memcache.Item{Key: "a", Value: hostile, Flags: 1<<32 - 1, Expiration: 600}))
	require.Equal(t, memcache.ErrNotStored, c.Add(item("a")))
	read, err := c.Get("a")
	require.NoError(t, err)
	require.Equal(t, hostile, read.Value)
	require.Equal(t, uint32(1<<32-1), read.Flags)
	require.NotZero(t, read.CasID)

	older := *read
	read.Value = nil
	require.NoError(t, c.CompareAndSwap(read))
	require.Equal(t, memcache.ErrCASConflict, c.CompareAndSwap(&older))
	read, err = c.Get("a")
	require.NoError(t, err)
	require.Empty(t, read.Value)

	require.Equal(t, memcache.ErrMalformedKey, c.Delete("not a key"))
	require.Equal(t, memcache.ErrMalformedKey, c.Add(item(strings.Repeat("k", 251))))
	long := strings.Repeat("k", 250)
	require.NoError(t, c.Add(&memcache.Item{Key: long, Value: bytes.Repeat([]byte("v"), 1_000_000), Expiration: 600}))

	items, err := c.GetMulti([]string{"a", "b", long, "c", "a"})
	require.NoError(t, err)
	require.Len(t, items, 2)
	require.Empty(t, items["a"].Value)
	require.NotZero(t, items["a"].CasID)
	require.Len(t, items[long].Value, 1_000_000)

	require.NoError(t, c.Delete("a"))
	for _, none := range [][]string{{"a", "b"}, nil} {
		items, err = c.GetMulti(none)
		require.NoError(t, err)
		require.NotNil(t, items)
		require.Empty(t, items)
	}
}

func TestIPv6(t *testing.T) {
	l, err := net.Listen("tcp", "[::1]:0")
	if err != nil {
		skiptest.Skip(t, fmt.Sprintf("no IPv6 here: enable it on the loopback interface (%v)", err))
	}
	forward(t, l, servertest.NewMemcached(t).Addr)
	contract(t, patient(t, l.Addr().String()))
}

func TestTLS(t *testing.T) {
	addr, dial := terminated(t, servertest.NewMemcached(t).Addr)

	unencrypted := patient(t, addr)
	unencrypted.Timeout = time.Second
	require.Error(t, unencrypted.Add(item("key")))

	untrusting := patient(t, addr)
	untrusting.DialContext = new(tls.Dialer).DialContext
	err := untrusting.Add(item("key"))
	require.ErrorContains(t, err, "certificate")
	require.ErrorContains(t, err, addr)

	trusting := patient(t, addr)
	trusting.DialContext = dial
	require.NoError(t, trusting.Add(item("key")))
}

// terminated puts TLS before the server at addr. It returns where, by name, and
// the DialContext that trusts its certificate, which has that name alone.
func terminated(t *testing.T, addr string) (string, dialFunc) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), crand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1),
		DNSNames:     []string{"localhost"},
		NotAfter:     time.Now().Add(time.Hour),
	}
	der, err := x509.CreateCertificate(crand.Reader, template, template, key.Public(), key)
	require.NoError(t, err)
	certificate, err := x509.ParseCertificate(der)
	require.NoError(t, err)
	trusted := x509.NewCertPool()
	trusted.AddCert(certificate)

	l, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{
		Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}},
	})
	require.NoError(t, err)
	forward(t, l, addr)
	_, port, _ := net.SplitHostPort(l.Addr().String())
	return "localhost:" + port, (&tls.Dialer{Config: &tls.Config{RootCAs: trusted}}).DialContext
}

// forward forwards what l accepts to the server at addr, until the test ends.
func forward(t *testing.T, l net.Listener, addr string) {
	servertest.ServeOn(t, l, func(conn net.Conn) { splice(conn, addr) })
}

func splice(conn net.Conn, addr string) {
	there, err := new(net.Dialer).DialContext(context.Background(), "tcp", addr)
	if err != nil {
		return
	}
	join(conn, there)
}

// join forwards between two connections until one of them ends.
func join(conn, there net.Conn) {
	defer there.Close()
	go func() {
		io.Copy(conn, there)
		conn.Close()
	}()
	io.Copy(there, conn)
}
