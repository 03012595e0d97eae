package robots

import (
	"net/http"
	"net/netip"
	"path"
	"strings"
	"sync"
	"time"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/httpthrottle"
	"github.com/adaptivethrottler/throttler/internal/address"
	"github.com/adaptivethrottler/throttler/internal/gate"
)

// A Policy gives each kind of client a budget, with [Policy.Rule] as the rule function of
// httpthrottle.New. Its numbers are requests a minute unless they say otherwise. Zero means
// the default; negative, no limit.
//
// A request gets one rule, and its Identifier says which, so that tallies and metrics tell the
// kinds apart: the first of these that fits.
//
//   - robots.txt, sitemaps and the like; monitors that are verified: no limit
//     robots-person      a client with a session
//     robots-impostor    an impostor, by network, with a ban
//     robots-search      a verified search engine, by name, never banned
//     robots-claimed     a search engine that cannot be verified, by name, and by name and network
//     robots-ai          crawlers for AI, together and each, by the minute and by the day
//     robots-fetch       programs that fetch for a person who waits, together and each
//     robots-seo         SEO tools, together
//     robots-other       previews, feeds, monitors, archives, each
//     robots-unknown     unknown robots, together, and by name and network
//     robots-hosting     a client in one of Options.Networks, by that network
//     robots-person      anybody else, by address and by network
//     robots-load        anybody else, if SiteMax is set
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

	// SiteMax is what the site can serve to people without a session. While they make fewer
	// requests, none is refused; above it, each address has LoadMax. Set it to 50 to 80 %
	// of the capacity. It replaces PersonMax and PersonNetworkMax for them. Default: no such
	// mode.
	SiteMax int

	// LoadMax is what an address may do while the site is loaded. Negative: nothing, so that
	// SiteMax is all that people without a session get together. Default: 30.
	LoadMax int

	PersonMax        int // of an address, or an IPv6 prefix as in Source. Default: 300.
	PersonNetworkMax int // of a network. Default: 1,200.

	SearchMax        int // of each verified search engine. Default: 600.
	SearchSecondMax  int // of each search engine in a second. Default: 10.
	SearchNetworkMax int // of each search engine that cannot be verified, from a network. Default: 60.

	AIMax        int // of all crawlers for AI together. Default: 60.
	AIDayMax     int // of all in 24 hours. Default: 3,000.
	AIEachMax    int // of each. Default: 30.
	AIEachDayMax int // of each in 24 hours. Default: 1,500.

	FetchMax     int // of all that fetch for a person. Default: 120.
	FetchEachMax int // of each. Default: 60.

	OtherMax int // of each preview, feed reader, monitor and archive. Default: 30.
	SEOMax   int // of all SEO tools together. Default: 20.

	UnknownMax     int // of all unknown robots together. Default: 120.
	UnknownEachMax int // of a name from a network. Default: 20.

	ImpostorMax int // of a network. Default: 10.

	// ImpostorLockout is how long a network with more is banned, if it claims names of
	// search engines or crawlers for AI. Others' names are claimed in good faith too: messengers
	// and privacy proxies send those of previews. Default: 1 h.
	ImpostorLockout time.Duration

	HostingMax int // of a network of Options.Networks, without a session. Default: 300.

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

// networkBits are the numbers of bits of a network.
const networkBits4, networkBits6 = 24, 48

// Rule returns the rule of a request.
func (p Policy) Rule(r *http.Request) throttler.Rule {
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
	if p.Session != nil && p.Session(r) {
		return p.person(r, addr)
	}
	directory := p.Directory
	if directory == nil {
		directory = knownDirectory()
	}
	id := directory.Identify(r.UserAgent(), addr)
	if p.Observe != nil {
		p.Observe(id)
	}
	switch {
	case id.Standing == Person && id.Network != "":
		return p.rule("hosting", limit("hosting", id.Network, p.HostingMax, 300, time.Minute))
	case id.Standing == Person && p.SiteMax > 0:
		return p.load(r)
	case id.Standing == Person:
		return p.person(r, addr)
	case id.Standing == Unknown:
		return p.rule("unknown",
			limit("each", id.Name+" "+networkOf(addr), p.UnknownEachMax, 20, time.Minute),
			limit("all", "", p.UnknownMax, 120, time.Minute))
	case id.Standing == Impostor:
		return p.impostor(id, addr)
	}
	return p.group(id, addr)
}

// group returns the rule of a robot whose claim holds or cannot be checked.
func (p *Policy) group(id Identity, addr netip.Addr) throttler.Rule {
	switch {
	case id.Group == "search" && id.Standing == Verified:
		return p.rule("search",
			limit("each", id.Name, p.SearchMax, 600, time.Minute),
			limit("second", id.Name, p.SearchSecondMax, 10, time.Second))
	case id.Group == "search":
		return p.rule("claimed",
			limit("network", id.Name+" "+networkOf(addr), p.SearchNetworkMax, 60, time.Minute),
			limit("each", id.Name, p.SearchMax, 600, time.Minute),
			limit("second", id.Name, p.SearchSecondMax, 10, time.Second))
	case id.Group == "ai":
		return p.rule("ai",
			limit("each", id.Name, p.AIEachMax, 30, time.Minute),
			limit("each-day", id.Name, p.AIEachDayMax, 1500, 24*time.Hour),
			limit("all", "", p.AIMax, 60, time.Minute),
			limit("all-day", "", p.AIDayMax, 3000, 24*time.Hour))
	case id.Group == "fetch":
		return p.rule("fetch",
			limit("each", id.Name, p.FetchEachMax, 60, time.Minute),
			limit("all", "", p.FetchMax, 120, time.Minute))
	case id.Group == "seo":
		return p.rule("seo", limit("all", "", p.SEOMax, 20, time.Minute))
	case id.Group == "monitor" && id.Standing == Verified:
		return httpthrottle.Unlimited()
	}
	return p.rule("other", limit("each", id.Name, p.OtherMax, 30, time.Minute))
}

// person returns the rule of a person at addr.
func (p *Policy) person(r *http.Request, addr netip.Addr) throttler.Rule {
	return p.rule("person",
		limit("address", p.Source.Key(r), p.PersonMax, 300, time.Minute),
		limit("network", networkOf(addr), p.PersonNetworkMax, 1200, time.Minute))
}

// load returns the rule of a person while the site may be loaded.
func (p *Policy) load(r *http.Request) throttler.Rule {
	rule := p.rule("load",
		limit("site", "", p.SiteMax, 0, time.Minute),
		limit("address", p.Source.Key(r), p.LoadMax, 30, time.Minute))
	rule.All, rule.Either, rule.CountAuthorizedOnly = rule.Either, nil, false
	return rule
}

// impostor returns the rule of an impostor.
func (p *Policy) impostor(id Identity, addr netip.Addr) throttler.Rule {
	c := limit("network", networkOf(addr), p.ImpostorMax, 10, time.Minute)
	switch {
	case id.Group != "search" && id.Group != "ai" || p.ImpostorLockout < 0:
	case p.ImpostorLockout == 0:
		c.Lockout = time.Hour
	default:
		c.Lockout = p.ImpostorLockout
	}
	return p.rule("impostor", c)
}

func networkOf(addr netip.Addr) string { return address.Network(addr, networkBits4, networkBits6) }

// limit returns a condition, without a Max if there is no limit.
func limit(name, value string, max, otherwise int, ttl time.Duration) throttler.Condition {
	if max == 0 {
		max = otherwise
	}
	return throttler.Condition{Name: name, Value: value, Max: max, TTL: ttl, Message: "Too many requests from clients of this kind."}
}

// rule returns the rule of a kind, with those conditions that have a Max.
func (p *Policy) rule(kind string, conditions ...throttler.Condition) throttler.Rule {
	limits := conditions[:0]
	for _, c := range conditions {
		if c.Max > 0 {
			limits = append(limits, c)
		}
	}
	if len(limits) == 0 {
		return httpthrottle.Unlimited()
	}
	identifier := p.Identifier
	if identifier == "" {
		identifier = "robots"
	}
	return throttler.Rule{Identifier: identifier + "-" + kind, Either: limits, CountAuthorizedOnly: len(limits) > 1, Shadow: p.Shadow}
}

// Exempt reports whether r is for what a robot must be able to read, by GET or HEAD:
// /robots.txt, /favicon.ico, /.well-known/ and sitemaps (/sitemap*.xml, .xml.gz, .txt). A crawler that is
// refused its robots.txt takes the whole site as forbidden, or as free.
func Exempt(r *http.Request) bool { return ExemptPath(r.Method, r.URL.Path) }

// ExemptPath is [Exempt] of a request with this method and path.
func ExemptPath(method, p string) bool {
	if method != http.MethodGet && method != http.MethodHead {
		return false
	}
	switch {
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
