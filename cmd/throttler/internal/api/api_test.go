package api_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/cmd/throttler/internal/api"
	"github.com/adaptivethrottler/throttler/cmd/throttler/internal/rulefile"
	"github.com/adaptivethrottler/throttler/internal/servertest"
	"github.com/adaptivethrottler/throttler/login"
	"github.com/adaptivethrottler/throttler/memstore"
	"github.com/adaptivethrottler/throttler/pool"
	"github.com/bradfitz/gomemcache/memcache"
	"github.com/google/jsonschema-go/jsonschema"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const (
	apiKey = "a key of sixteen bytes or more"
	secret = "what all replicas know of tokens"
)

const rules = `
rules:
  - name: mail
    either:
      - {name: customer, value: "{header:X-Customer}", max: 3, per: 1h, limits: {big: 1000}, exempt: [internal]}
      - {name: network, value: "{network}", max: 100, per: 1h, algorithm: bucket, exempt: [10.0.0.0/8]}
    lockout: 10m
  - name: jobs
    for: {api: true}
    either: [{name: worker, value: any, max: 2, algorithm: in-flight, lease: 30s, exempt: [internal]}]
  - name: counted-jobs
    for: {api: true}
    either:
      - {name: worker, value: any, max: 2, algorithm: in-flight, lease: 30s}
      - {name: starts, value: any, max: 10, per: 1h}
  - name: shares
    for: {api: true}
    first:
      - {name: own, value: "{header:X-Customer}", max: 1, per: 1h}
      - {name: pool, value: any, max: 2, per: 1h}
  - name: trial
    for: {api: true}
    shadow: true
    either: [{name: worker, value: any, max: 1, algorithm: in-flight, lease: 30s}]
`

// A replica is one of several services that keep their records in one place.
type replica struct {
	handler http.Handler
	log     *bytes.Buffer
}

// newReplica returns one whose records are in client. options may change what it
// is made with.
func newReplica(t *testing.T, client throttler.Client, file string, options ...func(*api.Options)) *replica {
	t.Helper()
	path := filepath.Join(t.TempDir(), "rules.yaml")
	require.NoError(t, os.WriteFile(path, []byte(file), 0o600))
	source, err := rulefile.Open(path)
	require.NoError(t, err)
	r := &replica{log: new(bytes.Buffer)}
	th := throttler.New(client)
	o := api.Options{
		Rules: source, Throttler: th, Guard: login.New(th), Tokens: throttler.New(client),
		Secret: secret, Keys: []string{apiKey}, Log: slog.New(slog.NewTextHandler(r.log, nil)),
	}
	for _, option := range options {
		option(&o)
	}
	r.handler, err = api.New(o)
	require.NoError(t, err)
	return r
}

// An answer is a body in JSON, by its fields, with its status.
type answer struct {
	status int
	header http.Header
	fields map[string]any
}

// send sends a request with a key.
func (r *replica) send(ctx context.Context, path, body string, header ...string) *httptest.ResponseRecorder {
	request := httptest.NewRequestWithContext(ctx, "POST", path, strings.NewReader(body))
	request.Header.Set("Authorization", "Bearer "+apiKey)
	request.Header.Set("Content-Type", "application/json")
	for i := 0; i < len(header); i += 2 {
		request.Header.Set(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	r.handler.ServeHTTP(w, request)
	return w
}

// ask sends a request, and checks that the answer is as openapi.json says.
func (r *replica) ask(t *testing.T, path string, question any, header ...string) answer {
	t.Helper()
	body, ok := question.(string)
	if !ok {
		text, err := json.Marshal(question)
		require.NoError(t, err)
		body = string(text)
	}
	w := r.send(t.Context(), path, body, header...)
	a := answer{status: w.Code, header: w.Header()}
	require.NoError(t, json.Unmarshal(w.Body.Bytes(), &a.fields), "%d %s", w.Code, w.Body)
	described := description(t).answer(t, path, w.Code)
	assert.NoError(t, described.Validate(a.fields), "%s %d %s", path, w.Code, w.Body)
	return a
}

type question = map[string]any

func mail(customer, address string) question {
	return question{"rule": "mail", "values": map[string]string{"customer": customer, "network": address}}
}

// token returns the question that uses a token of a.
func (a answer) token(name string) question { return question{name: a.fields[name]} }

// outcome returns what a condition made of a call.
func (a answer) outcome(i int) map[string]any {
	return a.fields["outcomes"].([]any)[i].(map[string]any)
}

// before returns how many hits there was room for before the call that a look was about.
func (a answer) before(i int) any {
	return a.outcome(i)["remaining"].(float64) + a.outcome(i)["cost"].(float64)
}

// An openAPI is a description, as far as these tests read it.
type openAPI struct {
	Paths map[string]map[string]struct {
		RequestBody struct{ Content content }
		Responses   map[string]struct{ Content content }
	}
	Components struct{ Schemas map[string]json.RawMessage }
}

type content map[string]struct{ Schema json.RawMessage }

var description = func() func(*testing.T) *openAPI {
	parse := sync.OnceValues(func() (*openAPI, error) {
		var d openAPI
		text := bytes.ReplaceAll(api.Description, []byte("#/components/schemas/"), []byte("#/$defs/"))
		return &d, json.Unmarshal(text, &d)
	})
	return func(t *testing.T) *openAPI {
		d, err := parse()
		require.NoError(t, err)
		return d
	}
}()

// answer returns the schema of an answer.
func (d *openAPI) answer(t *testing.T, path string, status int) *jsonschema.Resolved {
	t.Helper()
	response, ok := d.Paths[path]["post"].Responses[fmt.Sprint(status)]
	require.True(t, ok, "%s is not described to answer %d", path, status)
	return d.schema(t, response.Content)
}

func (d *openAPI) schema(t *testing.T, c content) *jsonschema.Resolved {
	t.Helper()
	var s jsonschema.Schema
	require.Len(t, c, 1, "one media type")
	for _, only := range c {
		require.NoError(t, json.Unmarshal(only.Schema, &s))
	}
	s.Defs = make(map[string]*jsonschema.Schema)
	for name, text := range d.Components.Schemas {
		s.Defs[name] = new(jsonschema.Schema)
		require.NoError(t, json.Unmarshal(text, s.Defs[name]))
	}
	resolved, err := s.Resolve(nil)
	require.NoError(t, err)
	return resolved
}

func TestTheDescriptionIsOfWhatIsServed(t *testing.T) {
	r := newReplica(t, memstore.New(), rules)
	d := description(t)
	var described []string
	for path, methods := range d.Paths {
		if _, ok := methods["post"]; ok {
			described = append(described, path)
		}
	}
	assert.ElementsMatch(t, api.Paths(), described)

	w := httptest.NewRecorder()
	r.handler.ServeHTTP(w, httptest.NewRequest("GET", "/v1/openapi.json", nil))
	assert.Equal(t, 200, w.Code, "without a key")
	assert.JSONEq(t, string(api.Description), w.Body.String())

	hits := r.ask(t, "/v1/authorize", mail("a", "203.0.113.1")).token("cancel")
	attempt := func() question {
		return r.ask(t, "/v1/login/begin", question{"name": "alice", "address": "203.0.113.1"}).token("attempt")
	}
	ban := mail("b", "203.0.113.2")
	ban["duration"] = "1h"
	call := mail("a", "203.0.113.1")
	call["cost"], call["least"] = 1, 1
	job := question{"rule": "jobs", "values": map[string]string{"worker": "a"}, "cost": 1, "least": 1}
	held := func() question { return r.ask(t, "/v1/acquire", job).token("lease") }
	whole := map[string]question{
		"/v1/authorize": call, "/v1/peek": call, "/v1/cancel": hits,
		"/v1/settle":  {"cancel": r.ask(t, "/v1/authorize", mail("s", "203.0.113.3")).fields["cancel"], "totals": map[string]int{"customer": 2}},
		"/v1/acquire": job, "/v1/renew": held(), "/v1/release": held(), "/v1/reset": mail("a", "203.0.113.1"), "/v1/ban": ban,
		"/v1/login/begin":   {"name": "alice", "address": "2001:db8::7", "device": "x"},
		"/v1/login/succeed": attempt(), "/v1/login/fail": attempt(), "/v1/login/cancel": attempt(), "/v1/login/challenge": attempt(),
		"/v1/login/lift":      {"name": "alice", "address": "203.0.113.1"},
		"/v1/login/recognize": {"name": "alice", "address": "2001:db8::7", "device": "x"},
	}
	for _, path := range api.Paths() {
		schema := d.schema(t, d.Paths[path]["post"].RequestBody.Content)
		q := whole[path]
		text, err := json.Marshal(q)
		require.NoError(t, err)
		var fields map[string]any
		require.NoError(t, json.Unmarshal(text, &fields))
		require.NoError(t, schema.Validate(fields), path)
		assert.Len(t, fields, len(schema.Schema().Defs[refName(schema)].Properties), "%s: all that can be asked is asked", path)
		assert.Equal(t, 200, r.ask(t, path, q).status, path)
		assert.Error(t, schema.Validate(map[string]any{}), path)
		assert.Equal(t, 400, r.ask(t, path, "{}").status, path)
	}
}

// cells returns the words in code style of the rows of a page's table, whose first cell is named
// head, by the first cell's words.
func cells(t *testing.T, page, head string) map[string][]string {
	t.Helper()
	text, err := os.ReadFile("../../../../docs/" + page)
	require.NoError(t, err)
	_, table, found := strings.Cut(string(text), "\n| "+head+" |")
	require.True(t, found, head)
	table, _, _ = strings.Cut(table, "\n\n")
	all := make(map[string][]string)
	for _, row := range strings.Split(table, "\n")[2:] {
		columns := strings.Split(strings.Trim(row, "| "), " | ")
		for _, name := range inCode(columns[0]) {
			all[name] = inCode(columns[1])
		}
	}
	return all
}

func inCode(text string) (words []string) {
	for i, part := range strings.Split(text, "`") {
		if i%2 == 1 {
			words = append(words, part)
		}
	}
	return words
}

func TestThePageHasEveryOperationItsFieldsAndErrors(t *testing.T) {
	d := description(t)
	want := make(map[string][]string)
	for _, path := range api.Paths() {
		schema := d.schema(t, d.Paths[path]["post"].RequestBody.Content)
		want[strings.TrimPrefix(path, "/v1/")] = slices.Sorted(maps.Keys(schema.Schema().Defs[refName(schema)].Properties))
	}
	told := cells(t, "service.md", "operation")
	for _, fields := range told {
		slices.Sort(fields)
	}
	assert.Equal(t, want, told)

	var kinds []any
	for kind, status := range api.Statuses {
		kinds = append(kinds, "urn:throttler:"+kind)
		assert.Equal(t, []string{fmt.Sprint(status)}, cells(t, "service.md", "`type`")[kind], kind)
	}
	assert.Len(t, cells(t, "service.md", "`type`"), len(kinds))
	var failed jsonschema.Schema
	require.NoError(t, json.Unmarshal(d.Components.Schemas["Error"], &failed))
	assert.ElementsMatch(t, kinds, failed.Properties["type"].Enum)
}

func refName(s *jsonschema.Resolved) string {
	return strings.TrimPrefix(s.Schema().Ref, "#/$defs/")
}

func TestProgramsAreLimitedByTheRuleFile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newReplica(t, memstore.New(), rules)
		for left := range 3 {
			seen := r.ask(t, "/v1/peek", mail("small", "203.0.113.7"))
			assert.EqualValues(t, 2-left, seen.outcome(0)["remaining"], "what the call would leave")
			a := r.ask(t, "/v1/authorize", mail("small", "203.0.113.7"))
			require.Equal(t, 200, a.status)
			assert.Equal(t, "authorized", a.fields["status"])
			assert.EqualValues(t, 2-left, a.outcome(0)["remaining"])
			assert.Equal(t, false, a.fields["degraded"])
		}
		peeked := r.ask(t, "/v1/peek", mail("small", "203.0.113.7"))
		a := r.ask(t, "/v1/authorize", mail("small", "203.0.113.7"))
		for _, blocked := range []answer{peeked, a} {
			assert.Equal(t, 200, blocked.status)
			assert.Equal(t, "blocked", blocked.fields["status"])
			assert.Equal(t, []any{"Too many requests."}, blocked.fields["messages"], "not the name of a condition")
			assert.EqualValues(t, 600, blocked.fields["retry_after"])
			assert.EqualValues(t, 0, blocked.outcome(0)["remaining"])
			assert.Equal(t, true, blocked.outcome(0)["banned"])
		}
		assert.NotContains(t, peeked.fields, "cancel")
		fresh := mail("fresh", "203.0.113.8")
		assert.EqualValues(t, 3, r.ask(t, "/v1/peek", fresh).before(0), "a look takes nothing")
		r.ask(t, "/v1/authorize", fresh)
		fresh["cost"] = 2
		assert.EqualValues(t, 2, r.ask(t, "/v1/peek", fresh).before(0), "whatever it would cost")
		fresh["cost"] = 3
		assert.EqualValues(t, 2, r.ask(t, "/v1/peek", fresh).before(0), "also if it does not fit")
		assert.Equal(t, "authorized", r.ask(t, "/v1/authorize", mail("other", "203.0.113.7")).fields["status"])
		assert.EqualValues(t, 1000, r.ask(t, "/v1/peek", mail("big", "203.0.113.7")).outcome(0)["limit"])
	})
}

func TestValuesAreCountedAsTheRuleFileSays(t *testing.T) {
	r := newReplica(t, memstore.New(), rules)
	left := func(address string) any {
		outcomes := r.ask(t, "/v1/authorize", mail("big", address)).fields["outcomes"].([]any)
		return outcomes[len(outcomes)-1].(map[string]any)["remaining"]
	}
	assert.EqualValues(t, 99, left("2001:db8::1"))
	assert.EqualValues(t, 98, left("2001:db8::2"), "of one network")
	assert.EqualValues(t, 99, left("2001:db8:0:1::2"))
	assert.EqualValues(t, 99, left("203.0.113.7"))
	assert.EqualValues(t, 98, left("::ffff:203.0.113.7"))
	assert.EqualValues(t, 97, left("64:ff9b::203.0.113.7"), "NAT64")

	exempt := r.ask(t, "/v1/authorize", mail("internal", "10.1.2.3"))
	assert.Equal(t, "authorized", exempt.fields["status"])
	assert.Empty(t, exempt.fields["outcomes"])
	assert.Len(t, r.ask(t, "/v1/authorize", mail("internal", "203.0.113.7")).fields["outcomes"], 1)
	assert.Equal(t, 400, r.ask(t, "/v1/reset", mail("internal", "10.1.2.3")).status)

	costly := mail("b", "203.0.113.9")
	costly["cost"] = 3
	assert.EqualValues(t, 0, r.ask(t, "/v1/authorize", costly).outcome(0)["remaining"])
}

func TestBansAndTheirEndsHoldForEveryReplica(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New()
		one, other := newReplica(t, store, rules), newReplica(t, store, rules)
		customer := question{"rule": "mail", "values": map[string]string{"customer": "small"}}
		ban := question{"rule": "mail", "values": customer["values"], "duration": "7d"}
		require.Equal(t, 200, one.ask(t, "/v1/ban", ban).status)
		a := other.ask(t, "/v1/authorize", mail("small", "203.0.113.7"))
		assert.Equal(t, "blocked", a.fields["status"])
		assert.EqualValues(t, 7*24*3600, a.fields["retry_after"])
		require.Equal(t, 200, other.ask(t, "/v1/reset", customer).status)
		assert.Equal(t, "authorized", one.ask(t, "/v1/authorize", mail("small", "203.0.113.7")).fields["status"])

		ban["duration"] = "1000000000h"
		assert.Equal(t, 400, one.ask(t, "/v1/ban", ban).status)
		ban["duration"] = "2000000h"
		require.Equal(t, 200, one.ask(t, "/v1/ban", ban).status)
		assert.Equal(t, "blocked", other.ask(t, "/v1/peek", mail("small", "203.0.113.7")).fields["status"])
	})
}

func TestWhatOneReplicaHasCountedAnotherTakesBackOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New()
		one, other := newReplica(t, store, rules), newReplica(t, store, rules)
		left := func() any { return one.ask(t, "/v1/peek", mail("small", "203.0.113.7")).before(0) }
		token := one.ask(t, "/v1/authorize", mail("small", "203.0.113.7")).token("cancel")
		one.ask(t, "/v1/authorize", mail("small", "203.0.113.7"))
		require.EqualValues(t, 1, left())
		require.Equal(t, 200, other.ask(t, "/v1/cancel", token).status)
		assert.EqualValues(t, 2, left())
		for _, r := range []*replica{one, other} {
			assert.Equal(t, 409, r.ask(t, "/v1/cancel", token).status)
		}
		assert.EqualValues(t, 2, left())
	})
}

func TestATokenExpires(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newReplica(t, memstore.New(), rules)
		hits := r.ask(t, "/v1/authorize", mail("small", "203.0.113.7")).token("cancel")
		attempt := r.ask(t, "/v1/login/begin", question{"name": "alice", "address": "203.0.113.7"}).token("attempt")
		other := r.ask(t, "/v1/login/begin", question{"name": "alice", "address": "203.0.113.7"}).token("attempt")
		time.Sleep(api.TokenLife - time.Second)
		assert.Equal(t, 200, r.ask(t, "/v1/login/fail", other).status)
		time.Sleep(time.Second)
		assert.Equal(t, 410, r.ask(t, "/v1/login/succeed", attempt).status)
		time.Sleep(api.HitsLife - api.TokenLife)
		assert.Equal(t, 410, r.ask(t, "/v1/cancel", hits).status)
	})
}

// Time stands still: a lease must not end by itself meanwhile.
func TestAForgedTokenDoesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New()
		r := newReplica(t, store, rules)
		stranger := newReplica(t, store, rules, withSecret("another secret of some length"))
		random := newReplica(t, store, rules, withSecret(""))
		held := r.ask(t, "/v1/acquire", job("jobs", "a"))
		r.ask(t, "/v1/acquire", job("jobs", "a"))
		tokens := map[string]string{ // by what they are called
			"cancel":  r.ask(t, "/v1/authorize", mail("small", "203.0.113.7")).fields["cancel"].(string),
			"attempt": r.ask(t, "/v1/login/begin", begin("alice", "203.0.113.7")).fields["attempt"].(string),
			"lease":   held.fields["lease"].(string),
		}
		for path, name := range map[string]string{"/v1/cancel": "cancel", "/v1/login/succeed": "attempt", "/v1/renew": "lease", "/v1/release": "lease"} {
			token := tokens[name]
			assert.NotRegexp(t, "alice|jobs", token)
			for _, other := range []*replica{stranger, random} {
				assert.Equal(t, 400, other.ask(t, path, question{name: token}).status)
			}
			for kind, other := range tokens {
				if kind != name {
					assert.Equal(t, 400, r.ask(t, path, question{name: other}).status, "%s of another kind", path)
				}
			}
			for i := range len(token) {
				changed := []byte(token)
				changed[i] ^= 1
				require.Equal(t, 400, r.ask(t, path, question{name: string(changed)}).status, i)
				require.Equal(t, 400, r.ask(t, path, question{name: token[:i]}).status, i)
			}
			for _, same := range []string{token + "=", token + "\n", " " + token, token + "A"} {
				assert.Equal(t, 400, r.ask(t, path, question{name: same}).status, "%q: a token has one spelling", same)
			}
		}
		assert.EqualValues(t, 2, r.ask(t, "/v1/peek", mail("small", "203.0.113.7")).before(0))
		assert.Equal(t, "blocked", r.ask(t, "/v1/acquire", job("jobs", "a")).fields["status"])
		for path, name := range map[string]string{"/v1/cancel": "cancel", "/v1/login/succeed": "attempt", "/v1/renew": "lease"} {
			assert.Equal(t, 200, r.ask(t, path, question{name: tokens[name]}).status)
		}
	})
}

func begin(name, address string) question { return question{"name": name, "address": address} }

func TestGuessesThatEndOnAnyReplicaAreBanned(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New()
		replicas := []*replica{newReplica(t, store, rules), newReplica(t, store, rules)}
		for i := range 5 {
			a := replicas[i%2].ask(t, "/v1/login/begin", begin("alice", "203.0.113.7"))
			require.Equal(t, "authorized", a.fields["status"])
			assert.Equal(t, i >= 2, a.fields["half_used"])
			require.Equal(t, "failed", replicas[1-i%2].ask(t, "/v1/login/fail", a.token("attempt")).fields["status"])
		}
		a := replicas[0].ask(t, "/v1/login/begin", begin("Alice ", "203.0.113.7"))
		assert.Equal(t, "blocked", a.fields["status"])
		assert.EqualValues(t, 600, a.fields["retry_after"])
		assert.Equal(t, "Too many attempts. Please try again later.", a.fields["message"])
		assert.NotContains(t, a.fields, "attempt")
		assert.Equal(t, "authorized", replicas[0].ask(t, "/v1/login/begin", begin("alice", "203.0.113.8")).fields["status"])
	})
}

// 400 right passwords are no siege, and 200 wrong ones are.
func TestASiegeShowsInTheAnswers(t *testing.T) {
	for path, siege := range map[string]bool{"/v1/login/succeed": false, "/v1/login/fail": true} {
		synctest.Test(t, func(t *testing.T) {
			store := memstore.New()
			replicas := []*replica{newReplica(t, store, rules), newReplica(t, store, rules)}
			for i := range 400 {
				time.Sleep(5 * time.Second)
				a := replicas[i%2].ask(t, "/v1/login/begin", begin(fmt.Sprint("user", i), fmt.Sprintf("100.%d.1.1", i%250)))
				replicas[i/2%2].ask(t, path, a.token("attempt"))
			}
			a := replicas[0].ask(t, "/v1/login/begin", begin("alice", "203.0.113.7"))
			assert.Equal(t, siege, a.fields["siege"])
		})
	}
}

func TestSuccessesAndCancelsOfAnotherReplicaTakeBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for path, status := range map[string]string{"/v1/login/succeed": "succeeded", "/v1/login/cancel": "canceled", "/v1/login/challenge": "challenged"} {
			store := memstore.New()
			one, other := newReplica(t, store, rules), newReplica(t, store, rules)
			for range 30 {
				a := one.ask(t, "/v1/login/begin", begin("alice", "203.0.113.7"))
				require.Equal(t, "authorized", a.fields["status"], path)
				require.Equal(t, status, other.ask(t, path, a.token("attempt")).fields["status"])
			}
		}
	})
}

func TestAnAttemptIsNotEndedTwice(t *testing.T) {
	server := servertest.NewMemcached(t)
	replicas := []*replica{newReplica(t, pooled(t, server), rules), newReplica(t, pooled(t, server), rules)}
	for range 5 {
		token := replicas[0].ask(t, "/v1/login/begin", begin("alice", "203.0.113.7")).token("attempt")
		body, err := json.Marshal(token)
		require.NoError(t, err)
		var ended, refused atomic.Int64
		var all sync.WaitGroup
		for i := range 16 {
			path := []string{"/v1/login/succeed", "/v1/login/fail", "/v1/login/cancel"}[i%3]
			all.Go(func() {
				switch w := replicas[i%2].send(t.Context(), path, string(body)); w.Code {
				case 200:
					ended.Add(1)
				case 409:
					refused.Add(1)
				default:
					t.Error(path, w.Code, w.Body)
				}
			})
		}
		all.Wait()
		assert.EqualValues(t, 1, ended.Load())
		assert.EqualValues(t, 15, refused.Load())
	}
}

// pooled returns a pool of servers. It is patient: a busy machine must not count as an outage.
func pooled(t *testing.T, servers ...*servertest.Memcached) *pool.Pool {
	t.Helper()
	var addrs []string
	for _, s := range servers {
		addrs = append(addrs, s.Addr)
	}
	p, err := pool.New(addrs...)
	require.NoError(t, err)
	t.Cleanup(func() { p.Close() })
	p.Timeout, p.DialTimeout, p.QueueTimeout = 10*time.Second, 10*time.Second, 10*time.Second
	return p
}

func TestADeviceThatHasLoggedInIsKnown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New()
		one, other := newReplica(t, store, rules), newReplica(t, store, rules)
		mine := question{"name": "alice", "address": "203.0.113.7", "device": "a cookie of mine"}
		other.ask(t, "/v1/login/succeed", one.ask(t, "/v1/login/begin", mine).token("attempt"))
		for i := range 24 {
			other.ask(t, "/v1/login/fail", one.ask(t, "/v1/login/begin", begin("alice", fmt.Sprint("198.51.100.", i))).token("attempt"))
		}
		require.Equal(t, "blocked", one.ask(t, "/v1/login/begin", begin("alice", "192.0.2.1")).fields["status"])
		mine["address"] = "192.0.2.2"
		a := one.ask(t, "/v1/login/begin", mine)
		assert.Equal(t, "authorized", a.fields["status"])
		assert.Equal(t, true, a.fields["known"])
		assert.Equal(t, 200, other.ask(t, "/v1/login/succeed", a.token("attempt")).status)
	})
}

func TestAPersonWhoAsksForHelpIsLetInAtEveryReplica(t *testing.T) {
	store := memstore.New()
	one, other := newReplica(t, store, rules), newReplica(t, store, rules)
	bob := begin("bob", "203.0.113.7")
	for range 5 {
		one.ask(t, "/v1/login/fail", one.ask(t, "/v1/login/begin", bob).token("attempt"))
	}
	require.Equal(t, "blocked", one.ask(t, "/v1/login/begin", bob).fields["status"])
	assert.Equal(t, "lifted", other.ask(t, "/v1/login/lift", bob).fields["status"])
	assert.Equal(t, "authorized", one.ask(t, "/v1/login/begin", bob).fields["status"])
}

func TestAPersonWhoHasProvedTheirIdentityIsKnown(t *testing.T) {
	store := memstore.New()
	one, other := newReplica(t, store, rules), newReplica(t, store, rules)
	for i := range 24 {
		one.ask(t, "/v1/login/fail", one.ask(t, "/v1/login/begin", begin("bob", fmt.Sprint("198.51.100.", i))).token("attempt"))
	}
	bob := begin("bob", "203.0.113.7")
	require.Equal(t, "blocked", one.ask(t, "/v1/login/begin", bob).fields["status"], "strangers guess at the name")
	assert.Equal(t, "recognized", other.ask(t, "/v1/login/recognize", bob).fields["status"])
	a := one.ask(t, "/v1/login/begin", bob)
	assert.Equal(t, "authorized", a.fields["status"])
	assert.Equal(t, true, a.fields["known"])
}

func TestTheLongestNameIsGuarded(t *testing.T) {
	r := newReplica(t, memstore.New(), rules)
	for range 10 {
		q := begin(strings.Repeat("\u20ac", login.MaxName/3), "2001:db8::7")
		q["device"] = strings.Repeat("x", 2000)
		a := r.ask(t, "/v1/login/begin", q)
		require.Equal(t, "authorized", a.fields["status"])
		require.Equal(t, 200, r.ask(t, "/v1/login/succeed", a.token("attempt")).status)
	}
}

func TestOnlyThoseWithAKeyMayCall(t *testing.T) {
	r := newReplica(t, memstore.New(), rules, func(o *api.Options) { o.Keys = []string{"the old key, going out", apiKey} })
	none := newReplica(t, memstore.New(), rules, func(o *api.Options) { o.Keys = nil })
	for _, path := range api.Paths() {
		for _, authorization := range []string{"", "Bearer", "Bearer ", "Bearer x", apiKey, "Basic " + apiKey, "Bearer " + apiKey + " ", "Bearer  " + apiKey} {
			a := r.ask(t, path, mail("small", "203.0.113.7"), "Authorization", authorization)
			assert.Equal(t, 401, a.status, "%s %q", path, authorization)
			assert.Equal(t, "Bearer", a.header.Get("WWW-Authenticate"))
		}
		assert.Equal(t, 401, none.ask(t, path, mail("small", "203.0.113.7")).status)
	}
	unverified := httptest.NewRequest("POST", "/v1/authorize", strings.NewReader("{}"))
	unverified.TLS = new(tls.ConnectionState)
	w := httptest.NewRecorder()
	none.handler.ServeHTTP(w, unverified)
	assert.Equal(t, 401, w.Code, "without a verified certificate")
	for _, key := range []string{"the old key, going out", apiKey} {
		assert.Equal(t, 200, r.ask(t, "/v1/authorize", mail("small", "203.0.113.7"), "Authorization", "bearer "+key).status)
	}
	assert.EqualValues(t, 1, r.ask(t, "/v1/peek", mail("small", "203.0.113.7")).before(0), "two were counted")
}

func TestGarbageIsRefusedAndCountsNothing(t *testing.T) {
	store := memstore.New()
	r := newReplica(t, store, rules)
	for _, path := range api.Paths() {
		for _, garbage := range []string{
			"", "{", "null", "[]", `"x"`, "1", "\x00", "{}{}", `{"rule": 1}`, `{"unknown": 1}`, strings.Repeat("[", 10_000),
			`{"rule":"mail","values":{"customer":"a","network":"203.0.113.7"},"cost":1,"duration":"1h"} x`,
			`{"rule":"mail","values":{"customer":"a"},"cost":1e99}`,
			`{"rule":"mail","values":{"customer":"a","network":"203.0.113.7"}}{}`,
			`{"name":"alice","address":"203.0.113.7"}{}`,
		} {
			assert.Equal(t, 400, r.ask(t, path, garbage).status, "%s %.40q", path, garbage)
		}
		assert.Equal(t, 413, r.ask(t, path, strings.Repeat(" ", api.MaxBody)+"{}").status, path)
		for _, kind := range []string{"", "text/plain", "application/x-www-form-urlencoded"} {
			assert.Equal(t, 415, r.ask(t, path, mail("a", "203.0.113.7"), "Content-Type", kind).status, path)
		}
	}
	for _, path := range []string{"/v1/autorize", "/v1/login", "/"} {
		w := r.send(t.Context(), path, "{}")
		assert.Equal(t, 404, w.Code, path)
		assert.JSONEq(t, `{"type": "urn:throttler:no-such-operation", "title": "No such operation",
			"detail": "There is no such operation. GET /v1/openapi.json lists them, each to be sent by POST."}`, w.Body.String(), path)
		assert.Equal(t, "application/problem+json", w.Header().Get("Content-Type"))
	}
	for path, allowed := range map[string]string{"/v1/authorize": "POST", "/v1/dovecot": "POST", "/v1/openapi.json": "GET"} {
		w := httptest.NewRecorder()
		r.handler.ServeHTTP(w, httptest.NewRequest("DELETE", path, nil))
		assert.Equal(t, 405, w.Code, path)
		assert.Equal(t, allowed, w.Header().Get("Allow"), path)
		assert.Contains(t, w.Body.String(), "urn:throttler:wrong-method")
	}
	assert.Zero(t, store.Stats().Items, "nothing was counted")
}

func TestErrorsSayWhatIsWrongInWordsOfJSON(t *testing.T) {
	store := memstore.New()
	r := newReplica(t, store, rules)
	long := strings.Repeat("x", login.MaxName+1)
	costs := func(cost int) question {
		return question{"rule": "mail", "values": mail("a", "203.0.113.7")["values"], "cost": cost}
	}
	for _, c := range []struct {
		path     string
		question any
		want     string
	}{
		{"authorize", `{"rule":1}`, "The body cannot be read: rule is a number, want a text."},
		{"authorize", `{"cost":"1"}`, "The body cannot be read: cost is a string, want a whole number."},
		{"authorize", `{"cost":1.5}`, "The body cannot be read: cost is a number 1.5, want a whole number."},
		{"authorize", `{"values":{"customer":["a"]}}`, "The body cannot be read: values is an array, want a text."},
		{"authorize", `{"values":"a"}`, "The body cannot be read: values is a string, want an object."},
		{"authorize", `[]`, "The body cannot be read: an array at byte 1, want an object."},
		{"authorize", `{"rule":`, "The body cannot be read: it ends too early."},
		{"authorize", `{"unknown":1}`, `The body cannot be read: unknown field "unknown".`},
		{"authorize", ``, "The body cannot be read: it is empty."},
		{"authorize", `{"rule":"mail","values":{}} {}`, "The body cannot be read: more than one JSON value."},
		{"authorize", `{"rule":"mail","values":{"customer":null,"network":"203.0.113.7"}}`, "null at byte"}, // is no empty text
		{"peek", `{"rule":"mail","values":{"customer":"a","network":"203.0.113.7"},"cost":null}`, "null at byte"},
		{"login/begin", `{"name":null,"address":"203.0.113.7"}`, "null at byte"},
		{"authorize", question{"rule": "nothing", "values": map[string]string{"customer": "a"}}, "no rule"},
		{"authorize", question{"rule": "\x00", "values": map[string]string{"customer": "a"}}, `no rule "\x00"`},
		{"authorize", question{"rule": "mail", "values": map[string]string{"customer": "a", "network": "203.0.113.7", "x": ""}}, "no condition"},
		{"authorize", question{"rule": "mail", "values": map[string]string{"customer": "a"}}, "no value for"},
		{"authorize", question{"rule": "mail"}, "no values"},
		{"authorize", mail("a", "203.0.113.256"), "counts addresses"},
		{"authorize", costs(4), "Cost"}, {"authorize", costs(0), "cost is 0"}, {"authorize", costs(-1), "Cost is -1"},
		{"acquire", mail("a", "203.0.113.7"), "Rule mail has no condition in flight: nothing of it is released. Ask /v1/authorize."},
		{"acquire", job("nothing", "a"), "no rule"},
		{"reset", question{"rule": "throttler-login", "values": map[string]string{"name": "bob"}}, "/v1/login/lift"},
		{"login/begin", begin("alice", ""), "address"}, {"login/begin", begin("alice", "localhost"), "address"}, {"login/begin", begin(long, "203.0.113.7"), "name"},
		{"login/lift", question{"address": "localhost"}, "address"}, {"login/lift", begin("", ""), "name"}, {"login/lift", question{"name": long}, "name"},
		{"login/recognize", begin("bob", ""), "address"}, {"login/recognize", begin("", "203.0.113.7"), "name"}, {"login/recognize", begin(long, "203.0.113.7"), "name"},
	} {
		a := r.ask(t, "/v1/"+c.path, c.question)
		assert.Equal(t, 400, a.status, "%s %.60v", c.path, c.question)
		assert.Contains(t, a.fields["detail"], c.want, "%s %.60v", c.path, c.question)
		assert.NotRegexp(t, `Go|api\.|struct|map\[|EOF`, a.fields["detail"])
	}
	assert.Zero(t, store.Stats().Items, "nothing was counted")
}

// A slowBody is one whose sender takes until it is told to end.
type slowBody struct {
	reading chan<- struct{}
	end     <-chan struct{}
}

func (b slowBody) Read([]byte) (int, error) {
	b.reading <- struct{}{}
	<-b.end
	return 0, io.EOF
}

func TestSlowBodiesHoldNoPlace(t *testing.T) {
	r := newReplica(t, memstore.New(), rules)
	reading, end := make(chan struct{}), make(chan struct{})
	var all sync.WaitGroup
	for range api.MaxUnderWay + 1 {
		all.Go(func() {
			request := httptest.NewRequest("POST", "/v1/authorize", slowBody{reading, end})
			request.Header.Set("Authorization", "Bearer "+apiKey)
			request.Header.Set("Content-Type", "application/json")
			r.handler.ServeHTTP(httptest.NewRecorder(), request)
		})
		<-reading
	}
	a := r.ask(t, "/v1/authorize", mail("a", "203.0.113.7"))
	assert.Equal(t, 200, a.status)
	close(end)
	all.Wait()
}

// A slowClient is a store whose reads take until they are told to end.
type slowClient struct {
	throttler.Client
	reading chan<- struct{}
	end     <-chan struct{}
}

func (c slowClient) Get(key string) (*memcache.Item, error) {
	c.reading <- struct{}{}
	<-c.end
	return c.Client.Get(key)
}

func TestMoreRequestsThanThereArePlacesForAreTurnedAway(t *testing.T) {
	reading, end := make(chan struct{}), make(chan struct{})
	var turned atomic.Int64
	r := newReplica(t, slowClient{memstore.New(), reading, end}, rules, func(o *api.Options) {
		o.Throttler.Fallback = nil
		o.Turned = func(why api.Reason) {
			assert.Equal(t, api.Overloaded, why)
			turned.Add(1)
		}
	})
	var all sync.WaitGroup
	for i := range api.MaxUnderWay {
		// All wait for one record, so that the store is asked once.
		all.Go(func() {
			body := `{"rule":"mail","values":{"customer":"a","network":"10.0.0.1"}}`
			for r.send(context.Background(), "/v1/peek", body).Code == 503 { // the question below had its place
				runtime.Gosched()
			}
		})
		if i == 0 {
			<-reading
		}
	}
	question := `{"rule":"mail","values":{"customer":"b","network":"10.0.0.1"}}`
	require.Eventually(t, func() bool {
		ctx, cancel := context.WithCancel(t.Context())
		cancel() // so that it takes no place for long
		return r.send(ctx, "/v1/peek", question).Code == 503
	}, 30*time.Second, time.Millisecond)
	assert.Positive(t, turned.Load())
	turnedAway := r.ask(t, "/v1/peek", question)
	assert.Equal(t, 503, turnedAway.status)
	assert.Equal(t, "1", turnedAway.header.Get("Retry-After"))
	before := turned.Load()
	close(end)
	go func() {
		for range reading { // of later reads
		}
	}()
	all.Wait()
	assert.Equal(t, 200, r.ask(t, "/v1/authorize", mail("a", "203.0.113.7")).status, "and then there is room again")
	assert.Equal(t, before, turned.Load())
	close(reading)
}

func TestStrangersAreToldOfOnceAMinuteAndCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		turned := 0
		r := newReplica(t, memstore.New(), rules, func(o *api.Options) {
			o.Turned = func(why api.Reason) {
				assert.Equal(t, api.WrongKey, why)
				turned++
			}
		})
		stranger := func() {
			assert.Equal(t, 401, r.ask(t, "/v1/peek", mail("a", "203.0.113.7"), "Authorization", "Bearer wrong").status)
		}
		for range 100 {
			stranger()
		}
		assert.Equal(t, 100, turned)
		assert.Equal(t, 1, strings.Count(r.log.String(), "no valid key"), "%s", r.log)
		assert.Contains(t, r.log.String(), "requests=1\n")
		time.Sleep(time.Minute)
		stranger()
		assert.Contains(t, r.log.String(), "requests=100")
		assert.NotContains(t, r.log.String(), "wrong", "the key itself may be one with a slip")
	})
}

func TestWhileMemcachedIsDownNobodyGetsInByAToken(t *testing.T) {
	for _, failure := range []string{"open", "closed"} {
		server := servertest.NewMemcached(t)
		r := newReplica(t, pooled(t, server), rules+"failure: "+failure+"\n", func(o *api.Options) {
			if failure == "open" {
				o.Throttler.Fallback = memstore.New()
			}
		})
		hits := r.ask(t, "/v1/authorize", mail("small", "203.0.113.7")).token("cancel")
		attempt := r.ask(t, "/v1/login/begin", begin("alice", "203.0.113.7")).token("attempt")
		server.Kill()
		var decided []any
		for range 5 {
			decided = append(decided, r.ask(t, "/v1/authorize", mail("small", "203.0.113.7")).fields["status"])
		}
		guesses := 0
		for range 10 {
			if r.ask(t, "/v1/login/begin", begin("bob", "203.0.113.7")).fields["status"] == "authorized" {
				guesses++
			}
		}
		if failure == "open" {
			assert.Equal(t, []any{"authorized", "authorized", "blocked", "blocked", "blocked"}, decided, "counted by itself, after the one before the outage")
			assert.Equal(t, 5, guesses)
		} else {
			assert.Equal(t, []any{nil, nil, nil, nil, nil}, decided)
			assert.Zero(t, guesses)
			assert.Equal(t, 503, r.ask(t, "/v1/login/begin", begin("bob", "203.0.113.7")).status)
		}
		assert.Equal(t, 503, r.ask(t, "/v1/cancel", hits).status)
		assert.Equal(t, 503, r.ask(t, "/v1/login/succeed", attempt).status)
		assert.Equal(t, 503, r.ask(t, "/v1/reset", mail("small", "203.0.113.7")).status)
	}
}

// An answer that gets lost, or a caller that does not wait, must not leave a token
// used up with nothing done.
func TestACallerWhoHangsUpHasEndedTheAttempt(t *testing.T) {
	r := newReplica(t, memstore.New(), rules)
	ctx, hangUp := context.WithCancel(t.Context())
	hangUp()
	for range 10 {
		a := r.ask(t, "/v1/login/begin", begin("alice", "203.0.113.7"))
		require.Equal(t, "authorized", a.fields["status"])
		body, err := json.Marshal(a.token("attempt"))
		require.NoError(t, err)
		assert.Equal(t, 200, r.send(ctx, "/v1/login/succeed", string(body)).Code)
	}
	assert.Empty(t, r.log.String())
}

// A torn client fails for the keys that hold part, while it is down.
type torn struct {
	throttler.Client
	part string
	down atomic.Bool
}

var errTorn = errors.New("no answer")

func (c *torn) fails(key string) bool { return c.down.Load() && strings.Contains(key, c.part) }

func (c *torn) Get(key string) (*memcache.Item, error) {
	if c.fails(key) {
		return nil, errTorn
	}
	return c.Client.Get(key)
}

func (c *torn) GetMulti(keys []string) (map[string]*memcache.Item, error) {
	found := make(map[string]*memcache.Item)
	var failed error
	for _, key := range keys {
		item, err := c.Get(key)
		switch err {
		case nil:
			found[key] = item
		case errTorn:
			failed = err
		}
	}
	return found, failed
}

func TestWhatIsRefusedWhileTheBackEndFailsInPartDoesNotCount(t *testing.T) {
	client := &torn{Client: memstore.New(), part: "#network#"}
	r := newReplica(t, client, rules+"failure: closed\n")
	client.down.Store(true)
	for range 10 {
		require.Equal(t, 503, r.ask(t, "/v1/authorize", mail("small", "203.0.113.7")).status)
	}
	client.part = "#address#"
	for range 10 {
		require.Equal(t, 503, r.ask(t, "/v1/login/begin", begin("alice", "203.0.113.7")).status)
	}
	client.down.Store(false)
	assert.EqualValues(t, 2, r.ask(t, "/v1/authorize", mail("small", "203.0.113.7")).outcome(0)["remaining"])
	a := r.ask(t, "/v1/login/begin", begin("alice", "203.0.113.7"))
	assert.Equal(t, "authorized", a.fields["status"])
	assert.Equal(t, false, a.fields["half_used"])
}

// Whether a token was used is not known while its record cannot be read. Nothing is
// taken back then, even where that could be done.
func TestATokenThatCannotBeLookedUpIsNotUsed(t *testing.T) {
	client := &torn{Client: memstore.New(), part: "throttler-token#"}
	r := newReplica(t, client, rules)
	hits := r.ask(t, "/v1/authorize", mail("small", "203.0.113.7")).token("cancel")
	left := func() any { return r.ask(t, "/v1/peek", mail("small", "203.0.113.7")).before(0) }
	client.down.Store(true)
	assert.Equal(t, 503, r.ask(t, "/v1/cancel", hits).status)
	assert.EqualValues(t, 2, left())
	client.down.Store(false)
	assert.Equal(t, 200, r.ask(t, "/v1/cancel", hits).status)
	assert.EqualValues(t, 3, left())
}

func TestAConditionOfFirstThatWasNotAskedHasNothingRemaining(t *testing.T) {
	r := newReplica(t, memstore.New(), rules)
	call := question{"rule": "shares", "values": map[string]string{"own": "a", "pool": ""}}
	one := r.ask(t, "/v1/authorize", call)
	assert.EqualValues(t, 0, one.outcome(0)["remaining"])
	assert.NotContains(t, one.outcome(1), "remaining")
	two := r.ask(t, "/v1/authorize", call)
	assert.Equal(t, true, two.outcome(0)["blocked"])
	assert.EqualValues(t, 1, two.outcome(1)["remaining"])
}
