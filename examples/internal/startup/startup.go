// Package startup has the flags, errors, exit statuses and servers that the examples
// share.
package startup

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/netip"
	"time"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/httpthrottle"
	"github.com/adaptivethrottler/throttler/memstore"
	"github.com/adaptivethrottler/throttler/pool"
)

// Servers are the memcached servers for the counts. With none, the counts are
// in the process.
type Servers []string

// Memcached adds the flag -memcached to flags, which may be repeated.
func Memcached(flags *flag.FlagSet) *Servers {
	var s Servers
	flags.Func("memcached", "keep the counts in the server at `host:port`; may be repeated", func(server string) error {
		s = append(s, server)
		return nil
	})
	return &s
}

// Client returns the client for the counts. close ends its connections.
func (s Servers) Client() (client throttler.Client, close func() error, err error) {
	if len(s) == 0 {
		return memstore.New(), func() error { return nil }, nil
	}
	servers, err := pool.New(s...)
	if err != nil {
		return nil, nil, fmt.Errorf("-memcached: %w", err)
	}
	return servers, servers.Close, nil
}

// Proxy adds the flag -proxy to flags, which may be repeated. source trusts the
// proxies that it names.
func Proxy(flags *flag.FlagSet, source *httpthrottle.Source) {
	flags.Func("proxy", "`prefix` of trusted proxies; may be repeated", func(s string) error {
		prefix, err := netip.ParsePrefix(s)
		source.Trusted = append(source.Trusted, prefix)
		return err
	})
}

// Parse sets flags from args, and refuses arguments that are not flags. For -h
// it prints the usage on stderr and returns flag.ErrHelp.
func Parse(flags *flag.FlagSet, args []string, stderr io.Writer) error {
	flags.SetOutput(io.Discard)
	err := flags.Parse(args)
	switch {
	case errors.Is(err, flag.ErrHelp):
		flags.SetOutput(stderr)
		flags.Usage()
	case err == nil && flags.NArg() > 0:
		err = fmt.Errorf("unexpected argument %q", flags.Arg(0))
	}
	return err
}

// Misused reports an error of the flags on stderr and returns the exit status:
// 2, or 0 for flag.ErrHelp.
func Misused(program string, err error, stderr io.Writer) int {
	if errors.Is(err, flag.ErrHelp) {
		return 0
	}
	fmt.Fprintf(stderr, "%s: %v\n(%s -h lists the flags)\n", program, err, program)
	return 2
}

// Ended reports the error of a program on stderr and returns the exit status:
// 1, or 0 if err is nil.
func Ended(program string, err error, stderr io.Writer) int {
	if err == nil {
		return 0
	}
	fmt.Fprintf(stderr, "%s: %v\n", program, err)
	return 1
}

// A Site is what is served at an address.
type Site struct {
	Address string
	Handler http.Handler
}

// Serve serves sites until ctx ends. It calls listening with their addresses first. The
// error is of an address that cannot be listened at, or of a server that fails.
func Serve(ctx context.Context, logger *log.Logger, listening func(at []net.Addr), sites ...Site) error {
	var listeners []net.Listener
	var at []net.Addr
	for _, s := range sites {
		listener, err := net.Listen("tcp", s.Address)
		if err != nil {
			return err
		}
		defer listener.Close()
		listeners, at = append(listeners, listener), append(at, listener.Addr())
	}
	listening(at)
	failed := make(chan error, len(sites))
	for i, s := range sites {
		server := &http.Server{
			Handler:           s.Handler,
			ReadHeaderTimeout: 5 * time.Second,
			ReadTimeout:       10 * time.Second,
			WriteTimeout:      30 * time.Second,
			IdleTimeout:       time.Minute,
			MaxHeaderBytes:    16 << 10,
			ErrorLog:          logger,
		}
		defer server.Close()
		go func() { failed <- server.Serve(listeners[i]) }()
	}
	select {
	case err := <-failed:
		return err
	case <-ctx.Done():
		return nil
	}
}
