// Lines reads lines from standard input and prints whether each may pass: at
// most 2 equal lines in 10 seconds, and at most 5 lines of any kind in a
// minute. Lines that may not pass are not counted.
//
//	go run ./examples/lines [-equal 2] [-equal-ttl 10s] [-all 5] [-all-ttl 1m] [-lockout 0s] [-memcached host:port]...
//
// For each line it prints one, at once:
//
//	12:00:38 ok: hello
//	12:00:40 wait 5 s (equal): hello
//
// "wait" gives the number of seconds, rounded up, until the same line may pass
// if no other does. The limits that block follow in parentheses: "equal",
// "all", or both with a comma. With -lockout a full limit is banned for that
// time, and "banned" follows its name. After the first ": " comes the line as
// it was read, without LF or CR LF.
//
// Without -memcached the counts are in the process. With it they are on the
// servers given ("host:port", or the path of a socket), and all processes with
// the same servers count together. The first failure of a server is reported on
// standard error. While a server does not answer, lines pass the limits that it
// stores.
//
// Lines ends with the input. The exit status is 0, or 1 if it cannot read or
// write, or 2 if the flags are wrong.
package main

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/examples/internal/startup"
)

func main() {
	os.Exit(run(context.Background(), os.Stdin, os.Stdout, os.Stderr, os.Args[1:]...))
}

// run runs the program and returns its exit status. It returns 1 if ctx ends,
// which it checks between lines.
func run(ctx context.Context, stdin io.Reader, stdout, stderr io.Writer, args ...string) int {
	var f filter
	err := f.parse(args, stderr)
	if err != nil {
		return startup.Misused("lines", err, stderr)
	}
	defer f.close()
	return startup.Ended("lines", f.run(ctx, stdin, stdout, stderr), stderr)
}

// A filter is the program with its flags.
type filter struct {
	equal, all       int
	equalTTL, allTTL time.Duration
	lockout          time.Duration
	throttler        *throttler.Throttler
	close            func() error // ends its connections

	reported bool // a server's failure was reported
}

// parse sets f from the flags in args. For -h it prints the usage on stderr and
// returns flag.ErrHelp.
func (f *filter) parse(args []string, stderr io.Writer) error {
	flags := flag.NewFlagSet("lines", flag.ContinueOnError)
	flags.IntVar(&f.equal, "equal", 2, "equal lines that may pass in -equal-ttl")
	flags.DurationVar(&f.equalTTL, "equal-ttl", 10*time.Second, "how long a line counts among equal ones")
	flags.IntVar(&f.all, "all", 5, "lines of any kind that may pass in -all-ttl")
	flags.DurationVar(&f.allTTL, "all-ttl", time.Minute, "how long a line counts among all")
	flags.DurationVar(&f.lockout, "lockout", 0, "the ban of a full limit (default 0s: none)")
	servers := startup.Memcached(flags)
	if err := cmp.Or(startup.Parse(flags, args, stderr), f.check()); err != nil {
		return err
	}
	client, closeClient, err := servers.Client()
	if err != nil {
		return err
	}
	f.throttler, f.close = throttler.New(client), closeClient
	return nil
}

// check returns an error if a flag is invalid.
func (f *filter) check() error {
	for _, limit := range []struct {
		flag string
		max  int
		ttl  time.Duration
	}{{"equal", f.equal, f.equalTTL}, {"all", f.all, f.allTTL}} {
		switch {
		case limit.max < 1 || limit.max > throttler.MaxHits:
			return fmt.Errorf("-%s is %d, want 1 to %d", limit.flag, limit.max, throttler.MaxHits)
		case limit.ttl < time.Millisecond:
			return fmt.Errorf("-%s-ttl is %v, want 1ms or more", limit.flag, limit.ttl)
		}
	}
	if f.lockout < 0 {
		return fmt.Errorf("-lockout is %v, want 0s or more", f.lockout)
	}
	return nil
}

// run answers the lines of stdin on stdout until they end, and reports failing
// servers on stderr.
func (f *filter) run(ctx context.Context, stdin io.Reader, stdout, stderr io.Writer) error {
	input := bufio.NewReader(stdin)
	for {
		// A line has any length. The last one may lack its end.
		line, readErr := input.ReadString('\n')
		if line != "" {
			answer, err := f.answer(ctx, trimEnd(line), stderr)
			if err != nil {
				return err
			}
			if _, err := fmt.Fprintln(stdout, answer); err != nil {
				return fmt.Errorf("writing: %w", err)
			}
		}
		switch {
		case errors.Is(readErr, io.EOF):
			return nil
		case readErr != nil:
			return fmt.Errorf("reading: %w", readErr)
		}
	}
}

func trimEnd(line string) string {
	return strings.TrimSuffix(strings.TrimSuffix(line, "\n"), "\r")
}

// answer decides one line and returns the text to print.
func (f *filter) answer(ctx context.Context, line string, stderr io.Writer) (string, error) {
	d, err := f.throttler.Authorize(ctx, f.rule(line))
	if err := cmp.Or(err, ctx.Err()); err != nil {
		return "", err
	}
	if d.Err != nil && !f.reported {
		f.reported = true
		reason := strings.ReplaceAll(d.Err.Error(), "\n", "; ")
		fmt.Fprintf(stderr, "lines: a server fails, and its limits let every line pass until it is back: %s\n", reason)
	}
	now := time.Now().Format(time.TimeOnly)
	if d.Status == throttler.Authorized {
		return fmt.Sprintf("%s ok: %s", now, line), nil
	}
	return fmt.Sprintf("%s wait %d s (%s): %s", now, seconds(d.RetryAfter), reached(d.Outcomes), line), nil
}

func (f *filter) rule(line string) throttler.Rule {
	return throttler.Rule{
		Identifier: "lines",
		Either: []throttler.Condition{
			{Name: "equal", Value: line, Max: f.equal, TTL: f.equalTTL},
			{Name: "all", Max: f.all, TTL: f.allTTL},
		},
		Lockout:             f.lockout,
		CountAuthorizedOnly: true,
	}
}

// seconds returns d in whole seconds, rounded up, so that a retry is not too
// early. Less than a millisecond over is rounded down: stored times are rounded
// up by less, and 10 s would become 11.
func seconds(d time.Duration) int64 {
	return max(1, int64((d+time.Second-time.Millisecond)/time.Second))
}

// reached returns the names of the limits that block.
func reached(outcomes []throttler.Outcome) string {
	var names []string
	for _, o := range outcomes {
		switch {
		case o.Banned:
			names = append(names, o.Name+" banned")
		case o.Blocked:
			names = append(names, o.Name)
		}
	}
	return strings.Join(names, ", ")
}
