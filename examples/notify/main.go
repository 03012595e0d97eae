// Notify hands messages to a command at a limited rate: to one that sends them as
// SMS, say, at most 5 in a minute. Those that come too fast wait, in order, and
// none is lost when the program is stopped, or killed, and started again.
//
//	go run ./examples/notify -command 'sms +4912345' [-spool folder]        < messages as JSON lines
//	go run ./examples/notify -command 'sms +4912345' -dir folder [-watch 1s]
//
// More flags: -max 5 and -ttl 1m are the limit; -retry 1m is how long a message
// that the command failed on is put off; -timeout 1m is how long the command may
// take; -memcached host:port, which may be given several times, keeps the counts
// in memcached. Without it they end with the process, and a process that is
// started again begins with a whole budget; with it the rate holds even then,
// and all processes that use the same servers keep it together. While memcached
// does not answer, each process keeps the rate on its own, with its messages at
// even distances; that is said once on standard error.
//
// # Messages
//
// With -dir each regular file in the folder is a message, whose name does not
// begin with a dot. They are handed over in the order of their names. Whoever
// puts a file there should write it under a name with a dot and rename it. With
// -watch the program looks for new files so often, and ends when it is stopped;
// without, when it has been through the folder.
//
// Otherwise each line of standard input that is not blank is a message, and has to
// be JSON. It is written to a file in the spool folder, which from then on is
// like -dir; when it is safely on the disk the program acknowledges it with a
// line "queued ID" on standard output. So the lines are read as fast as they
// come, however slowly they are handed over. A producer that must lose nothing,
// even if this program is killed, keeps each line until it is acknowledged. What
// an earlier process has left in the spool is handed over first. A line that is
// not JSON is kept in the spool's folder "rejected". The program ends when the
// input has, and all messages have been handed over.
//
// # Handing over
//
// The command is run by sh for each message, one at a time, with the message as
// its standard input and with its ID, the name of its file, as NOTIFY_ID in the
// environment. What it prints goes to standard error. If it exits with status 0
// the file is removed and "sent ID" printed on standard output. Otherwise the
// file stays, that is said on standard error, and the message is put off; the
// others go on. Every run of the command counts towards the limit.
//
// A message is thus handed over at least once. It is handed over again if the
// process is killed, or the machine stops, after the command has succeeded and
// before its file is gone: a command that minds can tell by NOTIFY_ID.
//
// SIGINT and SIGTERM stop the program, even while it waits. It lets a command
// that runs come to its end (a terminal interrupts that as well; then its message
// is kept), and goes on queueing input, if that does not end, for a second. Only
// one process at a time may work on a folder.
//
// The exit status is 0 if it was stopped or nothing is left; 1 if messages were
// kept because the command failed, if a line was not JSON, or if something could
// not be read or written; 2 if the flags are wrong.
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

// grace is how long input is still queued after the program was stopped.
const grace = time.Second

// run is the program, which stops when ctx is done. It returns its exit status.
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

// parse sets o by the flags in args. For -h it explains them on stderr and
// returns flag.ErrHelp.
func (o *options) parse(args []string, stderr io.Writer) error {
	flags := flag.NewFlagSet("notify", flag.ContinueOnError)
	flags.StringVar(&o.command, "command", "", "the `command` line that gets each message on its standard input")
	flags.StringVar(&o.dir, "dir", "", "the `folder` whose files are the messages (default: lines of standard input are)")
	flags.StringVar(&o.spool, "spool", "notify-spool", "the `folder` that keeps the lines of standard input until they are handed over")
	flags.DurationVar(&o.watch, "watch", 0, "look for new files in -dir so often (default 0s: once)")
	flags.IntVar(&o.max, "max", 5, "how many messages may be handed over in the time that -ttl says")
	flags.DurationVar(&o.ttl, "ttl", time.Minute, "how long a message counts")
	flags.DurationVar(&o.retry, "retry", time.Minute, "how long a message is put off if the command fails")
	flags.DurationVar(&o.timeout, "timeout", time.Minute, "how long the command may take")
	servers := startup.Memcached(flags)
	if err := cmp.Or(startup.Parse(flags, args, stderr), o.check()); err != nil {
		return err
	}
	var err error
	o.client, o.close, err = servers.Client()
	return err
}

// check returns what is wrong with o.
func (o *options) check() error {
	switch {
	case o.command == "":
		return errors.New("-command is missing: what is to be run for each message?")
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
		return errors.New("-watch is for -dir, which is missing")
	}
	return nil
}

// notifier returns the notifier that o describes. It logs what becomes of
// messages to events, and what goes wrong to problems.
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
