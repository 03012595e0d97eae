package login_test

import (
	"context"
	"errors"
	"net/netip"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/login"
	"github.com/adaptivethrottler/throttler/memstore"
)

// A check is what the application does meanwhile, to a backend and a client that hangs up.
type check func(backend *wire, hangUp func()) (right bool, err error)

func answers(right bool, err error) check {
	return func(*wire, func()) (bool, error) { return right, err }
}

// Each way in which check ends is the result, is counted or not, and is observed once.
func TestTryEndsTheAttemptAsCheckSays(t *testing.T) {
	noAccounts := errors.New("no accounts")
	for name, row := range map[string]struct {
		check   check
		result  login.Result
		err     error
		panics  bool
		counted int
		backend error
	}{
		"right":           {check: answers(true, nil), result: login.Succeeded},
		"wrong":           {check: answers(false, nil), result: login.Failed, counted: 1},
		"error":           {check: answers(false, noAccounts), result: login.Canceled, err: noAccounts},
		"right and error": {check: answers(true, noAccounts), result: login.Canceled, err: noAccounts},
		"panic":           {check: func(*wire, func()) (bool, error) { panic(noAccounts) }, result: login.Failed, panics: true, counted: 1},
		"goexit":          {check: func(*wire, func()) (bool, error) { runtime.Goexit(); return true, nil }, result: login.Failed, panics: true, counted: 1},
		"right, too late": {check: func(_ *wire, hangUp func()) (bool, error) { hangUp(); return true, nil }, result: login.Succeeded},
		"wrong, too late": {check: func(_ *wire, hangUp func()) (bool, error) { hangUp(); return false, nil }, result: login.Failed, counted: 1},
		"an outage":       {check: func(w *wire, _ func()) (bool, error) { w.breaks(); return true, nil }, result: login.Succeeded, backend: errDown, counted: 1},
	} {
		t.Run(name, func(t *testing.T) {
			store := &wire{Client: memstore.New()}
			g := on(t, store)
			observed := g.events()
			var result login.Result
			var d throttler.Decision
			var err error
			var recovered any
			done := make(chan struct{})
			go func() {
				defer close(done)
				defer func() { recovered = recover() }()
				ctx, hangUp := context.WithCancel(t.Context())
				defer hangUp()
				result, d, err = g.Try(ctx, "alice", home, func(context.Context) (bool, error) { return row.check(store, hangUp) })
			}()
			<-done
			if row.panics {
				require.Equal(t, name == "panic", recovered == any(noAccounts), "the panic goes on")
			} else {
				require.Equal(t, row.result, result)
				require.Equal(t, throttler.Authorized, d.Status)
				require.ErrorIs(t, d.Err, row.backend)
				require.True(t, err == row.err, "check's own error: %v", err)
			}
			events := observed()
			require.Len(t, events, 1)
			require.Equal(t, row.result, events[0].Result)
			store.works()
			peeked, err := g.Peek(t.Context(), "alice", home)
			require.NoError(t, err)
			for _, o := range peeked.Outcomes {
				if !strings.HasPrefix(o.Name, "known") && o.Name != "address-known" {
					require.Equal(t, row.counted, o.Limit-o.Remaining-1, o.Name)
				}
			}
		})
	}
}

// What Begin refuses, or cannot begin, is never checked.
func TestTryDoesNotCheckARefusedAttempt(t *testing.T) {
	g := on(t, memstore.New())
	var refused int
	g.Observe = func(_ context.Context, e login.Event) {
		if e.Result == login.Refused {
			refused++
		}
	}
	require.Equal(t, 5, g.fails(5, "alice", home))
	never := func(context.Context) (bool, error) { t.Error("checked"); return true, nil }
	result, d, err := g.Try(t.Context(), "alice", home, never)
	require.NoError(t, err)
	require.Equal(t, login.Refused, result)
	require.Equal(t, throttler.Blocked, d.Status)
	require.Equal(t, 10*time.Minute, d.RetryAfter.Round(time.Minute))
	require.Equal(t, []string{refusal}, d.Messages)
	require.Equal(t, 1, refused)
}

// A device in ctx counts for Try, and stays the name's device.
func TestTryKnowsADevice(t *testing.T) {
	g := on(t, memstore.New())
	phone := login.WithDevice(t.Context(), "sixteen random bytes")
	try := func(ctx context.Context, from netip.Addr) login.Result {
		result, _, err := g.Try(ctx, "alice", from, func(context.Context) (bool, error) { return true, nil })
		require.NoError(t, err)
		return result
	}
	require.Equal(t, login.Succeeded, try(phone, home))
	g.fill("alice")
	require.Equal(t, login.Refused, try(t.Context(), away))
	require.Equal(t, login.Succeeded, try(phone, away))
}
