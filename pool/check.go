package pool

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/adaptivethrottler/throttler/internal/memcached"
	engine "github.com/adaptivethrottler/throttler/internal/server"
)

// A Loss is what a server has forgotten before its time. Values whose records are
// gone have their limit once more, and bans among them do not hold.
type Loss struct {
	Restarts  uint64 // each forgets all records
	Flushes   uint64 // flush_all: as a restart
	Evictions uint64 // items that had to make room: the server has too little memory
}

// Watch calls [Pool.Check] at once and then again after every pause, so that
// Forgot and [ServerStats] tell what the servers forget. It returns when ctx ends,
// with its error, or when the pool is closed, with ErrClosed. Zero or less means
// 15 s.
func (p *Pool) Watch(ctx context.Context, every time.Duration) error {
	return engine.Watch(ctx, every, p.Check, p.closed, ErrClosed)
}

// Check asks each server for its statistics, over a connection of its own, and
// compares them with those of the last Check. It adds what the server has forgotten
// since to [ServerStats], and calls Forgot. It does not notice what was forgotten
// before the first Check.
//
// All servers are asked at once, except those that are down. The error is that of
// the servers which do not answer before ctx ends, or refuse; proxies do.
func (p *Pool) Check(ctx context.Context) error {
	p.init()
	if p.isClosed() {
		return ErrClosed
	}
	dialer := memcached.Dialer{DialContext: p.DialContext, User: p.User, Password: p.Password}
	all := p.servers.Load().all
	servers := make([]*engine.Server, len(all))
	for i, s := range all {
		servers[i] = s.Server
	}
	return engine.Check(ctx, servers, func(ctx context.Context, i int) (engine.Reading, error) {
		name := all[i].addr.text
		if all[i].addr.network == "unix" {
			name = "unix:" + name
		}
		stats, err := askStats(ctx, dialer, name)
		return reading(stats), err
	}, func(server string, loss engine.Loss) {
		if p.Forgot != nil {
			p.Forgot(server, Loss(loss))
		}
	})
}

// askStats returns the statistics of a server that are numbers.
func askStats(ctx context.Context, dialer memcached.Dialer, server string) (map[string]int64, error) {
	conn, err := dialer.Dial(ctx, server)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	texts, err := conn.Stats()
	if err != nil {
		return nil, err
	}
	stats := make(map[string]int64, len(texts))
	for name, text := range texts {
		if n, err := strconv.ParseInt(text, 10, 64); err == nil {
			stats[name] = n
		}
	}
	return stats, nil
}

// reading returns what statistics say. memcached reckons its time as its start and its
// uptime, so that the difference does not waver.
func reading(stats map[string]int64) engine.Reading {
	return engine.Reading{
		Run:     fmt.Sprint(stats["time"]-stats["uptime"], " ", stats["pid"]),
		Flushes: [2]int64{stats["cmd_flush"]}, Evictions: stats["evictions"],
		Bytes: stats["bytes"], MaxBytes: stats["limit_maxbytes"],
	}
}
