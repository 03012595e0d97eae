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
	short    bool
	network  string
	rounds   int
	slice    time.Duration
	page     string
	only     []string
	services bool
}

func parse(args []string, messages io.Writer) (o options, err error) {
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	flags.SetOutput(messages)
	flags.BoolVar(&o.short, "short", false, "take about half a minute, for a first look")
	flags.StringVar(&o.network, "network", "tcp", "how the servers are reached: tcp or unix")
	flags.IntVar(&o.rounds, "rounds", 15, "how often each limiter is measured at each work")
	flags.DurationVar(&o.slice, "slice", 50*time.Millisecond, "how long it is measured in a round")
	flags.StringVar(&o.page, "page", "", "write the tables into this Markdown file too, in place of those of an earlier run")
	flags.Func("only", "measure only these `parts`, separated by commas: "+strings.Join(partNames(), ", "), func(list string) error {
		o.only = strings.Split(list, ",")
		return nil
	})
	flags.BoolVar(&o.services, "services", false, "instead, measure whole services for Envoy, in slices of a second")
	if err := flags.Parse(args); err != nil {
		return o, err
	}
	if o.short {
		given := make(map[string]bool)
		flags.Visit(func(f *flag.Flag) { given[f.Name] = true })
		for name, value := range map[string]string{"rounds": "3", "slice": "20ms"} {
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
	case len(o.only) > 0 && o.page != "":
		err = errors.New("-page needs all parts, without -only")
	case o.network != "tcp" && o.network != "unix":
		err = fmt.Errorf("-network is %q, want tcp or unix", o.network)
	case o.rounds < 1 || o.slice < time.Millisecond:
		err = errors.New("-rounds must be 1 or more, and -slice 1ms or more")
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
	if o.page != "" {
		if _, err := os.Stat(o.page); err != nil {
			return err // before minutes of measuring
		}
	}
	st := &stage{servers: make(map[backend]*server), rounds: o.rounds, slice: o.slice, short: o.short}
	st.report = func(format string, args ...any) { fmt.Fprintf(messages, format+"\n", args...) }
	defer st.close()
	for _, kind := range []backend{onMemcached, onRedis} {
		s, err := start(kind, o.network)
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
	command, all := "go run ./bench", comparisons()
	if o.services {
		command += " -services"
		dir, err := os.MkdirTemp("", "bench")
		if err != nil {
			return err
		}
		defer os.RemoveAll(dir)
		if err := buildServices(ctx, dir); err != nil {
			return err
		}
		all = []comparison{services(dir)}
	}
	if len(o.only) > 0 {
		all = slices.DeleteFunc(all, func(c comparison) bool { return !slices.Contains(o.only, c.part) })
	}
	var tables bytes.Buffer
	both := io.MultiWriter(out, &tables)
	conditions(both, st, o)
	if err := st.all(ctx, all, both); err != nil || o.page == "" {
		return err
	}
	return renew(o.page, command, tables.Bytes())
}

// close stops the servers.
func (st *stage) close() {
	for kind, s := range st.servers {
		if kind != onIncrex {
			s.stop()
		}
	}
}

func partNames() (names []string) {
	for _, c := range comparisons() {
		names = append(names, c.part)
	}
	return names
}

// all plays all comparisons, and writes each table to out at once.
func (st *stage) all(ctx context.Context, all []comparison, out io.Writer) error {
	for _, c := range all {
		for _, sc := range c.scenes {
			if err := st.verify(sc.systems); err != nil {
				return err
			}
		}
	}
	for _, c := range all {
		here := *st
		if c.long {
			here.rounds, here.slice = min(st.rounds, 5), max(st.slice, time.Second)
			if st.short {
				here.rounds, here.slice = 1, 200*time.Millisecond
			}
			c.note += fmt.Sprintf(" Rounds: %d of %v.", here.rounds, here.slice)
		}
		results, err := here.compare(ctx, c)
		st.spaces = here.spaces
		if err != nil {
			return err
		}
		if len(results[0][0]) > 0 {
			c.write(out, results)
		}
	}
	return nil
}

// compare plays all scenes of c for all numbers of callers.
func (st *stage) compare(ctx context.Context, c comparison) (played [][][]result, err error) {
	countTrips := slices.ContainsFunc(c.columns, func(col column) bool { return col.head == tripsColumn.head || col.head == inTripColumn.head })
	for _, sc := range c.scenes {
		var byCallers [][]result
		for _, n := range c.callers {
			st.report("%s: %s, %s", c.title, sc.work.name, callersText(n))
			results, err := st.play(ctx, sc, n, countTrips)
			if err != nil {
				return nil, err
			}
			byCallers = append(byCallers, results)
		}
		played = append(played, byCallers)
	}
	return played, nil
}

// conditions writes the conditions of the measurement.
func conditions(out io.Writer, st *stage, o options) {
	fmt.Fprintf(out, "Measured with %s on %d cores of %s/%s", runtime.Version(), runtime.NumCPU(), runtime.GOOS, runtime.GOARCH)
	for _, kind := range []backend{onMemcached, onRedis} {
		if s := st.servers[kind]; s != nil {
			fmt.Fprintf(out, ", %s", s.version())
		}
	}
	where := map[string]string{"tcp": "TCP connections to 127.0.0.1", "unix": "Unix sockets"}[o.network]
	fmt.Fprintf(out, " on the same machine, over %s; medians of %d rounds of %v for each limiter, in random order.\n", where, o.rounds, o.slice)
	fmt.Fprintf(out, "The time of a decision is a second divided by the decisions made in it. "+
		"± is half the distance of the quartiles of the rounds. Cells are by the number of callers.\n")
	if versions := moduleVersions(); versions != "" {
		fmt.Fprintf(out, "Modules: %s.\n", versions)
	}
	fmt.Fprintln(out)
}

// compared are the modules whose versions are printed.
var compared = []string{
	"github.com/bradfitz/gomemcache", "github.com/redis/rueidis", "github.com/go-redis/redis_rate/v10", "github.com/redis/go-redis/v9",
	"github.com/envoyproxy/ratelimit",
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
