// Login is a small site with a protected login form, and a page where its
// operator sees who is blocked and lets them in.
//
//	go run ./examples/login [-listen 127.0.0.1:8080] [-operator 127.0.0.1:8081] [-https]
//	                        [-proxy prefix]... [-memcached host:port]... [-redis url] [-key file] [-url url]
//
// Open http://127.0.0.1:8080/. Sign in as alice with the password "correct
// horse", or as bob with "battery staple". After 5 wrong passwords in a minute
// the page says when to come back. Open http://127.0.0.1:8081/ to lift the ban, with
// the key that the program prints. Or forget what was counted for a name:
//
//	curl -d name=alice http://127.0.0.1:8081/forget
//
// The mail that tells Alice, with a link that lets her in, is printed, and not sent.
//
// With -memcached the counts are on the servers given, for all sites that use
// them; while a server does not answer, they are in the process. With -redis
// ("redis://127.0.0.1:6379") they are in Redis or Valkey instead. With -proxy
// the client's address is read from X-Forwarded-For in requests from such a
// proxy ("10.0.0.0/8"). Give -https if the site is reached by HTTPS, through a
// proxy: it then protects its cookies. Without -https it must listen on a
// loopback address. The operator's page always must.
//
// A file with 32 random bytes (-key) keeps known browsers and the links of mails
// through a restart. Without it the key is random. Links begin with -url, by
// default that of -listen.
//
// Login runs until it is interrupted. The exit status is 0, or 1 if it cannot
// listen, or 2 if the flags are wrong.
package main

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/signal"
	"strings"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/examples/internal/startup"
	"github.com/adaptivethrottler/throttler/httpthrottle"
	"github.com/adaptivethrottler/throttler/login"
	"github.com/adaptivethrottler/throttler/memstore"
	"github.com/adaptivethrottler/throttler/redisstore"
	"github.com/adaptivethrottler/throttler/tally"
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
		return startup.Misused("login", err, stderr)
	}
	defer o.close()
	return startup.Ended("login", serve(ctx, o, stdout, stderr), stderr)
}

// options are the program's flags.
type options struct {
	listen   string
	operator string
	https    bool
	url      string // of the site
	key      []byte
	lift     string // the operator's key
	source   httpthrottle.Source
	client   throttler.Client
	close    func() error // ends its connections
}

func parse(args []string, stderr io.Writer) (*options, error) {
	o := &options{source: httpthrottle.Source{Header: "X-Forwarded-For"}, lift: rand.Text()}
	flags := flag.NewFlagSet("login", flag.ContinueOnError)
	flags.StringVar(&o.listen, "listen", "127.0.0.1:8080", "`address` of the site")
	flags.StringVar(&o.operator, "operator", "127.0.0.1:8081", "loopback `address` of the operator's page")
	flags.BoolVar(&o.https, "https", false, "the site is reached by HTTPS, through a proxy")
	flags.StringVar(&o.url, "url", "", "`URL` of the site, for links in mails")
	file := flags.String("key", "", "`file` with at least 32 random bytes, the same for all sites that share their counts")
	startup.Proxy(flags, &o.source)
	servers := startup.Memcached(flags)
	redis := flags.String("redis", "", "keep the counts in the Redis or Valkey at `url`")
	if err := startup.Parse(flags, args, stderr); err != nil {
		return nil, err
	}
	switch {
	case !o.https && !loopback(o.listen):
		return nil, fmt.Errorf("-listen is %s, where passwords are sent unencrypted; want a loopback address, or -https", o.listen)
	case !loopback(o.operator):
		return nil, fmt.Errorf("-operator is %s, want a loopback address", o.operator)
	}
	o.url = cmp.Or(strings.TrimSuffix(o.url, "/"), map[bool]string{false: "http", true: "https"}[o.https]+"://"+o.listen)
	var err error
	if o.key, err = readKey(*file); err != nil {
		return nil, fmt.Errorf("-key: %w", err)
	}
	o.client, o.close, err = openStore(*servers, *redis)
	return o, err
}

// openStore opens what the flags say: memcached servers, a Redis, or process memory.
func openStore(servers startup.Servers, redis string) (throttler.Client, func() error, error) {
	if redis == "" {
		return servers.Client()
	}
	if len(servers) > 0 {
		return nil, nil, errors.New("-memcached and -redis: want one of them")
	}
	store, err := redisstore.Open(redis)
	if err != nil {
		return nil, nil, fmt.Errorf("-redis: %w", err)
	}
	return store, store.Close, nil
}

// readKey returns the key in file, or a random one if there is no file.
func readKey(file string) ([]byte, error) {
	if file == "" {
		return []byte(rand.Text() + rand.Text()), nil
	}
	key, err := os.ReadFile(file)
	if err == nil && len(key) < 32 {
		err = fmt.Errorf("%s has %d bytes, want at least 32", file, len(key))
	}
	return key, err
}

// loopback reports whether only this machine can reach hostport.
func loopback(hostport string) bool {
	host, _, err := net.SplitHostPort(hostport)
	if err != nil {
		host = hostport
	}
	addr, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && addr.Unmap().IsLoopback()
}

// limits returns a throttler that counts in the process while the servers do not
// answer.
func (o *options) limits() *throttler.Throttler {
	t := throttler.New(o.client)
	t.Fallback = memstore.New()
	return t
}

// serve serves both pages until ctx ends.
func serve(ctx context.Context, o *options, stdout, stderr io.Writer) error {
	logger := log.New(stderr, "login: ", log.LstdFlags)
	visitors, operators, _ := pages(o.limits(), o, logger)
	return startup.Serve(ctx, logger, func(at []net.Addr) {
		fmt.Fprintf(stdout, "login: the site is at http://%s/, its operator's page at http://%s/ (the key is %s)\n", at[0], at[1], o.lift)
	}, startup.Site{Address: o.listen, Handler: visitors}, startup.Site{Address: o.operator, Handler: operators})
}

// pages returns the site and the operator's page, over limits, and the mails of the site.
func pages(limits *throttler.Throttler, o *options, logger *log.Logger) (visitors, operators http.Handler, m *mails) {
	counts, guard := tally.New(), login.New(limits)
	guard.Identifier = "login"
	limits.Observe = func(ctx context.Context, rule throttler.Rule, d throttler.Decision) {
		if rule.Identifier == guard.Identifier { // not a mail
			counts.ObserveBans(ctx, rule, d)
		}
		if d.Err != nil {
			logger.Print(d.Err)
		}
	}
	guard.Limits = map[string]login.Limit{"name-long": {Max: 100}} // failures in a year; then the mail is the only way in for strangers
	guard.Observe = counts.ObserveLogin
	m = newMails(limits, o, logger)
	visitors = newSite(guard, o, m, logger)
	return visitors, newOperator(limits, guard, counts, o.lift, logger), m
}
