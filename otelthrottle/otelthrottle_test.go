package otelthrottle_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/internal/servertest"
	"github.com/adaptivethrottler/throttler/login"
	"github.com/adaptivethrottler/throttler/memstore"
	"github.com/adaptivethrottler/throttler/otelthrottle"
	"github.com/adaptivethrottler/throttler/pool"
	"github.com/bradfitz/gomemcache/memcache"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	sdk "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
)

// A meter collects what is reported to it.
type meter struct {
	*sdk.MeterProvider
	reader *sdk.ManualReader
}

func newMeter() *meter {
	reader := sdk.NewManualReader()
	return &meter{sdk.NewMeterProvider(sdk.WithReader(reader)), reader}
}

func attach(t *testing.T, m *meter, parts otelthrottle.Parts) {
	t.Helper()
	stop, err := otelthrottle.Attach(m, parts)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, stop()) })
}

// values returns the series of a metric by their attributes, "k=v k=v".
func (m *meter) values(t *testing.T, name string) map[string]int64 {
	t.Helper()
	var all metricdata.ResourceMetrics
	require.NoError(t, m.reader.Collect(context.Background(), &all))
	values := map[string]int64{}
	for _, scope := range all.ScopeMetrics {
		for _, metric := range scope.Metrics {
			if metric.Name != name {
				continue
			}
			switch data := metric.Data.(type) {
			case metricdata.Sum[int64]:
				for _, p := range data.DataPoints {
					values[text(p.Attributes)] = p.Value
				}
			case metricdata.Gauge[int64]:
				for _, p := range data.DataPoints {
					values[text(p.Attributes)] = p.Value
				}
			case metricdata.Histogram[float64]:
				for _, p := range data.DataPoints {
					values[text(p.Attributes)] = int64(p.Count)
				}
			default:
				require.Fail(t, "unexpected data", "%T", data)
			}
		}
	}
	return values
}

func text(set attribute.Set) string {
	var parts []string
	for _, kv := range set.ToSlice() {
		key := strings.TrimPrefix(string(kv.Key), "throttler.")
		parts = append(parts, key+"="+kv.Value.String())
	}
	return strings.Join(parts, " ")
}

func TestDecisionsAreCountedByRuleConditionAndResult(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMeter()
		th := throttler.New(memstore.New())
		attach(t, m, otelthrottle.Parts{Throttler: th})
		rule := throttler.Rule{Identifier: "login", Either: []throttler.Condition{
			{Name: "ip", Value: "203.0.113.7", Max: 2, TTL: time.Minute},
			{Name: "name", Value: "alice", Max: 3, TTL: time.Minute, Lockout: time.Hour},
		}}
		for range 5 {
			_, err := th.Authorize(t.Context(), rule)
			require.NoError(t, err)
		}
		rule.Identifier, rule.Shadow = "trial", true
		for range 3 {
			_, err := th.Authorize(t.Context(), rule)
			require.NoError(t, err)
		}
		assert.Equal(t, map[string]int64{
			"result=authorized rule=login":  2,
			"result=blocked rule=login":     3,
			"result=authorized rule=trial":  2,
			"result=would_block rule=trial": 1,
		}, m.values(t, "throttler.decisions"))
		assert.Equal(t, map[string]int64{
			"condition=ip outcome=accepted rule=login":   2,
			"condition=ip outcome=full rule=login":       3,
			"condition=name outcome=accepted rule=login": 3,
			"condition=name outcome=banned rule=login":   2,
			"condition=ip outcome=accepted rule=trial":   2,
			"condition=ip outcome=full rule=trial":       1,
			"condition=name outcome=accepted rule=trial": 3,
		}, m.values(t, "throttler.outcomes"))
		assert.Equal(t, map[string]int64{"condition=name rule=login": 1}, m.values(t, "throttler.bans"), "set once, met twice")
		assert.Equal(t, map[string]int64{"rule=login": 5, "rule=trial": 3}, m.values(t, "throttler.decision.duration"))
		assert.Empty(t, m.values(t, "throttler.failures"))
	})
}

func TestTheDurationOfADecisionIsInSeconds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMeter()
		th := throttler.New(slow{memstore.New()})
		attach(t, m, otelthrottle.Parts{Throttler: th})
		_, err := th.Authorize(t.Context(), loginRule("a"))
		require.NoError(t, err)
		var all metricdata.ResourceMetrics
		require.NoError(t, m.reader.Collect(t.Context(), &all))
		var sum float64
		for _, metric := range all.ScopeMetrics[0].Metrics {
			if metric.Name == "throttler.decision.duration" {
				assert.Equal(t, "s", metric.Unit)
				sum = metric.Data.(metricdata.Histogram[float64]).DataPoints[0].Sum
			}
		}
		assert.InDelta(t, 0.2, sum, 0.0001)
	})
}

// slow is a client whose reads take 0.2 s.
type slow struct{ throttler.Client }

func (s slow) Get(key string) (*memcache.Item, error) {
	time.Sleep(200 * time.Millisecond)
	return s.Client.Get(key)
}

func (s slow) GetMulti(keys []string) (map[string]*memcache.Item, error) {
	time.Sleep(200 * time.Millisecond)
	return s.Client.GetMulti(keys)
}

func TestTheObserveThatWasThereIsCalledToo(t *testing.T) {
	th := throttler.New(memstore.New())
	calls := 0
	th.Observe = func(context.Context, throttler.Rule, throttler.Decision) { calls++ }
	var written page
	attach(t, newMeter(), otelthrottle.Parts{Throttler: th, Log: &otelthrottle.Log{Logger: written.logger()}})
	for range 2 {
		_, err := th.Authorize(t.Context(), loginRule("a"))
		require.NoError(t, err)
	}
	assert.Equal(t, 2, calls)
	assert.Len(t, written.lines(), 2, "blocked, and banned")
}

func TestFailuresAreCountedByTheirKind(t *testing.T) {
	for kind, err := range map[string]error{
		"unavailable": fmt.Errorf("x: %w", throttler.ErrUnavailable),
		"overloaded":  fmt.Errorf("x: %w", throttler.ErrOverloaded),
		"timeout":     &net.OpError{Op: "read", Err: os.ErrDeadlineExceeded},
		"canceled":    context.Canceled,
		"_OTHER":      errors.New("user alice is unknown"),
	} {
		m := newMeter()
		th := throttler.New(memstore.New())
		attach(t, m, otelthrottle.Parts{Throttler: th})
		d := throttler.Decision{Status: throttler.Authorized, Err: err, Outcomes: []throttler.Outcome{{Name: "ip", Err: err, LostRaces: 3}}}
		th.Observe(t.Context(), loginRule("a"), d)
		assert.Equal(t, map[string]int64{"error.type=" + kind + " condition=ip rule=login": 1}, m.values(t, "throttler.failures"))
		assert.Equal(t, map[string]int64{"condition=ip rule=login": 3}, m.values(t, "throttler.lost_races"))
	}
}

func TestNamesWithoutEndAreOneSeries(t *testing.T) {
	m := newMeter()
	th := throttler.New(memstore.New())
	attach(t, m, otelthrottle.Parts{Throttler: th, MaxNames: 4})
	var all sync.WaitGroup
	for i := range 100 {
		all.Go(func() {
			rule := loginRule("a")
			rule.Identifier = fmt.Sprint(i)
			th.Observe(context.Background(), rule, throttler.Decision{Outcomes: []throttler.Outcome{{Name: "ip"}, {Name: "name"}}})
		})
	}
	all.Wait()
	rules := m.values(t, "throttler.decisions")
	assert.LessOrEqual(t, len(rules), 5)
	assert.Positive(t, rules["result=blocked rule=_OTHER"])
	conditions := m.values(t, "throttler.outcomes")
	assert.LessOrEqual(t, len(conditions), 9)
	var sum int64
	for _, n := range conditions {
		sum += n
	}
	assert.EqualValues(t, 200, sum, "what is not told apart is counted all the same")
}

func TestALongNameIsNoLabel(t *testing.T) {
	m := newMeter()
	th := throttler.New(memstore.New())
	attach(t, m, otelthrottle.Parts{Throttler: th})
	rule := loginRule("a")
	rule.Identifier = strings.Repeat("x", 257)
	th.Observe(t.Context(), rule, throttler.Decision{})
	assert.Equal(t, map[string]int64{"result=blocked rule=_OTHER": 1}, m.values(t, "throttler.decisions"))
}

func TestNoValueOfAUserIsReported(t *testing.T) {
	m := newMeter()
	th := throttler.New(memstore.New())
	attach(t, m, otelthrottle.Parts{Throttler: th})
	for range 3 {
		_, err := th.Authorize(t.Context(), loginRule("secret-user"))
		require.NoError(t, err)
	}
	var all metricdata.ResourceMetrics
	require.NoError(t, m.reader.Collect(t.Context(), &all))
	require.NotEmpty(t, all.ScopeMetrics)
	assert.NotContains(t, fmt.Sprintf("%+v", all), "secret-user")
}

func TestEveryMetricHasAUnitAndADescription(t *testing.T) {
	m := newMeter()
	th := throttler.New(memstore.New())
	servers, err := pool.New(servertest.NewMemcached(t).Addr)
	require.NoError(t, err)
	defer servers.Close()
	guard := login.New(th)
	attach(t, m, otelthrottle.Parts{Throttler: th, Servers: servers, Guard: guard})
	guard.Observe(t.Context(), login.Event{})
	outcome := throttler.Outcome{Name: "ip", NewBan: true, LostRaces: 1, Err: errors.New("x")}
	th.Observe(t.Context(), loginRule("a"), throttler.Decision{Outcomes: []throttler.Outcome{outcome}})
	var all metricdata.ResourceMetrics
	require.NoError(t, m.reader.Collect(t.Context(), &all))
	var names []string
	for _, metric := range all.ScopeMetrics[0].Metrics {
		names = append(names, metric.Name)
		assert.NotEmpty(t, metric.Unit, metric.Name)
		assert.NotEmpty(t, metric.Description, metric.Name)
		assert.False(t, strings.HasSuffix(metric.Name, "_total"), metric.Name)
	}
	doc, err := os.ReadFile("otelthrottle.go")
	require.NoError(t, err)
	for _, name := range names {
		assert.Contains(t, string(doc), "//	"+name+" ", "the package documentation lists it")
	}
	assert.Len(t, names, 30)
}

// A wrapper is a Client around another one.
type wrapper struct{ throttler.Client }

func (w wrapper) Unwrap() throttler.Client { return w.Client }

func TestRecordsInMemoryAreReportedWithTheirEvictions(t *testing.T) {
	m := newMeter()
	th := throttler.New(&memstore.Store{MaxItems: 10})
	attach(t, m, otelthrottle.Parts{Throttler: th})
	for i := range 25 {
		_, err := th.Authorize(t.Context(), loginRule(fmt.Sprint(i)))
		require.NoError(t, err)
	}
	assert.Equal(t, map[string]int64{"store=client": 10}, m.values(t, "throttler.memory.items"))
	assert.Equal(t, map[string]int64{"store=client": 15}, m.values(t, "throttler.memory.evictions"))
	assert.Positive(t, m.values(t, "throttler.memory.usage")["store=client"])

	m = newMeter()
	servers, err := pool.New("127.0.0.1:1")
	require.NoError(t, err)
	defer servers.Close()
	th = throttler.New(servers)
	th.Fallback = wrapper{memstore.New()}
	attach(t, m, otelthrottle.Parts{Throttler: th})
	_, err = th.Authorize(t.Context(), loginRule("a"))
	require.NoError(t, err)
	assert.Equal(t, map[string]int64{"store=fallback": 1}, m.values(t, "throttler.memory.items"))
	assert.Equal(t, map[string]int64{"store=fallback": 0}, m.values(t, "throttler.memory.evictions"))
}

func TestServersAreReportedUpOrDown(t *testing.T) {
	up, down := servertest.NewMemcached(t), servertest.NewMemcached(t)
	servers, err := pool.New(up.Addr, down.Addr)
	require.NoError(t, err)
	defer servers.Close()
	servers.BreakerPause = time.Hour
	m := newMeter()
	attach(t, m, otelthrottle.Parts{Servers: servers})
	down.Kill()
	for i := range 100 {
		servers.Get(fmt.Sprint("key", i))
	}
	series := func(s *servertest.Memcached) string {
		host, port, _ := net.SplitHostPort(s.Addr)
		return "server.address=" + host + " server.port=" + port
	}
	assert.Equal(t, map[string]int64{series(up): 1, series(down): 0}, m.values(t, "throttler.server.up"))
	calls := m.values(t, "throttler.server.calls")
	assert.EqualValues(t, 100, calls[series(up)]+calls[series(down)])
	assert.Positive(t, m.values(t, "throttler.server.failures")[series(down)])
	assert.Positive(t, m.values(t, "throttler.server.refusals")[series(down)])
	assert.Positive(t, m.values(t, "throttler.server.connections")[series(up)])
	assert.Equal(t, map[string]int64{series(up): 64 << 20}, m.values(t, "throttler.server.memory.limit"))
}

func TestARestartAFlushAndEvictionsAreNoticed(t *testing.T) {
	server := servertest.NewMemcached(t, "-m", "4")
	servers, err := pool.New(server.Addr)
	require.NoError(t, err)
	defer servers.Close()
	m := newMeter()
	attach(t, m, otelthrottle.Parts{Servers: servers})
	one := func(name string) (sum int64) {
		for _, n := range m.values(t, name) {
			sum += n
		}
		return sum
	}
	fill := func() {
		for i := range 100 {
			server.Command(t, fmt.Sprintf("set big%d 0 0 100000\r\n%s", i, strings.Repeat("x", 100_000)))
		}
	}
	fill() // before the first look: not counted
	assert.Zero(t, one("throttler.server.evictions"))
	fill()
	first := one("throttler.server.evictions")
	assert.Positive(t, first)
	assert.Zero(t, one("throttler.server.flushes"))

	server.Command(t, "flush_all")
	assert.EqualValues(t, 1, one("throttler.server.flushes"))
	assert.Zero(t, one("throttler.server.restarts"))

	server.Stop()
	server.Start()
	fill() // before the next look, and less than was evicted before
	assert.Greater(t, one("throttler.server.evictions"), first)
	assert.EqualValues(t, 1, one("throttler.server.restarts"))
	assert.EqualValues(t, 1, one("throttler.server.restarts"), "once")
	assert.EqualValues(t, 1, one("throttler.server.flushes"), "a counter never goes back")
}

func TestServersThatComeAndGoAreSeen(t *testing.T) {
	servers, err := pool.New("192.0.2.1:11211", "192.0.2.2:11211")
	require.NoError(t, err)
	defer servers.Close()
	servers.DialContext = func(context.Context, string, string) (net.Conn, error) { return nil, errors.New("nobody is there") }
	m := newMeter()
	attach(t, m, otelthrottle.Parts{Servers: servers})
	assert.Equal(t, map[string]int64{"": 2}, m.values(t, "throttler.server.listed"))
	assert.Equal(t, map[string]int64{"": 0}, m.values(t, "throttler.server.changes"))
	require.NoError(t, servers.SetServers("192.0.2.1:11211", "192.0.2.3:11211", "192.0.2.4:11211"))
	require.NoError(t, servers.SetServers("192.0.2.3:11211", "192.0.2.1:11211", "192.0.2.4:11211"))
	assert.Equal(t, map[string]int64{"": 3}, m.values(t, "throttler.server.listed"))
	assert.Equal(t, map[string]int64{"": 1}, m.values(t, "throttler.server.changes"))
	assert.Len(t, m.values(t, "throttler.server.up"), 3)
}

func TestAServerThatHangsDoesNotHoldUpMetrics(t *testing.T) {
	server := servertest.NewMemcached(t)
	servers, err := pool.New(server.Addr)
	require.NoError(t, err)
	defer servers.Close()
	m := newMeter()
	attach(t, m, otelthrottle.Parts{Servers: servers})
	server.Pause()
	start := time.Now()
	assert.Len(t, m.values(t, "throttler.server.up"), 1)
	assert.Less(t, time.Since(start), 4*time.Second)
}

func TestAfterCloseServersAreNotAsked(t *testing.T) {
	server := servertest.NewMemcached(t)
	servers, err := pool.New(server.Addr)
	require.NoError(t, err)
	defer servers.Close()
	m := newMeter()
	stop, err := otelthrottle.Attach(m, otelthrottle.Parts{Servers: servers})
	require.NoError(t, err)
	require.Len(t, m.values(t, "throttler.server.up"), 1)
	require.NoError(t, stop())
	assert.Empty(t, m.values(t, "throttler.server.up"))
	assert.NoError(t, stop())
}

func TestAttemptsToLogInAreCountedByResult(t *testing.T) {
	m := newMeter()
	guard := login.New(throttler.New(memstore.New()))
	before := 0
	guard.Observe = func(context.Context, login.Event) { before++ }
	attach(t, m, otelthrottle.Parts{Guard: guard})
	for _, e := range []login.Event{
		{Name: "alice", Result: login.Failed},
		{Name: "alice", Result: login.Failed},
		{Name: "alice", Result: login.Succeeded, Known: true},
		{Name: "alice", Result: login.Refused},
		{Name: "bob", Result: login.Canceled},
		{Name: "bob", Result: 17},
	} {
		guard.Observe(t.Context(), e)
	}
	assert.Equal(t, map[string]int64{
		"login.known=false login.result=failed":   2,
		"login.known=true login.result=succeeded": 1,
		"login.known=false login.result=refused":  1,
		"login.known=false login.result=canceled": 1,
	}, m.values(t, "throttler.login.attempts"))
	assert.Equal(t, 6, before)
}
