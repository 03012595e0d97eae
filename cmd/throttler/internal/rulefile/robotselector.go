package rulefile

import (
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/adaptivethrottler/throttler/robots"
)

// standings are the standings by name.
var standings = []robots.Standing{robots.Person, robots.Unknown, robots.Claimed, robots.Verified, robots.Impostor}

// A robotSelector selects requests by who sends them.
type robotSelector struct {
	names, groups []string
	standings     []robots.Standing
	hosters       []string // "*": any
}

// robot parses for.robot.
func (p *parsing) robot(path string, raw *robotYAML) *robotSelector {
	if raw == nil {
		return nil
	}
	s := &robotSelector{names: raw.Name, groups: raw.Group, hosters: raw.Hoster}
	if len(raw.Name)+len(raw.Group)+len(raw.Standing)+len(raw.Hoster) == 0 {
		p.problem(path, "selects nobody: want name, group, standing or hoster")
	}
	if p.robots != nil {
		checkEach(p, path+".name", raw.Name, "there is no robot %q: add it to robots.own, or select standing: unknown", p.robots.Known)
	}
	checkEach(p, path+".group", raw.Group, "%q is unknown: want "+strings.Join(robots.Groups(), ", "),
		func(group string) bool { return slices.Contains(robots.Groups(), group) })
	s.standings = parseEach(p, path+".standing", raw.Standing, parseStanding)
	return s
}

func parseStanding(text string) (robots.Standing, error) {
	known := slices.IndexFunc(standings, func(s robots.Standing) bool { return s.String() == text })
	if known < 0 {
		return 0, fmt.Errorf("%q is unknown: want person, unknown, claimed, verified or impostor", text)
	}
	return standings[known], nil
}

// selects reports whether s selects a client. No robot rule is for what robots must be able to
// read: see [robots.Exempt].
func (s *robotSelector) selects(who *robots.Identity, r *Request) bool {
	if len(s.names) > 0 && !slices.Contains(s.names, who.Name) || len(s.groups) > 0 && !slices.Contains(s.groups, who.Group) ||
		len(s.standings) > 0 && !slices.Contains(s.standings, who.Standing) {
		return false
	}
	if len(s.hosters) > 0 && (who.Network == "" || !slices.Contains(s.hosters, "*") && !slices.Contains(s.hosters, who.Network)) {
		return false
	}
	return !robots.Exempt(&http.Request{Method: r.Method, URL: &url.URL{Path: r.rawPath()}})
}

// Identity returns who sends r, by the robots of file. It is zero if no rule of file asks.
func (r *Request) Identity(file *File) robots.Identity { return r.identity(file.Robots) }

// identity returns who sends r, by a directory that may be nil.
func (r *Request) identity(d *robots.Directory) robots.Identity {
	if d == nil {
		return robots.Identity{}
	}
	if r.who == nil {
		who := d.Identify(r.Header.Get("User-Agent"), r.Addr)
		r.who = &who
	}
	return *r.who
}
