package otelthrottle_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/memstore"
	"github.com/adaptivethrottler/throttler/otelthrottle"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A page is a log in memory, without times.
type page struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (p *page) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.text.Write(b)
}

// lines returns what was written since the last call.
func (p *page) lines() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	lines := strings.FieldsFunc(p.text.String(), func(r rune) bool { return r == '\n' })
	p.text.Reset()
	return lines
}

func (p *page) logger() *slog.Logger {
	return slog.New(slog.NewTextHandler(p, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey {
			return slog.Attr{}
		}
		return a
	}}))
}

func loginRule(addr string) throttler.Rule {
	return throttler.Rule{
		Identifier: "login",
		Either:     []throttler.Condition{{Name: "ip", Value: addr, Max: 1, TTL: time.Minute}},
		Lockout:    time.Hour,
	}
}

func TestALogTellsOfBlockedCallsAndOfBansButNoValues(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var written page
		log := &otelthrottle.Log{Logger: written.logger()}
		defer log.Close()
		th := throttler.New(memstore.New())
		th.Observe = log.Observe
		for range 3 {
			_, err := th.Authorize(t.Context(), loginRule("203.0.113.7"))
			require.NoError(t, err)
		}
		assert.Equal(t, []string{
			`level=INFO msg="throttler: call blocked" rule=login conditions=ip retry_after=1h0m0s`,
			`level=WARN msg="throttler: ban set" rule=login conditions=ip retry_after=1h0m0s`,
			`level=INFO msg="throttler: call blocked" rule=login conditions=ip retry_after=1h0m0s`,
		}, written.lines())
	})
}

func TestALogTellsValuesIfItIsAskedTo(t *testing.T) {
	var written page
	log := &otelthrottle.Log{Logger: written.logger(), Values: true}
	defer log.Close()
	th := throttler.New(memstore.New())
	th.Observe = log.Observe
	rule := loginRule("203.0.113.7")
	rule.Lockout, rule.Shadow = 0, true
	for range 2 {
		_, err := th.Authorize(t.Context(), rule)
		require.NoError(t, err)
	}
	assert.Equal(t, []string{
		`level=INFO msg="throttler: call would be blocked" rule=login conditions.ip=203.0.113.7`,
	}, written.lines())
}

func TestAnOutageIsTwoLines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var written page
		log := &otelthrottle.Log{Logger: written.logger(), Every: time.Minute}
		defer log.Close()
		fail := func(rule string) {
			r := loginRule("a")
			r.Identifier = rule
			log.Observe(t.Context(), r, throttler.Decision{
				Status:   throttler.Authorized,
				Err:      errors.New("no route"),
				Outcomes: []throttler.Outcome{{Name: "ip", Err: errors.New("no route")}},
			})
		}
		for range 2 {
			for i := range 100 {
				fail([]string{"login", "site"}[i%2])
				time.Sleep(30 * time.Second)
				log.Observe(t.Context(), loginRule("a"), throttler.Decision{Status: throttler.Authorized})
			}
			assert.Equal(t, []string{
				`level=ERROR msg="throttler: the backend fails" rule=login conditions=ip err="no route"`,
			}, written.lines())
			time.Sleep(30 * time.Second)
			synctest.Wait()
			assert.Equal(t, []string{`level=INFO msg="throttler: the backend answers again" calls=100 failed_for=49m30s`}, written.lines())
		}
		fail("login")
		log.Close()
		assert.Len(t, written.lines(), 1)
		time.Sleep(time.Hour)
		fail("login")
		assert.Empty(t, written.lines())
	})
}

func TestAFloodOfDecisionsIsAFewLines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var written page
		log := &otelthrottle.Log{Logger: written.logger(), Every: time.Minute, Burst: 3}
		defer log.Close()
		flood := func(rule string, n int) {
			r := loginRule("a")
			r.Identifier = rule
			for range n {
				log.Observe(t.Context(), r, throttler.Decision{})
			}
		}
		flood("login", 1000)
		assert.Len(t, written.lines(), 3)
		flood("site", 1)
		assert.Len(t, written.lines(), 1, "another rule has lines of its own")

		time.Sleep(time.Minute)
		synctest.Wait()
		assert.Equal(t, []string{`level=INFO msg="throttler: more of the same" rule=login what="call blocked" lines=997`}, written.lines())

		flood("login", 10)
		assert.Len(t, written.lines(), 3, "a new period")
		log.Close()
		assert.Equal(t, []string{`level=INFO msg="throttler: more of the same" rule=login what="call blocked" lines=7`}, written.lines())
		flood("login", 10)
		assert.Empty(t, written.lines())
	})
}

func TestRulesWithoutEndDoNotFloodALog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var written page
		log := &otelthrottle.Log{Logger: written.logger(), Burst: 1}
		defer log.Close()
		for i := range 5000 {
			r := loginRule("a")
			r.Identifier = fmt.Sprint(i)
			log.Observe(t.Context(), r, throttler.Decision{})
		}
		assert.Len(t, written.lines(), 3*256+1)
	})
}

// A caller is a Handler that itself asks what a Log observes, and may have to wait.
type caller struct {
	slog.Handler
	before func(message string)
}

func (c caller) Handle(ctx context.Context, r slog.Record) error {
	c.before(r.Message)
	return c.Handler.Handle(ctx, r)
}

const moreOfTheSame = "throttler: more of the same"

func TestAHandlerMayUseTheThrottlerOfItsLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var written page
		log := &otelthrottle.Log{Every: time.Minute, Burst: 1}
		blocked := func(rule string) {
			r := loginRule("a")
			r.Identifier = rule
			log.Observe(t.Context(), r, throttler.Decision{})
		}
		log.Logger = slog.New(caller{written.logger().Handler(), func(message string) {
			if message == moreOfTheSame {
				blocked("send")
			}
		}})
		blocked("login")
		blocked("login")
		written.lines()
		time.Sleep(time.Minute)
		synctest.Wait()
		assert.Equal(t, []string{
			`level=INFO msg="throttler: call blocked" rule=send conditions=""`,
			`level=INFO msg="throttler: more of the same" rule=login what="call blocked" lines=1`,
		}, written.lines())
		blocked("login")
		blocked("login")
		written.lines()
		log.Close()
		assert.Equal(t, []string{`level=INFO msg="throttler: more of the same" rule=login what="call blocked" lines=1`}, written.lines())
	})
}

func TestAHandlerThatHangsAtTheEndOfAPeriodHoldsNoCallUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var written page
		log := &otelthrottle.Log{Every: time.Minute, Burst: 1}
		hangs := make(chan struct{})
		log.Logger = slog.New(caller{written.logger().Handler(), func(message string) {
			if message == moreOfTheSame {
				<-hangs
			}
		}})
		log.Observe(t.Context(), loginRule("a"), throttler.Decision{})
		log.Observe(t.Context(), loginRule("a"), throttler.Decision{})
		time.Sleep(time.Minute)
		synctest.Wait()
		log.Observe(t.Context(), loginRule("a"), throttler.Decision{})
		assert.Len(t, written.lines(), 2)
		closed := make(chan struct{})
		go func() {
			log.Close()
			close(closed)
		}()
		synctest.Wait()
		select {
		case <-closed:
			assert.Fail(t, "a line is still being written")
		default:
		}
		close(hangs)
		<-closed
		assert.Len(t, written.lines(), 1)
	})
}
