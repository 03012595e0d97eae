// Command throttler shows, sets and lifts the limits and bans that programs
// keep in memcached, and serves decisions to proxies and programs.
//
//	throttler look login ip=203.0.113.7 login=alice
//	throttler ban login ip=203.0.113.7 24h
//	throttler lift login ip=203.0.113.7
//	throttler list -bans login
//	throttler servers
//	throttler check rules.yaml
//	throttler try rules.yaml < access.log
//	throttler serve -rules rules.yaml
//	throttler health
//
// docs/service.md is its manual. The exit status is 0 on success, 1 if a server
// does not answer or a rule file is wrong, and 2 if the command line is wrong.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/adaptivethrottler/throttler/cmd/throttler/internal/cli"
	_ "golang.org/x/crypto/x509roots/fallback" // authorities, for an image that has none
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the program at once
	status := cli.Run(ctx, os.Args[1:], cli.Streams{In: os.Stdin, Out: os.Stdout, Err: os.Stderr})
	stop()
	os.Exit(status)
}
