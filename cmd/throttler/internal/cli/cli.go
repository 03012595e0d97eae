// Package cli implements the command line of the command throttler.
package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"os/signal"
	"regexp"
	"runtime"
	"strings"
	"syscall"
	"time"

	"github.com/adaptivethrottler/throttler/cmd/throttler/internal/ops"
	"github.com/adaptivethrottler/throttler/cmd/throttler/internal/rulefile"
	"github.com/adaptivethrottler/throttler/cmd/throttler/internal/serve"
	"github.com/adaptivethrottler/throttler/cmd/throttler/internal/version"
	"github.com/alecthomas/kong"
	"golang.org/x/term"
)

// The exit statuses.
const (
	statusOK     = 0
	statusFailed = 1 // a server does not answer, a rule file is wrong
	statusUsage  = 2 // the command line is wrong
)

// Streams are the input and output of a command.
type Streams struct {
	In       io.Reader
	Out, Err io.Writer
}

// globals are the flags of every command.
type globals struct {
	Servers []string `help:"memcached servers: host:port, or the path of a socket." env:"THROTTLER_SERVERS" placeholder:"HOST:PORT"`
	Store   string   `help:"Redis or Valkey, instead of memcached: redis://host:6379." env:"THROTTLER_STORE" placeholder:"URL"`
	Rules   string   `help:"Rule file. Its servers are used unless -servers or -store is given." env:"THROTTLER_RULES" placeholder:"FILE"`
	JSON    bool     `help:"Print JSON." name:"json"`

	Version kong.VersionFlag `help:"Print the version." env:"-"`
}

// tlsFlags are the flags of the files that secure a port.
type tlsFlags struct {
	Cert     string `help:"Certificate of that address. Default: none, plain text." placeholder:"FILE"`
	CertKey  string `help:"Private key of that certificate." placeholder:"FILE"`
	ClientCA string `name:"client-ca" help:"Authority of the certificates that clients there must have." placeholder:"FILE"`
}

func (f tlsFlags) files() serve.TLS {
	return serve.TLS{Cert: f.Cert, CertKey: f.CertKey, ClientCA: f.ClientCA}
}

// commands is the command line.
type commands struct {
	globals

	Look struct {
		Identifier string   `arg:"" help:"The rule's identifier."`
		Values     []string `arg:"" help:"Values to show: ip=203.0.113.7 login=alice." placeholder:"CONDITION=VALUE"`
	} `cmd:"" help:"Show what is stored: hits, bans, and when they end."`

	Ban struct {
		Identifier string   `arg:"" help:"The rule's identifier."`
		Values     []string `arg:"" help:"Values to ban, and for how long: ip=203.0.113.7 24h." placeholder:"CONDITION=VALUE… DURATION"`
	} `cmd:"" help:"Ban values. A longer ban stays."`

	Lift struct {
		Identifier string   `arg:"" help:"The rule's identifier."`
		Values     []string `arg:"" help:"Values to lift the bans of: ip=203.0.113.7." placeholder:"CONDITION=VALUE"`
		Holder     string   `help:"Free only this holder of what is in flight, and nothing else." placeholder:"ID"`
	} `cmd:"" help:"Lift bans, and forget hits."`

	List struct {
		Identifier string `arg:"" optional:"" help:"List values of this rule only."`
		Bans       bool   `help:"List bans only."`
		All        bool   `help:"List every value with hits, not only those banned or full."`
	} `cmd:"" help:"List values that are banned, or full by the limits of the rule file."`

	Server struct{} `cmd:"" name:"servers" help:"Show the state of the servers, and what they have forgotten."`

	Serve struct {
		Listen string `default:"127.0.0.1:4180" help:"Address for proxies."`
		Admin  string `default:"127.0.0.1:4181" help:"Address of /metrics, /tally, /healthz and /readyz. Empty disables it."`
		Envoy  string `default:"127.0.0.1:4182" help:"Address for Envoy (gRPC). Empty disables it."`

		API   string `name:"api" default:"127.0.0.1:4183" help:"Address of the JSON API. Callers need a key of THROTTLER_API_KEYS or a certificate. Empty disables it."`
		Proxy string `default:"127.0.0.1:4184" help:"Address of the proxy that guards logins, if the rule file has one. Empty disables it."`

		ListenTLS tlsFlags `embed:"" prefix:"listen-"`
		AdminTLS  tlsFlags `embed:"" prefix:"admin-"`
		EnvoyTLS  tlsFlags `embed:"" prefix:"envoy-"`
		APITLS    tlsFlags `embed:"" prefix:"api-"`
		ProxyTLS  tlsFlags `embed:"" prefix:"proxy-"`

		Drain time.Duration `default:"2s" help:"How long callers are asked to go elsewhere before the service ends."`

		Log      string `default:"text" enum:"text,json" help:"Form of the log: text or json."`
		LogLevel string `name:"log-level" default:"info" enum:"debug,info,warn,error" help:"Least level of what is logged: debug, info, warn or error."`
	} `cmd:"" help:"Answer proxies and programs by the rule file."`

	Health struct {
		Admin     string `default:"127.0.0.1:4181" help:"Address of the service's /healthz."`
		AdminCert string `name:"admin-cert" help:"Given if that address has TLS, as to serve." placeholder:"FILE"`
	} `cmd:"" help:"Fail unless a service runs here, as for a container's health check."`

	Check struct {
		File    string `arg:"" optional:"" help:"The rule file."`
		Offline bool   `help:"Do not ask the servers that it names."`
		Schema  bool   `help:"Print the JSON schema of rule files instead."`
	} `cmd:"" help:"Check a rule file and the servers that it names, and show its mistakes."`

	Try struct {
		File string `arg:"" help:"The rule file."`
	} `cmd:"" help:"Replay a web server's log from standard input, and show what the rules would have blocked."`

	Robots struct {
		Log   string `arg:"" optional:"" help:"The log. Default: standard input."`
		DNS   bool   `name:"dns" help:"Check names without a list by reverse DNS, and write lists of what it confirms."`
		Lists string `default:"." help:"Where these lists are written: NAME.txt." placeholder:"FOLDER"`
	} `cmd:"" help:"Show which robots came, by a web server's log, and what the rules of -rules would have blocked."`
}

// longFlag matches a long flag with one dash, as in the manual. The only short
// flag is -h.
var longFlag = regexp.MustCompile(`^-[a-z][a-z-]*[a-z](=|$)`)

// Run runs the command line args, until ctx ends, and returns the exit status.
func Run(ctx context.Context, args []string, streams Streams) int {
	for i, arg := range args {
		if longFlag.MatchString(arg) {
			args[i] = "-" + arg
		}
	}
	if len(args) == 0 {
		args = []string{"-h"}
	} else if args[0] == "help" { // help lift: lift -help
		args = append(args[1:], "-h")
	}
	var c commands
	exited := -1
	parser, err := kong.New(&c,
		kong.Name("throttler"),
		kong.Description("Rate limits and bans, kept in memcached, Redis or Valkey."),
		kong.Writers(streams.Out, streams.Err),
		kong.Exit(func(status int) { exited = status }),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true}),
		kong.DefaultEnvars("THROTTLER"),
		kong.Vars{"version": fmt.Sprintf("throttler %s, %s", version.String(), runtime.Version())},
	)
	if err != nil {
		fmt.Fprintln(streams.Err, "throttler:", err)
		return statusFailed
	}
	parsed, err := parser.Parse(args)
	if exited >= 0 { // after -help or -version
		return exited
	}
	if err != nil {
		fmt.Fprintf(streams.Err, "throttler: %v\nRun %q for help.\n", err, helpCommand(err))
		return statusUsage
	}
	return report(streams.Err, c.run(ctx, parsed.Command(), streams))
}

// helpCommand returns the command line that prints the help for what err was found in.
func helpCommand(err error) string {
	var wrong *kong.ParseError
	if errors.As(err, &wrong) && wrong.Context.Selected() != nil {
		return "throttler " + wrong.Context.Selected().Name + " -h"
	}
	return "throttler -h"
}

// report prints err and returns the exit status.
func report(w io.Writer, err error) int {
	switch {
	case err == nil:
		return statusOK
	case errors.Is(err, ops.ErrWrong): // printed already
		return statusFailed
	}
	fmt.Fprintln(w, "throttler:", err)
	if errors.As(err, new(ops.UsageError)) {
		return statusUsage
	}
	return statusFailed
}

func (c *commands) run(ctx context.Context, command string, streams Streams) error {
	if c.Store != "" && len(c.Servers) > 0 {
		return ops.UsageError("-servers and -store: records are kept in one of the two")
	}
	switch command {
	case "check", "check <file>":
		return c.check(ctx, streams)
	case "try <file>":
		return c.try(ctx, streams)
	case "robots", "robots <log>":
		return c.robots(ctx, streams)
	case "serve":
		return c.serve(ctx, streams)
	case "health":
		return serve.Healthy(ctx, c.Health.Admin, c.Health.AdminCert != "")
	}
	o, err := c.operator(streams)
	if err != nil {
		return err
	}
	switch command {
	case "look <identifier> <values>":
		return withTargets(c.Look.Values, func(t []ops.Target) error { return o.Look(ctx, c.Look.Identifier, t) })
	case "lift <identifier> <values>":
		return withTargets(c.Lift.Values, func(t []ops.Target) error { return c.lift(ctx, o, t) })
	case "ban <identifier> <values>":
		return c.ban(ctx, o)
	case "list", "list <identifier>":
		return o.List(ctx, c.List.Identifier, c.List.Bans, c.List.All)
	case "servers":
		return o.ServerStates(ctx)
	}
	return fmt.Errorf("unknown command %q", command)
}

func withTargets(args []string, run func([]ops.Target) error) error {
	targets, err := ops.ParseTargets(args)
	if err != nil {
		return err
	}
	return run(targets)
}

// lift lifts the bans of targets, or frees one holder of a target.
func (c *commands) lift(ctx context.Context, o *ops.Operator, targets []ops.Target) error {
	switch {
	case c.Lift.Holder == "":
		return o.Lift(ctx, c.Lift.Identifier, targets)
	case len(targets) != 1:
		return ops.UsageError("-holder: give the one value that it holds, as in customer=c-17")
	}
	return o.LiftHolder(ctx, c.Lift.Identifier, targets[0], c.Lift.Holder)
}

// ban bans the values for the duration in the last argument.
func (c *commands) ban(ctx context.Context, o *ops.Operator) error {
	last := len(c.Ban.Values) - 1
	d, err := rulefile.ParseDuration(c.Ban.Values[last])
	if err != nil || d <= 0 {
		return ops.UsageError(fmt.Sprintf("%q is no duration: end with the length of the ban, as in 30m, 24h or 7d", c.Ban.Values[last]))
	}
	return withTargets(c.Ban.Values[:last], func(t []ops.Target) error { return o.Ban(ctx, c.Ban.Identifier, t, d) })
}

func (c *commands) check(ctx context.Context, streams Streams) error {
	if c.Check.Schema {
		_, err := io.WriteString(streams.Out, rulefile.Schema)
		return err
	}
	path := c.Check.File
	if path == "" {
		path = c.Rules
	}
	if path == "" {
		return ops.UsageError("no rule file: name one, or set THROTTLER_RULES")
	}
	return c.bareOperator(streams).Check(ctx, path, c.Check.Offline)
}

func (c *commands) try(ctx context.Context, streams Streams) error {
	c.Rules = c.Try.File
	o, err := c.operator(streams)
	if err != nil {
		return err
	}
	return o.Try(ctx, streams.In, sizeOf(streams.In))
}

func (c *commands) robots(ctx context.Context, streams Streams) error {
	o, err := c.operator(streams)
	if err != nil {
		return err
	}
	log := streams.In
	if c.Robots.Log != "" {
		file, err := os.Open(c.Robots.Log)
		if err != nil {
			return err
		}
		defer file.Close()
		log = file
	}
	var dns *ops.DNS
	if c.Robots.DNS {
		dns = &ops.DNS{Folder: c.Robots.Lists}
	}
	return o.Robots(ctx, log, sizeOf(log), dns)
}

func (c *commands) serve(ctx context.Context, streams Streams) error {
	switch {
	case c.Rules == "":
		return ops.UsageError("no rule file: give -rules, or set THROTTLER_RULES")
	case c.JSON:
		return ops.UsageError("serve prints no answer: for a log in JSON give -log=json")
	}
	hangup := make(chan os.Signal, 1)
	signal.Notify(hangup, syscall.SIGHUP)
	defer signal.Stop(hangup)
	return serve.Run(ctx, serve.Options{
		Rules: c.Rules, Servers: c.Servers, Store: c.Store, Listen: c.Serve.Listen, Admin: c.Serve.Admin, Envoy: c.Serve.Envoy,
		User: os.Getenv("THROTTLER_USER"), Password: os.Getenv("THROTTLER_PASSWORD"),
		API: serve.API{
			Listen: c.Serve.API, Keys: list(os.Getenv("THROTTLER_API_KEYS")), Token: os.Getenv("THROTTLER_TOKEN_KEY"),
			TLS: c.Serve.APITLS.files(),
		},
		Proxy:     serve.Proxy{Listen: c.Serve.Proxy, TLS: c.Serve.ProxyTLS.files()},
		ListenTLS: c.Serve.ListenTLS.files(), AdminTLS: c.Serve.AdminTLS.files(), EnvoyTLS: c.Serve.EnvoyTLS.files(),
		Drain: c.Serve.Drain, Log: newLog(streams.Err, c.Serve.Log, c.Serve.LogLevel), Hangup: hangup,
	})
}

// newLog returns a log of that form and level.
func newLog(w io.Writer, form, level string) *slog.Logger {
	var least slog.Level
	_ = least.UnmarshalText([]byte(level)) // kong has checked it
	options := &slog.HandlerOptions{Level: least}
	if form == "json" {
		return slog.New(slog.NewJSONHandler(w, options))
	}
	return slog.New(slog.NewTextHandler(w, options))
}

// list splits text at commas and blanks.
func list(text string) []string {
	return strings.FieldsFunc(text, func(r rune) bool { return r == ',' || r == ' ' })
}

// sizeOf returns the size of a regular file, and otherwise 0.
func sizeOf(r io.Reader) int64 {
	f, ok := r.(fs.File)
	if !ok {
		return 0
	}
	info, err := f.Stat()
	if err != nil || !info.Mode().IsRegular() {
		return 0
	}
	return info.Size()
}

// progress returns the standard error if it is a terminal, and otherwise nil.
func progress(streams Streams) io.Writer {
	if f, ok := streams.Err.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		return f
	}
	return nil
}

// bareOperator returns an Operator without a rule file.
func (c *commands) bareOperator(streams Streams) *ops.Operator {
	return &ops.Operator{
		Servers: c.Servers, Store: c.Store, User: os.Getenv("THROTTLER_USER"), Password: os.Getenv("THROTTLER_PASSWORD"),
		JSON: c.JSON, Out: streams.Out, Progress: progress(streams),
	}
}

// operator returns an Operator with the rule file, if there is one, and its servers unless others
// are given.
func (c *commands) operator(streams Streams) (*ops.Operator, error) {
	o := c.bareOperator(streams)
	if c.Rules == "" {
		return o, nil
	}
	rules, err := rulefile.Load(c.Rules)
	if err != nil {
		return nil, err
	}
	o.Rules = rules
	if len(o.Servers) == 0 && o.Store == "" {
		o.Servers, o.Store = rules.Servers, rules.Store
	}
	return o, nil
}
