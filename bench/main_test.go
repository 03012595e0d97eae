package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestAllTablesArePrinted(t *testing.T) {
	started(t, onMemcached, "unix")
	started(t, onRedis, "unix")
	dir := t.TempDir()
	page := filepath.Join(dir, "page.md")
	require.NoError(t, os.WriteFile(page, []byte(tablesBegin+tablesEnd), 0o600))
	var out, messages bytes.Buffer
	err := run(t.Context(), []string{"-short", "-rounds", "1", "-slice", "2ms", "-network", "unix", "-page", page}, &out, &messages)
	require.NoError(t, err, messages.String())

	sections := strings.Split(out.String(), "\n### ")
	require.Regexp(t, `^Measured with go.*memcached \d.*Redis \d.*Unix sockets; medians of 1 rounds of 2ms`, sections[0])
	var titles []string
	for _, section := range sections[1:] {
		title, body, _ := strings.Cut(section, "\n")
		titles = append(titles, title)
		columns := strings.Count(strings.SplitN(body[strings.Index(body, "\n|"):], "\n", 3)[1], " | ")
		rows := 0
		for line := range strings.Lines(body) {
			if strings.HasPrefix(line, "| ") {
				require.Equal(t, columns, strings.Count(line, " | "), "%s: %s", title, line)
				rows++
			}
		}
		require.Greater(t, rows, 2, title)
	}
	require.Equal(t, []string{
		"Over a network", "A ctx that can end", "Several conditions in a call", "Clients that share values", "Open loop", "Hits taken ahead",
		"Windows by the hits that they hold", "Admitted of a limit of 50", "In process memory", "HTTP middleware in process memory",
	}, titles)

	written, err := os.ReadFile(page)
	require.NoError(t, err)
	require.Equal(t, tablesBegin+"\n"+out.String()+tablesEnd, string(written))
}

func TestOnlyThePartsThatAreNamedAreMeasured(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	var out, messages bytes.Buffer
	require.NoError(t, run(t.Context(), []string{"-rounds", "1", "-slice", "1ms", "-only", "works,memory"}, &out, &messages))
	require.Contains(t, out.String(), "### In process memory")
	out.Reset()
	require.NoError(t, run(t.Context(), []string{"-rounds", "1", "-slice", "1ms", "-only", "long"}, &out, &messages))
	require.NotContains(t, out.String(), "###")
}

func TestWithoutServersOnlyWhatNeedsNoneIsMeasured(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	var out, messages bytes.Buffer
	require.NoError(t, run(t.Context(), []string{"-rounds", "1", "-slice", "1ms"}, &out, &messages))
	require.Contains(t, messages.String(), "install the package memcached")
	require.Contains(t, messages.String(), "install the package redis-server")
	require.Contains(t, out.String(), "### In process memory")
	require.NotContains(t, out.String(), "rueidis, Lua")
}

func TestOptions(t *testing.T) {
	var messages bytes.Buffer
	o, err := parse(nil, &messages)
	require.NoError(t, err)
	require.Equal(t, options{network: "tcp", rounds: 15, slice: 50 * time.Millisecond}, o)
	o, err = parse([]string{"-short"}, &messages)
	require.NoError(t, err)
	require.Equal(t, options{short: true, network: "tcp", rounds: 3, slice: 20 * time.Millisecond}, o)
	o, err = parse([]string{"-short", "-rounds", "1"}, &messages)
	require.NoError(t, err)
	require.Equal(t, options{short: true, network: "tcp", rounds: 1, slice: 20 * time.Millisecond}, o)
	o, err = parse([]string{"-only", "long,fleet"}, &messages)
	require.NoError(t, err)
	require.Equal(t, []string{"long", "fleet"}, o.only)
	for _, args := range [][]string{{"x"}, {"-network", "udp"}, {"-rounds", "0"}, {"-slice", "1us"}, {"-only", "x"}, {"-only", "long", "-page", "p"}, {"-nosuch"}} {
		_, err := parse(args, &messages)
		require.Error(t, err, args)
	}
	require.ErrorIs(t, run(t.Context(), []string{"-page", "nosuch.md"}, &messages, &messages), os.ErrNotExist)
	require.NoError(t, run(t.Context(), []string{"-h"}, &messages, &messages))
}
