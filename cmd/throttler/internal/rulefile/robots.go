package rulefile

import (
	"errors"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/adaptivethrottler/throttler/robots"
)

// This file reads who robots are, and selects requests by that.

// The structure of robots, and of for.robot. Keep it equal to schema.json.
type (
	robotsYAML struct {
		Known *bool            `yaml:"known"`
		Lists map[string]words `yaml:"lists"`
		Own   []ownRobotYAML   `yaml:"own"`
	}
	ownRobotYAML struct {
		Name   string `yaml:"name"`
		Tokens words  `yaml:"tokens"`
		Group  string `yaml:"group"`
		Lists  words  `yaml:"lists"`
	}
	robotYAML struct {
		Name     words `yaml:"name"`
		Group    words `yaml:"group"`
		Standing words `yaml:"standing"`
		Hoster   words `yaml:"hoster"`
	}
)

// words are a text or a list of texts.
type words []string

func (w *words) UnmarshalYAML(decode func(any) error) error {
	var one string
	if decode(&one) == nil {
		*w = words{one}
		return nil
	}
	return decode((*[]string)(w))
}

// directory returns who robots are, or nil if no rule asks or there are mistakes.
func (p *parsing) directory(raw *fileYAML) *robots.Directory {
	if raw.Robots == nil && raw.Networks == nil && raw.ASN == nil && !slices.ContainsFunc(raw.Rules, asksForRobots) {
		return nil
	}
	o := robots.Options{Lists: make(map[string][]string), Networks: make(map[string][]string), ASN: p.beside(raw.ASN)}
	for name, sources := range raw.Networks {
		o.Networks[name] = p.beside(sources)
	}
	o.Robots = robots.Known()
	if r := raw.Robots; r != nil {
		if r.Known != nil && !*r.Known {
			o.Robots = []robots.Robot{}
		}
		for _, own := range r.Own {
			o.Robots = append(o.Robots, robots.Robot{Name: own.Name, Tokens: own.Tokens, Group: own.Group, Lists: p.beside(own.Lists)})
		}
		for name, files := range r.Lists {
			o.Lists[name] = p.beside(files)
		}
	}
	d, err := robots.Open(o)
	for _, err := range each(err) {
		p.problem(pathOf(err.Error(), &o), "%s", strings.TrimPrefix(err.Error(), "robots: "))
	}
	return d
}

// asksForRobots reports whether a rule needs a directory.
func asksForRobots(r ruleYAML) bool {
	return r.For.Robot != nil || slices.ContainsFunc(slices.Concat(r.Either, r.All, r.First), func(c conditionYAML) bool {
		t, err := parseTemplate(c.Value)
		return err == nil && slices.ContainsFunc(t.parts, func(p part) bool { return p.attribute != nil && p.attribute.robots })
	})
}

const userAgent = "header:User-Agent"

// beside returns files as they are named from beside the rule file. A number of an autonomous
// system stays as it is.
func (p *parsing) beside(files []string) (paths []string) {
	for _, file := range files {
		if !filepath.IsAbs(file) && !isSystem(file) {
			file = filepath.Join(filepath.Dir(p.name), file)
		}
		paths = append(paths, file)
	}
	return paths
}

// isSystem reports whether text is the number of an autonomous system: AS132203.
func isSystem(text string) bool {
	if len(text) < 3 || !strings.EqualFold(text[:2], "AS") {
		return false
	}
	_, err := strconv.ParseUint(text[2:], 10, 32)
	return err == nil
}

func systemText(number uint32) string { return "AS" + strconv.FormatUint(uint64(number), 10) }

// each returns the errors that were joined.
func each(err error) (all []error) {
	var joined interface{ Unwrap() []error }
	if errors.As(err, &joined) {
		for _, err := range joined.Unwrap() {
			all = append(all, each(err)...)
		}
		return all
	}
	if err != nil {
		all = append(all, err)
	}
	return all
}

// pathOf returns where in the file the cause of a directory's error stands.
func pathOf(message string, o *robots.Options) string {
	names := func(files []string) bool {
		return slices.ContainsFunc(files, func(file string) bool { return strings.Contains(message, file) })
	}
	if names(o.ASN) {
		return "$.asn"
	}
	for _, name := range slices.Sorted(maps.Keys(o.Networks)) {
		if strings.Contains(message, "Networks["+strconv.Quote(name)+"]") || names(slices.DeleteFunc(slices.Clone(o.Networks[name]), isSystem)) {
			return "$.networks." + name
		}
	}
	for _, name := range slices.Sorted(maps.Keys(o.Lists)) {
		if strings.Contains(message, "Lists["+strconv.Quote(name)+"]") || names(o.Lists[name]) {
			return "$.robots.lists." + name
		}
	}
	return "$.robots"
}

// warnLists warns of lists that are old.
func (p *parsing) warnLists(file *File) {
	for _, warning := range file.OldLists() {
		p.problem("$.robots", "%s", warning)
	}
}

// OldLists returns what is wrong with the lists and tables of robots as they are now: those that
// are refused, and those that should have been renewed.
func (f *File) OldLists() (warnings []string) {
	if f.Robots == nil {
		return nil
	}
	for _, list := range f.Robots.Files() {
		days := int(time.Since(list.Modified) / day)
		switch {
		case list.Err != nil:
			warnings = append(warnings, strings.TrimPrefix(list.Err.Error(), "robots: ")+". What was read of it before holds")
		case time.Since(list.Modified) > 7*day:
			warnings = append(warnings, list.Path+" is "+strconv.Itoa(days)+" days old: addresses that are new to it are taken for impostors'. Renew it once a day")
		}
	}
	return warnings
}
