package serve

import (
	"context"
	"log/slog"
	"slices"

	"github.com/adaptivethrottler/throttler/cmd/throttler/internal/rulefile"
	"github.com/adaptivethrottler/throttler/pool"
)

// watch notices what the servers forget, until ctx ends.
func (b *backend) watch(ctx context.Context) {
	if b.pool != nil {
		go b.pool.Watch(ctx, 0)
	}
}

// tell logs changes of p's servers.
func tell(p *pool.Pool, log *slog.Logger) {
	p.StateChanged = func(server string, down bool, err error) {
		if down {
			log.Error("a server is down", "server", server, "err", err)
			return
		}
		log.Info("a server is back", "server", server)
	}
	p.Forgot = func(server string, loss pool.Loss) {
		log.Warn("a server has forgotten records: its limits start again, and its bans are gone", "server", server,
			"restarts", loss.Restarts, "flushes", loss.Flushes, "evictions", loss.Evictions)
	}
	p.ServersChanged = func(added, removed []string) {
		log.Warn("servers have changed: limits of the values that moved start again", "added", added, "removed", removed)
	}
}

// follow switches to the servers of a changed rule file, unless Options name
// servers.
func (b *backend) follow(o Options, file *rulefile.File) {
	switch {
	case len(o.Servers) > 0:
	case (b.pool == nil) != (len(file.Servers) == 0):
		o.Log.Error("restart the service to move between process memory and servers")
	case b.pool != nil:
		if err := b.pool.SetServers(slices.Clone(file.Servers)...); err != nil {
			o.Log.Error("the servers of the rule file cannot be used: the list stays as it is", "err", err)
		}
	}
}
