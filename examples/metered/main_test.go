package main

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

func TestNobodySpendsMoreThanTheBudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var stdout, stderr strings.Builder
		require.Zero(t, run(t.Context(), &stdout, &stderr, "-budget", "1000", "-streams", "8", "-minute", "1m"))
		require.Empty(t, stderr.String())
		lines := strings.Split(stdout.String(), "\n")
		require.Equal(t, "ann: 496 of 1000 tokens in 8 streams: 8 whole, 0 stopped in the middle, 0 refused", lines[0])
		require.Regexp(t, `^bob: (9\d\d|1000) of 1000 tokens in 8 streams: 0 whole, 8 stopped in the middle, 0 refused$`, lines[1])
	})
}

func TestADoneContextEndsTheStreams(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		var stdout, stderr strings.Builder
		require.Equal(t, 1, run(ctx, &stdout, &stderr, "-minute", "1h"))
		require.Equal(t, "metered: context deadline exceeded\n", stderr.String())
	})
}

func TestBadFlagsExitWith2(t *testing.T) {
	for _, args := range [][]string{{"-minute", "1ms"}, {"-budget", "1"}, {"-streams", "0"}, {"-hour", "1s"}, {"ann"}} {
		var stderr strings.Builder
		require.Equal(t, 2, run(t.Context(), nil, &stderr, args...), "%q", args)
		require.NotEmpty(t, stderr.String())
	}
}
