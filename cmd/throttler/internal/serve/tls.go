package serve

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"sync"
	"time"

	"github.com/adaptivethrottler/throttler/cmd/throttler/internal/seldom"
)

// TLS are the paths of the files that secure a port.
type TLS struct {
	Cert     string // the certificate; empty: plain text
	CertKey  string // its key
	ClientCA string // the authority of clients' certificates; empty: clients need none

	probed bool // clients without a certificate may connect, see onlyCertified
}

// config returns the TLS configuration of a port, or nil for plain text. Handshakes read files
// that have changed; connections stay. flag is the port's.
func (t TLS) config(flag string, log *slog.Logger) (*tls.Config, error) {
	if t.Cert == "" {
		if t.ClientCA != "" {
			return nil, fmt.Errorf("%s-client-ca needs %[1]s-cert and %[1]s-cert-key", flag)
		}
		return nil, nil
	}
	f := &tlsFiles{TLS: t, log: log, looked: time.Now(), state: t.state()}
	var err error
	if f.current, err = t.load(); err != nil {
		return nil, fmt.Errorf("%s-cert: %w", flag, err)
	}
	return &tls.Config{GetConfigForClient: f.get, MinVersion: tls.VersionTLS12}, nil
}

// load reads the files.
func (t TLS) load() (*tls.Config, error) {
	cert, err := tls.LoadX509KeyPair(t.Cert, t.CertKey)
	if err != nil {
		return nil, err
	}
	config := &tls.Config{Certificates: []tls.Certificate{cert}, NextProtos: []string{"h2", "http/1.1"}, MinVersion: tls.VersionTLS12}
	if t.ClientCA == "" {
		return config, nil
	}
	authority, err := os.ReadFile(t.ClientCA)
	if err != nil {
		return nil, err
	}
	config.ClientAuth, config.ClientCAs = tls.RequireAndVerifyClientCert, x509.NewCertPool()
	if t.probed {
		config.ClientAuth = tls.VerifyClientCertIfGiven
	}
	if !config.ClientCAs.AppendCertsFromPEM(authority) {
		return nil, errors.New(t.ClientCA + " holds no certificate in PEM")
	}
	return config, nil
}

// A tlsState tells versions of the three files apart.
type tlsState [3]struct {
	modified time.Time
	size     int64
}

func (t TLS) state() (state tlsState) {
	for i, path := range []string{t.Cert, t.CertKey, t.ClientCA} {
		if info, err := os.Stat(path); err == nil {
			state[i].modified, state[i].size = info.ModTime(), info.Size()
		}
	}
	return state
}

// tlsFiles are files that are read again when they have changed.
type tlsFiles struct {
	TLS
	log     *slog.Logger
	failure seldom.Minute // for logging one

	mu      sync.Mutex
	looked  time.Time // when the files were
	state   tlsState
	current *tls.Config
}

// lookEvery is how often handshakes look at the files.
const lookEvery = time.Second

// get returns the configuration by the files. While they cannot be read, as while they are
// replaced one after the other, it is the last that could be.
func (f *tlsFiles) get(*tls.ClientHelloInfo) (*tls.Config, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if time.Since(f.looked) < lookEvery {
		return f.current, nil
	}
	f.looked = time.Now()
	now := f.TLS.state()
	if now == f.state {
		return f.current, nil
	}
	loaded, err := f.load()
	switch {
	case err == nil:
		f.current, f.state = loaded, now
		f.log.Info("a certificate was read", "cert", f.Cert)
	case f.failure.Due():
		f.log.Error("a certificate cannot be read: the last one stays", "cert", f.Cert, "err", err)
	}
	return f.current, nil
}

// onlyCertified refuses clients without a certificate, where one is asked for.
func (t TLS) onlyCertified(next http.Handler) http.Handler {
	if t.ClientCA == "" {
		return next
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if len(r.TLS.VerifiedChains) == 0 {
			http.Error(w, "A client's certificate is needed.", http.StatusForbidden)
			return
		}
		next.ServeHTTP(w, r)
	})
}
