// Robots is a site that gives each kind of robot a budget, by package robots, and says to each
// visitor what it takes them for.
//
//	go run ./examples/robots [-listen 127.0.0.1:8080] [-list robot=file]... [-site-max 0] [-shadow]
//		[-proxy prefix]... [-memcached host:port]...
//
// Try it in another terminal:
//
//	curl -A 'Mozilla/5.0 (X11; Linux x86_64) Chrome/140.0' http://127.0.0.1:8080/
//	for i in $(seq 31); do curl -si -A 'GPTBot/1.2' http://127.0.0.1:8080/ | grep -iE '^(HTTP|Retry-After)'; done
//	curl -si http://127.0.0.1:8080/robots.txt
//
// With -list Googlebot=common-crawlers.json a forged Googlebot is told from the real one: it is
// an impostor, and banned after 10 requests. docs/robots.md has where the lists are. They are
// read again every hour.
//
// With -proxy the address is read from X-Forwarded-For in requests from such a proxy
// ("10.0.0.0/8"). Without -memcached the counts are in the process. With it they are on the
// servers given, and all sites with the same servers count together. While a server does not
// answer, clients whose counts it stores are let in.
//
// Robots runs until it is interrupted. The exit status is 0, or 1 if it cannot listen or read a
// list, or 2 if the flags are wrong.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"time"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/examples/internal/startup"
	"github.com/adaptivethrottler/throttler/httpthrottle"
	"github.com/adaptivethrottler/throttler/robots"
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
	lists  map[string][]string
	policy robots.Policy
	client throttler.Client
	close  func() error // ends its connections
}

func parse(args []string, stderr io.Writer) (*options, error) {
	o := &options{lists: make(map[string][]string)}
	o.policy.Source.Header = "X-Forwarded-For"
	flags := flag.NewFlagSet("robots", flag.ContinueOnError)
	flags.StringVar(&o.listen, "listen", "127.0.0.1:8080", "`address` to listen on")
	flags.Func("list", "`robot=file`: the prefixes that a robot's operator publishes", func(text string) error {
		robot, file, ok := strings.Cut(text, "=")
		if !ok {
			return errors.New("want a robot's name, an equals sign and a file")
		}
		o.lists[robot] = append(o.lists[robot], file)
		return nil
	})
	flags.IntVar(&o.policy.SiteMax, "site-max", 0, "requests a minute that the site can serve to people; 0: any number")
	flags.BoolVar(&o.policy.Shadow, "shadow", false, "refuse nobody")
	startup.Proxy(flags, &o.policy.Source)
	servers := startup.Memcached(flags)
	if err := startup.Parse(flags, args, stderr); err != nil {
		return nil, err
	}
	if o.policy.SiteMax < 0 || o.policy.SiteMax > throttler.MaxHits {
		return nil, fmt.Errorf("-site-max is %d, want 0 to %d", o.policy.SiteMax, throttler.MaxHits)
	}
	var err error
	o.client, o.close, err = servers.Client()
	return o, err
}

func serve(ctx context.Context, o *options, stdout io.Writer) error {
	directory, err := robots.Open(robots.Options{Lists: o.lists})
	if err != nil {
		return err
	}
	o.policy.Directory = directory
	go renew(ctx, directory)
	listening := func(at []net.Addr) { fmt.Fprintf(stdout, "robots: listening on http://%s/\n", at[0]) }
	return startup.Serve(ctx, log.Default(), listening, startup.Site{Address: o.listen, Handler: site(o.client, o.policy)})
}

// renew reads the lists again every hour until ctx ends.
func renew(ctx context.Context, directory *robots.Directory) {
	ticker := time.NewTicker(time.Hour)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		if err := directory.Reload(); err != nil {
			log.Print(err)
		}
	}
}

// site returns the site, with its limits.
func site(client throttler.Client, policy robots.Policy) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/robots.txt", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintln(w, "User-agent: *\nAllow: /")
	})
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		id := policy.Directory.Identify(r.UserAgent(), policy.Source.Addr(r))
		fmt.Fprintln(w, strings.Join(strings.Fields(fmt.Sprint("Welcome, ", id.Standing, " ", id.Group, " ", id.Name)), " "))
	})
	return httpthrottle.New(throttler.New(client), policy.Rule).Handler(mux)
}
