package upstream

import (
	"context"
	"sync"
	"time"
)

// A Reading is what a server tells of itself.
type Reading struct {
	Run             string        // tells one run of its program from another
	Uptime          time.Duration // of that run, within a second; 0: it does not tell
	Flushes         [2]int64      // since that run began, or its counts were reset, by each of two commands
	Evictions       int64         // since then
	Bytes, MaxBytes int64         // of memory taken and given
}

// fell reports whether a count is less than before: all were reset to 0 since.
func (r Reading) fell(before Reading) bool {
	return r.Flushes[0] < before.Flushes[0] || r.Flushes[1] < before.Flushes[1] || r.Evictions < before.Evictions
}

// A Loss is what a server has forgotten.
type Loss struct{ Restarts, Flushes, Evictions uint64 }

// A Memory is what is known of a server's memory. The zero Memory knows nothing.
type Memory struct {
	mu   sync.Mutex
	here bool      // it answered when it was last asked
	last *Reading  // nil if there is none
	at   time.Time // when that came
	all  Loss

	asking chan struct{} // holds a token while the server is asked; made by the first
}

// Ask has read ask the server, and returns what that has forgotten since it last answered. Only
// one call reads at a time, so answers are compared in order. The error is read's, or ctx's if
// that ends before it is the call's turn.
func (m *Memory) Ask(ctx context.Context, read func() (Reading, error)) (Loss, error) {
	turn := m.turn()
	select {
	case turn <- struct{}{}:
		defer func() { <-turn }()
	case <-ctx.Done():
		return Loss{}, ctx.Err()
	}
	now, err := read()
	if err != nil {
		m.Away()
		return Loss{}, err
	}
	return m.compare(now), nil
}

func (m *Memory) turn() chan struct{} {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.asking == nil {
		m.asking = make(chan struct{}, 1)
	}
	return m.asking
}

// Away notes that the server does not answer.
func (m *Memory) Away() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.here = false
}

// compare returns what the server has forgotten since it last answered.
func (m *Memory) compare(now Reading) Loss {
	m.mu.Lock()
	defer m.mu.Unlock()
	last, since := m.last, time.Since(m.at)
	m.here, m.last, m.at = true, &now, time.Now()
	if last == nil {
		return Loss{}
	}
	var loss Loss
	before := *last
	switch {
	case now.Run != before.Run:
		loss.Restarts, before = 1, Reading{} // it counts from 0 again
		if now.Uptime-time.Second > since {
			before = now // another server: it has counted long before, also what was told
		}
	case now.fell(before):
		before = Reading{}
	}
	for i := range now.Flushes {
		loss.Flushes += uint64(now.Flushes[i] - before.Flushes[i])
	}
	loss.Evictions = uint64(now.Evictions - before.Evictions)
	m.all.Restarts += loss.Restarts
	m.all.Flushes += loss.Flushes
	m.all.Evictions += loss.Evictions
	return loss
}

// Known returns all that was forgotten, and the memory that the server has taken and may
// take: 0 unless it answered when it was last asked.
func (m *Memory) Known() (all Loss, bytes, most int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.here {
		bytes, most = m.last.Bytes, m.last.MaxBytes
	}
	return m.all, bytes, most
}
