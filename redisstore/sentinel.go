package redisstore

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/adaptivethrottler/throttler/internal/upstream"
	"github.com/adaptivethrottler/throttler/pool"
	"github.com/redis/rueidis"
)

// Sentinels are asked here, not by rueidis, whose subscription to one of them hangs when that
// one does: all are asked at once, so that those that answer are enough.

// sentinels find the primary of a master set.
type sentinels struct {
	link *link

	mu    sync.Mutex // guards what follows
	given []*sentinel
	told  []*sentinel // by other Sentinels
}

// A sentinel is one Sentinel.
type sentinel struct {
	address string

	mu     sync.Mutex     // held while it is asked
	client rueidis.Client // nil: not connected
}

// An opinion is what a Sentinel says.
type opinion struct {
	primary string
	epoch   int64 // of the failover that made it the primary
	others  []string
	err     error
}

func newSentinels(l *link) *sentinels {
	s := &sentinels{link: l}
	for _, address := range l.option.InitAddress {
		s.given = append(s.given, &sentinel{address: address})
	}
	return s
}

// primary returns the address of the primary. More than half of the Sentinels know of each
// failover, so once more than half have answered, the newest opinion counts. After a Timeout
// that of any is believed. One goroutine asks at a time.
func (s *sentinels) primary() (string, error) {
	asked := s.all()
	opinions := make(chan opinion, len(asked))
	for _, n := range asked {
		s.link.store.work(func() { opinions <- s.ask(n) })
	}
	timeout := time.NewTimer(s.link.store.timeout())
	defer timeout.Stop()
	var newest opinion
	var errs []error
	late, answers := false, 0
	for len(errs)+answers < len(asked) && (answers == 0 || !late && 2*answers <= len(asked)) {
		select {
		case o := <-opinions:
			if o.err != nil {
				errs = append(errs, o.err)
			} else if answers++; answers == 1 || o.epoch > newest.epoch {
				newest = o
			}
		case <-timeout.C:
			late = true
		case <-s.link.store.over:
			return "", pool.ErrClosed
		}
	}
	if answers == 0 {
		return "", errors.Join(errs...)
	}
	s.learn(newest.others)
	return newest.primary, nil
}

func (s *sentinels) all() []*sentinel {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Concat(s.given, s.told)
}

// learn replaces the Sentinels that others told of.
func (s *sentinels) learn(addresses []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	before := s.told
	s.told = nil
	at := func(address string) func(*sentinel) bool {
		return func(n *sentinel) bool { return n.address == address }
	}
	for _, address := range addresses {
		if slices.ContainsFunc(s.given, at(address)) {
			continue
		}
		if i := slices.IndexFunc(before, at(address)); i >= 0 {
			s.told = append(s.told, before[i])
		} else {
			s.told = append(s.told, &sentinel{address: address})
		}
	}
	for _, n := range before {
		if !slices.Contains(s.told, n) {
			s.link.store.work(n.close)
		}
	}
}

// ask asks n for its opinion. It takes two Timeouts at most, one to connect and one to answer,
// unless this process is short of processor time.
func (s *sentinels) ask(n *sentinel) opinion {
	if !n.mu.TryLock() {
		return opinion{err: fmt.Errorf("the Sentinel %s: %w", n.address, errAsked)}
	}
	defer n.mu.Unlock()
	var p patience
	for {
		o := s.askLocked(n)
		if o.err == nil {
			return o
		}
		if !isTimeout(o.err) || !p.wasLate() {
			o.err = fmt.Errorf("the Sentinel %s: %w", n.address, classify(o.err))
			return o
		}
	}
}

// errAsked is the error of a Sentinel that has yet to answer an earlier question.
var errAsked = errors.New("it is being asked")

func (s *sentinels) askLocked(n *sentinel) opinion {
	if s.link.store.isClosed() {
		return opinion{err: pool.ErrClosed}
	}
	if n.client == nil {
		client, err := rueidis.NewClient(s.link.sentinelOptions(n.address))
		if err != nil {
			return opinion{err: err}
		}
		n.client = client
	}
	ctx, cancel := context.WithTimeout(context.Background(), s.link.store.timeout())
	defer cancel()
	question := func(about string) rueidis.Completed {
		return n.client.B().Arbitrary("SENTINEL", about, s.link.option.Sentinel.MasterSet).Build()
	}
	// The first answer names a replica as soon as it is promoted, the second one only when all
	// others follow it. But that tells which failover it was.
	answers := n.client.DoMulti(ctx, question("GET-MASTER-ADDR-BY-NAME"), question("MASTER"), question("SENTINELS"))
	if answers[0].NonRedisError() != nil {
		n.client.Close()
		n.client = nil
	}
	return parseOpinion(answers, s.link.option.Sentinel.MasterSet)
}

// parseOpinion returns what the three answers of a Sentinel say.
func parseOpinion(answers []rueidis.RedisResult, masterSet string) (o opinion) {
	address, err := answers[0].AsStrSlice()
	switch {
	case rueidis.IsRedisNil(err) || err == nil && len(address) != 2:
		return opinion{err: fmt.Errorf("the Sentinel knows no %q: see master_set in the URL", masterSet)}
	case err != nil:
		return opinion{err: err}
	}
	o.primary = net.JoinHostPort(address[0], address[1])
	entry, _ := answers[1].AsStrMap() // which a user may not be allowed to ask
	o.epoch = upstream.Number(entry["config-epoch"])
	others, _ := answers[2].ToArray()
	for _, other := range others {
		if entry, err := other.AsStrMap(); err == nil && entry["ip"] != "" {
			o.others = append(o.others, net.JoinHostPort(entry["ip"], entry["port"]))
		}
	}
	return o
}

// close closes the connections to all Sentinels.
func (s *sentinels) close() {
	for _, n := range s.all() {
		n.close()
	}
}

func (n *sentinel) close() {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.client != nil {
		n.client.Close()
		n.client = nil
	}
}
