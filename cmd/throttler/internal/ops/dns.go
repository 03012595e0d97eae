package ops

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/adaptivethrottler/throttler/internal/address"
)

// DNS checks robots' names by forward-confirmed reverse DNS: the name of an address must end with
// a domain of the robot's operator, and have that address. It is for those who operate
// a site, not for the path of a request: whoever sends a robot's name has you ask a name server
// of their choice.
type DNS struct {
	Resolver Resolver // default: the system's
	Folder   string   // where lists are written
}

// A Resolver asks DNS; *net.Resolver is one.
type Resolver interface {
	LookupAddr(ctx context.Context, addr string) (names []string, err error)
	LookupNetIP(ctx context.Context, network, host string) ([]netip.Addr, error)
}

// The bounds of questions.
const (
	dnsDeadline = 2 * time.Second // of an address, for all its questions
	dnsAtOnce   = 8               // addresses
	maxNames    = 8               // of an address
)

// domains are those of the names of robots' addresses, as operators document them, or as site
// owners have found. Robots in rented clouds have none.
var domains = map[string][]string{
	"Googlebot": {"googlebot.com", "google.com"}, "GoogleOther": {"googlebot.com", "google.com"}, "AdsBot-Google": {"google.com", "googlebot.com"},
	"FeedFetcher-Google": {"google.com"}, "Google-Read-Aloud": {"google.com"}, "Google-Agent": {"google.com"},
	"Bingbot": {"search.msn.com"}, "Applebot": {"applebot.apple.com"}, "YandexBot": {"yandex.ru", "yandex.net", "yandex.com"},
	"Baiduspider": {"baidu.com", "baidu.jp"}, "PetalBot": {"petalsearch.com"}, "SeznamBot": {"seznam.cz"}, "Yeti": {"naver.com"},
	"Qwantbot": {"qwant.com"}, "MojeekBot": {"mojeek.com"}, "meta-externalagent": {"fbsv.net", "facebook.com"}, "meta-webindexer": {"fbsv.net", "facebook.com"},
	"Amazonbot": {"crawl.amazonbot.amazon"}, "Amzn-SearchBot": {"crawl.amazonbot.amazon"}, "Amzn-User": {"crawl.amazonbot.amazon"},
	"CCBot": {"crawl.commoncrawl.org"}, "AhrefsBot": {"ahrefs.com", "ahrefs.net"}, "SemrushBot": {"semrush.com"}, "DotBot": {"moz.com"},
	"DataForSeoBot": {"dataforseo.com"}, "Pinterestbot": {"pinterest.com"}, "LinkedInBot": {"licdn.com", "linkedin.com"},
	"archive.org_bot": {"archive.org"},
}

// An answer is what DNS says of a claim.
type answer int

const (
	undecided answer = iota // no answer in time, or an error
	confirmed
	refuted
)

// A question is whether a network is a robot's. One of its addresses is asked about, and the answer
// holds for all of it, so that there are few questions, whether they hit or miss.
type question struct {
	robot    *Visitor
	network  string
	addr     netip.Addr
	requests int
	answer   answer
	name     string // of addr, if confirmed
}

// settle asks about the claims that no list settles, and counts them by the answers. It writes
// the networks that are confirmed to Folder, in a list for each robot.
func (d *DNS) settle(ctx context.Context, visitors []*Visitor, progress *progress) error {
	questions := questionsOf(visitors)
	progress.expect(len(questions))
	defer progress.end()
	var asking errgroup.Group
	asking.SetLimit(dnsAtOnce)
	for _, q := range questions {
		asking.Go(func() error {
			q.answer, q.name = d.ask(ctx, q.addr, domains[q.robot.Name])
			progress.add(1)
			return nil
		})
	}
	asking.Wait()
	if err := ctx.Err(); err != nil {
		return err
	}
	lists := make(map[string][]string)
	for _, q := range questions {
		switch q.answer {
		case confirmed:
			q.robot.Verified += q.requests
			lists[q.robot.Name] = append(lists[q.robot.Name], fmt.Sprintf("%s # %s", q.network, q.name))
		case refuted:
			q.robot.Impostors += q.requests
		default:
			q.robot.Undecided += q.requests
		}
	}
	for name, lines := range lists {
		slices.Sort(lines)
		contents := "# " + name + ", by the names of its addresses, " + time.Now().UTC().Format(time.DateOnly) + "\n" + strings.Join(lines, "\n") + "\n"
		if err := os.WriteFile(filepath.Join(d.Folder, name+".txt"), []byte(contents), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// questionsOf returns the questions about visitors, in a fixed order: one a robot and network.
func questionsOf(visitors []*Visitor) (questions []*question) {
	for _, v := range visitors {
		if domains[v.Name] == nil {
			continue
		}
		byNetwork := make(map[string]*question)
		for addr, requests := range v.addresses {
			if requests == 0 || !addr.IsValid() {
				continue
			}
			network := address.Network(addr, 24, 64)
			q := byNetwork[network]
			if q == nil {
				q = &question{robot: v, network: network, addr: addr}
				byNetwork[network] = q
				questions = append(questions, q)
			}
			q.requests += requests
			if addr.Less(q.addr) {
				q.addr = addr
			}
		}
	}
	slices.SortStableFunc(questions, func(a, b *question) int {
		return strings.Compare(a.robot.Name+" "+a.network, b.robot.Name+" "+b.network)
	})
	return questions
}

// ask asks whether addr has a name in one of domains that has addr.
func (d *DNS) ask(ctx context.Context, addr netip.Addr, domains []string) (answer, string) {
	resolver := d.Resolver
	if resolver == nil {
		resolver = net.DefaultResolver
	}
	ctx, cancel := context.WithTimeout(ctx, dnsDeadline)
	defer cancel()
	names, err := resolver.LookupAddr(ctx, addr.String())
	if err != nil {
		return failed(err), ""
	}
	result := refuted
	for _, name := range names[:min(len(names), maxNames)] {
		name = strings.ToLower(strings.TrimSuffix(name, "."))
		if !slices.ContainsFunc(domains, func(domain string) bool { return strings.HasSuffix(name, "."+domain) }) {
			continue
		}
		addrs, err := resolver.LookupNetIP(ctx, "ip", name) // IPv4 and IPv6
		if err != nil && failed(err) == undecided {
			result = undecided
		}
		if slices.ContainsFunc(addrs, func(a netip.Addr) bool { return address.Plain(a) == addr }) {
			return confirmed, name
		}
	}
	return result, ""
}

// failed returns what an error of DNS says of a claim: an address without a name is not the
// robot's.
func failed(err error) answer {
	if wrong := new(net.DNSError); errors.As(err, &wrong) && wrong.IsNotFound {
		return refuted
	}
	return undecided
}
