package login_test

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/login"
	"github.com/adaptivethrottler/throttler/memstore"
)

func answers(right bool, err error) func(context.Context) (bool, error) {
	return func(context.Context) (bool, error) { return right, err }
}

// Each way in which check ends is the result, is counted or not, and is observed once.
func TestTryEndsTheAttemptAsCheckSays(t *testing.T) {
	down := errors.New("no accounts")
	for name, row := range map[string]struct {
		check   func(context.Context) (bool, error)
		result  login.Result
		err     error
		panics  bool
		counted int
	}{
		"right":           {check: answers(true, nil), result: login.Succeeded},
		"wrong":           {check: answers(false, nil), result: login.Failed, counted: 1},
		"error":           {check: answers(false, down), result: login.Canceled, err: down},
		"right and error": {check: answers(true, down), result: login.Canceled, err: down},
		"panic":           {check: func(context.Context) (bool, error) { panic(down) }, result: login.Failed, panics: true, counted: 1},
		"goexit":          {check: func(context.Context) (bool, error) { runtime.Goexit(); return true, nil }, result: login.Failed, panics: true, counted: 1},
	} {
		t.Run(name, func(t *testing.T) {
			g := on(t, memstore.New())
			var events []login.Event
			g.Observe = func(_ context.Context, e login.Event) { events = append(events, e) }
			var result login.Result
			var d throttler.Decision
			var err error
			var recovered any
			done := make(chan struct{})
			go func() {
				defer close(done)
				defer func() { recovered = recover() }()
				result, d, err = g.Try(t.Context(), "alice", home, row.check)
			}()
			<-done
			if row.panics {
				require.Equal(t, name == "panic", recovered == any(down), "the panic goes on")
			} else {
				require.Equal(t, row.result, result)
				require.Equal(t, throttler.Authorized, d.Status)
				require.NoError(t, d.Err)
				require.True(t, err == row.err, "check's own error: %v", err)
			}
			require.Len(t, events, 1)
			require.Equal(t, row.result, events[0].Result)
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

// A ctx that ends while the password is compared changes nothing.
func TestTryEndsTheAttemptAfterItsContext(t *testing.T) {
	for right, want := range map[bool]login.Result{true: login.Succeeded, false: login.Failed} {
		g := on(t, memstore.New())
		ctx, cancel := context.WithCancel(t.Context())
		result, d, err := g.Try(ctx, "alice", home, func(context.Context) (bool, error) { cancel(); return right, nil })
		require.NoError(t, err)
		require.NoError(t, d.Err)
		require.Equal(t, want, result)
	}
}

// However many come at once, no more than the limit are checked.
func TestTryChecksNoMoreThanTheLimit(t *testing.T) {
	g := on(t, memstore.New())
	checked := make(chan struct{}, 100)
	done := make(chan struct{})
	for range 100 {
		go func() {
			defer func() { done <- struct{}{} }()
			_, _, err := g.Try(t.Context(), "alice", home, func(context.Context) (bool, error) {
				checked <- struct{}{}
				return false, nil
			})
			assert.NoError(t, err)
		}()
	}
	for range 100 {
		<-done
	}
	require.Len(t, checked, 5)
}

// A backend that fails is in Decision.Err, and never Try's error.
func TestTryReportsTheBackendInTheDecision(t *testing.T) {
	store := &wire{Client: memstore.New()}
	g := login.New(throttler.New(store))
	result, d, err := g.Try(t.Context(), "alice", home, func(context.Context) (bool, error) {
		store.breaks()
		return true, nil
	})
	require.NoError(t, err)
	require.Equal(t, login.Succeeded, result)
	require.ErrorIs(t, d.Err, errDown)
}

// A device in ctx counts for Try, and stays the name's device.
func TestTryKnowsADevice(t *testing.T) {
	g := on(t, memstore.New())
	phone := login.WithDevice(t.Context(), "sixteen random bytes")
	right := answers(true, nil)
	result, _, err := g.Try(phone, "alice", home, right)
	require.NoError(t, err)
	require.Equal(t, login.Succeeded, result)
	for i := range 30 {
		g.fails(1, "alice", addr(i))
	}
	result, _, err = g.Try(t.Context(), "alice", away, right)
	require.NoError(t, err)
	require.Equal(t, login.Refused, result)
	result, _, err = g.Try(phone, "alice", away, right)
	require.NoError(t, err)
	require.Equal(t, login.Succeeded, result)
}
