package deploy_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/url"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/adaptivethrottler/throttler/internal/servertest"
	"github.com/adaptivethrottler/throttler/internal/skiptest"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A panel is a row of the dashboard, or one of its diagrams.
type panel struct {
	ID          int
	Type, Title string
	GridPos     struct{ X, Y, W, H int }
	Targets     []struct{ Expr string }
}

func panels(t *testing.T) []panel {
	t.Helper()
	var dashboard struct{ Panels []panel }
	require.NoError(t, json.Unmarshal([]byte(read(t, "grafana.json")), &dashboard))
	return dashboard.Panels
}

func TestTheDashboardHasItsRowsAndNoPanelLiesOnAnother(t *testing.T) {
	var rows []string
	ids, at := map[int]bool{}, map[[2]int]string{}
	for _, p := range panels(t) {
		assert.False(t, ids[p.ID], p.Title)
		ids[p.ID] = true
		if p.Type == "row" {
			rows = append(rows, p.Title)
		}
		require.LessOrEqual(t, p.GridPos.X+p.GridPos.W, 24)
		for x := range p.GridPos.W {
			for y := range p.GridPos.H {
				place := [2]int{p.GridPos.X + x, p.GridPos.Y + y}
				assert.Empty(t, at[place], p.Title)
				at[place] = p.Title
			}
		}
	}
	assert.Equal(t, []string{"Traffic", "Refusals by rule", "Logins", "Robots", "Stores", "This process"}, rows)
}

// The rules that the services of this test limit by.
const dashboardRules = `
servers: [%s]
trust: [127.0.0.1]
robots:
  own: [{name: Ourbot, tokens: [ourbot], group: monitor, lists: %q}]
rules:
  - name: pages
    either: [{name: address, value: "{address}", max: 3, per: 1s}]
    lockout: 1s
  - name: robots
    for: {robot: {group: monitor}}
    either: [{name: each, value: "{robot}", max: 1000, per: 1s}]
`

// Two services are asked all that they can be, and their memcached is killed again and again,
// while a real Prometheus looks at both. Each query of the dashboard has data then.
func TestEachQueryOfTheDashboardHasData(t *testing.T) {
	prometheus := skiptest.Program(t, "prometheus", "prometheus")
	memcached := servertest.NewMemcached(t)
	list := write(t, "ourbot.txt", "66.249.66.0/24\n")
	rules := write(t, "rules.yaml", fmt.Sprintf(dashboardRules, memcached.Addr, list))
	services := []*service{serve(t, rules), serve(t, rules)}
	m := watch(t, prometheus, services)

	for _, nothing := range []string{"throttler_no_such_metric_total", "vector(0) / vector(0)"} {
		require.False(t, m.hasData(t, nothing))
	}
	ctx, stop := context.WithCancel(t.Context())
	var callers sync.WaitGroup
	defer callers.Wait()
	defer stop()
	for _, s := range services {
		for _, call := range []func(n int){
			func(n int) { s.status(t, "203.0.113.1") },
			func(n int) { s.status(t, fmt.Sprintf("66.249.66.%d", n%250), "User-Agent", "ourbot/1.0") },
			func(n int) { s.logIn(t, n) },
		} {
			callers.Go(func() {
				for n := 0; ctx.Err() == nil; n++ {
					call(n)
					time.Sleep(5 * time.Millisecond)
				}
			})
		}
	}
	var left []string
	for _, p := range panels(t) {
		for _, target := range p.Targets {
			left = append(left, target.Expr)
		}
	}
	require.Greater(t, len(left), 25)
	for began := time.Now(); len(left) > 0; {
		require.Less(t, time.Since(began), 2*time.Minute, "without data: %s", strings.Join(left, "\n"))
		memcached.Kill()
		time.Sleep(300 * time.Millisecond)
		memcached.Start()
		for range 10 {
			time.Sleep(200 * time.Millisecond)
			var without []string
			for _, query := range left {
				if !m.hasData(t, query) {
					without = append(without, query)
				}
			}
			left = without
		}
	}
}

// logIn tries to log in with a password that is right every other time.
func (s *service) logIn(t *testing.T, n int) {
	var begun struct{ Status, Attempt string }
	s.ask(t, "login/begin", map[string]string{"name": fmt.Sprint("person", n%20), "address": fmt.Sprintf("203.0.113.%d", n%20)}, &begun)
	end := "login/fail"
	if n%2 == 0 {
		end = "login/succeed"
	}
	if begun.Attempt != "" {
		s.ask(t, end, map[string]string{"attempt": begun.Attempt}, nil)
	}
}

// ask asks the JSON API.
func (s *service) ask(t *testing.T, operation string, fields map[string]string, into any) {
	body, err := json.Marshal(fields)
	assert.NoError(t, err)
	r, err := http.NewRequest("POST", "http://"+s.api+"/v1/"+operation, strings.NewReader(string(body)))
	assert.NoError(t, err)
	r.Header.Set("Authorization", "Bearer "+apiKey)
	r.Header.Set("Content-Type", "application/json")
	answer, err := http.DefaultClient.Do(r)
	if !assert.NoError(t, err) {
		return
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	assert.NoError(t, err)
	if into != nil && answer.StatusCode == 200 {
		assert.NoError(t, json.Unmarshal(text, into))
	}
}

// A monitor is a Prometheus.
type monitor struct{ address string }

// watch starts a Prometheus that looks at the services.
func watch(t *testing.T, path string, services []*service) *monitor {
	t.Helper()
	address, err := servertest.FreeAddr(servertest.OtherPorts)
	require.NoError(t, err)
	var targets []string
	for _, s := range services {
		targets = append(targets, strconv.Quote(s.admin))
	}
	config := write(t, "prometheus.yml", fmt.Sprintf("global: {scrape_interval: 250ms, scrape_timeout: 250ms}\n"+
		"scrape_configs: [{job_name: throttler, static_configs: [{targets: [%s]}]}]\n", strings.Join(targets, ", ")))
	c := exec.Command(path, "--config.file", config, "--storage.tsdb.path", t.TempDir(), "--web.listen-address", address, "--log.level", "error")
	var output lines
	c.Stdout, c.Stderr = &output, &output
	exited, err := servertest.Start(c)
	require.NoError(t, err)
	t.Cleanup(func() {
		c.Process.Kill()
		<-exited
		if t.Failed() {
			t.Log(output.String())
		}
	})
	m := &monitor{address}
	require.Eventually(t, func() bool { _, err := m.query("1"); return err == nil }, time.Minute, 50*time.Millisecond)
	return m
}

// hasData reports whether a query of the dashboard has a result that is a number.
func (m *monitor) hasData(t *testing.T, query string) bool {
	t.Helper()
	values, err := m.query(strings.NewReplacer("$__rate_interval", "5s", "$instance", ".*").Replace(query))
	require.NoError(t, err, query)
	for _, v := range values {
		if !math.IsNaN(v) {
			return true
		}
	}
	return false
}

// query returns the values of a query now.
func (m *monitor) query(query string) (values []float64, err error) {
	answer, err := http.Get("http://" + m.address + "/api/v1/query?query=" + url.QueryEscape(query))
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	var said struct {
		Error string
		Data  struct{ Result json.RawMessage }
	}
	if err := json.NewDecoder(answer.Body).Decode(&said); err != nil {
		return nil, err
	}
	if said.Error != "" {
		return nil, errors.New(said.Error)
	}
	var series []struct{ Value [2]any }
	if json.Unmarshal(said.Data.Result, &series) != nil {
		return nil, nil // a number alone
	}
	for _, s := range series {
		v, err := strconv.ParseFloat(fmt.Sprint(s.Value[1]), 64)
		if err != nil {
			return nil, err
		}
		values = append(values, v)
	}
	return values, nil
}
