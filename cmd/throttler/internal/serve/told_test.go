package serve

import (
	"errors"
	"net"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestALineOfTheLogLeavesOutWhatIsNotThere(t *testing.T) {
	var addr net.Addr
	var err error
	require.Equal(t, []any{"calls", 0, "err", errors.ErrUnsupported}, told("calls", 0, "proxy", addr, "err", errors.ErrUnsupported, "last", err))
}
