package serve

import (
	"crypto/tls"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/adaptivethrottler/throttler/cmd/throttler/internal/seldom"
)

// A certificate is one in two files, which are read again when they have changed.
type certificate struct {
	cert, key string // paths
	log       *slog.Logger
	failure   seldom.Minute // for logging one

	mu      sync.Mutex
	looked  time.Time // when the files were
	state   [2]fileState
	current *tls.Certificate
}

// A fileState tells versions of a file apart.
type fileState struct {
	modified time.Time
	size     int64
}

// lookEvery is how often handshakes look at the files.
const lookEvery = time.Second

// tlsOf returns the TLS configuration of a server with a certificate, or nil if its path is
// empty.
func tlsOf(cert, key string, log *slog.Logger) (*tls.Config, error) {
	if cert == "" {
		return nil, nil
	}
	c := &certificate{cert: cert, key: key, log: log, looked: time.Now(), state: [2]fileState{stateOf(cert), stateOf(key)}}
	loaded, err := tls.LoadX509KeyPair(cert, key)
	if err != nil {
		return nil, err
	}
	c.current = &loaded
	return &tls.Config{GetCertificate: c.get, MinVersion: tls.VersionTLS12}, nil
}

func stateOf(path string) fileState {
	info, err := os.Stat(path)
	if err != nil {
		return fileState{}
	}
	return fileState{info.ModTime(), info.Size()}
}

// get returns the certificate. While the files cannot be read, as while they are replaced one
// after the other, it is the last that could be.
func (c *certificate) get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if time.Since(c.looked) < lookEvery {
		return c.current, nil
	}
	c.looked = time.Now()
	now := [2]fileState{stateOf(c.cert), stateOf(c.key)}
	if now == c.state {
		return c.current, nil
	}
	loaded, err := tls.LoadX509KeyPair(c.cert, c.key)
	switch {
	case err == nil:
		c.current, c.state = &loaded, now
		c.log.Info("a certificate was read", "cert", c.cert)
	case c.failure.Due():
		c.log.Error("a certificate cannot be read: the last one stays", "cert", c.cert, "err", err)
	}
	return c.current, nil
}
