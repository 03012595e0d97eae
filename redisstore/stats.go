package redisstore

import (
	"context"
	"errors"
	"iter"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/adaptivethrottler/throttler/internal/upstream"
	"github.com/adaptivethrottler/throttler/pool"
	"github.com/redis/rueidis"
)

// Stats returns a snapshot of each server: the one there is, or each primary of a
// Cluster, by address. Conns is 1 while there is a client, Bytes and MaxBytes are used_memory
// and maxmemory, and a failover counts as a restart.
func (s *Store) Stats() []pool.ServerStats {
	s.init()
	nodes := s.nodes()
	stats := make([]pool.ServerStats, len(nodes))
	for i, n := range nodes {
		stats[i] = n.stats()
	}
	return stats
}

// nodes returns the nodes for people: the first is none of a Cluster.
func (s *Store) nodes() []*node {
	r := s.routes.Load()
	if len(r.nodes) == 0 {
		return []*node{r.first}
	}
	nodes := r.all()[1:]
	slices.SortFunc(nodes, func(a, b *node) int { return strings.Compare(a.Name, b.Name) })
	return nodes
}

func (n *node) stats() pool.ServerStats {
	stats := pool.ServerStats{
		Server:    n.Name,
		Calls:     n.Counts.Calls.Load(),
		Failures:  n.Counts.Failures.Load(),
		Refusals:  n.Counts.Refusals.Load(),
		Retries:   n.Counts.Retries.Load(),
		Overloads: n.Counts.Overloads.Load(),
		Down:      n.Down() != nil,
		LastError: n.Last(),
	}
	if n.store.link.client.Load() != nil {
		stats.Conns = 1
	}
	n.mu.Lock()
	stats.InFlight, stats.Queued = n.sent, n.queue.Len()
	n.mu.Unlock()
	all, bytes, most := n.Memory.Known()
	stats.Loss, stats.Bytes, stats.MaxBytes = pool.Loss(all), bytes, most
	return stats
}

// Check asks each server for its INFO, over a connection of its own, and compares it
// with that of the last Check. It adds what the server has forgotten since to
// [pool.ServerStats], and calls Forgot. Servers that are down are not asked. The error is
// that of the servers which do not answer before ctx ends, refuse, or are nodes of a
// Cluster that the client does not know.
func (s *Store) Check(ctx context.Context) error {
	nodes, c, err := s.asked(ctx)
	if err != nil {
		return err
	}
	return upstream.Check(ctx, nodes, func(ctx context.Context, n *node) (upstream.Reading, error) {
		info, err := n.info(ctx, c)
		return reading(info), err
	}, func(name string, loss upstream.Loss) {
		if s.Forgot != nil {
			s.Forgot(name, pool.Loss(loss))
		}
	})
}

// Watch calls [Store.Check] at once and then again after every pause. It returns when
// ctx ends, with its error, or when the store is closed, with pool.ErrClosed. Zero or less
// means 15 s.
func (s *Store) Watch(ctx context.Context, every time.Duration) error {
	return upstream.Watch(ctx, every, s.Check, s.over, pool.ErrClosed)
}

// fields returns those of an INFO.
func fields(text string) map[string]string {
	all := make(map[string]string)
	for line := range strings.Lines(text) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
			all[name] = value
		}
	}
	return all
}

// reading returns what an INFO says. A restart is one with a new run_id: what the server
// had saved it has again.
func reading(info map[string]string) upstream.Reading {
	return upstream.Reading{
		Run: info["run_id"], Uptime: time.Duration(upstream.Number(info["uptime_in_seconds"])) * time.Second,
		Flushes: [2]int64{calls(info["cmdstat_flushall"]), calls(info["cmdstat_flushdb"])}, Evictions: upstream.Number(info["evicted_keys"]),
		Bytes: upstream.Number(info["used_memory"]), MaxBytes: upstream.Number(info["maxmemory"]),
	}
}

// calls returns the calls of a command's statistics: calls=2,usec=9,...
func calls(text string) int64 {
	count, _, _ := strings.Cut(strings.TrimPrefix(text, "calls="), ",")
	return upstream.Number(count)
}

// Info returns the INFO of each server that answers, by field, and the error of the
// others. It asks them over connections of their own, all at once.
func (s *Store) Info(ctx context.Context) (map[string]map[string]string, error) {
	nodes, c, err := s.asked(ctx)
	if err != nil {
		return nil, err
	}
	all, errs := make([]map[string]string, len(nodes)), make([]error, len(nodes))
	var each sync.WaitGroup
	for i, n := range nodes {
		each.Go(func() { all[i], errs[i] = n.info(ctx, c) })
	}
	each.Wait()
	infos := make(map[string]map[string]string)
	for i, n := range nodes {
		if errs[i] != nil {
			errs[i] = serverError(n.Name, errs[i])
			continue
		}
		infos[n.Name] = all[i]
	}
	return infos, errors.Join(errs...)
}

// asked returns the nodes and the client to ask them by.
func (s *Store) asked(ctx context.Context) ([]*node, rueidis.Client, error) {
	if s.isClosed() {
		return nil, nil, pool.ErrClosed
	}
	s.init()
	c, err := s.link.get(ctx)
	if err != nil {
		return nil, nil, serverError(s.routes.Load().first.Name, classify(err))
	}
	if c.Mode() == rueidis.ClientModeCluster && len(s.routes.Load().nodes) == 0 {
		s.drawMap(c) // it is New's, and is only being asked
	}
	return s.nodes(), c, nil
}

// info returns the INFO of n's server.
func (n *node) info(ctx context.Context, c rueidis.Client) (map[string]string, error) {
	answer, err := n.aside(ctx, c, "INFO", "everything")
	if err != nil {
		return nil, err
	}
	text, err := answer.ToString()
	if err != nil {
		return nil, classify(err)
	}
	return fields(text), nil
}

// aside has n's server carry out a command beside all calls. It returns when ctx ends, also if
// the server accepts connections and does not answer.
func (n *node) aside(ctx context.Context, c rueidis.Client, command ...string) (rueidis.RedisResult, error) {
	if n.lacksClient(c) {
		n.store.refreshTopology() // rueidis may know it by now
		return rueidis.RedisResult{}, errNoClient
	}
	own, limit := n.own(c), n.store.timeout()<<maxLate
	answers := make(chan rueidis.RedisResult, 1)
	go func() {
		ctx, cancel := context.WithTimeout(ctx, limit)
		defer cancel()
		// Blocking has rueidis use another connection than that of the calls.
		answers <- own.Do(ctx, own.B().Arbitrary(command...).Blocking())
	}()
	select {
	case answer := <-answers:
		if isClosed(answer.Error()) {
			n.drop(own)
		}
		return answer, nil
	case <-ctx.Done():
		return rueidis.RedisResult{}, ctx.Err()
	}
}

// scanned is how many keys a server looks at in one step of Keys.
const scanned = 1000

// Keys yields all keys of the servers that begin with Prefix, without it, in steps
// (SCAN). A key may come twice, and may be left out if another primary takes over
// meanwhile. It ends with the first error.
func (s *Store) Keys(ctx context.Context) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		nodes, c, err := s.asked(ctx)
		if err != nil {
			yield("", err)
			return
		}
		for _, n := range nodes {
			if !n.keys(ctx, c, yield) {
				return
			}
		}
	}
}

// keys yields those of n's server. It reports whether to go on.
func (n *node) keys(ctx context.Context, c rueidis.Client, yield func(string, error) bool) bool {
	pattern := globbed.Replace(n.store.Prefix) + "*"
	for cursor := uint64(0); ; {
		answer, err := n.aside(ctx, c, "SCAN", strconv.FormatUint(cursor, 10), "MATCH", pattern, "COUNT", strconv.Itoa(scanned))
		var step rueidis.ScanEntry
		if err == nil {
			step, err = answer.AsScanEntry()
			err = classify(err)
		}
		if err != nil {
			yield("", serverError(n.Name, err))
			return false
		}
		for _, key := range step.Elements {
			if !yield(n.store.key(key), nil) {
				return false
			}
		}
		if cursor = step.Cursor; cursor == 0 {
			return true
		}
	}
}

// globbed makes a prefix stand for itself in a pattern.
var globbed = strings.NewReplacer("*", `\*`, "?", `\?`, "[", `\[`, "]", `\]`, `\`, `\\`)
