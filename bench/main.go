// Command bench measures throttler and other rate limiters in turn, in short
// rounds, and prints tables in Markdown. It starts a memcached and a Redis of
// its own and stops them:
//
//	go run ./bench
//
// A machine that is busy for a while slows all of them down. So trust the
// ratios rather than the times.
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"syscall"
	"time"
)

// callerCounts are the numbers of callers in each work.
var callerCounts = []int{1, 16, maxCallers}

// systemsFor returns the systems for w.
func systemsFor(w work) []system {
	all := []system{poolWindow, poolBucket, plainWindow, plainBucket, redisWindow, redisBucket, rueidisBucket, rueidisLog, increx, redisRate, envoy, limitersWindow}
	if w.name == full.name {
		all = slices.Insert(all, 1, poolCached)
	}
	return all
}

// ours reports whether s is throttler over pool or redisstore.
func (s system) ours() bool {
	return strings.HasPrefix(s.name, poolWindow.name) || s.name == redisWindow.name
}

// crowdSystems are the systems of the admitted table.
var crowdSystems = []system{
	poolWindow, poolBucket, plainWindow, plainBucket, redisWindow, redisBucket, rueidisBucket, rueidisLog, increx, redisRate,
	envoy, limitersWindow, limitersLocked, limitersUnlocked,
}

// besideCallers are the numbers of callers of the smaller tables.
var besideCallers = []int{1, maxCallers}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout, os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// options are the flags.
type options struct {
	short   bool
	network string
	rounds  int
	slice   time.Duration
	crowds  int
	svg     string
	page    string
	only    []string
	more    []string // arguments of memcached

	services bool
}

func parse(args []string, messages io.Writer) (o options, err error) {
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	flags.SetOutput(messages)
	flags.BoolVar(&o.short, "short", false, "take about 20 seconds, for a first look")
	flags.StringVar(&o.network, "network", "tcp", "how the servers are reached: tcp or unix")
	flags.IntVar(&o.rounds, "rounds", 15, "how often each limiter is measured at each work")
	flags.DurationVar(&o.slice, "slice", 50*time.Millisecond, "how long it is measured in a round")
	flags.IntVar(&o.crowds, "crowds", 5, "how often a crowd calls for what is admitted")
	flags.StringVar(&o.svg, "svg", "", "write a picture to this file")
	flags.StringVar(&o.page, "page", "", "write the tables into this Markdown file too, in place of those of an earlier run")
	flags.Func("only", "measure only these `parts`, separated by commas: "+strings.Join(partNames(), ", "), func(list string) error {
		o.only = strings.Split(list, ",")
		return nil
	})
	flags.Func("memcached", "more `arguments` of memcached, such as \"-R 200\"", func(args string) error {
		o.more = strings.Fields(args)
		return nil
	})
	flags.BoolVar(&o.services, "services", false, "instead, measure whole services for Envoy, with 1 s for each in a round, or -slice if that is longer")
	if err := flags.Parse(args); err != nil {
		return o, err
	}
	if o.short {
		given := make(map[string]bool)
		flags.Visit(func(f *flag.Flag) { given[f.Name] = true })
		for name, value := range map[string]string{"rounds": "3", "slice": "20ms", "crowds": "1"} {
			if !given[name] {
				_ = flags.Set(name, value)
			}
		}
	}
	unknown := slices.IndexFunc(o.only, func(name string) bool { return !slices.Contains(partNames(), name) })
	switch {
	case flags.NArg() > 0:
		err = fmt.Errorf("unknown argument %q", flags.Arg(0))
	case unknown >= 0:
		err = fmt.Errorf("-only has %q, want some of %v", o.only[unknown], partNames())
	case len(o.only) > 0 && (o.page != "" || o.svg != ""):
		err = errors.New("-page and -svg need all parts, without -only")
	case o.network != "tcp" && o.network != "unix":
		err = fmt.Errorf("-network is %q, want tcp or unix", o.network)
	case o.rounds < 1 || o.crowds < 1 || o.slice < time.Millisecond:
		err = errors.New("-rounds and -crowds must be 1 or more, and -slice 1ms or more")
	}
	return o, err
}

func run(ctx context.Context, args []string, out, messages io.Writer) error {
	o, err := parse(args, messages)
	if errors.Is(err, flag.ErrHelp) {
		return nil
	}
	if err != nil {
		return err
	}
	if o.services {
		return runServices(ctx, o.rounds, max(o.slice, time.Second), out)
	}
	if o.page != "" {
		if _, err := os.Stat(o.page); err != nil {
			return err // before minutes of measuring
		}
	}
	st := &stage{servers: make(map[backend]*server), rounds: o.rounds, slice: o.slice}
	st.report = func(format string, args ...any) { fmt.Fprintf(messages, format+"\n", args...) }
	defer st.close()
	for _, kind := range []backend{onMemcached, onRedis} {
		s, err := start(ctx, kind, o.network, o.argsOf(kind)...)
		if errors.Is(err, errNotInstalled) {
			st.report("%v; what needs it is left out", err)
			continue
		}
		if err != nil {
			return err
		}
		st.servers[kind] = s
	}
	if s := st.servers[onRedis]; s != nil && s.has("INCREX") {
		st.servers[onIncrex] = s
	}
	var tables bytes.Buffer
	both := io.MultiWriter(out, &tables)
	conditions(both, st, o)
	if err := st.all(ctx, o, both); err != nil || o.page == "" {
		return err
	}
	return renew(o.page, tables.Bytes())
}

// argsOf returns what else the server of that kind is started with.
func (o options) argsOf(kind backend) []string {
	if kind == onMemcached {
		return o.more
	}
	return nil
}

// close stops the servers.
func (st *stage) close() {
	for kind, s := range st.servers {
		if kind != onIncrex {
			s.stop()
		}
	}
}

// A part is one or more tables of what is measured.
type part struct {
	name     string
	inMemory bool // needs no server
	play     func(*stage, context.Context, options, io.Writer) error
}

// parts are all, in the order of their tables.
func parts() []part {
	return []part{
		{name: "works", play: (*stage).playWorks},
		{name: "conditions", play: (*stage).playSeveral},
		{name: "fleet", play: (*stage).playFleet},
		{name: "open", play: (*stage).playAllOpen},
		{name: "ahead", play: (*stage).playAhead},
		{name: "long", play: (*stage).playLong},
		{name: "admitted", play: (*stage).playAdmitted},
		{name: "memory", inMemory: true, play: (*stage).inMemory},
	}
}

func partNames() (names []string) {
	for _, p := range parts() {
		names = append(names, p.name)
	}
	return names
}

// all plays all parts, or some, and writes each table to out at once.
func (st *stage) all(ctx context.Context, o options, out io.Writer) error {
	if err := st.verify(slices.Concat(systemsFor(full), crowdSystems, memorySystems, httpSystems())); err != nil {
		return err
	}
	for _, p := range parts() {
		if len(o.only) > 0 && !slices.Contains(o.only, p.name) || len(st.servers) == 0 && !p.inMemory {
			continue
		}
		if err := p.play(st, ctx, o, out); err != nil {
			return err
		}
	}
	if o.svg == "" {
		return nil
	}
	return os.WriteFile(o.svg, picture(st.scenes, st.crowds), 0o644)
}

// playWorks plays each of works for all numbers of callers.
func (st *stage) playWorks(ctx context.Context, _ options, out io.Writer) error {
	st.scenes = make(map[string][][]result)
	for _, w := range works {
		played, err := st.playAll(ctx, w, systemsFor(w), callerCounts)
		if err != nil {
			return err
		}
		st.scenes[w.name] = played
		workTable(w, played).write(out)
	}
	if t := ratioTable(st.scenes); len(t.rows) > 0 {
		t.write(out)
	}
	return nil
}

func (st *stage) playLong(ctx context.Context, o options, out io.Writer) error {
	hits := longHits
	if o.short {
		hits = []int{10_000} // to fill them takes long
	}
	return st.long(ctx, hits, out)
}

func (st *stage) playAdmitted(ctx context.Context, o options, out io.Writer) (err error) {
	st.report("what is admitted of a limit of 50")
	if st.crowds, err = st.admitAll(ctx, crowdSystems, o.crowds); err != nil {
		return err
	}
	admittedTable(st.crowds).write(out)
	return nil
}

// inMemory compares limiters without a server.
func (st *stage) inMemory(ctx context.Context, _ options, out io.Writer) error {
	callers := []int{1, maxCallers}
	for _, w := range []work{spread, full} {
		played, err := st.playAll(ctx, w, memorySystems, callers)
		if err != nil {
			return err
		}
		memoryTable("In process memory: "+w.name, w, played).write(out)
	}
	for _, w := range []work{allowedRequests, refusedRequests} {
		played, err := st.playAll(ctx, w, httpSystems(), callers)
		if err != nil {
			return err
		}
		memoryTable("HTTP middleware in process memory: "+w.name, w, played).write(out)
	}
	return nil
}

// playAll plays a scene for each number of callers.
func (st *stage) playAll(ctx context.Context, w work, systems []system, callers []int) ([][]result, error) {
	var scenes [][]result
	for _, n := range callers {
		st.report("%s, %s", w.name, callersText(n))
		results, err := st.play(ctx, scene{work: w, callers: n, systems: systems})
		if err != nil {
			return nil, err
		}
		scenes = append(scenes, results)
	}
	return scenes, nil
}

// conditions writes the conditions of the measurement.
func conditions(out io.Writer, st *stage, o options) {
	fmt.Fprintf(out, "Measured with %s on %d cores of %s/%s", runtime.Version(), runtime.NumCPU(), runtime.GOOS, runtime.GOARCH)
	for _, kind := range []backend{onMemcached, onRedis} {
		if s := st.servers[kind]; s != nil {
			fmt.Fprintf(out, ", %s", strings.Join(append([]string{s.version()}, o.argsOf(kind)...), " "))
		}
	}
	where := map[string]string{"tcp": "TCP connections to 127.0.0.1", "unix": "Unix sockets"}[o.network]
	fmt.Fprintf(out, " on the same machine, over %s; medians of %d rounds of %v for each limiter, in random order.\n", where, o.rounds, o.slice)
	fmt.Fprintf(out, "A cell a / b / c is for 1, 16 and 64 callers, a / b for 1 and 64. "+
		"The time of a decision is a second divided by the decisions made in it. "+
		"± is half the distance of the quartiles of the rounds.\n")
	if versions := moduleVersions(); versions != "" {
		fmt.Fprintf(out, "Modules: %s.\n", versions)
	}
	fmt.Fprintln(out)
}

// compared are the modules whose versions are printed.
var compared = []string{
	"github.com/bradfitz/gomemcache", "github.com/redis/rueidis", "github.com/go-redis/redis_rate/v10", "github.com/redis/go-redis/v9",
	"github.com/envoyproxy/ratelimit", "github.com/mennanov/limiters",
	"github.com/go-chi/httprate", "github.com/sethvargo/go-limiter", "github.com/ulule/limiter/v3", "github.com/didip/tollbooth/v7",
}

func moduleVersions() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return ""
	}
	var versions []string
	for _, m := range info.Deps {
		if slices.Contains(compared, m.Path) {
			versions = append(versions, strings.TrimPrefix(m.Path, "github.com/")+" "+m.Version)
		}
	}
	return strings.Join(versions, ", ")
}
