package pool

import (
	"fmt"
	"slices"
)

// A group is a number of requests that read their records together, by one
// command after all their writes.
//
// memcached carries out 20 commands of a connection (its option -R) before it sends
// their answers and looks at its other connections. 19 writes and one read are one
// such turn, and one packet of answers: with a read for each write it would be
// two.
type group struct {
	members []*request
	line    int      // length of the command that reads
	written int      // how many members need no answer to a write any more
	next    int      // the index of the member after the last one whose record has come
	fault   *request // whose answer makes no sense, or whose record came last or is coming
	memory  [maxGroup]*request
}

const (
	maxGroup     = 19
	maxGroupLine = 1024 // more than this is not taken for a command by every server
)

// shares reports whether r, whose item is proposed, may read its record together
// with others.
func (r *request) shares() bool {
	return r.reads && r.asks == nil && (r.step == classic || r.step == readsAfterMeta)
}

// takes reports whether r may become a member of g.
func (g *group) takes(r *request) bool {
	return r.shares() && len(g.members) < maxGroup && g.line+1+len(r.key) <= maxGroupLine &&
		!slices.ContainsFunc(g.members, func(m *request) bool { return m.key == r.key })
}

// add makes r a member of g.
func (g *group) add(r *request) {
	if g.members == nil {
		g.members = g.memory[:0]
		g.line = len("gets\r\n")
	}
	g.members = append(g.members, r)
	g.line += 1 + len(r.key)
	r.group = g
}

// appendRead appends the command that reads the records of g to b. A group of
// one is none.
func (g *group) appendRead(b []byte) []byte {
	b = append(b, "gets"...)
	for _, m := range g.members {
		b = append(append(b, ' '), m.key...)
	}
	if len(g.members) == 1 {
		g.members[0].group = nil
	}
	return append(b, "\r\n"...)
}

// sharing returns how many requests have their answers when r has.
func (r *request) sharing() int {
	if r.group == nil {
		return 1
	}
	return len(r.group.members)
}

// distrust forgets what has been read of the answer to r, and to the others of its group.
func (r *request) distrust() {
	all := []*request{r}
	if r.group != nil {
		all = r.group.members
	}
	for _, m := range all {
		m.reply.status = unanswered
		if m.step == readsAfterMeta {
			m.maybe = true // what refused its meta set may have been another's answer
		}
	}
}

// atFault returns the request whose answer could not be parsed, if r is the
// first that is waited for.
func (r *request) atFault() *request {
	if r.group == nil || r.group.fault == nil {
		return r
	}
	return r.group.fault
}

// parse reads what b has of the answers to g, as [request.parse] does. done says
// that all members have theirs.
func (g *group) parse(b []byte) (n int, done bool, err error) {
	for !done && err == nil {
		writer := g.writer()
		line, size, ok := cutLine(b[n:])
		if !ok {
			if len(b)-n > maxLine {
				g.fault, err = writer, errGarbage(b[n:])
			}
			return n, false, err
		}
		switch {
		case g.members[0].asks != nil:
			err = g.members[0].told(line)
		case writer != nil:
			if done, err = writer.wrote(line); err != nil {
				g.fault = writer
			}
		case isError(line):
			done, err = true, g.complained(line)
		case string(line) == "END":
			done = true
			for _, m := range g.members {
				m.reply.read = true
			}
		default:
			length, wrong := g.value(line, b[n+size:])
			if wrong != nil || length < 0 {
				return n, false, wrong
			}
			n += length
		}
		n += size
	}
	return n, done, err
}

// writer returns the member whose write is to be answered next, nil if all are.
func (g *group) writer() *request {
	for ; g.written < len(g.members); g.written++ {
		if m := g.members[g.written]; m.verb != none && m.reply.status == unanswered {
			return m
		}
	}
	return nil
}

// complained notes the error that the server reported instead of the records. It
// returns it if no further answer can be trusted.
func (g *group) complained(line []byte) error {
	for _, m := range g.members {
		if m.reply.complaint == nil {
			m.reply.complaint = complaint(line)
		}
	}
	return fatal(line)
}

// value notes the item that line announces and b begins with. It returns the length of its
// data with their end, or -1 if b has not all of them.
func (g *group) value(line, b []byte) (length int, err error) {
	key, item, size, ok := parseValue(line)
	m := g.named(key)
	g.fault = m // if anything is wrong
	if !ok {
		return 0, errGarbage(line)
	}
	if size > maxValue {
		return 0, tooLarge(size)
	}
	length = int(size) + 2
	switch {
	case len(b) < length:
		return -1, nil
	case string(b[size:length]) != "\r\n":
		return 0, errGarbage(line)
	case m == nil:
		return 0, lostError{fmt.Errorf("%w: %q", errOtherKey, key)}
	}
	return length, m.find(item, b[:size])
}

// named returns the member whose record has this key, nil if none has. Servers
// answer in order, so it is most often the next one.
func (g *group) named(key []byte) *request {
	is := func(m *request) bool { return m.key == string(key) }
	i := slices.IndexFunc(g.members[g.next:], is)
	if i < 0 {
		g.next = 0
		i = slices.IndexFunc(g.members, is)
	}
	if i < 0 {
		return nil
	}
	g.next += i
	return g.members[g.next]
}
