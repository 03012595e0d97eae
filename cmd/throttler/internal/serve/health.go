package serve

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"time"
)

// Healthy returns nil if a service answers at its address for operators. An
// address without a host is of this machine.
func Healthy(ctx context.Context, admin string) error {
	host, port, err := net.SplitHostPort(admin)
	if err != nil {
		return err
	}
	if host == "" {
		host = "127.0.0.1"
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+net.JoinHostPort(host, port)+"/healthz", nil)
	if err != nil {
		return err
	}
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return fmt.Errorf("%s answers %s", r.URL, answer.Status)
	}
	return nil
}
