package rulefile_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/adaptivethrottler/throttler/cmd/throttler/internal/rulefile"
	"github.com/adaptivethrottler/throttler/robots"
)

func visit(agent, addr, target string) *rulefile.Request {
	r := &rulefile.Request{Method: "GET", Target: target, Header: http.Header{"User-Agent": {agent}}}
	r.Addr, _ = netip.ParseAddr(addr)
	return r
}

func TestRulesAreForRobotsByWhoTheyAre(t *testing.T) {
	file, err := rulefile.Load("testdata/robots.yaml")
	require.NoError(t, err)
	require.Empty(t, file.Warnings)
	const google = "Mozilla/5.0 (compatible; Googlebot/2.1; +http://www.google.com/bot.html)"
	for _, test := range []struct {
		request *rulefile.Request
		want    map[string]string // values by rule
	}{
		{visit(google, "66.249.64.1", "/"), map[string]string{"search": "verified search Googlebot"}},
		{visit(google, "2001:4860:4801:10::1", "/"), map[string]string{"search": "verified search Googlebot"}},
		{visit(google, "8.8.24.1", "/"), map[string]string{"impostor": "Googlebot 8.8.16.0%2F20"}},
		{visit("bingbot/2.0", "2a00:1:2:3:4::", "/"), map[string]string{"search": "claimed search Bingbot"}},
		{visit("GPTBot/1.2", "8.8.8.8", "/"), map[string]string{"search": "claimed ai GPTBot"}},
		{visit("ourbot", "9.9.9.1", "/a"), map[string]string{"own": "all", "any": "AS7"}},
		{visit("ourbot", "9.9.9.1", "/b"), map[string]string{"any": "AS7"}},
		{visit("Mozilla/5.0", "43.130.0.1", "/"), map[string]string{"hoster": "tencent AS132203", "any": "AS132203"}},
		{visit("curl/8", "43.130.0.1", "/"), map[string]string{"any": "AS132203"}},
		{visit("Mozilla/5.0", "8.8.8.8", "/"), map[string]string{}},
		{visit(google, "8.8.8.8", "/robots.txt"), map[string]string{}},
		{visit(google, "8.8.8.8", "/robots.txt/%2e%2e/costly"), map[string]string{"impostor": "Googlebot 8.8.0.0%2F20"}},
		{visit(google, "", "/"), map[string]string{"search": "claimed search Googlebot"}},
	} {
		got := make(map[string]string)
		for _, rule := range file.For(test.request) {
			got[rule.Identifier] = rule.Either[0].Value
		}
		assert.Equal(t, test.want, got, "%+v", test.request)
	}
	assert.Equal(t, []string{"header:User-Agent", "header:User-Agent", "prefix"}, file.Rule("impostor").Uses())
}

func TestAMistakeInAListOfRobotsIsTold(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "list")
	require.NoError(t, os.WriteFile(path, []byte("9.0.0.0/24\n10.0.0.0/8\n"), 0o600))
	_, err := rulefile.Parse(filepath.Join(dir, "r.yaml"), []byte("robots: {lists: {GPTBot: list}}\nrules: [{name: a, either: [{name: x, value: '{address}', max: 1, per: 1s}]}]"))
	assert.ErrorContains(t, err, "r.yaml:1:26: "+path+":2: 10.0.0.0/8 is not on the internet")
}

func TestAnOldListIsWarnedOf(t *testing.T) {
	dir := t.TempDir()
	list, rules := filepath.Join(dir, "list"), filepath.Join(dir, "r.yaml")
	require.NoError(t, os.WriteFile(list, []byte("9.0.0.0/24"), 0o600))
	require.NoError(t, os.WriteFile(rules, []byte("robots: {lists: {GPTBot: list}}\nrules: [{name: a, either: [{name: x, value: '{address}', max: 1, per: 1s}]}]"), 0o600))
	for days, want := range map[int]int{6: 0, 8: 1} {
		at := time.Now().AddDate(0, 0, -days)
		require.NoError(t, os.Chtimes(list, at, at))
		file, err := rulefile.Load(rules)
		require.NoError(t, err)
		require.Len(t, file.Warnings, want)
		if want > 0 {
			require.Contains(t, file.Warnings[0].String(), "r.yaml:1:9: warning: "+list+" is 8 days old")
		}
	}
}

// A list that changes is read again, and one that is refused leaves the old in place.
func TestListsAreWatched(t *testing.T) {
	dir := t.TempDir()
	list, rules := filepath.Join(dir, "list"), filepath.Join(dir, "r.yaml")
	write := func(contents string) { require.NoError(t, os.WriteFile(list, []byte(contents), 0o600)) }
	write("9.0.0.0/24")
	require.NoError(t, os.WriteFile(rules, []byte("robots: {lists: {GPTBot: list}}\nrules: [{name: a, for: {robot: {standing: verified}}, either: [{name: x, value: '{robot}', max: 1, per: 1s}]}]"), 0o600))
	source, err := rulefile.Open(rules)
	require.NoError(t, err)
	told := make(chan error, 10)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		source.Watch(ctx, nil, func(_ *rulefile.File, err error) { told <- err })
	}()
	verified := func(addr string) bool { return len(source.File().For(visit("GPTBot", addr, "/"))) == 1 }
	require.True(t, verified("9.0.0.1"))
	write("9.0.0.0/24\n9.0.1.0/24\n")
	require.NoError(t, within(t, told))
	require.True(t, verified("9.0.1.1"))
	write("<html>")
	require.ErrorContains(t, within(t, told), list)
	require.True(t, verified("9.0.1.1"))
	require.Len(t, source.File().OldLists(), 1)
	require.NoError(t, os.Remove(list))
	require.ErrorContains(t, within(t, told), list)
	write("9.0.1.0/24\n9.0.2.0/24\n")
	require.NoError(t, within(t, told))
	require.True(t, verified("9.0.2.1"))
	cancel()
	<-done
}

func TestTheReadyFileForRobotsIsOne(t *testing.T) {
	file, err := rulefile.Load("../../examples/robots.yaml")
	require.NoError(t, err)
	require.Empty(t, file.Warnings)
	kind := func(agent string) string {
		rules := file.For(visit(agent, "9.0.0.1", "/"))
		require.Len(t, rules, 1, agent)
		require.NoError(t, rules[0].Validate())
		// The limits are those of the default policy in Go.
		r := httptest.NewRequest("GET", "/", nil)
		r.RemoteAddr = "9.0.0.1:1"
		r.Header.Set("User-Agent", agent)
		policy := robots.Policy{}.Rule(r)
		require.Equal(t, policy.CountAuthorizedOnly, rules[0].CountAuthorizedOnly, agent)
		require.Len(t, rules[0].Either, len(policy.Either), agent)
		for i, c := range policy.Either {
			got := rules[0].Either[i]
			require.Equal(t, []any{c.Name, c.Max, c.TTL}, []any{got.Name, got.Max, got.TTL}, agent)
		}
		return rules[0].Identifier
	}
	for agent, want := range map[string]string{
		"Googlebot/2.1": "robots-claimed", "GPTBot/1.2": "robots-ai", "Claude-User": "robots-fetch", "MJ12bot": "robots-seo",
		"Twitterbot": "robots-other", "Feedbin": "robots-other", "ia_archiver": "robots-other", "UptimeRobot/2.0": "robots-monitor",
		"curl/8": "robots-unknown", "": "robots-unknown", "Mozilla/5.0": "robots-person",
	} {
		assert.Equal(t, want, kind(agent), agent)
	}
}

// within returns what is told within a minute.
func within(t *testing.T, told <-chan error) error {
	t.Helper()
	select {
	case err := <-told:
		return err
	case <-time.After(time.Minute):
		t.Fatal("nothing is told")
		return nil
	}
}
