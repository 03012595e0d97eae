package main

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// The bot's words to each question of the conversation that are not the
// oracle's.
func TestConversationShowsBothLimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		var stdout, stderr strings.Builder
		require.Zero(t, run(t.Context(), nil, &stdout, &stderr, "-minute", "1m"))
		require.Empty(t, stderr.String())
		require.Equal(t, 127*time.Second, time.Since(start))
		lines := strings.Split(strings.TrimSuffix(stdout.String(), "\n"), "\n")
		require.Len(t, lines, 2*len(conversation))
		var refusals []string
		for i := 0; i < len(lines); i += 2 {
			if strings.Contains(lines[i+1], "enough") {
				refusals = append(refusals, lines[i], strings.TrimSpace(lines[i+1]))
			}
		}
		require.Equal(t, []string{
			"0:09 alice: will it hail?", "bot: you have asked enough, ask again in 51 s",
			"0:50 frank: am I too late?", "bot: all of you have asked enough, ask again in 70 s",
			"0:55 frank: and now?", "bot: all of you have asked enough, ask again in 65 s",
			"1:02 alice: will it hail?", "bot: all of you have asked enough, ask again in 58 s",
			"2:07 frank: shall I go?", "bot: you have asked enough and all of you have asked enough, ask again in 54 s",
		}, refusals)
	})
}

func TestConversationIsTheSameInShortMinutes(t *testing.T) {
	outputs := make(map[string]string)
	for _, minute := range []string{"2s", "1m"} {
		synctest.Test(t, func(t *testing.T) {
			var stdout strings.Builder
			require.Zero(t, run(t.Context(), nil, &stdout, nil, "-minute", minute))
			outputs[minute] = stdout.String()
		})
	}
	require.Equal(t, outputs["1m"], outputs["2s"])
}

func TestStandardInputIsAnsweredLineByLine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var stdout strings.Builder
		input := "alice: tea?\nalice:coffee?\n\nwho am I?\nalice: milk?\nbob: tea?"
		require.Zero(t, run(t.Context(), strings.NewReader(input), &stdout, nil, "-stdin"))
		require.Equal(t, "bot: "+oracle("tea?")+"\n"+
			"bot: "+oracle("coffee?")+"\n"+
			"bot: say who you are, as in alice: will it rain?\n"+
			"bot: you have asked enough, ask again in 60 s\n"+
			"bot: "+oracle("tea?")+"\n", stdout.String())
	})
}

func TestDoneContextEndsTheConversation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		var stdout, stderr strings.Builder
		require.Equal(t, 1, run(ctx, nil, &stdout, &stderr, "-minute", "1m"))
		require.Equal(t, "chatbot: context deadline exceeded\n", stderr.String())
		require.NotContains(t, stdout.String(), "0:31")
	})
}

func TestBadFlagsExitWith2(t *testing.T) {
	for _, args := range [][]string{{"-minute", "1ms"}, {"-minute", "-1s"}, {"-hour", "1s"}, {"alice"}} {
		var stderr strings.Builder
		require.Equal(t, 2, run(t.Context(), nil, nil, &stderr, args...), "%q", args)
		require.NotEmpty(t, stderr.String())
	}
}
