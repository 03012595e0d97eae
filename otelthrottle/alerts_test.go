package otelthrottle_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/internal/record"
	"github.com/adaptivethrottler/throttler/internal/servertest"
	"github.com/adaptivethrottler/throttler/internal/skiptest"
	"github.com/adaptivethrottler/throttler/login"
	"github.com/adaptivethrottler/throttler/otelthrottle"
	"github.com/adaptivethrottler/throttler/pool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	exporter "go.opentelemetry.io/otel/exporters/prometheus"
	sdk "go.opentelemetry.io/otel/sdk/metric"
)

// installed returns the path of a command of Debian's package prometheus.
func installed(t *testing.T, command string) string {
	t.Helper()
	return skiptest.Program(t, command, "prometheus")
}

// scraped returns a provider, and the address that shows what it was told.
func scraped(t *testing.T) (*sdk.MeterProvider, string) {
	t.Helper()
	registry := prometheus.NewRegistry()
	reader, err := exporter.New(exporter.WithRegisterer(registry))
	require.NoError(t, err)
	server := httptest.NewServer(promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	t.Cleanup(server.Close)
	return sdk.NewMeterProvider(sdk.WithReader(reader)), server.Listener.Addr().String()
}

// A site is a program with limits, and the server that it keeps them on.
type site struct {
	server    *servertest.Memcached
	pool      *pool.Pool
	throttler *throttler.Throttler
	guard     *login.Guard
	slowest   time.Duration // of all calls
}

func newSite(t *testing.T, provider *sdk.MeterProvider) *site {
	t.Helper()
	s := &site{server: servertest.NewMemcached(t, "-m", "4")}
	var err error
	s.pool, err = pool.New(s.server.Addr)
	require.NoError(t, err)
	t.Cleanup(func() { s.pool.Close() })
	s.pool.Timeout, s.pool.DialTimeout = 10*time.Second, 10*time.Second // a busy machine is no outage
	s.throttler = throttler.New(s.pool)
	s.guard = login.New(s.throttler)
	stop, err := otelthrottle.Attach(provider, otelthrottle.Parts{Throttler: s.throttler, Servers: s.pool, Guard: s.guard, MaxNames: 10})
	require.NoError(t, err)
	t.Cleanup(func() { stop() })
	return s
}

func (s *site) call(t *testing.T, value string) {
	t.Helper()
	begin := time.Now()
	_, err := s.throttler.Authorize(t.Context(), loginRule(value))
	s.slowest = max(s.slowest, time.Since(begin))
	require.NoError(t, err)
}

func TestPromtoolLikesTheMetricsAndTheAlerts(t *testing.T) {
	promtool := installed(t, "promtool")
	output, err := exec.Command(promtool, "check", "rules", "alerts.yaml").CombinedOutput()
	require.NoError(t, err, "%s", output)

	provider, address := scraped(t)
	s := newSite(t, provider)
	for range 3 {
		s.call(t, "a")
	}
	s.guard.Observe(t.Context(), login.Event{Result: login.Failed})
	s.server.Kill()
	s.call(t, "b")
	answer, err := http.Get("http://" + address + "/metrics")
	require.NoError(t, err)
	defer answer.Body.Close()
	check := exec.Command(promtool, "check", "metrics")
	var exported bytes.Buffer
	_, err = exported.ReadFrom(answer.Body)
	require.NoError(t, err)
	check.Stdin = bytes.NewReader(exported.Bytes())
	output, err = check.CombinedOutput()
	assert.NoError(t, err, "%s", output)

	alerts, err := os.ReadFile("alerts.yaml")
	require.NoError(t, err)
	names := strings.FieldsFunc(string(alerts), func(r rune) bool {
		return r != '_' && (r < 'a' || r > 'z')
	})
	for _, name := range names {
		if strings.HasPrefix(name, "throttler_") && !isLabel(name) {
			assert.Contains(t, exported.String(), "\n"+name+"{", "%s is not exported", name)
		}
	}
}

func isLabel(name string) bool {
	return strings.HasSuffix(name, "_rule") || strings.HasSuffix(name, "_result")
}

// A monitor is a Prometheus that has alerts.yaml and looks every 200 ms.
type monitor struct{ address string }

func startPrometheus(t *testing.T, target string) *monitor {
	t.Helper()
	path := installed(t, "prometheus")
	rules, err := filepath.Abs("alerts.yaml")
	require.NoError(t, err)
	config := filepath.Join(t.TempDir(), "prometheus.yml")
	require.NoError(t, os.WriteFile(config, fmt.Appendf(nil, `
global: {scrape_interval: 200ms, scrape_timeout: 200ms, evaluation_interval: 1s}
rule_files: [%s]
scrape_configs: [{job_name: site, static_configs: [{targets: [%q]}]}]
`, rules, target), 0o600))
	address, err := servertest.FreeAddr(servertest.OtherPorts)
	require.NoError(t, err)
	m := &monitor{address}
	command := exec.Command(path, "--config.file", config, "--storage.tsdb.path", t.TempDir(),
		"--web.listen-address", m.address, "--log.level", "error")
	var output bytes.Buffer
	command.Stdout, command.Stderr = &output, &output
	require.NoError(t, command.Start())
	t.Cleanup(func() {
		command.Process.Kill()
		command.Wait()
		if t.Failed() {
			t.Log(output.String())
		}
	})
	require.Eventually(t, func() bool { return m.get("/-/ready", nil) == nil }, time.Minute, 50*time.Millisecond)
	return m
}

func (m *monitor) get(path string, into any) error {
	answer, err := http.Get("http://" + m.address + path)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", path, answer.Status)
	}
	if into == nil {
		return nil
	}
	return json.NewDecoder(answer.Body).Decode(into)
}

// alerts returns the expression of each alert, by name.
func (m *monitor) alerts(t *testing.T) map[string]string {
	t.Helper()
	var answer struct {
		Data struct {
			Groups []struct {
				Rules []struct{ Name, Query string }
			}
		}
	}
	require.NoError(t, m.get("/api/v1/rules", &answer))
	queries := map[string]string{}
	for _, group := range answer.Data.Groups {
		for _, rule := range group.Rules {
			queries[rule.Name] = rule.Query
		}
	}
	require.NotEmpty(t, queries)
	return queries
}

// holds reports whether an expression has a result now.
func (m *monitor) holds(query string) bool {
	var answer struct {
		Data struct{ Result []any }
	}
	err := m.get("/api/v1/query?query="+url.QueryEscape(query), &answer)
	return err == nil && len(answer.Data.Result) > 0
}

// TestEachAlertIsRaisedByItsTrouble has a real Prometheus watch a site first
// while all is well, and then while each thing goes wrong.
func TestEachAlertIsRaisedByItsTrouble(t *testing.T) {
	provider, address := scraped(t)
	s := newSite(t, provider)
	monitor := startPrometheus(t, address)
	alerts := monitor.alerts(t)

	value := 0
	wellFor := func(query string) {
		require.Eventually(t, func() bool {
			value++
			s.call(t, fmt.Sprint("visitor", value))
			s.guard.Observe(t.Context(), login.Event{Result: login.Succeeded})
			return monitor.holds(query)
		}, time.Minute, 20*time.Millisecond)
	}
	wellFor("rate(throttler_decisions_total[5m]) > 0 and on() throttler_server_restarts_total == 0")
	for name, query := range alerts {
		if name == "ThrottlerSlow" && s.slowest > 20*time.Millisecond {
			continue // it may be raised: the machine is that busy
		}
		assert.False(t, monitor.holds(query), "%s is raised though all is well", name)
	}

	trouble := map[string]func(){
		"ThrottlerServerForgot": func() { s.server.Kill(); s.server.Start() },
		"ThrottlerServerEvicts": func() {
			for i := range 100 {
				s.server.Command(t, fmt.Sprintf("set big%d 0 0 100000\r\n%s", i, strings.Repeat("x", 100_000)))
			}
		},
		"ThrottlerBlocksHalf": func() {
			for range 50 {
				s.call(t, "robot")
			}
		},
		"ThrottlerLoginsFail": func() {
			for range 50 {
				s.guard.Observe(t.Context(), login.Event{Result: login.Failed})
			}
		},
		"ThrottlerNamesWithoutEnd": func() {
			for i := range 20 {
				rule := loginRule("a")
				rule.Identifier = fmt.Sprint("made up ", i)
				_, err := s.throttler.Authorize(t.Context(), rule)
				require.NoError(t, err)
			}
		},
	}
	trouble["ThrottlerClockAhead"] = func() {
		limit := record.Limit{Max: 1, TTL: time.Minute}
		var r record.Record
		new(record.Verdict).Decide(record.InstantOf(time.Now().Add(time.Hour)), &limit, record.Lockout{}, &r, true)
		value++
		visitor := fmt.Sprint("visitor", value)
		stored := r.Append(nil)
		s.server.Command(t, fmt.Sprintf("set %s 0 0 %d\r\n%s", record.Key("login", "ip", visitor), len(stored), stored))
		s.call(t, visitor)
	}
	for name, happens := range trouble {
		require.Contains(t, alerts, name)
		assert.Eventually(t, func() bool {
			happens()
			return monitor.holds(alerts[name])
		}, time.Minute, 250*time.Millisecond, name)
	}

	assert.Eventually(t, func() bool {
		s.server.Pause()
		resumed := make(chan struct{})
		time.AfterFunc(100*time.Millisecond, func() { s.server.Resume(); close(resumed) })
		s.call(t, "anybody")
		<-resumed
		return monitor.holds(alerts["ThrottlerSlow"])
	}, time.Minute, 100*time.Millisecond, "ThrottlerSlow")
	s.server.Kill()
	for _, name := range []string{"ThrottlerFailsOpen", "ThrottlerServerDown"} {
		assert.Eventually(t, func() bool {
			for range 5 {
				s.call(t, "anybody")
			}
			return monitor.holds(alerts[name])
		}, time.Minute, 100*time.Millisecond, name)
	}
}

func TestAnAlertNamesThePortOfAServerAndNoneOfASocket(t *testing.T) {
	promtool := installed(t, "promtool")
	alerts, err := filepath.Abs("alerts.yaml")
	require.NoError(t, err)
	action := "Look at the server, and at the network between the two."
	tests := filepath.Join(t.TempDir(), "tests.yaml")
	require.NoError(t, os.WriteFile(tests, fmt.Appendf(nil, `
rule_files: [%q]
tests:
  - interval: 1m
    input_series:
      - {series: 'throttler_server_up{instance="a", server_address="cache", server_port="11211"}', values: 0x3}
      - {series: 'throttler_server_up{instance="a", server_address="/run/memcached"}', values: 0x3}
    alert_rule_test:
      - alertname: ThrottlerServerDown
        eval_time: 2m
        exp_alerts:
          - exp_labels: {severity: page, instance: a, server_address: cache, server_port: "11211"}
            exp_annotations: {summary: "a takes cache:11211 to be down", action: %q}
          - exp_labels: {severity: page, instance: a, server_address: /run/memcached}
            exp_annotations: {summary: "a takes /run/memcached to be down", action: %q}
`, alerts, action, action), 0o600))
	output, err := exec.Command(promtool, "test", "rules", tests).CombinedOutput()
	assert.NoError(t, err, "%s", output)
}
