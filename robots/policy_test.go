package robots_test

import (
	"fmt"
	"math"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bradfitz/gomemcache/memcache"
	"github.com/stretchr/testify/require"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/httpthrottle"
	"github.com/adaptivethrottler/throttler/memstore"
	"github.com/adaptivethrottler/throttler/robots"
)

// A site is a handler with a policy.
type site struct{ http.Handler }

func newSite(rule func(*http.Request) throttler.Rule) *site {
	store := memstore.New()
	store.MaxItems = 1_000_000
	return &site{httpthrottle.New(throttler.New(store), rule).Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))}
}

// get asks for path from addr, and returns the response.
func (s *site) get(agent, addr, path string) *httptest.ResponseRecorder {
	return s.getIn(agent, addr, path, false)
}

// getIn asks for path, in a session or not.
func (s *site) getIn(agent, addr, path string, session bool) *httptest.ResponseRecorder {
	r := httptest.NewRequest("GET", path, nil)
	r.RemoteAddr = netip.AddrPortFrom(netip.MustParseAddr(addr), 1234).String()
	r.Header.Set("User-Agent", agent)
	if session {
		r.Header.Set("Cookie", "session=1")
	}
	w := httptest.NewRecorder()
	s.ServeHTTP(w, r)
	return w
}

// passed returns how many of n requests pass.
func (s *site) passed(n int, agent, addr string) (passed int) {
	for range n {
		if s.get(agent, addr, "/").Code == http.StatusOK {
			passed++
		}
	}
	return passed
}

// addressOf returns the n-th address of a /8, each in a /24 of its own.
func addressOf(first byte, n int) string {
	return netip.AddrFrom4([4]byte{first, byte(n >> 8), byte(n), 1}).String()
}

func TestEachKindHasItsBudget(t *testing.T) {
	asn := write(t, "asn.tsv", "43.128.0.0\t43.175.255.255\t132203\tCN\tTENCENT\n")
	directory := open(t, robots.Options{Lists: lists(), ASN: []string{asn}, Networks: map[string][]string{"AS132203": nil}})
	policy := robots.Policy{Directory: directory}
	synctest.Test(t, func(t *testing.T) {
		for name, c := range map[string]func(s *site){
			"person": func(s *site) {
				require.Equal(t, 300, s.passed(310, chrome, "9.0.0.1"))
				require.Equal(t, 300, s.passed(310, chrome, "9.0.0.2"), "the network's budget is not used up by what is refused")
				require.Equal(t, 600, s.passed(300, chrome, "9.0.0.3")+s.passed(310, chrome, "9.0.0.4"))
				require.Zero(t, s.passed(1, chrome, "9.0.0.5"), "1,200 from the network")
				require.Equal(t, 1, s.passed(1, chrome, "9.0.1.1"))
				require.Equal(t, 300, s.passed(310, chrome, "2a00:1:2:3::1"))
				require.Zero(t, s.passed(1, chrome, "2a00:1:2:3::2"))
			},
			"search": func(s *site) {
				require.Equal(t, 10, s.passed(11, google, "66.249.64.1")+s.passed(1, google, "66.249.64.2"))
				passed := 10
				for range 59 {
					time.Sleep(1001 * time.Millisecond)
					passed += s.passed(10, google, "2001:4860:4801:10::5")
				}
				require.Equal(t, 600, passed)
				require.Equal(t, 10, s.passed(10, "bingbot/2.0", "157.55.39.1"), "each has its own")
				w := s.get("bingbot/2.0", "157.55.39.1", "/")
				require.Equal(t, 429, w.Code)
				require.Equal(t, "1", w.Header().Get("Retry-After"))
			},
			"search of claims": func(s *site) {
				passed := 0
				for range 30 { // half a minute
					passed += s.passed(10, "ClaimsToBe Baiduspider/2.0", "9.0.0.1")
					time.Sleep(1001 * time.Millisecond)
				}
				require.Equal(t, 60, passed)
				require.Equal(t, 10, s.passed(20, "Baiduspider", "9.0.1.1"))
			},
			"ai": func(s *site) {
				require.Equal(t, 30, s.passed(100, "ClaudeBot/1.0", "9.0.0.1"))
				require.Equal(t, 15, s.passed(15, "CCBot/2.0", "9.0.1.1"))
				require.Equal(t, 15, s.passed(30, "Bytespider", "9.0.1.1"), "what was refused has not used up the common budget")
				require.Zero(t, s.passed(1, "Amazonbot", "9.0.1.1"))
			},
			"ai by the day": func(s *site) {
				passed := [3]int{}
				for range 100 {
					for i, agent := range []string{"ClaudeBot/1.0", "CCBot/2.0", "Bytespider"} {
						passed[i] += s.passed(20, agent, "9.0.0.1")
					}
					time.Sleep(61 * time.Second)
				}
				require.Equal(t, 3000, passed[0]+passed[1]+passed[2])
				require.LessOrEqual(t, max(passed[0], passed[1], passed[2]), 1500)
			},
			"fetch": func(s *site) {
				require.Equal(t, 60, s.passed(70, "Claude-User", "9.0.0.1"))
				require.Equal(t, 60, s.passed(70, "Perplexity-User", "9.0.0.1")) // no list
				require.Zero(t, s.passed(1, "Amzn-User", "9.0.0.1"))
				require.Equal(t, 1, s.passed(1, "ClaudeBot", "9.0.0.1"), "apart from crawlers")
			},
			"previews and feeds": func(s *site) {
				for _, agent := range []string{"Twitterbot/1.0", "Feedbin", "ia_archiver", "UptimeRobot/2.0", iMessage} {
					require.Equal(t, 30, s.passed(31, agent, "9.0.0.1"), agent)
				}
			},
			"seo": func(s *site) {
				require.Equal(t, 15, s.passed(15, "SemrushBot", "9.0.0.1"))
				require.Equal(t, 5, s.passed(15, "MJ12bot", "9.0.1.1"))
			},
			"unknown": func(s *site) {
				passed := 0
				for i := range 10 {
					passed += s.passed(30, fmt.Sprintf("evil-%d-bot", i), "9.0.0.1")
				}
				require.Equal(t, 20, passed, "another agent is no other robot")
				require.Equal(t, 20, s.passed(30, "curl/8", "9.0.0.2"))
				for i := range 10 {
					passed += s.passed(30, "curl/8", addressOf(8, i))
				}
				require.Equal(t, 120-20, passed)
			},
			"impostor": func(s *site) {
				require.Equal(t, 10, s.passed(11, google, "9.0.0.1"))
				w := s.get(gpt, "9.0.0.2", "/")
				require.Equal(t, 429, w.Code, "by network, whatever it claims")
				require.Equal(t, "3600", w.Header().Get("Retry-After"))
				time.Sleep(59 * time.Minute)
				require.Zero(t, s.passed(1, google, "9.0.0.1"))
				require.Equal(t, 1, s.passed(1, chrome, "9.0.0.1"), "people there are not banned")
				require.Equal(t, 200, s.get(google, "9.0.0.1", "/robots.txt").Code)
				require.Equal(t, 1, s.passed(1, google, "66.249.64.1"))
				time.Sleep(time.Minute)
				require.Equal(t, 10, s.passed(10, google, "9.0.0.1"))
			},
			"impostor of a preview": func(s *site) {
				require.Equal(t, 10, s.passed(11, "TelegramBot (like TwitterBot)", "9.0.0.1"))
				time.Sleep(time.Minute + time.Second)
				require.Equal(t, 10, s.passed(11, "TelegramBot (like TwitterBot)", "9.0.0.1"))
			},
			"hosting": func(s *site) {
				passed := 0
				for i := range 400 {
					passed += s.passed(1, chrome, netip.AddrFrom4([4]byte{43, 130, byte(i), byte(i >> 8)}).String())
				}
				require.Equal(t, 300, passed)
				require.Equal(t, 20, s.passed(30, "curl/8", "43.130.0.1"), "robots there have their own budgets")
			},
			"exempt": func(s *site) {
				for range 1000 {
					for _, path := range []string{"/robots.txt", "/.well-known/security.txt", "/sitemap.xml", "/favicon.ico"} {
						require.Equal(t, 200, s.get("evilbot", "9.0.0.1", path).Code)
					}
				}
			},
		} {
			t.Log(name)
			c(newSite(policy.Rule))
		}
	})
}

func TestASessionIsAPersons(t *testing.T) {
	asn := write(t, "asn.tsv", "43.128.0.0\t43.175.255.255\t132203\tCN\tTENCENT\n")
	directory := open(t, robots.Options{Lists: lists(), ASN: []string{asn}, Networks: map[string][]string{"AS132203": nil}})
	for _, agent := range []string{"okhttp/4.12", google, "", chrome} {
		r := httptest.NewRequest("GET", "/", nil)
		r.RemoteAddr = "43.130.0.1:1"
		r.Header.Set("User-Agent", agent)
		rule := robots.Policy{Directory: directory, SiteMax: 1, Session: func(*http.Request) bool { return true }}.Rule(r)
		require.Equal(t, "robots-person", rule.Identifier)
	}
}

// Above SiteMax only addresses with many requests are refused; below it nobody is.
func TestUnderLoadEachAddressHasAShare(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(robots.Policy{SiteMax: 1000}.Rule)
		require.Equal(t, 999, s.passed(999, chrome, "9.0.0.1"))
		require.Equal(t, 1, s.passed(1, chrome, "9.0.0.2"))
		require.Zero(t, s.passed(10, chrome, "9.0.0.1"))
		require.Equal(t, 29, s.passed(40, chrome, "9.0.0.2"), "it had one of its 30 already")
		require.Equal(t, 30, s.passed(40, chrome, "9.0.0.3"))
		time.Sleep(61 * time.Second)
		require.Equal(t, 900, s.passed(900, chrome, "9.0.0.1"))
	})
}

func TestNumbersAreOptions(t *testing.T) {
	ask := func(p robots.Policy, agent string) throttler.Rule {
		r := httptest.NewRequest("GET", "/", nil)
		r.Header.Set("User-Agent", agent)
		rule := p.Rule(r)
		if len(rule.Either)+len(rule.All) > 0 {
			require.NoError(t, rule.Validate())
		}
		return rule
	}
	rule := ask(robots.Policy{Max: map[string]int{"ai-all": 7, "ai-each": -1, "ai-all-day": -1, "ai-each-day": 9}, Identifier: "site", Shadow: true}, "GPTBot/1.2")
	require.Equal(t, "site-ai", rule.Identifier)
	require.True(t, rule.Shadow && rule.CountAuthorizedOnly)
	require.Len(t, rule.Either, 2)
	require.Equal(t, 9, rule.Either[0].Max)
	require.Equal(t, 7, rule.Either[1].Max)
	require.Equal(t, httpthrottle.Unlimited(), ask(robots.Policy{Max: map[string]int{"seo-all": -1}}, "MJ12bot"))
	require.Equal(t, httpthrottle.Unlimited(), ask(robots.Policy{Exempt: func(*http.Request) bool { return true }}, ""))
	require.Len(t, ask(robots.Policy{SiteMax: 5, Max: map[string]int{"load-address": -1}}, chrome).All, 1)
	require.Equal(t, throttler.MaxHits, ask(robots.Policy{SiteMax: 2_000_000}, chrome).All[0].Max, "no invalid rule, which would answer 500 to everybody")
	require.Equal(t, throttler.MaxHits, ask(robots.Policy{Max: map[string]int{"seo-all": 2_000_000}}, "MJ12bot").Either[0].Max)
	require.Equal(t, httpthrottle.Unlimited(), ask(robots.Policy{Max: map[string]int{"seo-all": 0}}, "MJ12bot"))
	require.NoError(t, robots.Policy{Max: map[string]int{"seo-all": 0}}.Validate())
	invalid := robots.Policy{Max: map[string]int{"seo": 3, "seo-all": 3}}
	require.ErrorIs(t, invalid.Validate(), throttler.ErrInvalidRule)
	require.ErrorContains(t, invalid.Validate(), `Policy.Max has "seo", want one of `+"[ai-all ai-all-day ai-each ai-each-day claimed-each claimed-network "+
		"claimed-second fetch-all fetch-each hosting-network impostor-network load-address other-each person-address person-network "+
		"search-each search-second seo-all unknown-all unknown-each]")
	require.PanicsWithError(t, invalid.Validate().Error(), func() { ask(invalid, "") })
	require.NotContains(t, fmt.Sprint(ask(robots.Policy{}, "secretbot-123")), "secret")
	var seen []robots.Identity
	ask(robots.Policy{Observe: func(who robots.Identity) { seen = append(seen, who) }}, "MJ12bot")
	require.Equal(t, []robots.Identity{{Name: "MJ12bot", Group: "seo", Standing: robots.Claimed}}, seen)
}

// Robots that were refused at once come back at different times, and none before 30 s.
func TestRefusedRobotsComeBackOneByOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		session := false
		policy := robots.Policy{Session: func(*http.Request) bool { return session }}
		limit := httpthrottle.New(throttler.New(memstore.New()), policy.Rule)
		limit.Answer = func(w http.ResponseWriter, r *http.Request, d throttler.Decision) {
			d.RetryAfter = policy.RetryAfter(r, d)
			httpthrottle.SetRetryAfter(w, d)
			limit.WriteAnswer(w, r, d)
		}
		s := &site{limit.Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))}
		retries := func(agent string) map[int]bool {
			for s.get(agent, "9.0.0.1", "/").Code == http.StatusOK {
			}
			told := make(map[int]bool)
			for range 100 {
				w := s.get(agent, "9.0.0.1", "/")
				after, err := strconv.Atoi(w.Header().Get("Retry-After"))
				require.NoError(t, err)
				require.Contains(t, w.Body.String(), fmt.Sprintf(`"retry_after":%d`, after))
				told[after] = true
			}
			return told
		}
		for after := range retries("Baiduspider") { // 10 in a second
			require.True(t, 30 <= after && after <= 45, after)
		}
		time.Sleep(time.Minute)
		robot := retries("MJ12bot") // 20 in a minute
		require.Greater(t, len(robot), 20)
		for after := range robot {
			require.True(t, 60 <= after && after <= 90, after)
		}
		require.Equal(t, map[int]bool{60: true}, retries(chrome))
		session = true
		require.Equal(t, map[int]bool{60: true}, retries("MJ12bot"))
	})
	require.Zero(t, robots.Policy{}.RetryAfter(httptest.NewRequest("GET", "/", nil), throttler.Decision{}), "never")
	robot := httptest.NewRequest("GET", "/", nil)
	robot.Header.Set("User-Agent", "GPTBot/1.2")
	for range 100 { // banned by hand, for ever
		require.GreaterOrEqual(t, robots.Policy{}.RetryAfter(robot, throttler.Decision{RetryAfter: math.MaxInt64 - time.Hour}), math.MaxInt64-time.Hour)
	}
}

func TestAPeerWithoutAnAddressIsAMistake(t *testing.T) {
	for trust, want := range map[bool]int{false: 500, true: 200} {
		h := httpthrottle.New(throttler.New(memstore.New()), robots.Policy{Source: httpthrottle.Source{TrustUnix: trust}}.Rule).
			Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
		r := httptest.NewRequest("GET", "/", nil)
		r.RemoteAddr = "@"
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		require.Equal(t, want, w.Code)
	}
}

func TestOnlyPlainPathsAreExempt(t *testing.T) {
	for target, want := range map[string]bool{
		"/robots.txt": true, "/robots.txt?x": true, "/favicon.ico": true, "/sitemap.xml": true, "/sitemap_index.xml": true,
		"/sitemap-12.xml.gz": true, "/sitemap.txt": true, "/.well-known/acme-challenge/x": true, "/.well-known/": true,
		"/": false, "/robots.txt/x": false, "//robots.txt": false, "/a/robots.txt": false, "/sitemap": false,
		"/sitemap/../costly.xml": false, "/.well-known/../costly": false, "/.well-known/..%2fcostly": false,
		"/.well-known/%252e%252e/costly": false, "/.well-known//x": false, `/.well-known/..%5ccostly`: false, "/sitemap;/../x.xml": false,
	} {
		require.Equal(t, want, robots.Exempt(httptest.NewRequest("GET", target, nil)), target)
	}
	require.False(t, robots.Exempt(httptest.NewRequest("POST", "/robots.txt", nil)))
}

// A slow client takes a millisecond for each operation.
type slow struct{ throttler.Client }

func (s slow) Get(key string) (*memcache.Item, error) {
	time.Sleep(time.Millisecond)
	return s.Client.Get(key)
}
func (s slow) GetMulti(keys []string) (map[string]*memcache.Item, error) {
	time.Sleep(time.Millisecond)
	return s.Client.GetMulti(keys)
}
func (s slow) Add(item *memcache.Item) error {
	time.Sleep(time.Millisecond)
	return s.Client.Add(item)
}
func (s slow) CompareAndSwap(item *memcache.Item) error {
	time.Sleep(time.Millisecond)
	return s.Client.CompareAndSwap(item)
}

func TestARequestTakesTwoRoundTripsAtMost(t *testing.T) {
	directory := open(t, robots.Options{Lists: lists()})
	synctest.Test(t, func(t *testing.T) {
		for _, agent := range []string{chrome, google, "GPTBot/1.2", "ClaudeBot", "Claude-User", "MJ12bot", "curl/8", "Twitterbot", "Baiduspider", ""} {
			th := throttler.New(slow{memstore.New()})
			r := httptest.NewRequest("GET", "/", nil)
			r.RemoteAddr = "9.0.0.1:1"
			r.Header.Set("User-Agent", agent)
			for range 70 {
				rule := robots.Policy{Directory: directory}.Rule(r)
				begin := time.Now()
				d, err := th.Authorize(t.Context(), rule)
				require.NoError(t, err)
				require.NoError(t, d.Err)
				require.LessOrEqual(t, time.Since(begin), 2*time.Millisecond, agent)
			}
		}
	})
}

// Over the network, behind a proxy.
func TestAPolicyOverHTTP(t *testing.T) {
	policy := robots.Policy{
		Directory: open(t, robots.Options{Lists: lists()}),
		Source:    httpthrottle.Source{Trusted: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}, Header: "X-Forwarded-For"},
	}
	server := httptest.NewServer(httpthrottle.New(throttler.New(memstore.New()), policy.Rule).Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})))
	defer server.Close()
	get := func(agent, addr, path string) *http.Response {
		r, err := http.NewRequest("GET", server.URL+path, nil)
		require.NoError(t, err)
		r.Header.Set("User-Agent", agent)
		r.Header.Set("X-Forwarded-For", addr)
		response, err := server.Client().Do(r)
		require.NoError(t, err)
		response.Body.Close()
		return response
	}
	for range 10 {
		require.Equal(t, 200, get(google, "9.0.0.1", "/").StatusCode)
	}
	refused := get(google, "9.0.0.9", "/")
	require.Equal(t, 429, refused.StatusCode)
	require.Equal(t, "3600", refused.Header.Get("Retry-After"))
	require.Equal(t, "no-store", refused.Header.Get("Cache-Control"))
	require.Equal(t, 200, get(google, "9.0.0.1", "/robots.txt").StatusCode)
	require.Equal(t, 200, get(google, "66.249.64.1", "/").StatusCode)
	require.Equal(t, 200, get(chrome, "9.0.0.1", "/").StatusCode)
}

func BenchmarkRule(b *testing.B) {
	policy := robots.Policy{Directory: open(b, robots.Options{Lists: lists()})}
	for name, agent := range map[string]string{"person": chrome, "ai": "GPTBot/1.2"} {
		r := httptest.NewRequest("GET", "/", nil)
		r.RemoteAddr = "9.0.0.1:1"
		r.Header.Set("User-Agent", agent)
		b.Run("kind="+name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				policy.Rule(r)
			}
		})
	}
}
