// Robots is a site that each robot may visit 10 times a second. A robot is an
// address and a user agent. One that comes more often is told when to come
// back. There are no bans.
//
//	go run ./examples/robots [-listen 127.0.0.1:8080] [-rate 10] [-proxy prefix]... [-memcached host:port]...
//
// Try it with a robot in a hurry, in another terminal:
//
//	for i in $(seq 15); do curl -si -A hasty/1.0 http://127.0.0.1:8080/ | grep -iE '^(HTTP|RateLimit|Retry-After)'; done
//
// Each answer says how many requests are left, and for how many seconds they
// must last. A robot that spreads them over that time is never refused:
//
//	RateLimit-Policy: "robot";q=10;w=1
//	RateLimit: "robot";r=9;t=1
//
// A refusal is 429 Too Many Requests, with the number of seconds to wait:
//
//	Retry-After: 1
//
// With -proxy the address is read from X-Forwarded-For in requests from such a
// proxy ("10.0.0.0/8"). Without -memcached the counts are in the process. With
// it they are on the servers given, and all sites with the same servers count
// together. While a server does not answer, robots whose counts it stores are
// let in.
//
// Robots runs until it is interrupted. The exit status is 0, or 1 if it cannot
// listen, or 2 if the flags are wrong.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"time"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/examples/internal/startup"
	"github.com/adaptivethrottler/throttler/httpthrottle"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	os.Exit(run(ctx, os.Stdout, os.Stderr, os.Args[1:]...))
}

// run runs the program until ctx ends and returns its exit status.
func run(ctx context.Context, stdout, stderr io.Writer, args ...string) int {
	o, err := parse(args, stderr)
	if err != nil {
		return startup.Misused("robots", err, stderr)
	}
	defer o.close()
	return startup.Ended("robots", serve(ctx, o, stdout), stderr)
}

// options are the program's flags.
type options struct {
	listen string
	rate   int
	source httpthrottle.Source
	client throttler.Client
	close  func() error // ends its connections
}

func parse(args []string, stderr io.Writer) (*options, error) {
	o := &options{source: httpthrottle.Source{Header: "X-Forwarded-For"}}
	flags := flag.NewFlagSet("robots", flag.ContinueOnError)
	flags.StringVar(&o.listen, "listen", "127.0.0.1:8080", "`address` to listen on")
	flags.IntVar(&o.rate, "rate", 10, "requests a second that a robot may make")
	startup.Proxy(flags, &o.source)
	servers := startup.Memcached(flags)
	if err := startup.Parse(flags, args, stderr); err != nil {
		return nil, err
	}
	if o.rate < 1 || o.rate > throttler.MaxHits {
		return nil, fmt.Errorf("-rate is %d, want 1 to %d", o.rate, throttler.MaxHits)
	}
	var err error
	o.client, o.close, err = servers.Client()
	return o, err
}

func serve(ctx context.Context, o *options, stdout io.Writer) error {
	listener, err := net.Listen("tcp", o.listen)
	if err != nil {
		return err
	}
	server := &http.Server{
		Handler:           site(o.client, o),
		ReadHeaderTimeout: 5 * time.Second,
		IdleTimeout:       time.Minute,
	}
	defer context.AfterFunc(ctx, func() { server.Close() })()
	fmt.Fprintf(stdout, "robots: listening on http://%s/\n", listener.Addr())
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// site returns the site, with its limit.
func site(client throttler.Client, o *options) http.Handler {
	limit := httpthrottle.New(throttler.New(client), o.source.PerRobot("robots", o.rate, time.Second))
	limit.Public = []string{"robot"}
	return limit.Handler(http.HandlerFunc(page))
}

func page(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	fmt.Fprintf(w, "Welcome, %q.\n", r.UserAgent())
	if d, ok := httpthrottle.DecisionFrom(r.Context()); ok {
		fmt.Fprintf(w, "You may make %d more requests in this second.\n", d.Outcomes[0].Remaining)
	}
}
