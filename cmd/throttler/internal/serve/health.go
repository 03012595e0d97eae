package serve

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"time"
)

// Healthy returns nil if a service answers at its address for operators, by TLS if secured. An
// address without a host is of this machine.
func Healthy(ctx context.Context, admin string, secured bool) error {
	host, port, err := net.SplitHostPort(admin)
	if err != nil {
		return err
	}
	if host == "" {
		host = "127.0.0.1"
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	scheme := "http://"
	if secured {
		scheme = "https://"
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, scheme+net.JoinHostPort(host, port)+"/healthz", nil)
	if err != nil {
		return err
	}
	// Whether somebody answers is asked, and nothing told: any certificate will do.
	transport := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}
	defer transport.CloseIdleConnections()
	answer, err := transport.RoundTrip(r)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return fmt.Errorf("%s answers %s", r.URL, answer.Status)
	}
	return nil
}
