package rulefile

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"net/url"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/internal/address"
	"github.com/adaptivethrottler/throttler/redisstore"
	"github.com/adaptivethrottler/throttler/robots"
	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"
	"golang.org/x/net/http/httpguts"
)

// maxFile is the largest file that is read, in bytes.
const maxFile = 4 << 20

// maxDepth is the deepest nesting of a file, far more than a rule needs.
const maxDepth = 32

// A Problem is a mistake in a file.
type Problem struct {
	File    string `json:"file"`
	Line    int    `json:"line"`   // from 1; 0: none
	Column  int    `json:"column"` // from 1
	Message string `json:"message"`
	Excerpt string `json:"excerpt,omitempty"` // the lines around it, with a mark
	Warning bool   `json:"warning,omitempty"` // the file can be used all the same
}

func (p Problem) String() string {
	message := p.Message
	if p.Warning {
		message = "warning: " + message
	}
	if p.Line == 0 {
		return p.File + ": " + message
	}
	return fmt.Sprintf("%s:%d:%d: %s", p.File, p.Line, p.Column, message)
}

// Problems is the error of an invalid file: all mistakes, from top to bottom.
// An error in the YAML syntax stands alone.
type Problems []Problem

func (ps Problems) Error() string {
	lines := make([]string, len(ps))
	for i, p := range ps {
		lines[i] = p.String()
	}
	return strings.Join(lines, "\n")
}

// Load reads the file at path. The error is the file system's, or Problems.
func Load(path string) (*File, error) {
	file, _, err := load(path)
	return file, err
}

// load is Load. It also returns the files of limits that the file names, as they were read; nil:
// not at all.
func load(path string) (file *File, limits map[string]os.FileInfo, err error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, nil, err
	}
	defer f.Close()
	source, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return nil, nil, err
	}
	return parse(path, source)
}

// Parse parses the contents of a file. name stands in the error, which is
// Problems. A byte order mark at the beginning is skipped.
func Parse(name string, source []byte) (*File, error) {
	file, _, err := parse(name, source)
	return file, err
}

func parse(name string, source []byte) (file *File, limits map[string]os.FileInfo, err error) {
	source = bytes.TrimPrefix(source, []byte(byteOrderMark))
	p := &parsing{name: name, source: source, limits: make(map[string]os.FileInfo)}
	file = p.file()
	slices.SortStableFunc(p.problems, func(a, b Problem) int {
		return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column))
	})
	if len(p.problems) > 0 {
		return nil, p.limits, p.problems
	}
	p.warn(file)
	return file, p.limits, nil
}

// warn adds warnings to a valid file.
func (p *parsing) warn(file *File) {
	for i, r := range file.Rules {
		for j := range r.conditions {
			path := at(at("$.rules", i)+r.kind(), j)
			if r.selector.isZero() && r.conditions[j].value.isConstant() {
				p.problem(path+".value", "counts the requests of all clients together, also those that come through a proxy: "+
					"add for: {api: true} to the rule if only programs ask, over JSON, or for: {path: [/**]} if the limit is for the whole site")
			}
			if ban, counted := r.banOf(j); ban > 0 && ban < counted {
				p.problem(path+".per", "a ban of %s ends before what was counted, and then counting starts anew: "+
					"more than %d pass. Make lockout as long as per, or lockout: none for this condition", inUnits(ban), r.conditions[j].Max)
			}
		}
	}
	p.warnProxy(file.Proxy)
	p.warnLists(file)
	for i := range p.problems {
		p.problems[i].Warning = true
	}
	file.Warnings = p.problems
}

// The structure of the file. Keep it equal to schema.json.
type (
	fileYAML struct {
		Servers   []string   `yaml:"servers"`
		Store     string     `yaml:"store"`
		Trust     words      `yaml:"trust"`
		Forwarded string     `yaml:"forwarded"`
		IPv4Bits  *int       `yaml:"ipv4-bits"`
		IPv6Bits  *int       `yaml:"ipv6-bits"`
		Failure   string     `yaml:"failure"`
		Shadow    bool       `yaml:"shadow"`
		Rules     []ruleYAML `yaml:"rules"`

		Envoy []domainYAML `yaml:"envoy"`
		Proxy *proxyYAML   `yaml:"proxy"`

		Robots   *robotsYAML      `yaml:"robots"`
		Networks map[string]words `yaml:"networks"`
		ASN      words            `yaml:"asn"`
	}
	ruleYAML struct {
		Name       string          `yaml:"name"`
		For        forYAML         `yaml:"for"`
		Either     []conditionYAML `yaml:"either"`
		All        []conditionYAML `yaml:"all"`
		First      []conditionYAML `yaml:"first"`
		Lockout    string          `yaml:"lockout"`
		Growth     float64         `yaml:"growth"`
		MaxLockout string          `yaml:"max-lockout"`
		Authorized bool            `yaml:"count-authorized-only"`
		Shadow     bool            `yaml:"shadow"`
		Answer     answerYAML      `yaml:"answer"`
	}
	forYAML struct {
		API    bool              `yaml:"api"`
		Path   []string          `yaml:"path"`
		Method []string          `yaml:"method"`
		Host   []string          `yaml:"host"`
		Field  map[string]string `yaml:"field"`
		Robot  *robotYAML        `yaml:"robot"`
	}
	conditionYAML struct {
		Name       string         `yaml:"name"`
		Value      string         `yaml:"value"`
		Max        int            `yaml:"max"`
		Per        string         `yaml:"per"`
		Algorithm  string         `yaml:"algorithm"`
		Lease      string         `yaml:"lease"`
		Anchor     int            `yaml:"anchor"`
		Zone       string         `yaml:"zone"`
		Message    string         `yaml:"message"`
		Lockout    string         `yaml:"lockout"`
		Public     bool           `yaml:"public"`
		Limits     map[string]int `yaml:"limits"`
		LimitsFile string         `yaml:"limits-file"`
		Exempt     []string       `yaml:"exempt"`
		Missing    string         `yaml:"missing"`
	}
	answerYAML struct {
		Status int    `yaml:"status"`
		Type   string `yaml:"type"`
		Body   string `yaml:"body"`
	}
)

// parsing is the state of Parse.
type parsing struct {
	name     string
	source   []byte
	tree     *ast.File
	bits     bits
	shadow   bool
	limits   map[string]os.FileInfo // files of limits, as they were read; nil: not at all
	robots   *robots.Directory      // nil: no rule asks who a robot is, or there are mistakes
	problems Problems
}

// file returns the parsed file, or adds problems.
func (p *parsing) file() *File {
	raw, ok := p.decode()
	if !ok {
		return nil
	}
	p.numbers()
	f := &File{
		Servers:   raw.Servers,
		Store:     raw.Store,
		Forwarded: cmp.Or(raw.Forwarded, defaultForwarded),
		Closed:    raw.Failure == "closed",
		Shadow:    raw.Shadow,
	}
	p.shadow = raw.Shadow
	p.bits = bits{p.prefix("$.ipv4-bits", raw.IPv4Bits, defaultIPv4Bits, 32), p.prefix("$.ipv6-bits", raw.IPv6Bits, defaultIPv6Bits, 128)}
	f.IPv6Bits = p.bits.ipv6
	p.robots = p.directory(&raw)
	f.Robots = p.robots
	p.oneOf("$.failure", raw.Failure, "open", "closed")
	if !isToken(f.Forwarded) {
		p.problem("$.forwarded", "%q is no header field: want a name, as X-Forwarded-For", f.Forwarded)
	}
	for i, server := range raw.Servers {
		if !isServer(server) {
			p.problem(at("$.servers", i), "%q is no server: want host:port, or the path of a socket", server)
		} else if first := slices.IndexFunc(raw.Servers, func(s string) bool { return plainServer(s) == plainServer(server) }); first < i {
			p.problem(at("$.servers", i), "server %d is %q too", first+1, server)
		}
	}
	p.store(&raw)
	p.trust(f, raw.Trust)
	f.domains = p.domainTrees(raw.Envoy)
	f.Proxy = p.proxy(raw.Proxy)
	if len(raw.Rules)+len(raw.Envoy) == 0 && raw.Proxy == nil {
		p.problem("$.rules", "there are no rules")
	}
	for i := range raw.Rules {
		path := at("$.rules", i)
		f.Rules = append(f.Rules, p.rule(path, &raw.Rules[i]))
		name := raw.Rules[i].Name
		if first := slices.IndexFunc(raw.Rules, func(r ruleYAML) bool { return r.Name == name }); first < i {
			p.problem(path+".name", "rule %d is called %q too", first+1, name)
		}
	}
	return f
}

// prefix returns how much of an address counts.
func (p *parsing) prefix(path string, raw *int, otherwise, most int) int {
	if raw == nil {
		return otherwise
	}
	if *raw < 1 || *raw > most {
		p.problem(path, "%d is not from 1 to %d", *raw, most)
	}
	return *raw
}

// numberPath matches the paths of whole numbers.
var numberPath = regexp.MustCompile(`^\$\.ipv[46]-bits$|^\$\.rules\[\d+\]\.(?:answer\.status|(?:either|all|first)\[\d+\]\.(?:max|anchor|limits\..+))$|\.rate_limit\.requests_per_unit$`)

// wholeNumber matches a number that means the same to every reader of YAML.
var wholeNumber = regexp.MustCompile(`^-?(?:0|[1-9][0-9]*)$`)

// numbers adds a problem for each whole number that is written as something else. The YAML
// package takes 5.7 for 5, and 010 for 8.
func (p *parsing) numbers() {
	if len(p.tree.Docs) == 0 || p.tree.Docs[0].Body == nil {
		return // an empty file
	}
	for _, node := range ast.Filter(ast.MappingValueType, p.tree.Docs[0].Body) {
		value := node.(*ast.MappingValueNode).Value
		if !numberPath.MatchString(value.GetPath()) {
			continue
		}
		switch value.(type) {
		case *ast.IntegerNode, *ast.FloatNode, *ast.StringNode:
			text := value.GetToken().Value
			if _, isText := value.(*ast.StringNode); isText || !wholeNumber.MatchString(text) {
				p.at(value, fmt.Sprintf("%s, want a whole number in digits, without a zero before it or quotation marks", text))
			}
		}
	}
}

// isServer reports whether pool.New takes a server, if its name resolves.
func isServer(server string) bool {
	if strings.Contains(server, "://") { // would be the path of a socket
		return false
	}
	if path := plainServer(server); path != server || strings.Contains(path, "/") {
		return path != ""
	}
	host, port, err := net.SplitHostPort(server)
	if err != nil || host == "" {
		return false
	}
	number, err := net.LookupPort("tcp", port)
	return err == nil && number > 0
}

// plainServer returns a server without what may stand before the path of a socket.
func plainServer(server string) string { return strings.TrimPrefix(server, "unix:") }

// decode decodes the YAML.
func (p *parsing) decode() (raw fileYAML, ok bool) {
	if len(p.source) > maxFile {
		p.at(nil, fmt.Sprintf("larger than %d bytes", maxFile))
		return raw, false
	}
	if line := tooDeep(p.source); line > 0 {
		p.problems = append(p.problems, Problem{File: p.name, Line: line, Column: 1, Message: fmt.Sprintf("nested deeper than %d", maxDepth)})
		return raw, false
	}
	defer func() {
		if recover() != nil { // the YAML package panics at some tags where a list is wanted
			p.unread()
			ok = false
		}
	}()
	var err error
	if p.tree, err = parser.ParseBytes(p.source, 0); err != nil {
		p.syntax(err)
		return raw, false
	}
	if len(p.tree.Docs) > 1 {
		p.at(p.tree.Docs[1].Body, "a second document: a file holds one")
		return raw, false
	}
	if err := yaml.NewDecoder(bytes.NewReader(p.source), yaml.Strict()).Decode(&raw); err != nil && !errors.Is(err, io.EOF) {
		p.syntax(err)
		return raw, false
	}
	return raw, true
}

// unread adds the problem that the YAML package has failed: at the first tag, if there is one.
func (p *parsing) unread() {
	const message = "this YAML cannot be read"
	var tags []ast.Node
	if p.tree != nil {
		tags = ast.FilterFile(ast.TagType, p.tree)
	}
	if len(tags) == 0 {
		p.at(nil, message)
		return
	}
	p.at(tags[0], message+": leave its tag out")
}

// tooDeep returns the line at which brackets are nested deeper than maxDepth,
// or 0. The YAML parser is recursive.
func tooDeep(source []byte) (line int) {
	depth, line := 0, 1
	for _, b := range source {
		switch b {
		case '\n':
			line++
		case '[', '{':
			if depth++; depth > maxDepth {
				return line
			}
		case ']', '}':
			depth = max(depth-1, 0)
		}
	}
	return 0
}

// syntax adds a problem found by the YAML package.
func (p *parsing) syntax(err error) {
	var found yaml.Error
	if !errors.As(err, &found) || found.GetToken() == nil {
		p.at(nil, err.Error())
		return
	}
	message := goTypes.ReplaceAllString(found.GetMessage(), "want $1")
	if m := unknownField.FindStringSubmatch(message); m != nil {
		message += hint(m[1])
	}
	p.mark(found.GetToken(), message)
}

// unknownField matches the YAML package's message about a key that no structure has.
var unknownField = regexp.MustCompile(`^unknown field "(.+)"$`)

// levels are the structures of a rule, and what they are called.
var levels = []struct {
	name string
	keys any
}{
	{"the top of the file", fileYAML{}}, {"a rule", ruleYAML{}}, {"for", forYAML{}}, {"for.robot", robotYAML{}}, {"robots", robotsYAML{}},
	{"a condition", conditionYAML{}}, {"answer", answerYAML{}},
}

// hint says where a key belongs, or which one was meant. It is empty if neither is known.
func hint(key string) string {
	near := ""
	for _, level := range levels {
		structure := reflect.TypeOf(level.keys)
		for i := range structure.NumField() {
			known := structure.Field(i).Tag.Get("yaml")
			if known == key {
				return ": it belongs to " + level.name
			}
			if near == "" && len(key) > 2 && distance(known, key) <= 2 {
				near = ": did you mean " + known + "?"
			}
		}
	}
	return near
}

// distance returns how many letters must be added, left out or replaced to make b of a.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range a {
		diagonal := row[0]
		row[0] = i + 1
		for j := range b {
			replaced := diagonal
			if a[i] != b[j] {
				replaced++
			}
			diagonal = row[j+1]
			row[j+1] = min(replaced, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}

// goTypes matches the YAML package's message about a value of the wrong type.
var goTypes = regexp.MustCompile(`^cannot unmarshal \S+ into Go (?:struct field \S+|value) of type (\S+)$`)

// problem adds a problem at a path, or at its nearest parent in the file.
func (p *parsing) problem(path, format string, args ...any) {
	message := fmt.Sprintf(format, args...)
	for {
		if node := p.node(path); node != nil {
			p.at(node, message)
			return
		}
		end := strings.LastIndexAny(path, ".[")
		if end < 0 {
			p.at(nil, message)
			return
		}
		path = path[:end]
	}
}

// node returns the node at a path, or nil.
func (p *parsing) node(path string) ast.Node {
	compiled, err := yaml.PathString(path)
	if err != nil {
		return nil
	}
	node, err := compiled.FilterFile(p.tree)
	if err != nil {
		return nil
	}
	return node
}

// at adds a problem at a node, or of the whole file if that is nil.
func (p *parsing) at(node ast.Node, message string) {
	if mapping, ok := node.(*ast.MappingNode); ok && !mapping.IsFlowStyle && len(mapping.Values) > 0 {
		node = mapping.Values[0].Key // the mapping's own token is the first colon
	} else if value, ok := node.(*ast.MappingValueNode); ok {
		node = value.Key
	}
	if node == nil || node.GetToken() == nil {
		p.problems = append(p.problems, Problem{File: p.name, Message: message})
		return
	}
	p.mark(node.GetToken(), message)
}

// mark adds a problem at a token.
func (p *parsing) mark(t *token.Token, message string) {
	p.problems = append(p.problems, Problem{
		File: p.name, Line: t.Position.Line, Column: t.Position.Column,
		Message: message, Excerpt: p.excerpt(t.Position.Line, t.Position.Column),
	})
}

// excerpt returns a line of the file with a mark below a column.
func (p *parsing) excerpt(line, column int) string {
	lines := bytes.Split(p.source, []byte("\n"))
	if line < 1 || line > len(lines) || column < 1 {
		return ""
	}
	text := strings.ToValidUTF8(string(bytes.TrimRight(lines[line-1], "\r")), "\uFFFD")
	number := strconv.Itoa(line)
	return fmt.Sprintf("%s | %s\n%*s | %*s", number, strings.ReplaceAll(text, "\t", " "), len(number), "", column, "^")
}

func at(path string, i int) string { return path + "[" + strconv.Itoa(i) + "]" }

func (p *parsing) oneOf(path, value string, allowed ...string) {
	if value != "" && !slices.Contains(allowed, value) {
		p.problem(path, "%q is unknown: want %s", value, strings.Join(allowed, " or "))
	}
}

// parsePrefix parses a network or an address.
func parsePrefix(text string) (netip.Prefix, error) {
	if addr, err := netip.ParseAddr(text); err == nil {
		addr = address.Plain(addr)
		return netip.PrefixFrom(addr, addr.BitLen()), nil
	}
	prefix, err := netip.ParsePrefix(text)
	if err != nil {
		return netip.Prefix{}, fmt.Errorf("%q is neither an address nor a network, want 192.0.2.7 or 192.0.2.0/24", text)
	}
	if prefix != prefix.Masked() {
		return netip.Prefix{}, fmt.Errorf("%q has bits beyond its network: want %v", text, prefix.Masked())
	}
	plain := address.PlainPrefix(prefix)
	if plain.Bits() == 0 && prefix.Bits() != 0 {
		return netip.Prefix{}, fmt.Errorf("%q stands for every IPv4 address: want 0.0.0.0/0 if that is meant", text)
	}
	return plain, nil
}

// rule parses a rule.
func (p *parsing) rule(path string, raw *ruleYAML) *Rule {
	before := len(p.problems)
	r := &Rule{
		Name:     raw.Name,
		selector: p.selector(path+".for", &raw.For),
		Answer:   p.answer(path+".answer", &raw.Answer),
		template: throttler.Rule{
			Identifier:          raw.Name,
			Lockout:             p.duration(path+".lockout", raw.Lockout),
			LockoutGrowth:       raw.Growth,
			MaxLockout:          p.length(path+".max-lockout", raw.MaxLockout, "a length"),
			CountAuthorizedOnly: raw.Authorized,
			Shadow:              raw.Shadow || p.shadow,
		},
	}
	if strings.HasPrefix(raw.Name, Reserved) {
		p.problem(path+".name", "names that begin with %s are the service's own: choose another", Reserved)
	}
	var conditions []conditionYAML
	for _, list := range []struct {
		key        string
		conditions []conditionYAML
	}{{"either", raw.Either}, {"all", raw.All}, {"first", raw.First}} {
		switch {
		case len(list.conditions) == 0:
		case r.list == "":
			r.list, conditions = list.key, list.conditions
		default:
			p.problem(path+"."+list.key, "a rule has conditions in one of either, all and first: this has some in %s too", r.list)
			return r
		}
	}
	p.conditions(path+r.kind(), r, conditions)
	p.needsEnds(path+r.kind(), r)
	if len(conditions) == 0 {
		p.problem(path, "no conditions: want some in either, all or first")
	}
	if len(p.problems) == before {
		p.validate(path, r)
	}
	return r
}

// conditions parses the conditions of a rule.
func (p *parsing) conditions(path string, r *Rule, raw []conditionYAML) {
	for i := range raw {
		c := p.condition(at(path, i), &raw[i])
		if len(r.selector.paths) == 0 && c.value.has("route") {
			p.problem(at(path, i)+".value", "{route} is empty without for.path: want a path, or {path}")
		}
		if first := slices.IndexFunc(raw, func(other conditionYAML) bool { return other.Name == c.Name }); first < i {
			p.problem(at(path, i)+".name", "condition %d is called %q too", first+1, c.Name)
		}
		r.conditions = append(r.conditions, c)
		if raw[i].Public {
			r.Public = append(r.Public, c.Name)
		}
	}
}

// validate adds the problems that throttler.Rule.Validate finds.
func (p *parsing) validate(path string, r *Rule) {
	conditions := make([]throttler.Condition, len(r.conditions))
	for i := range r.conditions {
		conditions[i] = r.conditions[i].Condition
	}
	if wrong := invalid(r.with(conditions)); wrong != nil {
		where := path
		if wrong.Index >= 0 {
			where = at(path+r.kind(), wrong.Index)
		}
		field := strings.TrimPrefix(wrong.Field, "Period.")
		if field == "TTL" && r.conditions[wrong.Index].Algorithm == throttler.InFlight {
			field = "lease"
		}
		p.problem(where+"."+cmp.Or(fieldNames[field], strings.ToLower(field)), "%s, want %s", wrong.Got, wrong.Want)
	}
	for i := range r.conditions {
		for value, limit := range r.conditions[i].limits {
			one := r.conditions[i].Condition
			one.Max = limit
			if wrong := invalid(r.with([]throttler.Condition{one})); wrong != nil {
				if line, ok := r.conditions[i].limitLines[value]; ok {
					p.inLimits(&r.conditions[i], line, "the limit of %q is %s, want %s", value, wrong.Got, wrong.Want)
					break
				}
				p.problem(at(path+r.kind(), i)+".limits", "the limit of %q is %s, want %s", value, wrong.Got, wrong.Want)
				break
			}
		}
	}
}

// kind returns the end of the path of r's conditions.
func (r *Rule) kind() string { return "." + r.list }

// fieldNames maps the fields of throttler.Rule and Condition to their names in
// a file, where that is not the same in small letters.
var fieldNames = map[string]string{"Identifier": "name", "LockoutGrowth": "growth", "MaxLockout": "max-lockout", "TTL": "per"}

// invalid returns what is wrong with a rule, or nil.
func invalid(rule throttler.Rule) (wrong *throttler.RuleError) {
	errors.As(rule.Validate(), &wrong)
	return wrong
}

func (p *parsing) duration(path, text string) time.Duration {
	if text == "" {
		return 0
	}
	parsed, err := ParseDuration(text)
	if err != nil {
		p.problem(path, "%q is no duration: want 30s, 5m, 12h, 7d", text)
	}
	return parsed
}

// length is duration for what must be more than 0 if it is given: 0 is not the default.
func (p *parsing) length(path, text, want string) time.Duration {
	before := len(p.problems)
	d := p.duration(path, text)
	if text != "" && d <= 0 && len(p.problems) == before {
		p.problem(path, "%v, want %s", d, want)
	}
	return d
}

func (p *parsing) answer(path string, raw *answerYAML) Answer {
	a := Answer{Status: raw.Status, Type: cmp.Or(raw.Type, "text/plain; charset=utf-8"), Body: raw.Body}
	if a.Status == 0 {
		a.Status = defaultStatus
	}
	if a.Status < 400 || a.Status > 599 {
		p.problem(path+".status", "%d is not from 400 to 599", a.Status)
	}
	if strings.ContainsAny(a.Type, "\r\n") {
		p.problem(path+".type", "a line break, want a media type on one line")
	}
	return a
}

func (p *parsing) selector(path string, raw *forYAML) selector {
	s := selector{apiOnly: raw.API, methods: raw.Method, fields: raw.Field, directory: p.robots, bits: p.bits}
	s.robot = p.robot(path+".robot", raw.Robot)
	if raw.API && (len(raw.Path)+len(raw.Method)+len(raw.Host)+len(raw.Field) > 0 || raw.Robot != nil) {
		p.problem(path+".api", "a rule for the API selects no requests of proxies: leave out path, method, host, field and robot")
	}
	checkEach(p, path+".method", raw.Method, "%q is no method: want GET, POST and so on", isToken)
	s.paths = parseEach(p, path+".path", raw.Path, parsePattern)
	checkEach(p, path+".host", raw.Host, "%q is no host: want a name, or *. and a name, in ASCII as xn--bcher-kva.example", isHost)
	for _, host := range raw.Host {
		s.hosts = append(s.hosts, strings.ToLower(host))
	}
	return s
}

// checkEach adds a problem for each item of a list that is not right.
func checkEach[T any](p *parsing, path string, list []T, wrong string, isRight func(T) bool) {
	for i, item := range list {
		if !isRight(item) {
			p.problem(at(path, i), wrong, item)
		}
	}
}

// parseEach parses the texts of a list.
func parseEach[T any](p *parsing, path string, list []string, parse func(string) (T, error)) []T {
	var all []T
	for i, text := range list {
		one, err := parse(text)
		if err != nil {
			p.problem(at(path, i), "%v", err)
		}
		all = append(all, one)
	}
	return all
}

// isHost reports whether a host of a rule file is one, or *. and one.
func isHost(host string) bool {
	rest := strings.TrimPrefix(host, "*.")
	return host != "" && !strings.ContainsFunc(rest, func(r rune) bool { return r >= utf8.RuneSelf || strings.ContainsRune("*/: ", r) })
}

// isToken reports whether s is a token of HTTP: RFC 9110, section 5.6.2.
func isToken(s string) bool { return httpguts.ValidHeaderFieldName(s) }

// condition parses a condition.
func (p *parsing) condition(path string, raw *conditionYAML) condition {
	c := condition{
		Condition: throttler.Condition{
			Name:    raw.Name,
			Max:     raw.Max,
			Message: raw.Message,
		},
		limits:      raw.Limits,
		skipMissing: raw.Missing == "skip",
	}
	if c.Lockout = -1; raw.Lockout != "none" {
		c.Lockout = p.length(path+".lockout", raw.Lockout, "a length or none")
	}
	c.limitLines = p.readLimits(path+".limits-file", raw, &c)
	p.counting(path, raw, &c.Condition)
	p.oneOf(path+".missing", raw.Missing, "count", "skip")
	if raw.Value == "" {
		p.problem(path, "no value: want what to count, as in {address}")
	}
	var err error
	if c.value, err = parseTemplate(raw.Value); err != nil {
		p.problem(path+".value", "%v", err)
	}
	c.exempt = make(map[string]bool)
	for i, text := range raw.Exempt {
		prefix, err := parsePrefix(text)
		switch {
		case err == nil:
			c.networks = append(c.networks, prefix)
		case isMeantAsNetwork(text):
			p.problem(at(path+".exempt", i), "%v", err)
		default:
			c.exempt[text] = true
		}
	}
	return c
}

// isMeantAsNetwork reports whether text begins like a network: an address and a
// slash.
func isMeantAsNetwork(text string) bool {
	before, _, found := strings.Cut(text, "/")
	_, err := netip.ParseAddr(before)
	return found && err == nil
}

// store checks the URL of Redis or Valkey.
func (p *parsing) store(raw *fileYAML) {
	if raw.Store == "" {
		return
	}
	if len(raw.Servers) > 0 {
		p.problem("$.store", "there are servers, too: records are kept in one of the two")
	}
	if u, err := url.Parse(raw.Store); err == nil && u.Host == "" && u.Path == "" { // redis:host:6379 would be localhost
		p.problem("$.store", "%q has no server: want redis://host:6379", raw.Store)
		return
	}
	store, err := redisstore.Open(raw.Store)
	if err != nil {
		p.problem("$.store", "%v", err)
		return
	}
	store.Close()
}
