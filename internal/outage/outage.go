// Package outage tells a program when the servers of a client go down and come back.
package outage

import "sync"

// News are the beginnings and ends of outages that a program is to be told of, each once and
// in order. It is told of one at a time, and no lock is held meanwhile: what it does then may
// make news. The zero News are none.
type News struct {
	mu      sync.Mutex
	untold  []change
	telling bool
}

// A change is the beginning or the end of an outage.
type change struct {
	server string
	err    error // nil: the end
}

// A Server is what News were made of one server.
type Server struct {
	Name string
	News *News

	down bool // guarded by News.mu
}

// Note notes that s is down because of err or, if that is nil, that it is not. It calls
// nothing, and a lock may be held.
func (s *Server) Note(err error) {
	s.News.mu.Lock()
	defer s.News.mu.Unlock()
	if s.down != (err != nil) {
		s.down = err != nil
		s.News.untold = append(s.News.untold, change{s.Name, err})
	}
}

// Tell calls changed, unless that is nil, for what was noted. If another goroutine does, it
// leaves that to it.
func (n *News) Tell(changed func(server string, down bool, err error)) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.telling {
		return
	}
	n.telling = true
	defer func() { n.telling = false }()
	for len(n.untold) > 0 {
		next := n.untold[0]
		n.untold = n.untold[1:]
		if changed != nil {
			n.tellOne(changed, next)
		}
	}
}

// tellOne tells of next without the lock, which it takes again even if changed panics.
func (n *News) tellOne(changed func(string, bool, error), next change) {
	n.mu.Unlock()
	defer n.mu.Lock()
	changed(next.server, next.err != nil, next.err)
}
