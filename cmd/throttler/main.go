// Command throttler looks after the limits that programs keep in memcached.
//
//	throttler look login ip=203.0.113.7 login=alice
//	throttler ban login ip=203.0.113.7 24h
//	throttler lift login ip=203.0.113.7
//	throttler list -bans login
//	throttler servers
//	throttler check rules.yaml
//	throttler try rules.yaml < access.log
//	throttler serve -rules rules.yaml
//
// docs/service.md is its manual. The exit status is 0 if all went well, 1 if a
// server did not answer or a rule file is wrong, and 2 if the command line is.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/adaptivethrottler/throttler/cmd/throttler/internal/cli"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	status := cli.Run(ctx, os.Args[1:], cli.Streams{In: os.Stdin, Out: os.Stdout, Err: os.Stderr})
	stop()
	os.Exit(status)
}
