package main

import (
	"net"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestRoundTripsAreTurnsFromReadingToSending(t *testing.T) {
	ours, theirs := net.Pipe()
	defer ours.Close()
	defer theirs.Close()
	go func() { // answers each byte but a dot
		for b := make([]byte, 1); ; {
			if _, err := theirs.Read(b); err != nil {
				return
			}
			if b[0] == '.' {
				continue
			}
			if _, err := theirs.Write(b); err != nil {
				return
			}
		}
	}()
	var trips counter
	conn := &countedConn{Conn: ours, trips: &trips}
	send := func(s string) {
		n, err := conn.Write([]byte(s))
		require.NoError(t, err)
		require.Equal(t, len(s), n)
	}
	receive := func(want string) {
		b := make([]byte, 1)
		_, err := conn.Read(b)
		require.NoError(t, err)
		require.Equal(t, want, string(b))
	}
	for _, step := range []struct {
		do   func()
		want int64
	}{
		{func() { send("a") }, 1},
		{func() { receive("a") }, 1},
		{func() { send(".") }, 2},
		{func() { send(".") }, 2}, // in the same packet, as it were
		{func() { send("b") }, 2},
		{func() { receive("b") }, 2},
		{func() { send("c") }, 3},
	} {
		step.do()
		assert.Equal(t, step.want, trips.Load())
	}
	require.NoError(t, theirs.Close())
	_, err := conn.Read(make([]byte, 1))
	require.Error(t, err)
	_, err = conn.Write([]byte("d"))
	require.Error(t, err)
	require.Equal(t, int64(3), trips.Load(), "an error is no answer")
}
