package main

import (
	"crypto/x509"
	"os"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"
)

// In an image of this command alone there is no file of authorities.
func TestAuthoritiesAreKnownWithoutFiles(t *testing.T) {
	if os.Getenv("SSL_CERT_FILE") == "/none" {
		all, err := x509.SystemCertPool()
		require.NoError(t, err)
		require.False(t, all.Equal(x509.NewCertPool()))
		return
	}
	c := exec.Command(os.Args[0], "-test.run=^TestAuthoritiesAreKnownWithoutFiles$")
	c.Env = append(os.Environ(), "SSL_CERT_FILE=/none", "SSL_CERT_DIR=/none")
	output, err := c.CombinedOutput()
	require.NoError(t, err, "%s", output)
}
