package pool

import (
	"context"
	"fmt"
	"time"

	"github.com/adaptivethrottler/throttler/internal/memcached"
	"github.com/adaptivethrottler/throttler/internal/upstream"
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
	return upstream.Watch(ctx, every, p.Check, p.closed, ErrClosed)
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
	return upstream.Check(ctx, p.servers.Load().all, func(ctx context.Context, s *server) (upstream.Reading, error) {
		name := s.addr.text
		if s.addr.network == "unix" {
			name = "unix:" + name
		}
		conn, err := dialer.Dial(ctx, name)
		if err != nil {
			return upstream.Reading{}, err
		}
		defer conn.Close()
		stats, err := conn.Stats()
		return reading(stats), err
	}, func(server string, loss upstream.Loss) {
		if p.Forgot != nil {
			p.Forgot(server, Loss(loss))
		}
	})
}

// reading returns what statistics say. memcached reckons its time as its start and its
// uptime, so that the difference does not waver.
func reading(stats map[string]string) upstream.Reading {
	number := func(name string) int64 { return upstream.Number(stats[name]) }
	return upstream.Reading{
		Run:     fmt.Sprint(number("time")-number("uptime"), " ", number("pid")),
		Flushes: [2]int64{number("cmd_flush")}, Evictions: number("evictions"),
		Bytes: number("bytes"), MaxBytes: number("limit_maxbytes"),
	}
}
