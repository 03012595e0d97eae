// Package robots says which robot sends a request, and gives each kind of robot a budget.
//
// A [Directory] knows robots by the tokens in their user agents, and tells a real one from
// a forged one by the networks that its operator publishes:
//
//	known := robots.Known()
//	directory, err := robots.Open(robots.Options{
//		Lists: map[string][]string{"Googlebot": {"/var/lib/robots/common-crawlers.json"}},
//	})
//	who := directory.Identify(r.UserAgent(), addr) // {Name: "Googlebot", Group: "search", Standing: Verified}
//
// A [Policy] makes a rule of each request from that, for httpthrottle.New:
//
//	policy := robots.Policy{Directory: directory, Source: source}
//	limit := httpthrottle.New(t, policy.Rule)
//
// # How a robot is told
//
// The name that a request claims is checked against that name's list. An address is never
// turned into a name: lists overlap, and a rented machine may be in the list of a cloud.
// Without a list for the address's family a claim can be neither confirmed nor refuted, and
// the standing is [Claimed].
//
// Nothing is fetched. Lists and tables are files that cron renews; [Directory.Reload] reads
// them again. A file that is refused keeps what was read of it before.
//
// # Why sorted ranges
//
// The prefixes of a list and the ranges of an ASN table become sorted, disjoint ranges,
// searched by halves: 8 bytes a range of IPv4, 20 of IPv6, and no dependency. A routing table
// (gaissmai/bart) takes 36 bytes a prefix, and ASN tables are ranges to begin with. A Reload
// builds new ranges and swaps one pointer; Identify takes no lock.
package robots

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/adaptivethrottler/throttler/internal/address"
)

// A Robot is a program that visits sites under a name.
type Robot struct {
	// Name is what it is counted and reported by. Required, and unique.
	Name string

	// Tokens are the parts of a user agent that claim the name, in any case. At least
	// one, each of 3 or more letters or digits. A token must stand alone: the letters and
	// digits around it belong to another word. If several robots' tokens match, the
	// longest wins, and of equal ones the first in the user agent. A token behind "like "
	// does not count: "TelegramBot (like TwitterBot)".
	Tokens []string

	// Group is what kind of robot it is: one of [Groups].
	Group string

	// Lists are the files of the prefixes that its operator publishes: see
	// [ReadPrefixes]. Default: none, its claims cannot be checked.
	Lists []string
}

// Groups returns the values of [Robot.Group]: search engines, crawlers for AI, programs that
// fetch a page for a person who waits, link previews, feed readers, SEO tools, monitors of
// sites, archives.
func Groups() []string {
	return []string{"search", "ai", "fetch", "preview", "feed", "seo", "monitor", "archive"}
}

// Standing says what is known of who sends a request.
type Standing int

const (
	Person   Standing = iota // nothing in the user agent says robot
	Unknown                  // a robot that is not in the table
	Claimed                  // claims a robot's name; no list covers the address's family
	Verified                 // claims a robot's name, and its list holds the address
	Impostor                 // claims a robot's name, and its list does not hold the address
)

// String returns "person", "unknown", "claimed", "verified" or "impostor".
func (s Standing) String() string {
	if names := [...]string{"person", "unknown", "claimed", "verified", "impostor"}; s >= 0 && int(s) < len(names) {
		return names[s]
	}
	return fmt.Sprintf("Standing(%d)", int(s))
}

// An Identity is what a Directory knows of who sends a request.
type Identity struct {
	// Name is the robot's: [Robot.Name], or for an unknown one the token that gave it away,
	// such as "curl", or "other". It is never text from the user agent, so there are few.
	// Empty for a person.
	Name string

	// Group is the robot's. Empty for a person and for an unknown robot.
	Group string

	// Network is the narrowest of [Options.Networks] that holds the address, or empty.
	Network string

	// ASN is the address's number in the tables of [Options.ASN], or 0.
	ASN uint32

	// Standing says how far Name can be trusted.
	Standing Standing
}

// other is the [Identity.Name] of an unknown robot without a token of its own.
const other = "other"

// Options are what a [Directory] is made of.
type Options struct {
	// Robots is the whole table. To add to the known ones, append to [Known]. Default:
	// Known.
	Robots []Robot

	// Lists are files of prefixes by the name of a robot, in addition to [Robot.Lists].
	Lists map[string][]string

	// Networks are files of prefixes by the name of a network: a cloud, a hoster. An
	// autonomous system of the tables in ASN stands for its ranges: "AS132203", among the
	// files or, with no files, as the name. Write ./AS132203 for a file of that name. If
	// several networks hold an address, the narrowest prefix or range wins. Default: none.
	Networks map[string][]string

	// ASN are files of ranges and the autonomous systems that they belong to, one a line:
	// start, end, number, and anything behind, separated by tabs or commas, as from iptoasn.com
	// and DB-IP. IPv4 addresses may be decimal numbers. Prefix and number do too. Number 0
	// means none. Default: none.
	ASN []string
}

// A Directory identifies robots. It is safe for concurrent use.
type Directory struct {
	robots   []Robot // with all their lists
	tokens   *matcher
	phones   int            // the robot that iMessage names, or -1
	networks []namedNetwork // by name
	tables   []string       // Options.ASN
	current  atomic.Pointer[snapshot]

	reload sync.Mutex
	files  map[fileKey]*file // what was read last; guarded by reload
}

// A namedNetwork is one of Options.Networks.
type namedNetwork struct {
	name    string
	files   []string
	systems []uint32
}

// A snapshot is what was read of all files. It does not change.
type snapshot struct {
	lists    []*table // of each robot; nil: none
	networks *table   // positions in Directory.networks, from 1
	systems  *table   // numbers of autonomous systems
	read     []File
}

// Open returns a Directory of what o names. It reads all files; the error names each that
// cannot be read or is refused, with the line and the remedy, and every mistake in o.
func Open(o Options) (*Directory, error) {
	d := &Directory{robots: slices.Clone(o.Robots), tables: o.ASN, files: make(map[fileKey]*file)}
	if o.Robots == nil {
		d.robots = Known()
	}
	var err error
	d.tokens, err = newMatcher(d.robots)
	err = errors.Join(err, d.addLists(o.Lists), d.setNetworks(o.Networks))
	if err != nil {
		return nil, err
	}
	d.phones, _ = d.tokens.match(iMessage)
	if err := d.Reload(); err != nil {
		return nil, err
	}
	return d, nil
}

// addLists adds lists to those of the robots with these names.
func (d *Directory) addLists(lists map[string][]string) (problems error) {
	for _, name := range slices.Sorted(maps.Keys(lists)) {
		i := slices.IndexFunc(d.robots, func(r Robot) bool { return r.Name == name })
		if i < 0 {
			problems = errors.Join(problems, fmt.Errorf("robots: Lists[%q]: there is no robot of that name: add it with its tokens and its group", name))
			continue
		}
		d.robots[i].Lists = slices.Concat(d.robots[i].Lists, lists[name])
	}
	return problems
}

// setNetworks sets the networks.
func (d *Directory) setNetworks(networks map[string][]string) (problems error) {
	for _, name := range slices.Sorted(maps.Keys(networks)) {
		n := namedNetwork{name: name}
		sources := networks[name]
		if _, ok := parseSystem(name); ok && len(sources) == 0 {
			sources = []string{name}
		}
		if name == "" || len(sources) == 0 {
			problems = errors.Join(problems, fmt.Errorf(`robots: Networks[%q]: want a name, and files of prefixes or a number as "AS132203"`, name))
		}
		for _, source := range sources {
			system, ok := parseSystem(source)
			switch {
			case !ok:
				n.files = append(n.files, source)
			case len(d.tables) == 0:
				problems = errors.Join(problems, fmt.Errorf("robots: Networks[%q]: %s needs a table of autonomous systems: name one in ASN", name, source))
			default:
				n.systems = append(n.systems, system)
			}
		}
		d.networks = append(d.networks, n)
	}
	return problems
}

// Identify returns what is known of a client with this user agent and address. It does no
// I/O and allocates nothing. The first 512 bytes of the user agent count. The zero Addr is in
// no list and no network, and refutes no claim.
func (d *Directory) Identify(userAgent string, addr netip.Addr) Identity {
	s := d.current.Load()
	addr = address.Plain(addr)
	var id Identity
	if addr.IsValid() {
		id.ASN = s.systems.find(addr)
		if n := s.networks.find(addr); n > 0 {
			id.Network = d.networks[n-1].name
		}
	}
	robot, name := d.tokens.match(userAgent)
	switch {
	case robot >= 0:
		id.Name, id.Group = d.robots[robot].Name, d.robots[robot].Group
		id.Standing = s.lists[robot].standing(addr)
		if id.Standing == Impostor && robot == d.phones && strings.Contains(userAgent, iMessage) {
			id.Standing = Claimed
		}
	case name != "":
		id.Name, id.Standing = name, Unknown
	}
	return id
}

// Known reports whether a robot of the table has this name.
func (d *Directory) Known(name string) bool {
	return slices.ContainsFunc(d.robots, func(r Robot) bool { return r.Name == name })
}

// standing returns that of a claim from addr, by the robot's list.
func (t *table) standing(addr netip.Addr) Standing {
	switch {
	case t == nil || !addr.IsValid() || !t.covers(addr):
		return Claimed
	case t.find(addr) != 0:
		return Verified
	}
	return Impostor
}

// Reload reads all files again. If one cannot be read or is refused, what was read of it
// before still holds, and the error names it and says why; the others are taken. A file with
// less than half of the entries that it had is refused, since most likely it is a part of a
// list: to accept it, restart or Open anew.
func (d *Directory) Reload() error {
	d.reload.Lock()
	defer d.reload.Unlock()
	r := reading{d: d, files: make(map[fileKey]*file)}
	s, err := r.snapshot()
	if s == nil {
		return err
	}
	d.files = r.files
	d.current.Store(s)
	return err
}

// A reading is the state of a Reload.
type reading struct {
	d        *Directory
	files    map[fileKey]*file
	order    []fileKey // as they were read
	problems []error
}

// snapshot returns the new snapshot, or nil if a file cannot be read for the first time or an
// autonomous system has no range.
func (r *reading) snapshot() (*snapshot, error) {
	s := &snapshot{lists: make([]*table, len(r.d.robots))}
	for i, robot := range r.d.robots {
		if len(robot.Lists) == 0 {
			continue
		}
		var spans []span
		for _, path := range robot.Lists {
			spans = r.add(spans, path, 1)
		}
		s.lists[i] = newTable(spans)
	}
	s.systems = r.systems()
	s.networks = r.networks(s.systems)
	for _, key := range r.order {
		s.read = append(s.read, r.files[key].File)
	}
	err := errors.Join(r.problems...)
	if slices.ContainsFunc(s.read, func(f File) bool { return f.Entries == 0 }) || s.networks == nil {
		return nil, err
	}
	return s, err
}

// add adds the prefixes of a list to spans, with a value.
func (r *reading) add(spans []span, path string, value uint32) []span {
	for _, p := range r.file(fileKey{path, false}).prefixes {
		s := spanOf(p)
		s.value = value
		spans = append(spans, s)
	}
	return spans
}

// systems returns the table of autonomous systems.
func (r *reading) systems() *table {
	var tables []*table
	for _, path := range r.d.tables {
		tables = append(tables, r.file(fileKey{path, true}).systems)
	}
	if len(tables) == 1 {
		return tables[0]
	}
	var spans []span
	for _, t := range tables {
		spans = slices.AppendSeq(spans, t.spans)
	}
	return newTable(spans)
}

// networks returns the table of the networks, or nil if one has no range.
func (r *reading) networks(systems *table) *table {
	wanted := make(map[uint32][]uint32) // the networks of an autonomous system, from 1
	var spans []span
	for i, n := range r.d.networks {
		for _, path := range n.files {
			spans = r.add(spans, path, uint32(i+1))
		}
		for _, system := range n.systems {
			wanted[system] = append(wanted[system], uint32(i+1))
		}
	}
	if len(wanted) == 0 {
		return newTable(spans)
	}
	found := make(map[uint32]bool)
	for s := range systems.spans {
		system := s.value
		for _, s.value = range wanted[system] {
			found[system] = true
			spans = append(spans, s)
		}
	}
	for _, system := range slices.Sorted(maps.Keys(wanted)) {
		if !found[system] && !r.lacksTable() { // which is told already
			r.problems = append(r.problems, fmt.Errorf("robots: Networks[%q]: AS%d is in none of the tables of ASN: correct the number, or renew the tables",
				r.d.networks[wanted[system][0]-1].name, system))
		}
	}
	if len(found) < len(wanted) {
		return nil
	}
	return newTable(spans)
}

// lacksTable reports whether nothing was ever read of one of the tables.
func (r *reading) lacksTable() bool {
	return slices.ContainsFunc(r.d.tables, func(path string) bool { return r.files[fileKey{path, true}].Entries == 0 })
}

// A File is a list or a table that a Directory has read.
type File struct {
	Path     string
	Entries  int       // prefixes or ranges
	Modified time.Time // when the contents that hold were written
	Err      error     // why newer contents are refused, or nil
}

// Files returns the files that d has read, to report their age. Warn of one that is older than a
// week: operators change their lists every few weeks or months, and an address that is new to a
// list looks like an impostor's until the file is renewed.
func (d *Directory) Files() []File {
	files := slices.Clone(d.current.Load().read)
	slices.SortFunc(files, func(a, b File) int { return cmp.Compare(a.Path, b.Path) })
	return files
}

// parseSystem parses the number of an autonomous system, as in "AS132203".
func parseSystem(text string) (uint32, bool) {
	if len(text) < 3 || !strings.EqualFold(text[:2], "AS") {
		return 0, false
	}
	return parseNumber(text[2:])
}
