package robots

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"net/http"
	"net/netip"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/httpthrottle"
	"github.com/adaptivethrottler/throttler/internal/address"
	"github.com/adaptivethrottler/throttler/internal/gate"
)

// A Policy gives each kind of client a budget, with [Policy.Rule] as the rule function of
// httpthrottle.New.
//
// A request gets one rule, the first of these that fits. Its Identifier says which, so that
// tallies and metrics tell the kinds apart. Numbers are requests a minute unless they say
// otherwise, and [Policy.Max] changes them by the name in brackets:
//
//   - robots.txt, sitemaps and the like; monitors that are verified: no limit
//     robots-person      a client with a session
//     robots-impostor    an impostor: 10 from a network (impostor-network), with a ban
//     robots-search      a verified search engine, never banned: 600 each (search-each), 10 a second
//     (search-second)
//     robots-claimed     a search engine that cannot be verified: the same (claimed-each,
//     claimed-second), and 60 from a network (claimed-network)
//     robots-ai          crawlers for AI: 30 each (ai-each), 60 together (ai-all), in 24 hours 1,500
//     (ai-each-day) and 3,000 (ai-all-day)
//     robots-fetch       programs that fetch for a person who waits: 60 each (fetch-each), 120
//     together (fetch-all)
//     robots-seo         SEO tools: 20 together (seo-all)
//     robots-other       previews, feeds, monitors, archives: 30 each (other-each)
//     robots-unknown     unknown robots: 20 for a name from a network (unknown-each), 120 together
//     (unknown-all)
//     robots-hosting     a client in one of Options.Networks: 300 from there (hosting-network)
//     robots-load        anybody else, if SiteMax is set: 30 an address (load-address) above it
//     robots-person      anybody else: 300 an address, or an IPv6 prefix as in Source
//     (person-address), 1,200 a network (person-network)
//
// A network is a /24 of IPv4 or a /48 of IPv6. Robots are counted by the names in the
// Directory, never by text that they send. A refused call uses up no budget.
//
// Refused robots get 429 and Retry-After, banned ones too: crawlers slow down on that, but
// take 403 and 404 as news about the page. A site in which most clients are refused has wrong
// numbers: try them with Shadow first.
type Policy struct {
	// Directory identifies robots. Default: one of [Known] without lists, for which every
	// robot's name is a claim.
	Directory *Directory

	// Source finds the client's address.
	Source httpthrottle.Source

	// Session reports whether a request is from somebody who is signed in: check the
	// session, not only that there is a cookie. Such a request counts as a person's
	// wherever it comes from and whatever its user agent. Default: none is.
	Session func(*http.Request) bool

	// Exempt reports whether a request has no limit. Default: [Exempt].
	Exempt func(*http.Request) bool

	// Observe is called with who sends each request that is not exempt and has no session,
	// for tallies. Default: none.
	Observe func(Identity)

	// SiteMax is what the site can serve in a minute to people without a session. While they
	// make fewer requests, none is refused; above it, each address has load-address. Set it to
	// 50 to 80 % of the capacity. It replaces the limits of robots-person for them. More than
	// [throttler.MaxHits], which are 16,000 a second, counts as that. Default: no such mode.
	SiteMax int

	// Max has other numbers than those above, by their names: {"ai-each": 10, "seo-all": -1}. 0 and
	// negative numbers take the limit away: they do not refuse every request, and 0 is not the
	// default. Without load-address, SiteMax is all that people without a session get together. More
	// than [throttler.MaxHits] counts as that. An unknown name is a mistake: see [Policy.Validate].
	// Default: none.
	Max map[string]int

	// ImpostorLockout is how long a network with more is banned, if it claims names of
	// search engines or crawlers for AI. Others' names are claimed in good faith too: messengers
	// and privacy proxies send those of previews. Default: 1 h. Negative: not at all.
	ImpostorLockout time.Duration

	// Identifier begins the Identifier of every rule. Default: "robots".
	Identifier string

	// Shadow only observes: see [throttler.Rule].
	Shadow bool
}

// knownDirectory is the default Directory.
var knownDirectory = sync.OnceValue(func() *Directory {
	d, err := Open(Options{})
	if err != nil {
		panic(err)
	}
	return d
})

func (p *Policy) directory() *Directory {
	if p.Directory == nil {
		return knownDirectory()
	}
	return p.Directory
}

// A client is what requests are counted by.
type client struct {
	Identity // but for a session
	source   *httpthrottle.Source
	request  *http.Request
	addr     netip.Addr
}

// The values of conditions.
func everybody(*client) string        { return "" }
func byRobot(c *client) string        { return c.Name }
func byNetwork(c *client) string      { return address.Network(c.addr, networkBits4, networkBits6) }
func byRobotNetwork(c *client) string { return c.Name + " " + byNetwork(c) }
func byAddress(c *client) string      { return c.source.Key(c.request) }
func byHoster(c *client) string       { return c.Network }

// A budget is a limit of a kind of clients.
type budget struct {
	name string
	of   func(*client) string
	max  int
	ttl  time.Duration
}

// budgets are those of each kind, as the comment on Policy has them.
var budgets = map[string][]budget{
	"impostor": {{"network", byNetwork, 10, time.Minute}},
	"search":   {{"each", byRobot, 600, time.Minute}, {"second", byRobot, 10, time.Second}},
	"claimed":  {{"network", byRobotNetwork, 60, time.Minute}, {"each", byRobot, 600, time.Minute}, {"second", byRobot, 10, time.Second}},
	"ai": {
		{"each", byRobot, 30, time.Minute}, {"each-day", byRobot, 1500, 24 * time.Hour},
		{"all", everybody, 60, time.Minute}, {"all-day", everybody, 3000, 24 * time.Hour},
	},
	"fetch":   {{"each", byRobot, 60, time.Minute}, {"all", everybody, 120, time.Minute}},
	"seo":     {{"all", everybody, 20, time.Minute}},
	"other":   {{"each", byRobot, 30, time.Minute}},
	"unknown": {{"each", byRobotNetwork, 20, time.Minute}, {"all", everybody, 120, time.Minute}},
	"hosting": {{"network", byHoster, 300, time.Minute}},
	"load":    {{"address", byAddress, 30, time.Minute}},
	"person":  {{"address", byAddress, 300, time.Minute}, {"network", byNetwork, 1200, time.Minute}},
}

// names are those of all budgets.
var names = func() map[string]bool {
	all := make(map[string]bool)
	for kind, limits := range budgets {
		for _, b := range limits {
			all[kind+"-"+b.name] = true
		}
	}
	return all
}()

// Validate returns an error that wraps [throttler.ErrInvalidRule] and names the key, if Max has an
// unknown one. Rule panics with it. Call Validate when the program starts, to learn of it before
// the first request.
func (p Policy) Validate() error {
	for name := range p.Max {
		if !names[name] {
			return fmt.Errorf("robots: %w: Policy.Max has %q, want one of %v", throttler.ErrInvalidRule, name, slices.Sorted(maps.Keys(names)))
		}
	}
	return nil
}

// Rule returns the rule of a request. It panics if p is invalid: see [Policy.Validate].
func (p Policy) Rule(r *http.Request) throttler.Rule {
	if err := p.Validate(); err != nil {
		panic(err)
	}
	exempt := p.Exempt
	if exempt == nil {
		exempt = Exempt
	}
	if exempt(r) {
		return httpthrottle.Unlimited()
	}
	addr := p.Source.Addr(r)
	if !addr.IsValid() && !p.Source.TrustUnix {
		return gate.NoAddress()
	}
	c := client{source: &p.Source, request: r, addr: addr}
	if p.Session != nil && p.Session(r) {
		return p.rule("person", &c)
	}
	c.Identity = p.directory().Identify(r.UserAgent(), addr)
	if p.Observe != nil {
		p.Observe(c.Identity)
	}
	kind := p.kindOf(&c.Identity)
	rule := p.rule(kind, &c)
	if kind == "impostor" && (c.Group == "search" || c.Group == "ai") && p.ImpostorLockout >= 0 {
		rule.Lockout = cmp.Or(p.ImpostorLockout, time.Hour)
	}
	return rule
}

// networkBits are the numbers of bits of a network.
const networkBits4, networkBits6 = 24, 48

// kindOf returns the kind of a client without a session, or "" if it has no budget.
func (p *Policy) kindOf(id *Identity) string {
	switch {
	case id.Standing == Person && id.Network != "":
		return "hosting"
	case id.Standing == Person && p.SiteMax > 0:
		return "load"
	case id.Standing == Person:
		return "person"
	case id.Standing == Unknown:
		return "unknown"
	case id.Standing == Impostor:
		return "impostor"
	case id.Group == "search" && id.Standing != Verified:
		return "claimed"
	case id.Group == "monitor" && id.Standing == Verified:
		return ""
	case id.Group == "search", id.Group == "ai", id.Group == "fetch", id.Group == "seo":
		return id.Group
	}
	return "other"
}

// rule returns the rule of a client of that kind.
func (p *Policy) rule(kind string, c *client) throttler.Rule {
	const message = "Too many requests from clients of this kind."
	limits := make([]throttler.Condition, 0, 4)
	for _, b := range budgets[kind] {
		most, ok := p.Max[kind+"-"+b.name]
		if !ok {
			most = b.max
		}
		if most > 0 {
			limits = append(limits, throttler.Condition{Name: b.name, Value: b.of(c), Max: min(most, throttler.MaxHits), TTL: b.ttl, Message: message})
		}
	}
	rule := throttler.Rule{Identifier: cmp.Or(p.Identifier, "robots") + "-" + kind, Shadow: p.Shadow}
	if kind == "load" {
		site := throttler.Condition{Name: "site", Max: min(p.SiteMax, throttler.MaxHits), TTL: time.Minute, Message: message}
		rule.All = slices.Insert(limits, 0, site)
		return rule
	}
	if len(limits) == 0 {
		return httpthrottle.Unlimited()
	}
	rule.Either, rule.CountAuthorizedOnly = limits, len(limits) > 1
	return rule
}

// RetryAfter returns how long the client of r should wait, which d refuses. A person waits for
// d.RetryAfter. A robot waits for 30 s at least, and up to half as long again, at random: many
// crawlers run on many machines, which would otherwise come back together. If d.RetryAfter is 0,
// so is the result. Use it in an Answer of the Middleware:
//
//	limit.Answer = func(w http.ResponseWriter, r *http.Request, d throttler.Decision) {
//		d.RetryAfter = policy.RetryAfter(r, d)
//		httpthrottle.SetRetryAfter(w, d)
//		limit.WriteAnswer(w, r, d)
//	}
func (p Policy) RetryAfter(r *http.Request, d throttler.Decision) time.Duration {
	if d.RetryAfter == 0 || p.Session != nil && p.Session(r) || p.directory().Identify(r.UserAgent(), netip.Addr{}).Standing == Person {
		return d.RetryAfter
	}
	wait := max(d.RetryAfter, 30*time.Second)
	return wait + min(rand.N(wait/2), math.MaxInt64-wait)
}

// Exempt reports whether r is for what a robot must be able to read, by GET or HEAD:
// /robots.txt, /favicon.ico, /.well-known/ and sitemaps (/sitemap*.xml, .xml.gz, .txt). A crawler that is
// refused its robots.txt takes the whole site as forbidden, or as free.
func Exempt(r *http.Request) bool {
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		return false
	}
	switch p := r.URL.Path; {
	case p == "/robots.txt" || p == "/favicon.ico":
		return true
	case strings.HasPrefix(p, "/.well-known/"):
		// A server behind may read more into the path, and serve another page.
		return path.Clean(p) == strings.TrimSuffix(p, "/") && !strings.ContainsAny(p, `%\;`)
	case strings.HasPrefix(p, "/sitemap") && strings.Count(p, "/") == 1 && !strings.ContainsAny(p, `%\;`):
		return strings.HasSuffix(p, ".xml") || strings.HasSuffix(p, ".xml.gz") || strings.HasSuffix(p, ".txt")
	}
	return false
}
