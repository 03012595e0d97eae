package pool

// ServerStats counts one server's calls since it was added, and says how the server
// is now.
type ServerStats struct {
	Server string // as it was given to New or SetServers

	Calls     uint64 // all calls; a GetMulti is one for each key
	Failures  uint64 // calls that failed: no connection, no answer in time, none that makes sense
	Refusals  uint64 // calls that failed at once because the server is taken to be down
	Retries   uint64 // calls that were sent a second time because the connection was lost, as by a firewall or idle_timeout
	Overloads uint64 // calls that were not sent and answered in time although the server answers

	Down      bool  // taken to be down: all calls are refused
	LastError error // the last failure of the server, or nil
	Conns     int   // open connections
	InFlight  int   // requests that were sent and not yet answered
	Queued    int   // requests that wait for their turn

	Loss            Loss  // what it forgot between the first Check and the last
	Bytes, MaxBytes int64 // of memory taken and given; 0 unless it answered the last Check
}

// Stats returns a snapshot of each server, in the order in which they were given to
// New or SetServers.
func (p *Pool) Stats() []ServerStats {
	p.init()
	all := p.servers.Load().all
	stats := make([]ServerStats, len(all))
	for i, s := range all {
		stats[i] = s.stats()
	}
	return stats
}

func (s *server) stats() ServerStats {
	stats := ServerStats{
		Server:    s.Name,
		Calls:     s.Counts.Calls.Load(),
		Failures:  s.Counts.Failures.Load(),
		Refusals:  s.Counts.Refusals.Load(),
		Retries:   s.Counts.Retries.Load(),
		Overloads: s.Counts.Overloads.Load(),
		Down:      s.Down() != nil,
		LastError: s.Last(),
	}
	all, bytes, most := s.Memory.Known()
	stats.Loss, stats.Bytes, stats.MaxBytes = Loss(all), bytes, most
	for _, l := range s.links {
		l.mu.Lock()
		stats.Queued += l.queue.Len()
		if l.conn != nil {
			stats.Conns++
			stats.InFlight += l.conn.sent.Len()
		}
		l.mu.Unlock()
	}
	return stats
}
