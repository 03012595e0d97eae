// Notify hands messages to a command at a limited rate, for example to one that
// sends SMS, at most 5 in a minute. Further messages wait, in order. None is
// lost when the program is stopped or killed and started again.
//
//	go run ./examples/notify -command 'sms +4912345' [-spool folder]        < messages as JSON lines
//	go run ./examples/notify -command 'sms +4912345' -dir folder [-watch 1s]
//
// More flags:
//
//   - -max 5 and -ttl 1m are the limit.
//   - -retry 1m is the delay of a message on which the command failed.
//   - -timeout 1m is the time that the command may take.
//   - -memcached host:port, which may be repeated, keeps the counts in
//     memcached. Then the rate holds across restarts, and for all processes
//     with the same servers together. Without it a restarted process has its
//     whole budget again. While memcached does not answer, each process keeps
//     the rate alone, with its messages evenly spaced, and says so once on
//     standard error.
//
// # Messages
//
// With -dir each regular file in the folder is a message, unless its name
// begins with a dot. The order is that of the names. To add a message, write
// the file under a name with a dot and rename it. With -watch the program looks
// for new files at that interval until it is stopped. Without, it ends after
// one pass.
//
// Without -dir each line of standard input is a message and must be JSON. Blank
// lines are skipped. The line is written to a file in the spool folder, which
// is then handled like -dir, starting with what an earlier process has left
// there. When the file is on the disk, the program prints "queued ID" on
// standard output. A producer that must lose nothing keeps a line until then.
// Lines that are not JSON go to the spool's folder "rejected". The program ends
// when the input has ended and all messages are handed over.
//
// # Handing over
//
// The command is run by sh for each message, one at a time. It gets the message
// on standard input, and its ID (the name of the file) as NOTIFY_ID. Its output
// goes to standard error. If it exits with status 0, the file is removed and
// "sent ID" printed on standard output. Otherwise the message is kept for
// another attempt, the failure is reported on standard error, and the others go
// on. Every run of the command counts towards the limit.
//
// A message is handed over at least once. It is handed over again if the
// process is killed, or the machine stops, after the command has succeeded and
// before the file is removed. A command can detect that by NOTIFY_ID.
//
// SIGINT and SIGTERM stop the program, also while it waits. A running command
// finishes first. (A terminal interrupts that too; then its message is kept.)
// Input is still queued for a second. Only one process at a time may work on a
// folder.
//
// The exit status is 0 if the program was stopped or nothing is left. It is 1
// if the command failed on messages that are kept, if a line was not JSON, or
// if something could not be read or written. It is 2 if the flags are wrong.
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/examples/internal/startup"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	os.Exit(run(ctx, os.Stdin, os.Stdout, os.Stderr, os.Args[1:]...))
}

// grace is the time for which input is still queued after a stop.
const grace = time.Second

// run runs the program until ctx ends and returns its exit status.
func run(ctx context.Context, stdin io.Reader, stdout, stderr io.Writer, args ...string) int {
	var o options
	err := o.parse(args, stderr)
	if err != nil {
		return startup.Misused("notify", err, stderr)
	}
	defer o.close()
	n, err := o.notifier(log.New(stdout, "", 0), log.New(stderr, "notify: ", 0))
	if err == nil {
		if o.dir != "" {
			err = n.runFolder(ctx, o.watch)
		} else {
			err = n.runInput(ctx, stdin)
		}
	}
	return startup.Ended("notify", err, stderr)
}

// options are the program's flags.
type options struct {
	command    string
	dir, spool string
	watch      time.Duration
	max        int
	ttl        time.Duration
	retry      time.Duration
	timeout    time.Duration
	client     throttler.Client
	close      func() error // ends its connections
}

// parse sets o from the flags in args. For -h it prints the usage on stderr and
// returns flag.ErrHelp.
func (o *options) parse(args []string, stderr io.Writer) error {
	flags := flag.NewFlagSet("notify", flag.ContinueOnError)
	flags.StringVar(&o.command, "command", "", "the `command` line that gets each message on its standard input")
	flags.StringVar(&o.dir, "dir", "", "the `folder` whose files are the messages (default: lines of standard input are)")
	flags.StringVar(&o.spool, "spool", "notify-spool", "the `folder` that keeps the lines of standard input until they are handed over")
	flags.DurationVar(&o.watch, "watch", 0, "the interval at which to look for new files in -dir (default 0s: once)")
	flags.IntVar(&o.max, "max", 5, "messages that may be handed over in -ttl")
	flags.DurationVar(&o.ttl, "ttl", time.Minute, "how long a message counts")
	flags.DurationVar(&o.retry, "retry", time.Minute, "the delay of a message on which the command failed")
	flags.DurationVar(&o.timeout, "timeout", time.Minute, "the time that the command may take")
	servers := startup.Memcached(flags)
	if err := cmp.Or(startup.Parse(flags, args, stderr), o.check()); err != nil {
		return err
	}
	var err error
	o.client, o.close, err = servers.Client()
	return err
}

// check returns an error if a flag is invalid.
func (o *options) check() error {
	switch {
	case o.command == "":
		return errors.New("-command is missing, want the command line to run for each message")
	case o.max < 1 || o.max > throttler.MaxHits:
		return fmt.Errorf("-max is %d, want 1 to %d", o.max, throttler.MaxHits)
	case o.ttl < time.Millisecond:
		return fmt.Errorf("-ttl is %v, want 1ms or more", o.ttl)
	case o.retry < time.Millisecond:
		return fmt.Errorf("-retry is %v, want 1ms or more", o.retry)
	case o.timeout < time.Millisecond:
		return fmt.Errorf("-timeout is %v, want 1ms or more", o.timeout)
	case o.watch < 0:
		return fmt.Errorf("-watch is %v, want 0s or more", o.watch)
	case o.watch > 0 && o.dir == "":
		return errors.New("-watch needs -dir")
	}
	return nil
}

// notifier returns the notifier for o. It logs messages to events and failures
// to problems.
func (o *options) notifier(events, problems *log.Logger) (*notifier, error) {
	q, err := openFolder(o.dir)
	if o.dir == "" {
		q, err = openSpool(o.spool)
	}
	if err != nil {
		return nil, err
	}
	return &notifier{
		queue:     q,
		throttler: throttler.New(o.client),
		rule: throttler.Rule{
			Identifier: "notify",
			Either:     []throttler.Condition{{Name: "messages", Max: o.max, TTL: o.ttl}},
		},
		deliver:  shell{o.command, o.timeout, problems.Writer()}.run,
		retry:    o.retry,
		events:   events,
		problems: problems,
		putOff:   make(map[string]time.Time),
	}, nil
}
