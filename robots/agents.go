package robots

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode"
)

// maxAgent is the number of bytes of a user agent that are looked at, to bound the cost. The
// longest agents of robots have 250.
const maxAgent = 512

// minToken is the smallest number of letters and digits in a token. Shorter ones stand in the
// agents of people.
const minToken = 3

// A sign is a token of an unknown robot.
type sign struct {
	token string
	name  string // what the robot is called; empty: a person
	where int
}

// Where in a word a token may stand.
const (
	alone    = iota // nothing but the token
	atEnd           // the word ends with it
	anywhere        // in the word
)

// signs are the HTTP libraries and tools by name, and the words that give away a robot. A known
// robot's token goes first, however short. okhttp, axios and others are the libraries of apps
// too: an app should send a name of its own, or have a session.
var signs = []sign{
	{"curl", "curl", alone}, {"wget", "Wget", alone}, {"httpie", "HTTPie", alone}, {"postmanruntime", "PostmanRuntime", alone},
	{"insomnia", "insomnia", alone}, {"python-requests", "python-requests", alone}, {"python-urllib", "Python-urllib", alone},
	{"python-httpx", "python-httpx", alone}, {"python", "Python", alone}, {"aiohttp", "aiohttp", alone}, {"scrapy", "Scrapy", alone},
	{"go-http-client", "Go-http-client", alone}, {"fasthttp", "fasthttp", alone}, {"colly", "colly", alone},
	{"java/", "Java", alone}, {"java-http-client", "Java-http-client", alone}, {"apache-httpclient", "Apache-HttpClient", alone}, {"okhttp", "okhttp", alone},
	{"jakarta commons-httpclient", "Apache-HttpClient", alone}, {"restsharp", "RestSharp", alone}, {"winhttp", "WinHttp", alone},
	{"libwww-perl", "libwww-perl", alone}, {"lwp::simple", "libwww-perl", alone}, {"mechanize", "Mechanize", atEnd}, {"perl", "Perl", alone},
	{"ruby", "Ruby", alone}, {"faraday", "Faraday", alone}, {"httparty", "HTTParty", alone}, {"guzzlehttp", "GuzzleHttp", alone}, {"php/", "PHP", alone},
	{"axios", "axios", alone}, {"node-fetch", "node-fetch", alone}, {"undici", "undici", alone}, {"got (", "got", alone}, {"node.js", "Node.js", alone},
	{"reqwest", "reqwest", alone}, {"hyper/", "hyper", alone}, {"ureq", "ureq", alone}, {"powershell", "PowerShell", atEnd}, {"libcurl", "curl", alone},
	{"headlesschrome", "HeadlessChrome", alone}, {"phantomjs", "PhantomJS", alone}, {"puppeteer", "Puppeteer", alone}, {"playwright", "Playwright", alone},
	{"selenium", "Selenium", alone}, {"zgrab", "zgrab", alone}, {"masscan", "masscan", alone}, {"nikto", "Nikto", alone}, {"nuclei", "Nuclei", alone},

	{"bot", other, atEnd}, {"bots", other, atEnd}, {"crawl", other, anywhere}, {"spider", other, anywhere}, {"slurp", other, anywhere},
	{"scrape", other, anywhere}, {"scraping", other, anywhere}, {"archiver", other, anywhere}, {"+http", other, anywhere},

	{"cubot", "", atEnd}, // a brand of phones
}

// A matcher finds the tokens of robots in user agents. It is a trie: following a user agent
// from each of its bytes takes a few steps, as few words begin like a token.
type matcher struct {
	class [256]uint8 // of bytes in lower case; 0: in no token
	width int        // number of classes
	next  []uint32   // by node and class; 0: none
	found []found    // by node
}

// A found is the token that ends at a node.
type found struct {
	length int // 0: none
	robot  int // its place in the table; -1: unknown
	name   string
	where  int
}

// rank orders tokens by which wins: those of known robots, then the longest.
func (f *found) rank() int {
	switch {
	case f.length == 0:
		return 0
	case f.robot >= 0:
		return maxAgent + f.length
	}
	return f.length
}

// newMatcher returns the matcher of the robots' tokens, or the mistakes in the table.
func newMatcher(robots []Robot) (*matcher, error) {
	var problems []error
	names, owners := make(map[string]bool), make(map[string]string)
	m := &matcher{}
	for _, s := range signs {
		m.classify(s.token)
	}
	for _, r := range robots {
		problems = append(problems, r.problems(names, owners)...)
		for _, token := range r.Tokens {
			m.classify(strings.ToLower(token))
		}
	}
	if len(problems) > 0 {
		return nil, errors.Join(problems...)
	}
	m.width++ // class 0
	m.grow()
	for i, r := range robots {
		for _, token := range r.Tokens {
			m.add(strings.ToLower(token), found{robot: i, where: alone})
		}
	}
	for _, s := range signs {
		m.add(s.token, found{robot: -1, name: s.name, where: s.where})
	}
	for b := 'A'; b <= 'Z'; b++ {
		m.class[b] = m.class[b+'a'-'A']
	}
	return m, nil
}

// problems returns the mistakes in r. names and owners are those of the robots before it.
func (r *Robot) problems(names map[string]bool, owners map[string]string) (problems []error) {
	add := func(format string, args ...any) {
		problems = append(problems, fmt.Errorf("robots: robot %q: "+format, append([]any{r.Name}, args...)...))
	}
	name := strings.ToLower(r.Name)
	switch {
	case name == "" || name == other:
		add("want a name, and not that of all others")
	case names[name]:
		add("the name is there twice: give each robot one entry, with all its tokens and lists")
	}
	names[name] = true
	if !slices.Contains(Groups(), r.Group) {
		add("group %q is unknown: want one of %s", r.Group, strings.Join(Groups(), ", "))
	}
	if len(r.Tokens) == 0 {
		add("no tokens: want the part of its user agent that names it")
	}
	for _, token := range r.Tokens {
		key := strings.ToLower(token)
		switch owner := owners[key]; {
		case countAlphanumeric(token) < minToken:
			add("token %q has fewer than %d letters: it would match nearly every client; want more of its name", token, minToken)
		case len(token) > maxAgent || strings.IndexFunc(token, func(c rune) bool { return c < ' ' || c > '~' }) >= 0:
			add("token %q is not at most %d ASCII characters, as user agents are", token, maxAgent)
		case owner != "" && owner != r.Name:
			add("token %q is that of %q too: want one that tells them apart", token, owner)
		default:
			owners[key] = r.Name
		}
	}
	return problems
}

func countAlphanumeric(text string) (n int) {
	for _, c := range text {
		if wordy(c) {
			n++
		}
	}
	return n
}

// classify gives each byte of a token a class.
func (m *matcher) classify(token string) {
	for i := range len(token) {
		if m.class[token[i]] == 0 && m.width < 255 {
			m.width++
			m.class[token[i]] = uint8(m.width)
		}
	}
}

// grow adds a node and returns it.
func (m *matcher) grow() uint32 {
	m.next = append(m.next, make([]uint32, m.width)...)
	m.found = append(m.found, found{})
	return uint32(len(m.found) - 1)
}

// add adds a token in lower case.
func (m *matcher) add(token string, f found) {
	node := uint32(0)
	for i := range len(token) {
		edge := int(node)*m.width + int(m.class[token[i]])
		if m.next[edge] == 0 {
			child := m.grow()
			m.next[edge] = child
		}
		node = m.next[edge]
	}
	if f.length = len(token); f.rank() > m.found[node].rank() {
		m.found[node] = f
	}
}

// match returns the robot that agent claims, or -1 and the name of an unknown one, or -1 and ""
// for a person.
func (m *matcher) match(agent string) (robot int, name string) {
	if len(agent) > maxAgent {
		agent = agent[:maxAgent]
	}
	if strings.IndexFunc(agent, wordy) < 0 { // empty, "-"
		return -1, other
	}
	best := &found{robot: -1}
	for i := range len(agent) {
		node := m.next[m.class[agent[i]]]
		for j := i + 1; node != 0; j++ {
			if f := &m.found[node]; f.rank() > best.rank() && f.stands(agent, i, j) {
				best = f
			}
			if j == len(agent) {
				break
			}
			node = m.next[int(node)*m.width+int(m.class[agent[j]])]
		}
	}
	return best.robot, best.name
}

// stands reports whether the token at agent[i:j] stands as it must. One behind "like" is
// another robot's.
func (f *found) stands(agent string, i, j int) bool {
	if f.where != anywhere && j < len(agent) && alphanumeric(agent[j-1]) && alphanumeric(agent[j]) {
		return false
	}
	if f.where == alone && i > 0 && alphanumeric(agent[i]) && (alphanumeric(agent[i-1]) || agent[i-1] == '-') {
		return false
	}
	const like = "like "
	return i < len(like) || !strings.EqualFold(agent[i-len(like):i], like)
}

// wordy reports whether a character stands in a word, of any language.
func wordy(c rune) bool { return unicode.IsLetter(c) || unicode.IsDigit(c) }

func alphanumeric(b byte) bool {
	return '0' <= b && b <= '9' || 'a' <= b|0x20 && b|0x20 <= 'z'
}
