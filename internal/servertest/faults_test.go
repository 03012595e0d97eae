package servertest_test

import (
	"io"
	"net"
	"os"
	"testing"
	"time"

	"github.com/adaptivethrottler/throttler/internal/servertest"
	"github.com/stretchr/testify/require"
)

// The answers to two requests arrive together, and the second request meets the complaint.
func TestAComplaintInPlaceOfSeveralAnswersEndsTheConnection(t *testing.T) {
	addr := servertest.Serve(t, func(conn net.Conn) {
		if _, err := io.ReadFull(conn, make([]byte, len("get a\r\nget b\r\n"))); err == nil {
			io.WriteString(conn, "END\r\nEND\r\n")
		}
		io.Copy(io.Discard, conn)
	})
	var wire servertest.Wire
	wire.Once(2, servertest.Complaint)
	conn, err := wire.DialContext(t.Context(), "tcp", addr)
	require.NoError(t, err)
	defer conn.Close()
	for _, request := range []string{"get a\r\n", "get b\r\n"} {
		_, err := io.WriteString(conn, request)
		require.NoError(t, err)
	}
	require.NoError(t, conn.SetReadDeadline(time.Now().Add(time.Second)))
	answers, err := io.ReadAll(conn)
	require.Equal(t, "SERVER_ERROR out of memory storing object\r\n", string(answers))
	require.NotErrorIs(t, err, os.ErrDeadlineExceeded)
}
