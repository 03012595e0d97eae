package pool

import (
	"sync"
	"time"
)

// probeKey is read to find out whether a server answers. It holds nothing.
const probeKey = "throttler#probe"

// probes find out whether a server that is down is back, so that no caller has to
// wait for that. Their goroutine runs only while the server is down.
type probes struct {
	gone chan struct{} // closed when the server is not needed any more

	mu      sync.Mutex
	running bool
}

// begin has s probed until it is back, or gone. Its breaker has just opened.
func (ps *probes) begin(s *server) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	if !ps.running && !ps.over(s) {
		ps.running = true
		go ps.run(s)
	}
}

func (ps *probes) run(s *server) {
	pause := time.NewTimer(s.breakerPause)
	defer pause.Stop()
	for {
		select {
		case <-pause.C:
			s.probe()
			pause.Reset(s.breakerPause)
		case <-ps.gone:
		}
		if ps.end(s) {
			return
		}
	}
}

// end reports whether there is nothing left to find out. If so, a further outage
// needs another begin.
func (ps *probes) end(s *server) bool {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	ps.running = !ps.over(s)
	return !ps.running
}

// over reports whether s is back, or gone.
func (ps *probes) over(s *server) bool {
	select {
	case <-ps.gone:
		return true
	default:
		return s.down.Load() == nil
	}
}

// probe reads a key from s as a call would, and tells the breaker what came of it.
// It returns when that is known. A new connection has been asked for its version
// before.
func (s *server) probe() {
	done, err := s.breaker.Allow()
	if err != nil {
		return
	}
	r := &request{key: probeKey, reads: true, lane: s.lane(probeKey), probe: done}
	call := newCall([]*request{r})
	if err := r.lane.submit([]*request{r}); err != nil {
		r.end(err)
	}
	<-call.ready
}
