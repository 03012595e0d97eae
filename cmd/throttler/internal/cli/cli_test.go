package cli_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/cmd/throttler/internal/cli"
	"github.com/adaptivethrottler/throttler/cmd/throttler/internal/logtest"
	"github.com/adaptivethrottler/throttler/internal/servertest"
	"github.com/adaptivethrottler/throttler/login"
	"github.com/adaptivethrottler/throttler/pool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// An answer is what a command has written.
type answer struct {
	status   int
	out, err string
}

func run(t *testing.T, args ...string) answer {
	t.Helper()
	return runWith(t, "", args...)
}

func runWith(t *testing.T, input string, args ...string) answer {
	t.Helper()
	var out, errs bytes.Buffer
	status := cli.Run(t.Context(), args, cli.Streams{In: strings.NewReader(input), Out: &out, Err: &errs})
	return answer{status, out.String(), errs.String()}
}

// words returns the rows of a table without its header, each as its columns
// separated by one blank.
func (a answer) rows() []string {
	var rows []string
	for line := range strings.Lines(a.out) {
		rows = append(rows, strings.Join(strings.Fields(line), " "))
	}
	return rows[1:]
}

// states reads an answer in JSON.
func (a answer) states(t *testing.T) []map[string]any {
	t.Helper()
	var states []map[string]any
	require.NoError(t, json.Unmarshal([]byte(a.out), &states), "%s%s", a.out, a.err)
	return states
}

// servers starts servers and returns them with the flag that names them.
func servers(t *testing.T, n int) (all []*servertest.Memcached, flag string) {
	t.Helper()
	var addrs []string
	for range n {
		s := servertest.NewMemcached(t)
		all, addrs = append(all, s), append(addrs, s.Addr)
	}
	return all, "-servers=" + strings.Join(addrs, ",")
}

// program is a throttler of a program that uses the servers. It is patient: a busy machine
// must not count as an outage.
func program(t *testing.T, flag string) *throttler.Throttler {
	t.Helper()
	p, err := pool.New(strings.Split(strings.TrimPrefix(flag, "-servers="), ",")...)
	require.NoError(t, err)
	t.Cleanup(func() { p.Close() })
	p.Timeout, p.DialTimeout, p.QueueTimeout = 10*time.Second, 10*time.Second, 10*time.Second
	return throttler.New(p)
}

func loginRule(ip string) throttler.Rule {
	return throttler.Rule{Identifier: "login", Lockout: time.Hour, Either: []throttler.Condition{
		{Name: "ip", Value: ip, Max: 2, TTL: time.Hour},
		{Name: "site", Value: "all", Max: 100, TTL: time.Hour, Algorithm: throttler.LeakyBucket, Lockout: -1},
	}}
}

func call(t *testing.T, th *throttler.Throttler, ip string, times int) throttler.Decision {
	t.Helper()
	var d throttler.Decision
	for range times {
		var err error
		d, err = th.Authorize(t.Context(), loginRule(ip))
		require.NoError(t, err)
		require.NoError(t, d.Err)
	}
	return d
}

func TestAPersonWhoIsLockedOutIsLetInAgain(t *testing.T) {
	_, memcached := servers(t, 3)
	_, redis, overRedis := overRedis(t)
	for flag, th := range map[string]*throttler.Throttler{memcached: program(t, memcached), redis: overRedis} {
		require.True(t, call(t, th, "203.0.113.7", 3).Outcomes[0].Banned)

		looked := run(t, "look", "login", "ip=203.0.113.7", "site=all", flag)
		require.Equal(t, 0, looked.status, looked.err)
		rows := looked.rows()
		require.Len(t, rows, 2)
		assert.Regexp(t, `^login ip 203.0.113.7 \d{4}-\d\d-\d\d \d\d:\d\d:\d\d, in (1h0m|59m\d+s) - - -$`, rows[0])
		assert.Regexp(t, `^login site all - bucket - in 1m(4\d|5\d)s$`, rows[1])

		lifted := run(t, "lift", "login", "ip=203.0.113.7", flag)
		assert.Equal(t, 0, lifted.status, lifted.err)
		assert.Equal(t, []string{"login ip 203.0.113.7 - 0 - -"}, lifted.rows())
		assert.Equal(t, throttler.Authorized, call(t, th, "203.0.113.7", 1).Status)
	}
}

// A lifted login is not banned again for the failures counted beside its record.
func TestAPersonWhoIsLockedOutOfALoginIsLetInAgain(t *testing.T) {
	_, flag := servers(t, 1)
	guard := login.New(program(t, flag))
	addr := netip.MustParseAddr("203.0.113.7")
	begin := func(name string) *login.Attempt {
		a, err := guard.Begin(t.Context(), name, addr)
		require.NoError(t, err)
		return a
	}
	for i := range 51 {
		require.NoError(t, begin(fmt.Sprint("victim", i)).Fail(t.Context()))
	}
	require.Equal(t, throttler.Blocked, begin("alice").Decision.Status)
	require.Zero(t, run(t, "lift", "login", "address=203.0.113.7", flag).status)
	for i := range 60 {
		require.NoError(t, begin(fmt.Sprint("user", i)).Succeed(t.Context()))
	}
}

func TestABanByHandHoldsForEveryProgram(t *testing.T) {
	_, memcached := servers(t, 3)
	_, redis, overRedis := overRedis(t)
	for flag, th := range map[string]*throttler.Throttler{memcached: program(t, memcached), redis: overRedis} {
		for _, value := range []string{"203.0.113.7", "al ice", "a=b", ""} {
			banned := run(t, "ban", "login", "ip="+value, "7d", "-json", flag)
			require.Equal(t, 0, banned.status, banned.err)
			d := call(t, th, value, 1)
			assert.True(t, d.Outcomes[0].Banned, "%q", value)
			assert.Greater(t, d.RetryAfter, 167*time.Hour)
			state := banned.states(t)[0]
			assert.Equal(t, value, state["value"])
			until, err := time.Parse(time.RFC3339, state["banned_until"].(string))
			require.NoError(t, err)
			assert.WithinDuration(t, time.Now().Add(7*24*time.Hour), until, time.Minute)
		}
	}
}

// bansFile is a rule file for bans by hand.
func bansFile(t *testing.T) string {
	t.Helper()
	return ruleFile(t, `
ipv6-bits: 56
rules:
  - name: login
    either:
      - {name: ip, value: "{address}", max: 2, per: 1m}
      - {name: net, value: "{network}", max: 2, per: 1m}
      - {name: key, value: "{header:X-Api-Key}", max: 2, per: 1m}
`)
}

// isBanned reports whether a value of the rule login is banned.
func isBanned(t *testing.T, th *throttler.Throttler, condition, value string) bool {
	t.Helper()
	d, err := th.Peek(t.Context(), throttler.Rule{Identifier: "login", Either: []throttler.Condition{{Name: condition, Value: value, Max: 2, TTL: time.Minute}}})
	require.NoError(t, err)
	return d.Outcomes[0].Banned
}

func TestABanIsOfWhatTheRuleFileCounts(t *testing.T) {
	_, flag := servers(t, 1)
	rules := "-rules=" + bansFile(t)
	for _, args := range [][]string{
		{"ban", "nope", "ip=203.0.113.7", "1h"}, {"ban", "login", "adress=203.0.113.7", "1h"}, {"ban", "login", "ip=", "1h"},
		{"ban", "login", "ip=203.0.113", "1h"}, {"lift", "login", "adress=203.0.113.7"}, {"look", "nope", "ip=203.0.113.7"},
		{"ban", "login", "ip=2001:db8::/64", "1h"}, {"ban", "login", "ip=10.0.0.0/8", "1h"}, {"ban", "login", "ip=10.0.0.1/24", "1h"},
	} {
		a := run(t, append(args, flag, rules)...)
		assert.Equal(t, 2, a.status, "%q", args)
		assert.NotEmpty(t, a.err, "%q", args)
		assert.Empty(t, a.out, "%q", args)
	}
	th := program(t, flag)
	banned := func(condition, value string) bool { return isBanned(t, th, condition, value) }
	for typed, want := range map[string]string{
		"ip=2001:DB8::0007": "2001:db8::7", "ip=::ffff:203.0.113.7": "203.0.113.7", "net=2001:DB8:0:1ff::9": "2001:db8:0:100::/56",
		"net=2001:db8:0:200::/56": "2001:db8:0:200::/56", "key=2001:DB8::0007": "2001:DB8::0007", "net=203.0.113.9/32": "203.0.113.9",
	} {
		condition, _, _ := strings.Cut(typed, "=")
		require.Equal(t, 0, run(t, "ban", "login", typed, "1h", flag, rules).status, typed)
		assert.True(t, banned(condition, want), "%s as %s", typed, want)
		assert.Regexp(t, `, in [0-9hm]+ +- +- +-`, run(t, "look", "login", typed, flag, rules).out, "a ban takes the place of hits")
		lifted := run(t, "lift", "login", typed, flag, rules)
		require.Equal(t, 0, lifted.status, typed)
		assert.False(t, banned(condition, want), "%s lifted", typed)
		assert.NotContains(t, lifted.out, "nothing was stored")
		assert.Contains(t, run(t, "lift", "login", typed, flag, rules).out, "nothing was stored for "+condition+"="+want+"\n")
	}
}

func TestABanOfANetworkBansItsAddresses(t *testing.T) {
	_, flag := servers(t, 2)
	th, rules := program(t, flag), "-rules="+bansFile(t)
	banned := func(condition, value string) bool { return isBanned(t, th, condition, value) }
	a := run(t, "ban", "login", "ip=203.0.112.0/23", "1h", flag, rules)
	require.Equal(t, 0, a.status, a.err)
	assert.Equal(t, "512 values from 203.0.112.0 to 203.0.113.255: 512 banned, 0 with hits, 0 unknown\n", a.out)
	for address, want := range map[string]bool{
		"203.0.111.255": false, "203.0.112.0": true, "203.0.112.255": true, "203.0.113.0": true, "203.0.113.255": true, "203.0.114.0": false,
	} {
		assert.Equal(t, want, banned("ip", address), address)
	}
	require.Equal(t, 0, run(t, "ban", "login", "net=2001:db8:1:8000::/50", "1h", flag, rules).status)
	for network, want := range map[string]bool{
		"2001:db8:1:7f00::/56": false, "2001:db8:1:8000::/56": true, "2001:db8:1:8100::/56": true, "2001:db8:1:bf00::/56": true, "2001:db8:1:c000::/56": false,
	} {
		assert.Equal(t, want, banned("net", network), network)
	}
	require.Equal(t, 0, run(t, "lift", "login", "ip=203.0.113.0/24", flag, rules).status)
	assert.False(t, banned("ip", "203.0.113.9"))
	assert.True(t, banned("ip", "203.0.112.9"))
}

func TestHitsAreShownWithTheirEnds(t *testing.T) {
	_, flag := servers(t, 1)
	call(t, program(t, flag), "203.0.113.7", 2)
	rules := writeRules(t, "")
	state := run(t, "look", "login", "ip=203.0.113.7", "-json", flag, "-rules", rules).states(t)[0]
	assert.EqualValues(t, 2, state["hits"])
	assert.EqualValues(t, 2, state["limit"])
	assert.Equal(t, true, state["full"])
	assert.Equal(t, "login#ip#203.0.113.7", state["key"])
	for _, name := range []string{"first_ends", "last_ends"} {
		ends, err := time.Parse(time.RFC3339, state[name].(string))
		require.NoError(t, err)
		assert.WithinDuration(t, time.Now().Add(time.Hour), ends, 30*time.Second)
	}
}

// ruleFile returns the path of a rule file.
func ruleFile(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "rules.yaml")
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

// writeRules writes a rule file like loginRule.
func writeRules(t *testing.T, servers string) string {
	t.Helper()
	return ruleFile(t, fmt.Sprintf(`
servers: [%s]
rules:
  - name: login
    either:
      - {name: ip, value: "{address}", max: 2, per: 1h}
      - {name: site, value: all, max: 100, per: 1h, algorithm: bucket, lockout: none}
    lockout: 1h
`, servers))
}

func TestAListShowsWhoIsBannedOnEveryServer(t *testing.T) {
	all, flag := servers(t, 3)
	th := program(t, flag)
	for i := range 300 {
		call(t, th, fmt.Sprint("10.0.0.", i), 1)
	}
	for i := range 20 {
		call(t, th, fmt.Sprint("10.0.1.", i), 3)
	}
	call(t, th, "full", 2)
	call(t, th, "with blank", 3)
	require.NoError(t, th.Ban(t.Context(), throttler.Rule{Identifier: "site", Either: []throttler.Condition{{Name: "ip", Value: "x", Max: 1, TTL: time.Minute}}}, time.Hour))
	all[0].Command(t, "set other#program#key 0 0 5\r\nhello")

	keys := func(args ...string) map[string]string {
		listed := run(t, append(args, "list", "-json", flag)...)
		require.Equal(t, 0, listed.status, listed.err)
		found := map[string]string{}
		for _, s := range listed.states(t) {
			found[s["key"].(string)] = s["server"].(string)
		}
		return found
	}
	bans := keys()
	assert.Len(t, bans, 22, "20, one by its hash, and one of another rule")
	assert.Contains(t, bans, "login#ip#10.0.1.19")
	assert.Contains(t, bans, "site#ip#x")
	perServer := map[string]int{}
	for _, server := range bans {
		perServer[server]++
	}
	assert.Greater(t, len(perServer), 1, "where keys go depends on the ports")

	assert.Len(t, keys("-rules", writeRules(t, "")), 24, "and by the rule file what is full: a window, and the bucket of the site")
	assert.Len(t, run(t, "list", "login", "-json", flag).states(t), 20, "a hash tells no rule")
	assert.Len(t, run(t, "list", "-bans", "-json", "-rules", writeRules(t, ""), flag).states(t), 22)
	assert.Len(t, run(t, "list", "-all", "-json", flag).states(t), 22+300+1+1, "and all that have hits: addresses, the full one, and the bucket of the site")
}

func TestAListShowsEachRecordOnce(t *testing.T) {
	_, flag := servers(t, 1)
	th := program(t, flag)
	for i := range 450 { // more than are read at once
		call(t, th, fmt.Sprint("10.0.0.", i), 1)
	}
	seen := map[any]bool{}
	states := run(t, "list", "-all", "-json", flag).states(t)
	for _, s := range states {
		seen[s["key"]] = true
	}
	assert.Len(t, states, 451)
	assert.Len(t, seen, 451)
}

func TestServersThatDoNotAnswerAreNamed(t *testing.T) {
	all, flag := servers(t, 2)
	call(t, program(t, flag), "203.0.113.7", 1)
	all[1].Kill()

	shown := run(t, "servers", flag)
	assert.Equal(t, 1, shown.status)
	rows := shown.rows()
	require.Len(t, rows, 2)
	assert.Regexp(t, `^`+all[0].Addr+` up 1\.\S+ \S+ \d+ \S+ K?i?B of 64 MiB \d+ nothing since it was started$`, rows[0])
	assert.Regexp(t, `^`+all[1].Addr+` down - - - - - .*connection refused$`, rows[1])
	assert.Contains(t, shown.err, "server "+all[1].Addr+": ")
	assert.NotContains(t, shown.err, "server "+all[0].Addr)

	listed := run(t, "list", "-all", flag)
	assert.Equal(t, 1, listed.status)
	assert.Contains(t, listed.err, "server "+all[1].Addr+": ")

	failed := 0
	for i := range 20 {
		looked := run(t, "look", "login", fmt.Sprint("ip=", i), flag)
		if looked.status == 1 {
			failed++
			assert.Contains(t, looked.err, all[1].Addr)
			assert.Contains(t, looked.out, "unknown")
		}
		banned := run(t, "ban", "login", fmt.Sprint("ip=", i), "1h", flag)
		assert.Equal(t, looked.status, banned.status)
		assert.Equal(t, looked.status, run(t, "lift", "login", fmt.Sprint("ip=", i), flag).status)
	}
	assert.Positive(t, failed)
	assert.Less(t, failed, 20)
}

func TestServersTellWhatTheyForgot(t *testing.T) {
	all, flag := servers(t, 1)
	all[0].Command(t, "flush_all")
	assert.Contains(t, run(t, "servers", flag).out, "flushed 1 times")
	var shown []map[string]any
	require.NoError(t, json.Unmarshal([]byte(run(t, "servers", "-json", flag).out), &shown))
	assert.EqualValues(t, 1, shown[0]["flushes"])
	assert.Equal(t, true, shown[0]["up"])
}

func TestServersComeFromTheFlagTheEnvironmentOrTheRuleFile(t *testing.T) {
	all, flag := servers(t, 1)
	none := run(t, "servers")
	assert.Equal(t, 2, none.status)
	assert.Contains(t, none.err, "no servers: give -servers or -store, set THROTTLER_SERVERS or THROTTLER_STORE, or name them in a rule file")

	assert.Contains(t, run(t, "servers", "-rules", writeRules(t, `"`+all[0].Addr+`"`)).out, all[0].Addr)
	t.Setenv("THROTTLER_SERVERS", "127.0.0.1:1")
	assert.Contains(t, run(t, "servers").out, "127.0.0.1:1")
	assert.Contains(t, run(t, "servers", flag).out, all[0].Addr, "the flag comes first")
}

func TestAWrongCommandLineIsStatusTwo(t *testing.T) {
	for _, args := range [][]string{
		{"unban"}, {"look"}, {"look", "login"}, {"look", "login", "ip", "-servers=127.0.0.1:1"},
		{"look", "login", "=x", "-servers=127.0.0.1:1"}, {"ban", "login", "ip=1", "-servers=127.0.0.1:1"},
		{"ban", "login", "1h", "-servers=127.0.0.1:1"}, {"ban", "login", "ip=1", "-1h", "-servers=127.0.0.1:1"},
		{"ban", "login", "ip=1", "0s", "-servers=127.0.0.1:1"}, {"list", "-nonsense"}, {"check"},
		{"serve", "-rules=x", "-json"}, {"serve", "-rules=x", "-log=xml"}, {"serve", "-rules=x", "-log-level=loud"},
	} {
		a := run(t, args...)
		assert.Equal(t, 2, a.status, "%q: %s", args, a.err)
		assert.NotEmpty(t, a.err, "%q", args)
		assert.Empty(t, a.out, "%q", args)
	}
	assert.Equal(t, 0, run(t, "-help").status)
}

func TestAWrongCommandLineIsToldWhereTheHelpIs(t *testing.T) {
	for args, want := range map[string]string{
		"unban": `"throttler -h"`, "look": `"throttler look -h"`, "list -nonsense": `"throttler list -h"`,
	} {
		assert.Contains(t, run(t, strings.Fields(args)...).err, "Run "+want+" for help.\n", "%q", args)
	}
}

func TestHelpIsACommandToo(t *testing.T) {
	assert.Equal(t, run(t, "-h"), run(t, "help"))
	assert.Equal(t, run(t, "-h"), run(t))
	assert.Equal(t, run(t, "lift", "-h"), run(t, "help", "lift"))
	assert.Contains(t, run(t, "help", "lift").out, "--holder=ID")
}

func TestTheHelpTellsWhereTheServiceListens(t *testing.T) {
	help := run(t, "serve", "-h").out
	for name, address := range cli.DefaultsOfServe() {
		if strings.HasPrefix(address, "127.") {
			assert.Contains(t, help, fmt.Sprintf("-%s=%q", name, address))
		}
	}
}

// manual returns a page, where a row of `-NAME-cert` is one for each address.
func manual(t *testing.T, page string) string {
	t.Helper()
	text, err := os.ReadFile("../../../../docs/" + page)
	require.NoError(t, err)
	return regexp.MustCompile("(?m)^\\| `-NAME-.*\n").ReplaceAllStringFunc(string(text), func(row string) (rows string) {
		for _, name := range []string{"listen", "admin", "envoy", "api", "proxy"} {
			rows += strings.ReplaceAll(row, "NAME", name)
		}
		return rows
	})
}

func TestFlagsOfTheManualAreKnown(t *testing.T) {
	for _, page := range []string{"service.md", "proxies.md"} {
		for _, row := range regexp.MustCompile("(?m)^\\| (`-.*?) \\|").FindAllStringSubmatch(manual(t, page), -1) {
			for _, flag := range regexp.MustCompile("`(-[a-z-]+)`").FindAllStringSubmatch(row[1], -1) {
				a := run(t, "serve", flag[1]+"=1s", "-rules=/nonexistent")
				assert.NotContains(t, a.err, "unknown flag", "%s of %s", flag[1], page)
				assert.Regexp(t, "/nonexistent|must be one of", a.err, "%s of %s", flag[1], page)
			}
		}
	}
	for _, flag := range []string{"-api-cert", "-api-cert-key", "-api-client-ca"} {
		a := run(t, "serve", flag, "x", "-rules", "/nonexistent")
		assert.Contains(t, a.err, "/nonexistent", "with a blank: %s", flag)
	}
}

// The rows of one flag, with its default, and its name in the first column.
var flagRow = regexp.MustCompile("(?m)^\\| `(-[a-z-]+)`(?:, `(-[a-z-]+)`)* \\| (?:`([^`]*)`)? *\\|")

func TestTheManualHasEachFlagOfServeWithItsDefault(t *testing.T) {
	told := map[string]string{}
	for _, page := range []string{"service.md", "login-proxy.md"} {
		for _, row := range flagRow.FindAllStringSubmatch(manual(t, page), -1) {
			for _, flag := range slices.DeleteFunc(row[1:3], func(flag string) bool { return flag == "" }) {
				told[flag] = row[3]
			}
		}
	}
	assert.Equal(t, cli.DefaultsOfServe(), told)
}

func TestCheckSaysWhatIsWrongAndWhere(t *testing.T) {
	good := run(t, "check", writeRules(t, ""))
	assert.Equal(t, 0, good.status, good.err)
	assert.Regexp(t, `rules.yaml: ok\n$`, good.out)

	assert.Contains(t, good.out, "rules.yaml:7:29: warning: counts the requests of all clients together")
	assert.Equal(t, true, run(t, "check", "-json", writeRules(t, "")).states(t)[0]["warning"])

	const down = "127.0.0.1:1"
	unasked := run(t, "check", "-offline", writeRules(t, down))
	assert.Equal(t, 0, unasked.status, unasked.out)
	silent := run(t, "check", writeRules(t, down))
	assert.Equal(t, 1, silent.status)
	assert.Contains(t, silent.out, "server "+down+": ")
	assert.NotContains(t, silent.out, "ok")

	path := ruleFile(t, "rules:\n  - name: a\n    either: [{name: ip, value: x, max: 0, per: 1s}]\n")
	wrong := run(t, "check", path)
	assert.Equal(t, 1, wrong.status)
	assert.Equal(t, path+":3:40: 0, want 1 to 1000000\n  3 |     either: [{name: ip, value: x, max: 0, per: 1s}]\n    |                                        ^\n", wrong.out)
	assert.Empty(t, wrong.err)

	problems := run(t, "check", "-json", path).states(t)
	require.Len(t, problems, 1)
	assert.EqualValues(t, 3, problems[0]["line"])
	assert.EqualValues(t, 40, problems[0]["column"])

	missing := run(t, "check", path+"x")
	assert.Equal(t, 1, missing.status)
	assert.Contains(t, missing.err, "no such file")

	schema := run(t, "check", "-schema")
	assert.True(t, json.Valid([]byte(schema.out)))
}

// accessLog is 30 requests in 30 s of a robot, 3 of a person, and nonsense.
func accessLog() string {
	var b strings.Builder
	start := time.Date(2026, 11, 21, 22, 0, 0, 0, time.UTC)
	for i := range 30 {
		at := start.Add(time.Duration(i) * time.Second).Format("02/Jan/2006:15:04:05 -0700")
		fmt.Fprintf(&b, "203.0.113.9 - - [%s] \"GET /page/%d HTTP/1.1\" 200 12 \"-\" \"robot \\\"x\\\" 1.0\"\n", at, i)
		if i%10 == 0 {
			fmt.Fprintf(&b, "2001:db8::7 - alice [%s] \"POST /login HTTP/1.1\" 302 0\n", at)
		}
	}
	b.WriteString("203.0.113.9 - - [21/Nov/2026:21:00:00 +0000] \"GET /late HTTP/1.1\" 200 1\n") // a slow answer
	b.WriteString("garbage\n")
	return b.String()
}

func TestALogIsReplayedAtItsOwnTimes(t *testing.T) {
	path := ruleFile(t, `
rules:
  - name: pages
    for: {path: [/page/*]}
    either: [{name: agent, value: "{address} {header:User-Agent}", max: 5, per: 10s}]
  - name: login
    for: {path: [/login], method: [POST]}
    either: [{name: user, value: "{user}", max: 1, per: 15s}]
  - name: keys
    either: [{name: key, value: "{header:X-Api-Key}", max: 1, per: 1h}]
`)
	start := time.Now()
	tried := runWith(t, accessLog(), "try", path, "-json")
	require.Equal(t, 0, tried.status, tried.err)
	assert.Less(t, time.Since(start), 20*time.Second, "not in the log's own time")
	var trial struct {
		Lines, Skipped, Requests, Blocked int
		NotTried                          map[string][]string `json:"not_tried"`
		Rules                             []struct {
			Rule       string
			Requests   int
			Blocked    int
			Conditions []struct {
				Values []struct {
					Value string
					Count int
				}
			}
		}
	}
	require.NoError(t, json.Unmarshal([]byte(tried.out), &trial))
	assert.Equal(t, 35, trial.Lines)
	assert.Equal(t, 1, trial.Skipped)
	assert.Equal(t, 34, trial.Requests)
	// The robot has 5 requests in each 10 s, 15 of 30. Alice's second comes 10 s
	// after her first, her third 20 s.
	assert.Equal(t, 15+1, trial.Blocked)
	require.Len(t, trial.Rules, 2)
	assert.Equal(t, map[string][]string{"keys": {"header:X-Api-Key"}}, trial.NotTried)
	byRule := map[string]int{}
	for _, r := range trial.Rules {
		byRule[r.Rule] = r.Blocked
	}
	assert.Equal(t, map[string]int{"pages": 15, "login": 1}, byRule)

	people := runWith(t, accessLog(), "try", path)
	assert.Contains(t, people.out, "34 requests from 2026-11-21T22:00:00Z to 2026-11-21T22:00:29Z: 16 (47.06 %) would have been blocked\n")
	assert.Contains(t, people.out, "1 of 35 lines were not understood")
	assert.Contains(t, people.out, `"203.0.113.9 robot%20\"x\"%201.0"`)
	assert.Contains(t, people.out, "rule keys was not tried: the log does not have header:X-Api-Key")
}

// A client may leave a field out, a log cannot hold what its format has no room for: a rule
// that counts it would take all clients for one.
func TestRulesThatCountWhatTheLogDoesNotHoldAreNotTried(t *testing.T) {
	path := filepath.Join(t.TempDir(), "rules.yaml")
	rule := "  - {name: %s, either: [{name: value, value: \"{%s}\", max: 1, per: 1h}]}\n"
	require.NoError(t, os.WriteFile(path, []byte("rules:\n"+fmt.Sprintf(rule, "agents", "header:User-Agent")+
		fmt.Sprintf(rule, "pages", "header:referer")+fmt.Sprintf(rule, "users", "user")), 0o600))
	const common = `203.0.113.9 - %s [21/Nov/2026:22:00:00 +0000] "GET /%%[1]d HTTP/1.1" 200 12`
	const caddy = `{"ts":1795298400.5,%s"request":{"remote_ip":"203.0.113.9","method":"GET","host":"example.org","uri":"/%%[1]d"%s}}`
	const nginx = `{"time_iso8601":"2026-11-21T22:00:00+00:00","remote_addr":"203.0.113.9","request":"GET /%%[1]d HTTP/1.1"%s}`
	const traefik = `{"ClientHost":"203.0.113.9","RequestMethod":"GET","RequestPath":"/%%[1]d","StartUTC":"2026-11-21T22:00:00Z"%s}`
	for name, log := range map[string]struct {
		line string // %[1]d is another in each
		not  string // tried
	}{
		"common":        {fmt.Sprintf(common, "user%[1]d"), "agents pages"},
		"combined":      {fmt.Sprintf(common, "user%[1]d") + ` "/%[1]d" "robot %[1]d"`, ""},
		"caddy":         {fmt.Sprintf(caddy, `"user_id":"user%[1]d",`, `,"headers":{"User-Agent":["robot %[1]d"],"Referer":["/%[1]d"]}`), ""},
		"caddy, less":   {fmt.Sprintf(caddy, "", ""), "agents pages users"},
		"nginx":         {fmt.Sprintf(nginx, `,"remote_user":"user%[1]d","http_referer":"/%[1]d","http_user_agent":"robot %[1]d"`), ""},
		"nginx, less":   {fmt.Sprintf(nginx, ""), "agents pages users"},
		"nginx, more":   {fmt.Sprintf(nginx, `,"user_id":%[1]d,"ClientUsername":"user%[1]d","ts":"%[1]d"`), "agents pages users"},
		"traefik":       {fmt.Sprintf(traefik, `,"ClientUsername":"user%[1]d","request_Referer":"/%[1]d","request_User-Agent":"robot %[1]d"`), ""},
		"traefik, less": {fmt.Sprintf(traefik, `,"ClientUsername":"user%[1]d"`), "agents pages"},
	} {
		var lines strings.Builder
		for i := range 10 {
			fmt.Fprintf(&lines, log.line+"\n", i)
		}
		tried := runWith(t, lines.String(), "try", path)
		assert.Equal(t, 0, tried.status, "%s: %s", name, tried.err)
		assert.Contains(t, tried.out, "10 requests from 2026-11-21T22:00:00Z to 2026-11-21T22:00:00Z: 0 (0.00 %) would have been blocked\n", name)
		for rule, attribute := range map[string]string{"agents": "header:User-Agent", "pages": "header:referer", "users": "user"} {
			said := strings.Contains(tried.out, "rule "+rule+" was not tried: the log does not have "+attribute+"\n")
			assert.Equal(t, slices.Contains(strings.Fields(log.not), rule), said, "%s: %s", name, tried.out)
		}
		again := runWith(t, lines.String()+lines.String(), "try", path)
		assert.Equal(t, log.not == "agents pages users", strings.Contains(again.out, ": 0 (0.00 %)"), "%s: %s", name, again.out)
	}
}

func TestLinesOfALogAreReadOrNotUnderstood(t *testing.T) {
	path := ruleFile(t, `
rules:
  - name: agents
    for: {path: [/page], method: [GET]}
    either: [{name: agent, value: "{address} {header:User-Agent}", max: 1, per: 10s}]
  - name: host
    for: {path: [/none], host: [example.org]}
    either: [{name: address, value: "{address}", max: 1, per: 10s}]
`)
	line := func(at, target string) string {
		return fmt.Sprintf("203.0.113.9 - - [%s] \"GET /page%s HTTP/1.1\" 200 12 \"-\" \"robot\"\n", at, target)
	}
	const now = "21/Nov/2026:22:00:00 +0000"
	long := strings.Repeat("a", 3<<20)
	twice := func(line string) string { return line + "\n" + line + "\n" }
	for name, c := range map[string]struct {
		log, not string // understood
		hasHost  bool
	}{
		"vhost_combined": {twice(`example.org:443 203.0.113.9 - - [` + now + `] "GET /page HTTP/1.1" 200 12 "-" "robot"`), "", true},
		"caddy":          {twice(`{"level":"info","ts":1795298400.5,"request":{"remote_ip":"203.0.113.9","remote_port":"1","method":"GET","host":"example.org","uri":"/page?x","headers":{"User-Agent":["robot"]}},"status":200}`), "", true},
		"nginx":          {twice(`{"time_iso8601":"2026-11-21T22:00:00+00:00","remote_addr":"203.0.113.9","request":"GET /page HTTP/1.1","host":"example.org","http_user_agent":"robot"}`), "", true},
		"nginx by parts": {twice(`{"time_local":"` + now + `","remote_addr":"203.0.113.9","request_method":"GET","request_uri":"/page","host":"example.org","http_user_agent":"robot"}`), "", true},
		"traefik":        {twice(`{"ClientHost":"203.0.113.9","RequestMethod":"GET","RequestPath":"/page","RequestHost":"example.org","StartUTC":"2026-11-21T22:00:00.1Z","request_User-Agent":"robot"}`), "", true},
		"no clock":       {line("01/Jan/1970:00:00:05 +0100", "") + line(now, "") + line("21/Nov/2300:22:00:00 +0000", "") + line(now, ""), "2 of 4 lines", false}, // begins in 1970, also east of Greenwich
		"an attacker":    {line(now, "") + line(now, "?"+long) + line(now, "?"+long[:1<<10]) + strings.TrimSpace(line(now, long)), "2 of 4 lines were not understood, the first because: it is longer than 1048576 bytes", false},
	} {
		tried := runWith(t, c.log, "try", path)
		assert.Equal(t, 0, tried.status, "%s: %s", name, tried.err)
		assert.Contains(t, tried.out, "2 requests from 2026-11-21T22:00:00Z to 2026-11-21T22:00:00Z: 1 (50.00 %) would have been blocked\n", name)
		assert.Contains(t, tried.out, c.not, name)
		assert.Equal(t, c.not != "", strings.Contains(tried.out, "not understood"), name)
		assert.Equal(t, !c.hasHost, strings.Contains(tried.out, "rule host was not tried"), name)
	}
}

func TestALogInAnotherFormatIsAnError(t *testing.T) {
	tried := runWith(t, "{\"json\": 1}\n", "try", writeRules(t, ""))
	assert.Equal(t, 1, tried.status)
	assert.Contains(t, tried.err, "no line can be used: want the common, combined or vhost_combined log format or JSON, with times since 1970: no time")
	missing := run(t, "try", "/nonexistent.yaml")
	assert.Equal(t, 1, missing.status)
}

func TestAttackersDoNotWriteToTheTerminal(t *testing.T) {
	_, flag := servers(t, 1)
	call(t, program(t, flag), "\x1b[2Jx", 3)
	out := run(t, "look", "login", "ip=\x1b[2Jx", flag).out
	assert.NotContains(t, out, "\x1b")
	assert.Contains(t, out, `"\x1b[2Jx"`)
}

func TestAListOfAServerThatDoesNotAnswerIsNotCalledEmpty(t *testing.T) {
	all, flag := servers(t, 1)
	assert.Equal(t, answer{0, "nothing\n", ""}, run(t, "list", flag))
	all[0].Stop()
	listed := run(t, "list", flag)
	assert.Equal(t, 1, listed.status)
	assert.Empty(t, listed.out)
	assert.Equal(t, "[]\n", run(t, "list", "-json", flag).out)
}

func TestAnInterruptEndsACommand(t *testing.T) {
	all, flag := servers(t, 1)
	all[0].Pause()
	for _, args := range [][]string{
		{"list"}, {"servers"}, {"look", "login", "ip=1"}, {"ban", "login", "ip=1", "1h"}, {"lift", "login", "ip=1"},
	} {
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(200*time.Millisecond, cancel)
		start := time.Now()
		var errs bytes.Buffer
		status := cli.Run(ctx, append(args, flag), cli.Streams{Out: new(bytes.Buffer), Err: &errs})
		assert.Equal(t, 1, status, args)
		assert.NotContains(t, errs.String(), "timeout", args)
		if args[0] == "servers" { // it takes 3 s, and then says the same
			assert.Less(t, time.Since(start), 3*time.Second)
		}
	}
}

// flakyList is a proxy of a server whose first lists of keys end early: the first
// is refused, the second is cut off.
func flakyList(t *testing.T, server string) (address string) {
	t.Helper()
	var lists atomic.Int64
	return servertest.Serve(t, func(conn net.Conn) {
		upstream, err := net.Dial("tcp", server)
		if err != nil {
			return
		}
		defer upstream.Close()
		go io.Copy(conn, upstream)
		for r := bufio.NewReader(conn); ; {
			line, err := r.ReadString('\n')
			if err != nil {
				return
			}
			if strings.HasPrefix(line, "lru_crawler") {
				switch lists.Add(1) {
				case 1, 2: // "hash", and then "all"
					io.WriteString(conn, "BUSY currently processing crawler request\r\n")
					continue
				case 3:
					io.WriteString(conn, "key=login%23ip%2310.0.0.1 exp=-1 la=1\r\n")
					return
				}
			}
			io.WriteString(upstream, line)
		}
	})
}

func TestAListThatIsRefusedOrCutOffIsBegunAgain(t *testing.T) {
	all, flag := servers(t, 1)
	th := program(t, flag)
	for i := range 500 {
		call(t, th, fmt.Sprint("10.0.0.", i), 1)
	}
	listed := run(t, "list", "-all", "-json", "-servers="+flakyList(t, all[0].Addr))
	require.Equal(t, 0, listed.status, listed.err)
	assert.Len(t, listed.states(t), 501)
}

func TestAServerThatWantsALoginGetsIt(t *testing.T) {
	users := filepath.Join(t.TempDir(), "users")
	require.NoError(t, os.WriteFile(users, []byte("operator:s3cret\n"), 0o600))
	flag := "-servers=" + servertest.NewMemcached(t, "-Y", users).Addr
	for _, args := range [][]string{{"servers", flag}, {"list", flag}, {"ban", "login", "ip=1", "1h", flag}} {
		assert.Equal(t, 1, run(t, args...).status, "%q without a login", args)
	}
	t.Setenv("THROTTLER_USER", "operator")
	t.Setenv("THROTTLER_PASSWORD", "s3cret")
	for _, args := range [][]string{{"ban", "login", "ip=1", "1h", flag}, {"servers", flag}, {"list", flag}} {
		answer := run(t, args...)
		assert.Equal(t, 0, answer.status, "%q: %s", args, answer.err)
	}
}

func TestAServiceTakesItsKeysFromTheEnvironment(t *testing.T) {
	t.Setenv("THROTTLER_API_KEYS", "the-new-key-of-this-service, the-old-key-of-this-service")
	t.Setenv("THROTTLER_TOKEN_KEY", "what all replicas know")
	all, _ := servers(t, 1)
	ctx, stop := context.WithCancel(t.Context())
	var log logtest.Log
	ended := make(chan int, 1)
	go func() {
		ended <- cli.Run(ctx, []string{"serve", "-rules", writeRules(t, `"`+all[0].Addr+`"`), "-listen", "127.0.0.1:0", "-admin", "", "-envoy", "", "-api", "127.0.0.1:0"},
			cli.Streams{Out: &log, Err: &log})
	}()
	var api []string
	require.Eventually(t, func() bool {
		api = regexp.MustCompile(`api=(\S+)`).FindStringSubmatch(log.String())
		return api != nil
	}, 30*time.Second, 10*time.Millisecond)
	for key, want := range map[string]int{"the-new-key-of-this-service": 200, "the-old-key-of-this-service": 200, "x": 401} {
		r, err := http.NewRequest("POST", "http://"+api[1]+"/v1/authorize", strings.NewReader(`{"rule":"login","values":{"ip":"203.0.113.7","site":"all"}}`))
		require.NoError(t, err)
		r.Header.Set("Authorization", "Bearer "+key)
		r.Header.Set("Content-Type", "application/json")
		answer, err := http.DefaultClient.Do(r)
		require.NoError(t, err)
		answer.Body.Close()
		assert.Equal(t, want, answer.StatusCode, key)
	}
	stop()
	assert.Equal(t, 0, <-ended)
	assert.NotContains(t, log.String(), "THROTTLER_TOKEN_KEY", "it is set")
}
