package serve_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/adaptivethrottler/throttler/cmd/throttler/internal/serve"
	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"
)

// An authority signs certificates.
type authority struct {
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
}

// sign returns the path of a new certificate for 127.0.0.1, and that of its key.
// The zero authority makes one that has signed itself.
func (a *authority) sign(t *testing.T, name string) (certificate, key string) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: a.key == nil, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	if a.key == nil {
		a.certificate, a.key = template, private
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.certificate, &private.PublicKey, a.key)
	require.NoError(t, err)
	secret, err := x509.MarshalPKCS8PrivateKey(private)
	require.NoError(t, err)
	if a.certificate == template {
		a.certificate, err = x509.ParseCertificate(der)
		require.NoError(t, err)
	}
	write := func(kind string, text []byte) string {
		path := filepath.Join(t.TempDir(), name+" "+kind)
		require.NoError(t, os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: text}), 0o600))
		return path
	}
	return write("CERTIFICATE", der), write("PRIVATE KEY", secret)
}

// client returns the configuration of a client that trusts a, with a certificate of another
// authority unless that is nil.
func (a *authority) client(t *testing.T, signed *authority) *tls.Config {
	t.Helper()
	config := &tls.Config{RootCAs: x509.NewCertPool()}
	config.RootCAs.AddCert(a.certificate)
	if signed != nil {
		pair, err := tls.LoadX509KeyPair(signed.sign(t, "caller"))
		require.NoError(t, err)
		config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &pair, nil }
	}
	return config
}

// browser returns a client with a configuration.
func browser(t *testing.T, config *tls.Config) *http.Client {
	transport := &http.Transport{TLSClientConfig: config, ForceAttemptHTTP2: true}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

func TestACertificateIsReadAgainWhenItsFilesChange(t *testing.T) {
	issuer := new(authority)
	cert, key := issuer.sign(t, "root")
	s := startWith(t, fmt.Sprintf(guardedForm, application(t)), func(o *serve.Options) { o.Proxy.Cert, o.Proxy.CertKey = cert, key })
	served := func() string {
		conn, err := tls.Dial("tcp", s.proxy, &tls.Config{InsecureSkipVerify: true})
		require.NoError(t, err)
		defer conn.Close()
		return conn.ConnectionState().PeerCertificates[0].SerialNumber.String()
	}
	first := served()
	newCert, newKey := issuer.sign(t, "next")
	require.NoError(t, os.Rename(newCert, cert)) // without its key it is none
	require.Eventually(t, func() bool { served(); return strings.Contains(s.log.String(), "a certificate cannot be read") }, 30*time.Second, 50*time.Millisecond)
	require.Equal(t, first, served(), "the last one stays")
	require.NoError(t, os.Rename(newKey, key))
	require.Eventually(t, func() bool { return served() != first }, 30*time.Second, 50*time.Millisecond)
}

// secured starts a service whose ports for proxies, operators, Envoy and programs have
// certificates of ours, and ask for some. Programs need no key then.
func secured(t *testing.T, ours *authority, rules string) (*service, serve.TLS) {
	var files serve.TLS
	files.ClientCA, _ = ours.sign(t, "ours")
	files.Cert, files.CertKey = ours.sign(t, "service")
	return startWith(t, rules, func(o *serve.Options) {
		o.ListenTLS, o.AdminTLS, o.EnvoyTLS, o.API = files, files, files, serve.API{Listen: "127.0.0.1:0", TLS: files}
	}), files
}

func TestEveryPortMayAskForCertificates(t *testing.T) {
	ours, others := new(authority), new(authority)
	others.sign(t, "others")
	s, _ := secured(t, ours, descriptors)
	known := browser(t, ours.client(t, ours))
	for _, url := range []string{s.listen + "/auth", s.admin + "/metrics", s.admin + "/readyz", s.api + "/v1/openapi.json"} {
		answer, err := known.Get("https://" + url)
		require.NoError(t, err)
		answer.Body.Close()
		assert.Equal(t, 200, answer.StatusCode, url)
		assert.Equal(t, 2, answer.ProtoMajor, url)
		_, err = browser(t, ours.client(t, others)).Get("https://" + url)
		assert.Error(t, err, url)
	}
	begun, a := askAPI(t, known, "https://"+s.api, "/v1/login/begin", `{"name":"alice","address":"203.0.113.7"}`)
	assert.Equal(t, []any{200, "authorized"}, []any{begun, a["status"]})
	stranger := browser(t, ours.client(t, nil))
	for _, url := range []string{s.listen + "/auth", s.api + "/v1/openapi.json"} {
		_, err := stranger.Get("https://" + url)
		assert.Error(t, err, url)
		answer, err := http.Get("http://" + url)
		require.NoError(t, err)
		answer.Body.Close()
		assert.NotEqual(t, 200, answer.StatusCode, "plain text")
	}
	for path, want := range map[string]int{"/healthz": 200, "/readyz": 200, "/metrics": 403, "/tally": 403} {
		answer, err := stranger.Get("https://" + s.admin + path)
		require.NoError(t, err)
		answer.Body.Close()
		assert.Equal(t, want, answer.StatusCode, "a probe has no certificate: %s", path)
	}
	assert.NoError(t, serve.Healthy(t.Context(), s.admin, true))
	assert.Error(t, serve.Healthy(t.Context(), s.admin, false))

	for by, want := range map[*authority]codes.Code{ours: codes.OK, others: codes.Unavailable, nil: codes.Unavailable} {
		conn, err := grpc.NewClient(s.envoy, grpc.WithTransportCredentials(credentials.NewTLS(ours.client(t, by))))
		require.NoError(t, err)
		_, err = rls.NewRateLimitServiceClient(conn).ShouldRateLimit(t.Context(), envoyAsks("edge", 0, "key=tin"))
		assert.Equal(t, want, status.Code(err), "%v", err)
		conn.Close()
	}
}

func TestAnAuthorityIsReadAgainAndConnectionsStay(t *testing.T) {
	ours, next := new(authority), new(authority)
	nextCA, _ := next.sign(t, "next")
	s, files := secured(t, ours, limits)
	connections := 0
	config := ours.client(t, ours)
	transport := &http.Transport{TLSClientConfig: config, DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
		connections++
		return new(net.Dialer).DialContext(ctx, network, address)
	}}
	defer transport.CloseIdleConnections()
	kept := &http.Client{Transport: transport}
	get := func(client *http.Client) error {
		answer, err := client.Get("https://" + s.admin + "/metrics")
		if err != nil {
			return err
		}
		io.Copy(io.Discard, answer.Body)
		answer.Body.Close()
		assert.Equal(t, 200, answer.StatusCode)
		return nil
	}
	require.NoError(t, get(kept))
	require.NoError(t, os.Rename(nextCA, files.ClientCA))
	require.Eventually(t, func() bool { return get(browser(t, ours.client(t, next))) == nil }, 30*time.Second, 50*time.Millisecond)
	require.NoError(t, get(kept), "although its authority holds no more")
	assert.Equal(t, 1, connections)
	assert.Error(t, get(browser(t, ours.client(t, ours))))
}
