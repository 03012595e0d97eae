package pool

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"time"

	"github.com/adaptivethrottler/throttler/internal/memcached"
)

// DefaultWatchEvery is how often [Pool.Watch] asks the servers by default.
const DefaultWatchEvery = 15 * time.Second

// A Loss is what a server has forgotten before its time. Values whose records are
// gone have their limit once more, and bans among them do not hold.
type Loss struct {
	Restarts  uint64 // each forgets all records
	Flushes   uint64 // flush_all: as a restart
	Evictions uint64 // items that had to make room: the server has too little memory
}

func (l *Loss) add(more Loss) {
	l.Restarts += more.Restarts
	l.Flushes += more.Flushes
	l.Evictions += more.Evictions
}

// Watch calls [Pool.Check] at once and then again after every pause, so that
// Forgot and [ServerStats] tell what the servers forget. It returns when ctx ends,
// with its error, or when the pool is closed, with ErrClosed. Zero or less means
// [DefaultWatchEvery].
func (p *Pool) Watch(ctx context.Context, every time.Duration) error {
	every = positive(every, DefaultWatchEvery)
	pause := time.NewTimer(every)
	defer pause.Stop()
	for {
		bounded, cancel := context.WithTimeout(ctx, every)
		_ = p.Check(bounded) // a server that does not answer is down, which is told elsewhere
		cancel()
		pause.Reset(every)
		select {
		case <-pause.C:
		case <-ctx.Done():
			return ctx.Err()
		case <-p.closed:
			return ErrClosed
		}
	}
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
	errs := make([]error, len(all))
	var checks sync.WaitGroup
	for i, s := range all {
		if s.down.Load() == nil {
			checks.Go(func() { errs[i] = s.check(ctx, dialer, p.Forgot) })
		} else {
			s.memory.away()
		}
	}
	checks.Wait()
	return errors.Join(errs...)
}

// check asks s and tells what it has forgotten.
func (s *server) check(ctx context.Context, dialer memcached.Dialer, forgot func(string, Loss)) error {
	s.memory.asking.Lock()
	defer s.memory.asking.Unlock()
	stats, err := askStats(ctx, dialer, s.name)
	if err != nil {
		s.memory.away()
		return &ServerError{Server: s.name, Err: err}
	}
	if loss := s.memory.compare(stats); loss != (Loss{}) && forgot != nil {
		forgot(s.name, loss)
	}
	return nil
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

// A memory is what is known of a server's memory.
type memory struct {
	asking sync.Mutex // held while the server is asked: answers are compared in order

	mu     sync.Mutex
	here   bool             // it answered when it was last asked
	last   map[string]int64 // its last answer; nil if there is none
	losses Loss
}

// away notes that the server does not answer.
func (m *memory) away() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.here = false
}

// compare returns what the server has forgotten since it last answered.
func (m *memory) compare(now map[string]int64) Loss {
	m.mu.Lock()
	defer m.mu.Unlock()
	before := m.last
	m.here, m.last = true, now
	if before == nil {
		return Loss{}
	}
	var loss Loss
	if started(now) != started(before) || now["pid"] != before["pid"] {
		loss.Restarts = 1
		before = nil // it counts from 0 again
	}
	loss.Flushes = uint64(max(now["cmd_flush"]-before["cmd_flush"], 0))
	loss.Evictions = uint64(max(now["evictions"]-before["evictions"], 0))
	m.losses.add(loss)
	return loss
}

// started returns when a server was started, by its own clock. memcached reckons
// its time as the start and its uptime, so that this does not waver.
func started(stats map[string]int64) int64 { return stats["time"] - stats["uptime"] }

// note puts what is known into stats.
func (m *memory) note(stats *ServerStats) {
	m.mu.Lock()
	defer m.mu.Unlock()
	stats.Loss = m.losses
	if m.here {
		stats.Bytes, stats.MaxBytes = m.last["bytes"], m.last["limit_maxbytes"]
	}
}
