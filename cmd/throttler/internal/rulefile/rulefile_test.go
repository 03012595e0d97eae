package rulefile_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/cmd/throttler/internal/rulefile"
	"github.com/goccy/go-yaml"
	"github.com/google/jsonschema-go/jsonschema"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func parse(t *testing.T, source string) *rulefile.File {
	t.Helper()
	file, err := rulefile.Parse("rules.yaml", []byte(source))
	require.NoError(t, err)
	return file
}

func full(t *testing.T) *rulefile.File {
	t.Helper()
	file, err := rulefile.Load("testdata/full.yaml")
	require.NoError(t, err)
	return file
}

// login returns a request to log in.
func login(addr, user string) *rulefile.Request {
	r := &http.Request{Header: http.Header{"X-Realm": {"a@b"}}}
	r.SetBasicAuth(user, "")
	return &rulefile.Request{
		Addr: netip.MustParseAddr(addr), Method: "POST", Host: "www.example.org:8080", Target: "/login?a",
		Header: r.Header, Fields: map[string]string{"kind": "x"},
	}
}

func TestAFileSaysAllThatARuleHas(t *testing.T) {
	file := full(t)
	assert.Equal(t, []string{"127.0.0.1:11211", "/run/memcached.sock"}, file.Servers)
	assert.Equal(t, []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("::1/128")}, file.Trusted)
	assert.Equal(t, "X-Real-Ip", file.Forwarded)
	assert.True(t, file.Closed)

	rules := file.For(login("2001:470:1:2ff::1", "alice"))
	require.Len(t, rules, 2)
	assert.Equal(t, throttler.Rule{
		Identifier: "login",
		Either: []throttler.Condition{
			{Name: "network", Value: "2001:470:1:200::/56", Max: 50, TTL: 5 * time.Minute, Message: "Too many attempts from your network."},
			{Name: "user", Value: "alice@a%40b", Max: 5, TTL: time.Minute, Lockout: -1},
		},
		Lockout: 10 * time.Minute, LockoutGrowth: 2, MaxLockout: 7 * 24 * time.Hour, CountAuthorizedOnly: true,
	}, rules[0])
	assert.Equal(t, []string{"network"}, file.Rule("login").Public)
	assert.Equal(t, rulefile.Answer{Status: 403, Type: "text/html", Body: "<p>No.</p>"}, file.Rule("login").Answer)
	assert.Equal(t, throttler.Rule{
		Identifier: "customers", Shadow: true,
		All: []throttler.Condition{{Name: "key", Max: 1000, TTL: time.Hour, Algorithm: throttler.LeakyBucket}},
	}, rules[1], "without a key: counted together with all who have none")
	assert.Equal(t, 429, file.Rule("customers").Answer.Status)
}

func TestARuleIsForTheRequestsItNames(t *testing.T) {
	file := full(t)
	applies := func(change func(*rulefile.Request)) bool {
		r := login("203.0.113.7", "alice")
		change(r)
		return slices.ContainsFunc(file.For(r), func(rule throttler.Rule) bool { return rule.Identifier == "login" })
	}
	for want, targets := range map[bool][]string{
		true: {
			"/login?a", "//./x/../%6Cogin/", "http://example.org/login", "/login#1", "/login#?x", "/x#/../login",
			"/login;a=b;c", "/x/..;a=b/login", "/login/..;/..", "/login;a/..;/..", "//login;a/%2e", "/login%3Ba", // path parameters, or what looks like them
			"/login/x//../..", "//x/login", `/x\y/../login`, `/x\..\login`, "/x%2f..%2Flogin", "/api/x%2F..%2F..%2Ffree/session", // what may be a slash, or part of a segment
			"/x/..%5c%252e%252e;a%2flogin", "/x%zz/../%6cogin", "/login.%2500", strings.Repeat(`/%252f/..;a\%2f%253f%2509b. `, 300), // decoded twice, or not
			"/free%2Fx/SESSION;v=/api", "/free%c1%ac", // odd, with all words of one, or what may hide them
			"/api/v1/session", "/admin/a/b/c", "/admin", // one segment for *, any number for **
		},
		false: {"/free%2Fx", "/free%20x/10%25", "/api/v1/x/session", "/api/session", "/login/x", "/administrator"},
	} {
		for _, target := range targets {
			assert.Equal(t, want, applies(func(r *rulefile.Request) { r.Target = target }), "%.60s", target)
		}
	}
	for method, want := range map[string]bool{"post": true, "GET": false} {
		assert.Equal(t, want, applies(func(r *rulefile.Request) { r.Method = method }), method)
	}
	for host, want := range map[string]bool{"EXAMPLE.org.": true, "example.org:1:2": true, "example.org:]": true, "badexample.org": false, ".example.org": false} {
		assert.Equal(t, want, applies(func(r *rulefile.Request) { r.Host = host }), host)
	}
	assert.False(t, applies(func(r *rulefile.Request) { r.Fields = nil }))
}

func TestPathParametersCostAsMuchAsTheyAreLong(t *testing.T) {
	file := parse(t, "rules: [{name: a, for: {path: [/a]}, either: [{name: b, value: any, max: 1, per: 1m}]}]")
	allocs := func(n int) float64 {
		target := strings.Repeat("/;x", n) + "/a"
		return testing.AllocsPerRun(1, func() { file.For(&rulefile.Request{Target: target}) })
	}
	assert.InDelta(t, allocs(10), allocs(10_000), 20)
}

func TestThePathThatIsCountedIsTheOneThatMatches(t *testing.T) {
	file := parse(t, "rules: [{name: a, for: {path: [/a, /b/*]}, either: [{name: b, value: '{path}', max: 1, per: 1m}]}]")
	for target, want := range map[string]string{
		"/a": "/a", "/%61?x": "/a", `/x\..\a`: "/a", `/y\..\a`: "/a", "//x/a": "/a", "/b/c": "/b/c", "//b//c": "/b/c", "/b/c%23": "/b/c#", "/a%3fb": "/a", "/x%5c..%5cb/c": "/b/*",
		strings.Repeat(`/%252f/..;a\%2f%253f%2509b. `, 300): "/a", strings.Repeat(`/%252f/..;a\%2f%253f%2509c. `, 301): "/a", `/b\a`: "/a",
	} {
		apply := file.For(&rulefile.Request{Target: target})
		if assert.Len(t, apply, 1, "%.40s", target) {
			assert.Equal(t, want, apply[0].Either[0].Value, "no spelling has a count of its own: %.20s", target)
		}
	}
	assert.Empty(t, file.For(&rulefile.Request{Target: "/b"}), "a * is one segment")
}

func TestRulesThatComparePathsCostAPlainOneNoAllocation(t *testing.T) {
	file := parse(t, "rules: [{name: a, for: {path: [/a, /b/*]}, either: [{name: b, value: '{path}', max: 1, per: 1m}]}]")
	r := &rulefile.Request{Target: "/users/17/orders?from=1#x"}
	assert.Zero(t, testing.AllocsPerRun(100, func() { file.For(r) }))
}

func TestAMethodIsAlsoForWhatServersAnswerAlike(t *testing.T) {
	file := parse(t, `{rules: [{name: x, for: {method: [get]}, either: [{name: y, max: 1, per: 1s, value: x}]}]}`)
	for method, want := range map[string]int{"GET": 1, "HEAD": 1, "head": 1, "POST": 0, "": 0} {
		assert.Len(t, file.For(&rulefile.Request{Method: method}), want, method)
	}
	post := parse(t, `{rules: [{name: x, for: {method: [POST]}, either: [{name: y, max: 1, per: 1s, value: x}]}]}`)
	assert.Empty(t, post.For(&rulefile.Request{Method: "HEAD"}))
}

// value returns what a template makes of a request.
func value(t *testing.T, template string, r *rulefile.Request) string {
	t.Helper()
	file := parse(t, `{rules: [{name: x, for: {path: [/a, "/users/*"]}, either: [{name: y, max: 1, per: 1s, value: '`+template+`'}]}]}`)
	rules := file.For(r)
	require.Len(t, rules, 1)
	return rules[0].Either[0].Value
}

func TestATemplateMakesAValueOfARequest(t *testing.T) {
	r := login("::ffff:203.0.113.7", "alice")
	r.Target = "/users/7?x=1"
	r.Header.Add("Cookie", "a=1; session=s3cret; quoted=\"b c\"")
	r.Header.Add("Cookie", "session=\"s3cret\"")
	for template, want := range map[string]string{
		"{address}":                   "203.0.113.7",
		"{network}":                   "203.0.113.7",
		"{method} {host}":             "POST www.example.org",
		"{path}":                      "/users/7",
		"{route}":                     "/users/*",
		"{user}":                      "alice",
		"{header:x-realm}":            "a@b",
		"{cookie:session}":            "s3cret",
		"{cookie:quoted}":             "b c",
		"{field:kind}":                "x",
		"all":                         "all",
		"key {field:kind}":            "key x",
		"{header:X-Realm}|{path}":     "a%40b|%2Fusers%2F7",
		"{header:X-None}":             "",
		"{field:none}@{cookie:none}.": "@.",
	} {
		assert.Equal(t, want, value(t, template, r), template)
	}
	for host, want := range map[string]string{"A.b.:80": "a.b", "[2001:DB8::1]:80": "[2001:db8::1]", "[::1]": "[::1]", "a:1:2": "a", "[a:1": "[a"} {
		r.Host = host
		assert.Equal(t, want, value(t, "{host}", r), host)
	}
	r.Addr = netip.MustParseAddr("64:ff9b::203.0.113.7") // NAT64
	assert.Equal(t, "203.0.113.7", value(t, "{address}", r))
	assert.Equal(t, "203.0.113.7", value(t, "{network}", r))
	r.Addr = netip.MustParseAddr("2001:db8:1:2:3::4%eth0")
	assert.Equal(t, "2001:db8:1:2:3::4", value(t, "{address}", r))
	assert.Equal(t, "2001:db8:1:2::/64", value(t, "{network}", r))
}

// Applications read different ones of several, so a second one must not make a new value.
func TestSeveralOfOneNameCountTogether(t *testing.T) {
	file := parse(t, `
rules:
  - name: a
    either:
      - {name: header, value: "{header:X-Api-Key}", max: 10, per: 1m, missing: skip}
      - {name: cookie, value: "{cookie:a_id}", max: 10, per: 1m, missing: skip}
      - {name: user, value: "{user}", max: 10, per: 1m, missing: skip}
`)
	for _, c := range []struct {
		field string
		lines []string
		want  []string
	}{
		{"X-Api-Key", []string{"a"}, []string{"header=a"}},
		{"X-Api-Key", []string{"a, b"}, []string{"header=a, b"}},
		{"X-Api-Key", []string{"a", "b"}, []string{"header="}},
		{"X-Api-Key", []string{"a", "a"}, []string{"header="}},
		{"Cookie", []string{"a_id=b"}, []string{"cookie=b"}},
		{"Cookie", []string{"a_id=b; a_id=c"}, []string{"cookie="}},
		{"Cookie", []string{"a_id=b; x=y", "a_id=c"}, []string{"cookie="}},
		{"Cookie", []string{"a_id=b;a_id = b"}, []string{"cookie=b"}},
		{"Cookie", []string{"a_id=b; a%5Fid=c"}, []string{"cookie="}},
		{"Cookie", []string{"a.id=b"}, []string{"cookie="}},
		{"Cookie", []string{`a_id="b\143"`}, []string{"cookie="}},
		{"Cookie", []string{strings.Repeat("x=;", 5000) + "a_id=b"}, []string{"cookie=b"}},
		{"Cookie", []string{"a=id; b_id=c; a%zz=d"}, nil},
		{"Authorization", []string{"Basic YTo=", "Basic Yjo="}, []string{"user="}},
		{"Authorization", []string{"Basic YTo="}, []string{"user=a"}},
	} {
		var got []string
		for _, rule := range file.For(&rulefile.Request{Header: http.Header{c.field: c.lines}}) {
			for _, condition := range rule.Either {
				got = append(got, condition.Name+"="+condition.Value)
			}
		}
		assert.Equal(t, c.want, got, "%s: %.60q", c.field, c.lines)
	}
}

func TestTwoRequestsNeverMakeOneValueOfTwoParts(t *testing.T) {
	seen := map[string][2]string{}
	parts := []string{"", "a", "a|", "|a", "|", "||", "%7C", "%", "a%7Ca", "a|a", " ", "x|"}
	for _, first := range parts {
		for _, second := range parts {
			r := login("203.0.113.7", "")
			r.Target, r.Fields = "/a", map[string]string{"1": first, "2": second}
			got := value(t, "x{field:1}x|x{field:2}x", r)
			if other, found := seen[got]; found {
				assert.Equal(t, other, [2]string{first, second}, "both are %q", got)
			}
			seen[got] = [2]string{first, second}
		}
	}
	assert.Len(t, seen, len(parts)*len(parts))
}

func TestSomeValuesHaveLimitsOfTheirOwnAndSomeHaveNone(t *testing.T) {
	file := parse(t, `
rules:
  - name: api
    either:
      - {name: key, value: "{header:X-Api-Key}", max: 10, per: 1m, limits: {gold: 100}, exempt: [internal, 192.0.2.0/24], missing: skip}
`)
	request := func(addr, key string) *rulefile.Request {
		r := &rulefile.Request{Addr: netip.MustParseAddr(addr), Header: http.Header{}}
		if key != "" {
			r.Header.Set("X-Api-Key", key)
		}
		return r
	}
	limit := func(addr, key string) int {
		for _, rule := range file.For(request(addr, key)) {
			return rule.Either[0].Max
		}
		return 0 // no rule
	}
	assert.Equal(t, 10, limit("203.0.113.7", "tin"))
	assert.Equal(t, 100, limit("203.0.113.7", "gold"))
	assert.Zero(t, limit("203.0.113.7", "internal"), "an exempt value")
	assert.Zero(t, limit("192.0.2.9", "tin"), "an exempt network")
	assert.Zero(t, limit("::ffff:192.0.2.9", "tin"), "as IPv6 has it")
	assert.Zero(t, limit("64:ff9b::192.0.2.9", "tin"), "as NAT64 has it")
	assert.Zero(t, limit("203.0.113.7", ""), "no key, and those are skipped")
}

func TestOnlyConditionsThatCountAddressesTakeACallersTextForOne(t *testing.T) {
	file := parse(t, `
rules:
  - name: api
    either:
      - {name: key, value: "{header:X-Api-Key}", max: 10, per: 1m, exempt: [internal, 10.0.0.0/8, 192.0.2.7]}
      - {name: network, value: "{network}", max: 10, per: 1m, exempt: [10.0.0.0/8]}
`)
	for _, test := range []struct {
		key, network string
		counted      []string
	}{
		{"a", "203.0.113.7", []string{"key", "network"}},
		{"10.0.0.1", "203.0.113.7", []string{"key", "network"}},
		{"192.0.2.7", "203.0.113.7", []string{"key", "network"}},
		{"internal", "203.0.113.7", []string{"network"}},
		{"a", "10.0.0.1", []string{"key"}},
		{"a", "::ffff:10.0.0.1", []string{"key"}},
	} {
		filled, err := file.Rule("api").WithValues(map[string]string{"key": test.key, "network": test.network})
		require.NoError(t, err)
		var counted []string
		for _, c := range filled.Either {
			counted = append(counted, c.Name)
		}
		assert.Equal(t, test.counted, counted, "%v", test)
	}
}

func TestMistakesAreToldWithLineAndColumn(t *testing.T) {
	const rule = "rules:\n  - name: a\n    either:\n      - {name: ip, value: \"{address}\", max: 5, per: 1m"
	const algorithm = "rules: [{name: a, for: {api: true}, either: [{name: x, value: x, max: 1, "
	const login = `logins: [{for: {path: [/a]}, name: {form: a}, right: {status: [302]}}]`
	schema := schema(t)
	type mistake struct{ source, want string }
	for _, test := range []mistake{
		{"", "rules.yaml: there are no rules"},
		{"rules: []", "rules.yaml:1:8: there are no rules"},
		{"rules:\n  - name: a\n    eithr: []", `rules.yaml:3:5: unknown field "eithr": did you mean either?`},
		{rule + ", growth: 2}", `rules.yaml:4:57: unknown field "growth": it belongs to a rule`},
		{rule + "}\n    per: 1m", `rules.yaml:5:5: unknown field "per": it belongs to a condition`},
		{rule + "}\n    something: 1m", `rules.yaml:5:5: unknown field "something"`},
		{"rules: 3", "rules.yaml:1:8: int was used where sequence is expected"},
		{"rules:\n  ! 00", "rules.yaml:2:3: this YAML cannot be read: leave its tag out"},
		{"rules:\n  - name: a", "rules.yaml:2:5: no conditions: want some in either, all or first"},
		{rule + "}\n    all:\n      - {name: x, value: x, max: 1, per: 1s}", "rules.yaml:6:7: a rule has conditions in one of either, all and first: this has some in either too"},
		{rule + "}\n    first:\n      - {name: x, value: x, max: 1, per: 1s}", "rules.yaml:6:7: a rule has conditions in one of either, all and first: this has some in either too"},
		{"rules:\n  - name: a\n    first:\n      - {name: x, value: x, max: 0, per: 1s}", "rules.yaml:4:34: 0, want 1 to 1000000"},
		{strings.Replace(rule, "name: a", "name: throttler-a", 1) + "}", "rules.yaml:2:11: names that begin with throttler- are the service's own: choose another"},
		{strings.Replace(rule, "5", "five", 1) + "}", "rules.yaml:4:45: want int"},
		{strings.Replace(rule, "5", "0", 1) + "}", "rules.yaml:4:45: 0, want 1 to 1000000"},
		{strings.Replace(rule, "1m", "1 minute", 1) + "}", `rules.yaml:4:53: "1 minute" is no duration: want 30s, 5m, 12h, 7d`},
		{strings.Replace(rule, "name: ip", "name: ''", 1) + "}", `rules.yaml:4:16: "", want a name`},
		{strings.Replace(rule, `"{address}"`, `""`, 1) + "}", "rules.yaml:4:9: no value: want what to count, as in {address}"},
		{rule + ", algorithm: tokens}", `rules.yaml:4:68: "tokens" is unknown: want window or bucket or in-flight or calendar`},
		{rule + ", limits: {x: 0}}", `rules.yaml:4:65: the limit of "x" is 0, want 1 to 1000000`},
		{rule + ", lockout: -1s}", "rules.yaml:4:66: -1s, want a length or none"},
		{rule + ", lockout: 0s}", "rules.yaml:4:66: 0s, want a length or none"},
		{rule + ", lockout: 0}", "rules.yaml:4:66: 0s, want a length or none"},
		{rule + ", lockout: never}", `rules.yaml:4:66: "never" is no duration: want 30s, 5m, 12h, 7d`},
		{rule + "}\n    lockout: 1m\n    max-lockout: 0h0m", "rules.yaml:6:18: 0s, want a length"},
		{rule + "}\n    lockout: 1m\n    max-lockout: long", `rules.yaml:6:18: "long" is no duration: want 30s, 5m, 12h, 7d`},
		{rule + "}\n    lockout: -1s", "rules.yaml:5:14: -1s, want 0 or more"},
		{rule + "}\n    answer: {status: 200}", "rules.yaml:5:22: 200 is not from 400 to 599"},
		{rule + "}\n    for: {path: [login]}", `rules.yaml:5:18: "login" does not begin with /`},
		{rule + "}\ntrust: {a: b}", `rules.yaml:5:8: mapping was used where sequence is expected`},
		{strings.Replace(rule, "5", "5.7", 1) + "}", "rules.yaml:4:45: 5.7, want a whole number in digits, without a zero before it or quotation marks"},
		{strings.Replace(rule, "5", `"7"`, 1) + "}", "rules.yaml:4:45: 7, want a whole number in digits, without a zero before it or quotation marks"},
		{strings.Replace(rule, "per: 1m", "algorithm: calendar, per: month, anchor: 1.5", 1) + "}", "rules.yaml:4:89: 1.5, want a whole number in digits, without a zero before it or quotation marks"},
		{rule + ", limits: {x: 1e3}}", "rules.yaml:4:69: 1e3, want a whole number in digits, without a zero before it or quotation marks"},
		{rule + "}\nstore: redis:a:1", `rules.yaml:5:8: "redis:a:1" has no server: want redis://host:6379`},
		{rule + "}\nfailure: never", `rules.yaml:5:10: "never" is unknown: want open or closed`},
		{rule + "}\n    for: {path: [/login?x]}", `rules.yaml:5:18: "/login?x": paths are compared without "?" and what follows`},
		{rule + "}\n    for: {path: [/login;a=b]}", `rules.yaml:5:18: "/login;a=b": paths are compared without ";" and what follows`},
		{rule + "}\n    for: {method: [GET, GE T]}", `rules.yaml:5:25: "GE T" is no method: want GET, POST and so on`},
		{rule + "}\n    for: {method: ['']}", `rules.yaml:5:20: "" is no method: want GET, POST and so on`},
		{rule + "}\nservers: [a:1, b:1, a:1]", `rules.yaml:5:21: server 1 is "a:1" too`},
		{rule + "}\nservers: [a:1, '']", `rules.yaml:5:16: "" is no server: want host:port, or the path of a socket`},
		{rule + "}\nservers: [10.0.0.1]", `rules.yaml:5:11: "10.0.0.1" is no server: want host:port, or the path of a socket`},
		{rule + "}\nservers: [':11211']", `rules.yaml:5:11: ":11211" is no server: want host:port, or the path of a socket`},
		{rule + "}\nservers: ['a:']", `rules.yaml:5:11: "a:" is no server: want host:port, or the path of a socket`},
		{rule + "}\nservers: ['unix:']", `rules.yaml:5:11: "unix:" is no server: want host:port, or the path of a socket`},
		{rule + "}\nstore: mysql://a", "rules.yaml:5:8: redisstore: a URL begins with redis://, rediss://, valkey://, valkeys://, unix://, as redis://127.0.0.1:6379 does"},
		{rule + "}\nstore: redis://a\nservers: [b:1]", "rules.yaml:5:8: there are servers, too: records are kept in one of the two"},
		{"envoy: [{domain: '', descriptors: []}]", "rules.yaml:1:9: no domain"},
		{"envoy:\n - domain: a\n   descriptors:\n   - value: b", "rules.yaml:4:6: no key"},
		{"envoy: [{domain: a, descriptors: [{key: b, rate_limit: {unit: fortnight, requests_per_unit: 1}}]}]", `rules.yaml:1:63: "fortnight" is no unit: want second, minute, hour, day, week, month or year`},
		{rule + "}\nipv6-bits: 0", "rules.yaml:5:12: 0 is not from 1 to 128"},
		{"{}", "rules.yaml:1:1: there are no rules"},
		{rule + "}\nx: 1", `rules.yaml:5:1: unknown field "x"`},
		{strings.Replace(rule, "name: a", "name: ''", 1) + "}", `rules.yaml:2:11: "", want a name`},
		{strings.Replace(rule, "1m", "1", 1) + "}", `rules.yaml:4:53: "1" is no duration: want 30s, 5m, 12h, 7d`},
		{strings.Replace(rule, "1m", "0h0.0m", 1) + "}", "rules.yaml:4:53: 0s, want 1ms or more"},
		{rule + "}\nipv6-bits: 129", "rules.yaml:5:12: 129 is not from 1 to 128"},
		{rule + "}\nipv4-bits: 33", "rules.yaml:5:12: 33 is not from 1 to 32"},
		{rule + "}\nrobots: {x: 1}", `rules.yaml:5:10: unknown field "x"`},
		{rule + "}\nrobots: {own: [{name: x, tokens: [xbot], group: x}]}", "rules.yaml:5:9: robot \"x\": "},
		{algorithm + "per: month" + "}]}]", "a month is for algorithm: calendar: want 30s, 5m, 12h, 7d"},
		{algorithm + "per: 30d, algorithm: calendar" + "}]}]", `"30d" is no period of a calendar: want day, month, week`},
		{algorithm + "algorithm: calendar" + "}]}]", `"" is no period of a calendar: want day, month, week`},
		{algorithm + "per: month, algorithm: calendar, anchor: 32" + "}]}]", "32, want 0 to 31 in a month"},
		{algorithm + "per: 1m, lease: 30s" + "}]}]", "only hits of algorithm: in-flight have a lease"},
		{algorithm + "per: 1m, anchor: 2" + "}]}]", "only periods of algorithm: calendar have an anchor"},
		{algorithm + "per: 1m, zone: UTC" + "}]}]", "only periods of algorithm: calendar have a zone"},
		{algorithm + "algorithm: in-flight" + "}]}]", "no lease: want for how long one counts unless it is renewed"},
		{algorithm + "per: 1m, algorithm: in-flight}]}]", "rules.yaml:1:79: max is how many are under way at once: want lease instead"},
		{"rules: [{name: a, for: {robot: {group: x}}, either: [{name: x, value: x, max: 1, per: 1s}]}]", `rules.yaml:1:40: "x" is unknown: want search, ai, fetch, preview, feed, seo, monitor, archive`},
		{"rules: [{name: a, for: {robot: {standing: [person, x]}}, either: [{name: x, value: x, max: 1, per: 1s}]}]", `rules.yaml:1:52: "x" is unknown: want person, unknown, claimed, verified or impostor`},
		{"rules: [{name: a, for: {robot: {}}, either: [{name: x, value: x, max: 1, per: 1s}]}]", `rules.yaml:1:32: selects nobody: want name, group, standing or hoster`},
		{`proxy: {server: "http://a"}`, "no logins"},
		{`proxy: {server: a, ` + login + `}`, "no server"},
		{`proxy: {server: "ftp://a", ` + login + `}`, "no server"},
		{`proxy: {server: "http://a/b", ` + login + `}`, "the port alone"},
		{`proxy: {server: "http://u:p@a", ` + login + `}`, "the port alone"},
		{`proxy: {server: "http://a", timeout: 0s, ` + login + `}`, "up to 25s"},
		{`proxy: {server: "http://a", logins: [{name: {form: a}, right: {status: [302]}}]}`, "no path"},
		{`proxy: {server: "http://a", logins: [{for: {path: [a]}, name: {form: a}, right: {status: [302]}}]}`, "does not begin with /"},
		{`proxy: {server: "http://a", logins: [{for: {path: [/a]}, right: {status: [302]}}]}`, "no name"},
		{`proxy: {server: "http://a", logins: [{for: {path: [/a]}, name: {form: a}}]}`, "no answer is right"},
		{`proxy: {server: "http://a", logins: [{for: {path: [/a]}, name: {form: a}, right: {status: [100]}}]}`, "not from 200"},
		{`proxy: {server: "http://a", logins: [{for: {path: [/a]}, name: {form: a}, right: {location: [a]}}]}`, "does not begin with /"},
		{`proxy: {server: "http://a", logins: [{for: {path: [/a]}, name: {form: a}, missing: skip, right: {status: [302]}}]}`, "refuse or pass"},
		{`proxy: {server: "http://a", logins: [{for: {path: [/a], method: [POST]}, name: {form: a}, right: {status: [302]}}]}`, "unknown field"},
		{`proxy: {server: "http://a", logins: [{for: {path: [/a]}, name: {form: a}, right: {status: [302]}, wrong: {status: [1000]}}]}`, "not from 200"},
	} {
		refused(t, test.source, test.want)
		var value any
		require.NoError(t, yaml.Unmarshal([]byte(test.source), &value))
		assert.Error(t, schema.Validate(asJSON(t, value)), test.source)
	}
	for _, test := range []mistake{ // which no schema tells
		{"rules: [{name: a, for: {path: [/a]}, either: [{name: x, value: x, max: 1, lease: 1m, algorithm: in-flight}]}]", "rules.yaml:1:97: a proxy does not tell when a request has ended: add for: {api: true} to the rule, for programs that acquire and release"},
		{"rules:\n  - name: a\n\teither: []", "rules.yaml:3:1: found character '\t' that cannot start any token"},
		{"rules:\n  - name: a\n    name: b", `rules.yaml:3:5: mapping key "name" already defined at [2:5]`},
		{rule + "}\n---\na: b", "rules.yaml:6:1: a second document: a file holds one"},
		{strings.Replace(rule, "address", "adress", 1) + "}", "rules.yaml:4:27: {adress} is unknown: want one of address, network, prefix, method, host, path, route, user, robot, group, standing, asn, hoster, header:NAME, cookie:NAME, field:NAME"},
		{strings.Replace(rule, "address", "header", 1) + "}", "rules.yaml:4:27: {header} has no name: want {header:NAME}"},
		{strings.Replace(rule, "address", "user:x", 1) + "}", "rules.yaml:4:27: {user:x} has a name: want {user}"},
		{strings.Replace(rule, "{address}", "{user}{address}", 1) + "}", `rules.yaml:4:27: nothing separates {address} from the part before it: put one of "@|,; /#" in between`},
		{strings.Replace(rule, "{address}", "{address", 1) + "}", `rules.yaml:4:27: a { without a } in "{address"`},
		{strings.Replace(rule, "{address}", "address}", 1) + "}", `rules.yaml:4:27: a } without a { in "address}"`},
		{rule + "}\n    growth: 0.5", "rules.yaml:5:13: 0.5, want 0, or a number from 1"},
		{rule + "}\n    for: {path: [/a*]}", `rules.yaml:5:18: "/a*": a * stands for a whole segment, and ** for all that are left`},
		{rule + "}\n    for: {path: [/a//b]}", `rules.yaml:5:18: "/a//b" matches no path: paths are cleaned before they are compared`},
		{rule + "}\n    for: {path: [/a/../b]}", `rules.yaml:5:18: "/a/../b" matches no path: paths are cleaned before they are compared`},
		{rule + "}\n    for: {host: [\"a:80\"]}", `rules.yaml:5:18: "a:80" is no host: want a name, or *. and a name, in ASCII as xn--bcher-kva.example`},
		{rule + "}\n    for: {host: [bücher.example]}", `rules.yaml:5:18: "bücher.example" is no host: want a name, or *. and a name, in ASCII as xn--bcher-kva.example`},
		{rule + "}\n  - name: a\n    all: [{name: x, value: x, max: 1, per: 1s}]", `rules.yaml:5:11: rule 1 is called "a" too`},
		{rule + "}\n      - {name: ip, value: x, max: 1, per: 1s}", `rules.yaml:5:16: condition 1 is called "ip" too`},
		{rule + "}\ntrust: [64:ff9b::/96]", `rules.yaml:5:9: "64:ff9b::/96" stands for every IPv4 address: want 0.0.0.0/0 if that is meant`},
		{rule + "}\ntrust: [10.0.0.1/8]", `rules.yaml:5:9: "10.0.0.1/8" has bits beyond its network: want 10.0.0.0/8`},
		{rule + "}\ntrust: [proxy]", `rules.yaml:5:9: "proxy" is neither an address nor a network, want 192.0.2.7 or 192.0.2.0/24`},
		{rule + "}\ntrust: [0.0.0.0/0]", `rules.yaml:5:9: "0.0.0.0/0" trusts every client to say which address it has: want the addresses of your proxies`},
		{rule + "}\ntrust: ['::/0']", `rules.yaml:5:9: "::/0" trusts every client to say which address it has: want the addresses of your proxies`},
		{rule + "}\ntrust: [2 hops, 10.0.0.0/8]", `rules.yaml:5:9: "2 hops" stands beside other proxies: want only one of the two`},
		{rule + "}\ntrust: 0 hops", `rules.yaml:5:8: "0 hops" is neither an address nor a network, want 192.0.2.7 or 192.0.2.0/24`},
		{rule + "}\nforwarded: X Y", `rules.yaml:5:12: "X Y" is no header field: want a name, as X-Forwarded-For`},
		{strings.Replace(rule, "5", "010", 1) + "}", "rules.yaml:4:45: 010, want a whole number in digits, without a zero before it or quotation marks"},
		{rule + "}\nservers: ['http://a:1']", `rules.yaml:5:11: "http://a:1" is no server: want host:port, or the path of a socket`},
		{rule + "}\nservers: ['memcached://a:1']", `rules.yaml:5:11: "memcached://a:1" is no server: want host:port, or the path of a socket`},
		{rule + ", exempt: [10.0.0.1/8]}", `rules.yaml:4:66: "10.0.0.1/8" has bits beyond its network: want 10.0.0.0/8`},
		{rule + ", exempt: [x, 10.0.0.0/33]}", `rules.yaml:4:69: "10.0.0.0/33" is neither an address nor a network, want 192.0.2.7 or 192.0.2.0/24`},
		{rule + "}\n    for: {path: [/a%20b]}", `rules.yaml:5:18: "/a%20b": paths are compared decoded, want "/a b"`},
		{rule + "}\n    for: {api: true, path: [/a]}", `rules.yaml:5:16: a rule for the API selects no requests of proxies: leave out path, method, host, field and robot`},
		{rule + "}\nservers: ['::1']", `rules.yaml:5:11: "::1" is no server: want host:port, or the path of a socket`},
		{rule + "}\nservers: ['a:0']", `rules.yaml:5:11: "a:0" is no server: want host:port, or the path of a socket`},
		{rule + "}\nservers: ['a:65536']", `rules.yaml:5:11: "a:65536" is no server: want host:port, or the path of a socket`},
		{rule + "}\nservers: [/a, 'unix:/a']", `rules.yaml:5:15: server 1 is "unix:/a" too`},
		{strings.Replace(rule, "address", "route", 1) + "}", "rules.yaml:4:27: {route} is empty without for.path: want a path, or {path}"},
		{"envoy: [{domain: a}, {domain: a}]", `rules.yaml:1:31: domain "a" is there twice`},
		{"envoy: [{domain: a, descriptors: [{key: b}, {key: b}]}]", "rules.yaml:1:51: the same key and value is there twice"},
		{"envoy: [{domain: a, descriptors: [{key: b, rate_limit: {unit: day, unlimited: true}}]}]", "rules.yaml:1:63: a unit, although it is unlimited"},
		{"envoy: [{domain: a, descriptors: [{key: b, share_threshold: true}]}]", "rules.yaml:1:61: share_threshold needs a value with *"},
		{"envoy: [{domain: a, descriptors: [{key: b, rate_limit: {unit: day, name: x, replaces: [{name: x}]}}]}]", `rules.yaml:1:88: "x", want the name of another limit`},
		{"rules: " + strings.Repeat("[", 100_000), "rules.yaml:1:1: nested deeper than 32"},
		{algorithm + "per: week, algorithm: calendar, anchor: 8" + "}]}]", "8, want 0 to 7 in a week"},
		{algorithm + "per: day, algorithm: calendar, anchor: 2" + "}]}]", "2, want 0 to 1 in a day"},
		{algorithm + "per: day, algorithm: calendar, zone: Mars/Olympus" + "}]}]", `"Mars/Olympus" is no time zone: want a name as Europe/Berlin`},
		{algorithm + "per: day, algorithm: calendar, zone: Local" + "}]}]", `"Local" is no time zone: want a name as Europe/Berlin`},
		{algorithm + "algorithm: in-flight, lease: 50ms" + "}]}]", "50ms, want 100ms or more for hits in flight"},
		{"rules: [{name: a, for: {robot: {name: Gogglebot}}, either: [{name: x, value: x, max: 1, per: 1s}]}]", `rules.yaml:1:39: there is no robot "Gogglebot": add it to robots.own, or select standing: unknown`},
		{"robots: {own: [{name: X, tokens: xy, group: ai}]}\nrules: [{name: a, either: [{name: x, value: '{address}', max: 1, per: 1s}]}]", `rules.yaml:1:9: robot "X": token "xy" has fewer than 3 letters: it would match nearly every client; want more of its name`},
		{"robots: {lists: {X: [y]}}\nrules: [{name: a, either: [{name: x, value: '{address}', max: 1, per: 1s}]}]", `rules.yaml:1:21: Lists["X"]: there is no robot of that name: add it with its tokens and its group`},
		{"networks: {b: [no/file]}\nrules: [{name: a, either: [{name: x, value: '{address}', max: 1, per: 1s}]}]", `rules.yaml:1:15: open no/file: no such file or directory`},
		{"asn: no/file\nnetworks: {b: AS7}\nrules: [{name: a, either: [{name: x, value: '{address}', max: 1, per: 1s}]}]", `rules.yaml:1:6: open no/file: no such file or directory`},
		{`proxy: {server: "http://a", timeout: 26s, ` + login + `}`, "up to 25s"},
		{`proxy: {server: "http://a", logins: [{for: {path: [/a]}, name: {json: a..b}, right: {status: [302]}}]}`, "empty key"},
		{`proxy: {server: "http://a", logins: [{for: {path: [/a]}, name: {form: a, matches: "("}, right: {status: [302]}}]}`, "missing closing"},
		{`proxy: {server: "http://a", logins: [{for: {path: [/a]}, name: {form: a}, right: {cookie: ["*"]}}]}`, "no name of a cookie"},
		{`proxy: {server: "http://a", logins: [{for: {path: [/a]}, name: {basic: true}, missing: pass, right: {status: [207]}}]}`, "only bodies"},
	} {
		refused(t, test.source, test.want)
	}
}

// refused checks that the only mistake of a file is told.
func refused(t *testing.T, source, want string) {
	t.Helper()
	_, err := rulefile.Parse("rules.yaml", []byte(source))
	if assert.ErrorContains(t, err, want, "%.200s", source) {
		assert.NotContains(t, err.Error(), "\n", "%.200s", source)
	}
}

func TestARuleThatCountsAllClientsTogetherIsWarnedOf(t *testing.T) {
	const warning = "counts the requests of all clients together"
	for source, want := range map[string]string{
		`{rules: [{name: a, either: [{name: x, value: any, max: 1, per: 1s}]}]}`:                                              "rules.yaml:1:46: warning: " + warning,
		`{rules: [{name: a, all: [{name: y, value: "{address}", max: 1, per: 1s}, {name: x, value: any, max: 1, per: 1s}]}]}`: "rules.yaml:1:91: warning: " + warning,
		`{rules: [{name: a, for: {api: true}, either: [{name: x, value: any, max: 1, per: 1s}]}]}`:                            "",
		`{rules: [{name: a, for: {path: [/**]}, either: [{name: x, value: any, max: 1, per: 1s}]}]}`:                          "",
		`{rules: [{name: a, either: [{name: x, value: "any {address}", max: 1, per: 1s}]}]}`:                                  "",
	} {
		file := parse(t, source)
		if want == "" {
			assert.Empty(t, file.Warnings, source)
			continue
		}
		require.Len(t, file.Warnings, 1, source)
		assert.True(t, strings.HasPrefix(file.Warnings[0].String(), want), "%v", file.Warnings[0])
	}
}

func TestARuleForTheAPIIsForNoRequestOfAProxy(t *testing.T) {
	file := parse(t, `{rules: [{name: a, for: {api: true}, either: [{name: x, value: any, max: 1, per: 1s}]}]}`)
	assert.Empty(t, file.For(login("203.0.113.7", "alice")))
	assert.Empty(t, file.ForFields("", map[string]string{}))
	filled, err := file.Rule("a").WithValues(map[string]string{"x": "y"})
	require.NoError(t, err)
	assert.Len(t, filled.Either, 1)
}

func TestAllProblemsAreToldAtOnceFromTopToBottom(t *testing.T) {
	_, err := rulefile.Parse("rules.yaml", []byte(`trust: [a]
rules:
  - {name: a, for: {path: [x]}}
  - {name: a, either: [{name: x, value: "{y}", max: 1, per: 1}]}
failure: x
`))
	var problems rulefile.Problems
	require.ErrorAs(t, err, &problems)
	var lines []int
	for _, p := range problems {
		lines = append(lines, p.Line)
	}
	assert.Equal(t, []int{1, 3, 3, 4, 4, 4, 5}, lines)
	assert.Equal(t, "1 | trust: [a]\n  |         ^", problems[0].Excerpt)
}

func TestProxiesMayBeCountedOrPrivate(t *testing.T) {
	const rule = "\nrules: [{name: a, either: [{name: x, value: x, max: 1, per: 1s}]}]"
	for text, want := range map[string]struct {
		client string
		trusts map[string]bool
	}{
		"":                               {"198.51.100.1", map[string]bool{"127.0.0.1:9": true, "10.0.0.1:9": false}},
		"trust: 2 hops":                  {"203.0.113.7", map[string]bool{"127.0.0.1:9": true, "198.51.100.1:9": true}},
		"trust: [1 hop]":                 {"10.0.0.2", map[string]bool{"198.51.100.1:9": true}},
		"trust: private":                 {"198.51.100.1", map[string]bool{"10.0.0.1:9": true, "[fd00::1]:9": true, "198.51.100.1:9": false}},
		"trust: [198.51.100.1, private]": {"203.0.113.7", map[string]bool{"198.51.100.1:9": true, "192.168.1.1:9": true, "203.0.113.1:9": false}},
	} {
		file := parse(t, text+rule)
		r := httptest.NewRequest("GET", "/", nil)
		r.RemoteAddr = "198.51.100.1:9"
		r.Header.Set("X-Forwarded-For", "192.0.2.66, 203.0.113.7, 10.0.0.2")
		source := file.Source()
		assert.Equal(t, want.client, source.Addr(r).String(), text)
		for peer, trusted := range want.trusts {
			assert.Equal(t, trusted, file.Trusts(peer), "%s, %s", text, peer)
		}
	}
}

func TestAByteOrderMarkIsSkipped(t *testing.T) {
	file := parse(t, "\uFEFFrules: [{name: a, either: [{name: x, value: x, max: 1, per: 1s}]}]")
	assert.Len(t, file.Rules, 1)
}

func TestFieldsMayBeCalledAsNumbersAre(t *testing.T) {
	parse(t, `{rules: [{name: a, for: {field: {max: "010"}}, either: [{name: x, value: x, max: 1, per: 1s}]}]}`)
}

func TestDaysAreADuration(t *testing.T) {
	file := parse(t, `{rules: [{name: a, lockout: 40d, either: [{name: x, value: x, max: 1, per: 1.5d}]}]}`)
	rule := file.For(&rulefile.Request{})[0]
	assert.Equal(t, 960*time.Hour, rule.Lockout)
	assert.Equal(t, 36*time.Hour, rule.Either[0].TTL)
	for _, days := range []string{"-1d", "d", "1e99d", "1h1d", "NaNd"} {
		_, err := rulefile.Parse("x", []byte(`{rules: [{name: a, either: [{name: x, value: x, max: 1, per: `+days+`}]}]}`))
		assert.Error(t, err, days)
	}
}

// schema returns the JSON schema, which must be one.
func schema(t *testing.T) *jsonschema.Resolved {
	t.Helper()
	var s jsonschema.Schema
	require.NoError(t, json.Unmarshal([]byte(rulefile.Schema), &s))
	resolved, err := s.Resolve(nil)
	require.NoError(t, err)
	return resolved
}

func TestTheSchemaTakesWhatTheParserTakes(t *testing.T) {
	schema := schema(t)
	files, err := filepath.Glob("testdata/*.yaml")
	require.NoError(t, err)
	for _, name := range files {
		source, err := os.ReadFile(name)
		require.NoError(t, err)
		var value any
		require.NoError(t, yaml.Unmarshal(source, &value))
		assert.NoError(t, schema.Validate(asJSON(t, value)), name)
		_, err = rulefile.Parse(name, source)
		assert.NoError(t, err)
	}
}

// asJSON returns a value as encoding/json would have read it.
func asJSON(t *testing.T, value any) (same any) {
	t.Helper()
	text, err := json.Marshal(value)
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(text, &same))
	return same
}

// How bans grow is said for the rule, and the condition that bans may be left out.
func TestARuleWithoutItsConditionThatBansIsAGoodOne(t *testing.T) {
	file := parse(t, `{rules: [{name: a, growth: 2, max-lockout: 1d, either: [
		{name: ip, value: "{address}", max: 5, per: 1m}, {name: user, value: "{header:User}", missing: skip, max: 5, per: 1m, lockout: 10m}]}]}`)
	rules := file.For(login("203.0.113.7", "alice"))
	require.Len(t, rules, 1)
	assert.Len(t, rules[0].Either, 1)
	assert.NoError(t, rules[0].Validate())
	filled, err := file.Rule("a").WithValues(map[string]string{"ip": "203.0.113.7"})
	require.NoError(t, err)
	assert.NoError(t, filled.Validate())
	filled, err = file.Rule("a").WithValues(map[string]string{"ip": "203.0.113.7", "user": "alice"})
	require.NoError(t, err)
	assert.NoError(t, filled.Validate())
	assert.Equal(t, []any{2.0, 24 * time.Hour}, []any{filled.LockoutGrowth, filled.MaxLockout})
}

func FuzzParse(f *testing.F) {
	source, err := os.ReadFile("testdata/full.yaml")
	require.NoError(f, err)
	f.Add(source)
	f.Add([]byte("rules: *x"))
	f.Add([]byte("envoy: [{domain: d, descriptors: [{key: k, value: a*b*, share_threshold: true, rate_limit: {unit: day, requests_per_unit: 1}}]}]"))
	f.Add([]byte("a: &a [*a]"))
	f.Add([]byte("rules:\n  ! 00"))
	f.Fuzz(func(t *testing.T, source []byte) {
		file, err := rulefile.Parse("x", source)
		if err != nil {
			return
		}
		r := login("203.0.113.7", "alice")
		for _, rule := range file.For(r) {
			assert.NoError(t, rule.Validate(), "a file that is taken makes good rules")
		}
		limit, ok := file.Descriptor("d", []rulefile.Entry{{Key: "k", Value: "a1b2"}})
		if ok && !limit.Unlimited && limit.Rule.Either[0].Max > 0 {
			assert.NoError(t, limit.Rule.Validate(), "and good limits")
		}
	})
}

func TestARuleOfFirstIsOneOfTheThrottler(t *testing.T) {
	file, err := rulefile.Parse("x", []byte(`{rules: [{name: a, first: [{name: own, value: x, max: 1, per: 1s}, {name: pool, value: y, max: 2, per: 1s}]}]}`))
	require.NoError(t, err)
	assert.Equal(t, []throttler.Rule{{Identifier: "a", First: []throttler.Condition{
		{Name: "own", Value: "x", Max: 1, TTL: time.Second}, {Name: "pool", Value: "y", Max: 2, TTL: time.Second},
	}}}, file.For(login("203.0.113.7", "alice")))
}

func TestTheExampleOfTheManualIsTested(t *testing.T) {
	manual, err := os.ReadFile("../../../../docs/rules.md")
	require.NoError(t, err)
	example, err := os.ReadFile("testdata/manual.yaml")
	require.NoError(t, err)
	assert.Contains(t, string(manual), "```yaml\n"+string(example)+"```\n")
}

func TestEveryRuleFileOfTheManualsIsOne(t *testing.T) {
	manuals, err := filepath.Glob("../../../../docs/*.md")
	require.NoError(t, err)
	schema, read := schema(t), 0
	for _, name := range manuals {
		text, err := os.ReadFile(name)
		require.NoError(t, err)
		for i, block := range strings.Split(string(text), "```yaml\n")[1:] {
			block, _, _ = strings.Cut(block, "```")
			if !strings.HasPrefix(block, "rules:") && !strings.Contains(block, "\nrules:") && !strings.HasPrefix(block, "envoy:") && !strings.Contains("\n"+block, "\nproxy:") {
				continue // another program's
			}
			read++
			// The files that it names are beside it.
			_, err := rulefile.Parse(fmt.Sprint("testdata/lists/", filepath.Base(name), " ", i), []byte(block))
			assert.NoError(t, err)
			var value any
			require.NoError(t, yaml.Unmarshal([]byte(block), &value))
			assert.NoError(t, schema.Validate(asJSON(t, value)), "%s %d", name, i)
		}
	}
	assert.GreaterOrEqual(t, read, 5)
}
