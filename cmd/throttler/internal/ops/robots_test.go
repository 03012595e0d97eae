package ops_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/adaptivethrottler/throttler/cmd/throttler/internal/ops"
	"github.com/adaptivethrottler/throttler/cmd/throttler/internal/rulefile"
	"github.com/adaptivethrottler/throttler/robots"
)

// line is a line of a log in the combined format, a second after the one before.
func line(n int, addr, agent string) string {
	at := time.Date(2026, 11, 27, 10, 0, n, 0, time.UTC).Format("02/Jan/2006:15:04:05 -0700")
	return fmt.Sprintf("%s - - [%s] \"GET /page HTTP/1.1\" 200 12 \"-\" %s\n", addr, at, agent)
}

// robotRules are rules about robots, with a list for Googlebot.
func robotRules(t *testing.T) *rulefile.File {
	t.Helper()
	file, err := rulefile.Load("../rulefile/testdata/robots.yaml")
	require.NoError(t, err)
	return file
}

func TestLinesWithMalformedAgentsAreReplayed(t *testing.T) {
	file, err := rulefile.Parse("r.yaml", []byte(`rules: [{name: agents, either: [{name: agent, value: "{header:User-Agent}", max: 1, per: 1h}]}]`))
	require.NoError(t, err)
	for agent, want := range map[string]string{
		`"curl"`:                   "curl",
		`"curl`:                    "curl",
		`"cu"rl"`:                  `"cu\"rl"`,
		`"curl\"`:                  `"curl\\"`,
		`"Moz [1"`:                 `"Moz [1"`,
		`Moz [1`:                   `Moz`,
		`"a" "b" "c`:               "a",
		`"a""`:                     `a`,
		`"Googlebot\x22 \x5C" "-"`: `"Googlebot\\x22 \\x5C"`,
	} {
		var out bytes.Buffer
		o := &ops.Operator{Rules: file, Out: &out}
		log := line(0, "9.0.0.1", `"x"`) + line(1, "9.0.0.1", agent) + line(2, "9.0.0.1", agent)
		require.NoError(t, o.Try(t.Context(), strings.NewReader(log), 0))
		assert.Contains(t, out.String(), "3 requests", agent)
		assert.NotContains(t, out.String(), "not understood", agent)
		assert.Regexp(t, `\n    `+regexp.QuoteMeta(want)+` +1\n`, out.String(), agent)
	}
	// A referer that is not closed takes the agent with it, but the request counts.
	var out bytes.Buffer
	o := &ops.Operator{Rules: file, Out: &out}
	broken := strings.Replace(line(1, "9.0.0.1", `"curl"`), `"-"`, `"ref"erer"`, 1)
	require.NoError(t, o.Try(t.Context(), strings.NewReader(line(0, "9.0.0.1", `"curl"`)+broken), 0))
	assert.Contains(t, out.String(), "\n    curl  1\n")
	// nginx in JSON without escape=json.
	out.Reset()
	nginx := `{"time_iso8601":"2026-11-27T10:00:00+00:00","remote_addr":"9.0.0.1","request":"GET / HTTP/1.1","http_user_agent":"a\x22b\x5C"}` + "\n"
	require.NoError(t, o.Try(t.Context(), strings.NewReader(nginx+nginx), 0))
	assert.Contains(t, out.String(), "\n    "+`"a\"b\\"`+"  1\n")
	// What the server itself writes must be whole.
	out.Reset()
	require.Error(t, o.Try(t.Context(), strings.NewReader(`9.0.0.1 - - [27/Nov/2026:10:00:00 +0000] "GET / 200 12`), 0))
}

func TestALogTellsWhichRobotsCame(t *testing.T) {
	var log strings.Builder
	n := 0
	add := func(times int, addr, agent string) {
		for range times {
			log.WriteString(line(n, addr, `"`+agent+`"`))
			n++
		}
	}
	add(3, "66.249.64.1", "Googlebot/2.1")
	add(2, "66.249.64.2", "Googlebot/2.1")
	add(2, "8.8.8.8", "Googlebot/2.1")
	add(4, "8.8.8.9", "Mozilla/5.0")
	add(1, "8.8.4.4", "curl/8")
	add(6, "7.7.7.7", "GPTBot/1.2")
	log.WriteString("nonsense\n")
	var out bytes.Buffer
	o := &ops.Operator{Rules: robotRules(t), Out: &out}
	require.NoError(t, o.Robots(t.Context(), strings.NewReader(log.String()), 0, nil))
	text := strings.Join(strings.FieldsFunc(out.String(), func(r rune) bool { return r == ' ' }), " ")
	require.Equal(t, `18 requests from 2026-11-27T10:00:00Z to 2026-11-27T10:00:17Z
1 of 19 lines were not understood, the first because: 1 fields, want 7 or more

group name requests addresses verified impostors refused
search Googlebot 7 3 5 2 0
ai GPTBot 6 1 0 0 0
people - 4 1 0 0 0
unknown curl 1 1 0 0 0

network requests mostly
7.7.7.0/24 6 GPTBot
8.8.8.0/24 6 people
66.249.64.0/24 5 Googlebot
8.8.4.0/24 1 curl
`, text)

	out.Reset()
	o = &ops.Operator{Out: &out, JSON: true} // without rules nobody is refused, and names are claims
	require.NoError(t, o.Robots(t.Context(), strings.NewReader(log.String()), 0, nil))
	require.Contains(t, out.String(), `"name": "Googlebot",`+"\n      "+`"requests": 7,`+"\n      "+`"addresses": 3,`+"\n      "+`"verified": 0,`)
	require.ErrorContains(t, o.Robots(t.Context(), strings.NewReader("x\n"), 0, nil), "no line can be used")
}

func TestRefusalsOfTheRulesAreCounted(t *testing.T) {
	var log strings.Builder
	for range 5 {
		log.WriteString(line(0, "8.8.8.8", `"Googlebot/2.1"`)) // an impostor: 1/s pass
	}
	var out bytes.Buffer
	o := &ops.Operator{Rules: robotRules(t), Out: &out}
	require.NoError(t, o.Robots(t.Context(), strings.NewReader(log.String()), 0, nil))
	require.Regexp(t, `search +Googlebot +5 +1 +0 +5 +4\n`, out.String())
}

// A resolver answers by tables, after a while.
type resolver struct {
	names map[string][]string
	addrs map[string][]string
	delay map[string]time.Duration

	mu           sync.Mutex
	asked        []string
	running, top atomic.Int32
}

func (r *resolver) wait(ctx context.Context, question string) error {
	r.top.Store(max(r.top.Load(), r.running.Add(1)))
	defer r.running.Add(-1)
	r.mu.Lock()
	r.asked = append(r.asked, question)
	r.mu.Unlock()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(max(r.delay[question], time.Millisecond)):
		return nil
	}
}

func (r *resolver) LookupAddr(ctx context.Context, addr string) ([]string, error) {
	if err := r.wait(ctx, addr); err != nil {
		return nil, err
	}
	if r.names[addr] == nil {
		return nil, &net.DNSError{IsNotFound: true}
	}
	return r.names[addr], nil
}

func (r *resolver) LookupNetIP(ctx context.Context, _, host string) (addrs []netip.Addr, err error) {
	if err := r.wait(ctx, host); err != nil {
		return nil, err
	}
	if host == "broken.yandex.ru" {
		return nil, errors.New("servers misbehave")
	}
	for _, addr := range r.addrs[host] {
		addrs = append(addrs, netip.MustParseAddr(addr))
	}
	return addrs, nil
}

func TestDNSSettlesClaimsOffThePath(t *testing.T) {
	r := &resolver{
		names: map[string][]string{
			"77.88.1.1": {"Spider-77.yandex.com."}, "77.88.2.1": {"evil.yandex.com.evil.example."}, "77.88.3.1": {"forged.yandex.com."},
			"77.88.5.1": {"other.example.", "real.yandex.net."}, "77.88.6.1": {"broken.yandex.ru."}, "2a02:6b8::1": {"six.yandex.ru."},
			"180.76.1.1": {"baiduspider-180-76-1-1.crawl.baidu.com."},
		},
		addrs: map[string][]string{
			"spider-77.yandex.com": {"77.88.1.1"}, "forged.yandex.com": {"9.9.9.9"}, "real.yandex.net": {"1.1.1.1", "::ffff:77.88.5.1"},
			"six.yandex.ru": {"2a02:6b8::1"}, "baiduspider-180-76-1-1.crawl.baidu.com": {"180.76.1.1"},
		},
		delay: map[string]time.Duration{"77.88.4.1": time.Hour},
	}
	var log strings.Builder
	for n, addr := range []string{"77.88.1.1", "77.88.1.2", "77.88.1.3", "77.88.2.1", "77.88.3.1", "77.88.4.1", "77.88.5.1", "77.88.6.1", "2a02:6b8::1", "77.88.7.1"} {
		log.WriteString(line(n, addr, `"YandexBot/3.0"`))
	}
	for n := range 20 {
		log.WriteString(line(n, fmt.Sprintf("180.76.%d.1", 1+n), `"Baiduspider/2.0"`))
	}
	log.WriteString(line(0, "7.7.7.7", `"GPTBot/1.2"`)) // in a rented cloud: not asked
	log.WriteString(line(0, "7.7.7.7", `"Mozilla/5.0"`))
	folder := t.TempDir()
	var out bytes.Buffer
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		o := &ops.Operator{Out: &out}
		require.NoError(t, o.Robots(t.Context(), strings.NewReader(log.String()), 0, &ops.DNS{Resolver: r, Folder: folder}))
		require.LessOrEqual(t, time.Since(begin), 3*time.Second)
	})
	require.Regexp(t, `search +YandexBot +10 +10 +5 +3 +2\n`, out.String())
	require.Regexp(t, `search +Baiduspider +20 +20 +1 +19 +0\n`, out.String())
	require.LessOrEqual(t, r.top.Load(), int32(8))
	require.NotContains(t, r.asked, "7.7.7.7")
	require.NotContains(t, r.asked, "77.88.1.2", "one question a network")
	require.NotContains(t, r.asked, "evil.yandex.com.evil.example")

	contents, err := os.ReadFile(filepath.Join(folder, "YandexBot.txt"))
	require.NoError(t, err)
	list, err := robots.ReadPrefixes(bytes.NewReader(contents))
	require.NoError(t, err, "the service reads it")
	require.Equal(t, "[2a02:6b8::/64 77.88.1.0/24 77.88.5.0/24]", fmt.Sprint(list))
	require.Contains(t, string(contents), "77.88.1.0/24 # spider-77.yandex.com\n")
}
