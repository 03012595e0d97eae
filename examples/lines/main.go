// Lines reads lines from standard input and prints whether each may pass: at
// most 2 equal lines in 10 seconds, and at most 5 lines of any kind in a
// minute. Lines that may not pass are not counted.
//
//	go run ./examples/lines [-equal 2] [-equal-ttl 10s] [-all 5] [-all-ttl 1m] [-memcached host:port]...
//
// For each line it prints one, at once:
//
//	12:00:38 ok: hello
//	12:00:40 wait 5 s (equal): hello
//
// "wait" gives the number of seconds, rounded up, until the same line may pass
// if no other does. The limits that block follow in parentheses: "equal",
// "all", or both. After the first ": " comes the line as it was read, without
// LF or CR LF.
//
// Without -memcached the counts are in the process. With it they are on the
// servers given, and all processes with the same servers count together. While
// a server does not answer, lines pass the limits that it stores; its first
// failure is reported on standard error.
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

// run runs the program and returns its exit status, 1 also if ctx ends.
func run(ctx context.Context, stdin io.Reader, stdout, stderr io.Writer, args ...string) int {
	f := filter{rule: throttler.Rule{Identifier: "lines", CountAuthorizedOnly: true, Either: []throttler.Condition{{Name: "equal"}, {Name: "all"}}}}
	equal, all := &f.rule.Either[0], &f.rule.Either[1]
	flags := flag.NewFlagSet("lines", flag.ContinueOnError)
	flags.IntVar(&equal.Max, "equal", 2, "equal lines that may pass in -equal-ttl")
	flags.DurationVar(&equal.TTL, "equal-ttl", 10*time.Second, "how long a line counts among equal ones")
	flags.IntVar(&all.Max, "all", 5, "lines of any kind that may pass in -all-ttl")
	flags.DurationVar(&all.TTL, "all-ttl", time.Minute, "how long a line counts among all")
	servers := startup.Memcached(flags)
	if err := startup.Parse(flags, args, stderr); err != nil {
		return startup.Misused("lines", err, stderr)
	}
	client, close, err := servers.Client()
	if err := cmp.Or(err, f.rule.Validate()); err != nil {
		return startup.Misused("lines", err, stderr)
	}
	defer close()
	f.throttler = throttler.New(client)
	return startup.Ended("lines", f.run(ctx, stdin, stdout, stderr), stderr)
}

// A filter decides lines.
type filter struct {
	throttler *throttler.Throttler
	rule      throttler.Rule
	reported  bool // a server's failure was reported
}

// run answers the lines of stdin on stdout until they end, and reports failing
// servers on stderr.
func (f *filter) run(ctx context.Context, stdin io.Reader, stdout, stderr io.Writer) error {
	input := bufio.NewReader(stdin)
	for {
		// A line has any length. The last one may lack its end.
		line, readErr := input.ReadString('\n')
		if line != "" {
			answer, err := f.answer(ctx, strings.TrimSuffix(strings.TrimSuffix(line, "\n"), "\r"), stderr)
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

// answer decides one line and returns the text to print.
func (f *filter) answer(ctx context.Context, line string, stderr io.Writer) (string, error) {
	f.rule.Either[0].Value = line
	d, err := f.throttler.Authorize(ctx, f.rule)
	if err := cmp.Or(err, ctx.Err()); err != nil {
		return "", err
	}
	if d.Err != nil && !f.reported {
		f.reported = true
		fmt.Fprintf(stderr, "lines: a server fails, and its limits let every line pass until it is back: %q\n", d.Err)
	}
	now := time.Now().Format(time.TimeOnly)
	if d.Status == throttler.Authorized {
		return fmt.Sprintf("%s ok: %s", now, line), nil
	}
	// Rounded up, so that a retry is not too early; but stored times may be up to a millisecond
	// over, and 10 s would become 11.
	seconds := max(1, (d.RetryAfter+time.Second-time.Millisecond)/time.Second)
	return fmt.Sprintf("%s wait %d s (%s): %s", now, seconds, strings.Join(d.Messages, ", "), line), nil
}
