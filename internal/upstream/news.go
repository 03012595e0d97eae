package upstream

import "sync"

// News are the beginnings and ends of outages that a program is to be told of, in order. It is told
// of one at a time, on a goroutine of its own: what it does then may take its time, make news, and
// wait for servers. The zero News are none.
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

// Note notes that a server is down because of err or, if that is nil, that it is not. It calls
// nothing, and a lock may be held.
func (n *News) Note(server string, err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.untold = append(n.untold, change{server, err})
}

// Tell has changed called for what was noted, unless that is nil. It does not wait for that.
func (n *News) Tell(changed func(server string, down bool, err error)) {
	n.mu.Lock()
	defer n.mu.Unlock()
	switch {
	case changed == nil:
		n.untold = nil
	case !n.telling && len(n.untold) > 0:
		n.telling = true
		go n.tellAll(changed)
	}
}

// tellAll tells of all that is noted, also meanwhile.
func (n *News) tellAll(changed func(string, bool, error)) {
	for {
		next, more := n.next()
		if !more {
			return
		}
		changed(next.server, next.err != nil, next.err)
	}
}

func (n *News) next() (next change, more bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(n.untold) == 0 {
		n.telling = false
		return change{}, false
	}
	next, n.untold = n.untold[0], n.untold[1:]
	return next, true
}
