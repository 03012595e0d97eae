package serve

import (
	"context"
	"log/slog"
	"slices"
	"time"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/cmd/throttler/internal/rulefile"
	"github.com/adaptivethrottler/throttler/pool"
	"github.com/adaptivethrottler/throttler/redisstore"
)

// watch notices what the servers forget, until ctx ends.
func (b *backend) watch(ctx context.Context, log *slog.Logger) {
	if b.store == nil {
		return
	}
	go func() {
		asked, cancel := context.WithTimeout(ctx, checkTimeout)
		err := b.store.Check(asked)
		cancel()
		if err != nil {
			log.Warn("a server does not answer: "+b.meanwhile(), "err", err)
		}
		b.store.Watch(ctx, 0)
	}()
}

// checkTimeout is how long a server may take to answer at the start.
const checkTimeout = 5 * time.Second

// A store is a *pool.Pool or a *redisstore.Store.
type store interface {
	throttler.Client
	Check(ctx context.Context) error
	Stats() []pool.ServerStats
	Watch(ctx context.Context, every time.Duration) error
	Close() error
}

// storeTimeout is how long a server of the store may take, and a request may wait for its
// turn. 0: the client's defaults.
var storeTimeout time.Duration

// open opens the store that Options or else the rule file name, if any.
func (b *backend) open(o Options, file *rulefile.File) error {
	list, url := o.Servers, o.Store
	if len(list) == 0 && url == "" {
		list, url = file.Servers, file.Store
	}
	switch {
	case url != "":
		s, err := redisstore.Open(url)
		if err != nil {
			return err
		}
		s.Timeout, s.QueueTimeout = storeTimeout, storeTimeout
		s.StateChanged, s.Forgot = stateChanged(o.Log), forgot(o.Log)
		b.store, b.url = s, url
	case len(list) > 0:
		p, err := pool.New(list...)
		if err != nil {
			return err
		}
		p.User, p.Password = o.User, o.Password
		p.Timeout, p.DialTimeout, p.QueueTimeout = storeTimeout, storeTimeout, storeTimeout
		p.StateChanged, p.Forgot = stateChanged(o.Log), forgot(o.Log)
		b.store, b.pool = p, p
	}
	return nil
}

func stateChanged(log *slog.Logger) func(server string, down bool, err error) {
	return func(server string, down bool, err error) {
		if down {
			log.Error("a server is down", "server", server, "err", err)
			return
		}
		log.Info("a server is back", "server", server)
	}
}

func forgot(log *slog.Logger) func(server string, loss pool.Loss) {
	return func(server string, loss pool.Loss) {
		log.Warn("a server has forgotten records: its limits start again, and its bans are gone", "server", server,
			"restarts", loss.Restarts, "flushes", loss.Flushes, "evictions", loss.Evictions)
	}
}

// follow does what a changed rule file says of a failing backend, and switches
// to its servers, unless Options name servers. It reports whether all that the file says is in
// use then.
func (b *backend) follow(o Options, file *rulefile.File) bool {
	b.closed.Store(file.Closed)
	inUse := true
	switch {
	case len(o.Servers) > 0 || o.Store != "":
	case b.url != file.Store || (b.pool == nil) != (len(file.Servers) == 0):
		o.Log.Error("restart the service to move between process memory, memcached and Redis, or to another Redis")
		inUse = false
	case b.pool != nil:
		changes := b.pool.Changes()
		if err := b.pool.SetServers(slices.Clone(file.Servers)...); err != nil {
			o.Log.Error("the servers of the rule file cannot be used: the list stays as it is", "err", err)
			inUse = false
		} else if b.pool.Changes() != changes {
			o.Log.Warn("servers have changed: limits of the values that moved start again", "servers", file.Servers)
		}
	}
	if file.Proxy != nil && o.Proxy.Listen != "" && !b.proxied {
		o.Log.Error("restart the service to begin with the proxy of the rule file")
		inUse = false
	}
	return inUse
}
