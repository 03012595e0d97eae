package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"time"

	"github.com/adaptivethrottler/throttler/internal/memcached"
)

// A scale is many processes that share servers. One server is lost and one
// added while all of them call.
type scale struct {
	processes int
	phase     time.Duration
	servers   []*server // the second is lost, the last is added
	workers   []*process
	hot       string
}

// scaleServers is the number of servers at a time.
const scaleServers = 4

// A process is one worker, seen from its parent.
type process struct {
	cmd    *exec.Cmd
	orders *json.Encoder
	input  io.Closer
	answer *json.Decoder
	errors bytes.Buffer
}

// startProcess starts this program as a worker.
func startProcess(ctx context.Context) (*process, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	p := &process{cmd: exec.CommandContext(ctx, self)}
	p.cmd.Env = append(os.Environ(), workerVariable+"=1", "GOMAXPROCS=1")
	p.cmd.Stderr = &p.errors
	input, err1 := p.cmd.StdinPipe()
	output, err2 := p.cmd.StdoutPipe()
	if err := errors.Join(err1, err2); err != nil {
		return nil, err
	}
	p.input, p.orders, p.answer = input, json.NewEncoder(input), json.NewDecoder(output)
	return p, p.cmd.Start()
}

// stop ends the process by closing its orders.
func (p *process) stop() {
	p.input.Close()
	p.cmd.Wait()
}

// A period is the work of all processes between two orders.
type period struct {
	name    string
	took    time.Duration
	sum     account
	servers serverWork
}

// serverWork sums up the statistics of servers.
type serverWork struct {
	cpu         time.Duration
	bytes       int64 // read and written
	connections int64
}

// newScale starts the servers and processes.
func newScale(ctx context.Context, processes int, phase time.Duration) (*scale, error) {
	s := &scale{processes: processes, phase: phase}
	for range scaleServers + 1 {
		server, err := start(ctx, onMemcached, "tcp")
		if err != nil {
			s.close()
			return nil, err
		}
		s.servers = append(s.servers, server)
	}
	for range processes {
		p, err := startProcess(ctx)
		if err != nil {
			s.close()
			return nil, err
		}
		s.workers = append(s.workers, p)
	}
	return s, nil
}

func (s *scale) close() {
	for _, p := range s.workers {
		p.stop()
	}
	for _, server := range s.servers {
		server.stop()
	}
}

// The servers at the start, after one is lost, and after one is added.
func (s *scale) all() []string   { return addrs(s.servers[:scaleServers]) }
func (s *scale) fewer() []string { return slices.Delete(s.all(), 1, 2) }
func (s *scale) again() []string { return append(s.fewer(), s.servers[scaleServers].addr) }

func addrs(servers []*server) []string {
	var all []string
	for _, s := range servers {
		all = append(all, s.addr)
	}
	return all
}

// values returns all values, with the servers that store each in turn. It
// chooses a hot value that stays on one server.
func (s *scale) values() (map[string][]string, error) {
	var spread, candidates []string
	for i := range workerValues {
		spread = append(spread, strconv.Itoa(i))
	}
	for i := range 100 {
		candidates = append(candidates, fmt.Sprint("hot", i))
	}
	of, err := homes(append(spread, candidates...), s.all(), s.fewer(), s.again())
	if err != nil {
		return nil, err
	}
	for _, value := range candidates {
		if s.hot == "" && len(of[value]) == 1 {
			s.hot = value
			continue
		}
		delete(of, value)
	}
	return of, nil
}

// play runs all periods and returns their results.
func (s *scale) play(ctx context.Context) ([]period, error) {
	if err := s.tell(s.all(), ""); err != nil {
		return nil, err
	}
	var periods []period
	for _, step := range []struct {
		name string
		next func() error // ends it
	}{
		{"four servers", func() error { return s.tell(s.all(), s.hot) }},
		{"a value that all ask for", func() error { s.servers[1].cmd.Process.Kill(); return s.tell(s.all(), s.hot) }},
		{"one server is lost", func() error { return s.tell(s.fewer(), s.hot) }},
		{"it is taken off the list", func() error { return s.tell(s.again(), s.hot) }},
		{"another one is added", func() error { return s.tell(nil, "") }},
	} {
		p, err := s.watch(ctx, step.name, step.next)
		if err != nil {
			return nil, err
		}
		periods = append(periods, p)
	}
	return periods, nil
}

// watch lets the processes call for a phase, then runs next and returns their
// work.
func (s *scale) watch(ctx context.Context, name string, next func() error) (period, error) {
	p := period{name: name}
	before, begin := s.work(ctx), time.Now()
	select {
	case <-time.After(s.phase):
	case <-ctx.Done():
		return p, ctx.Err()
	}
	after := s.work(ctx)
	p.took = time.Since(begin)
	p.servers = serverWork{after.cpu - before.cpu, after.bytes - before.bytes, after.connections}
	if err := next(); err != nil {
		return p, err
	}
	for _, w := range s.workers {
		var a account
		if err := w.answer.Decode(&a); err != nil {
			return p, workerError(err, &w.errors)
		}
		p.sum.add(a)
	}
	slices.Sort(p.sum.Times)
	return p, nil
}

// tell gives all processes an order.
func (s *scale) tell(servers []string, hot string) error {
	for _, w := range s.workers {
		if err := w.orders.Encode(order{Servers: servers, Hot: hot}); err != nil {
			return workerError(err, &w.errors)
		}
	}
	return nil
}

// work returns the statistics of the servers that answer.
func (s *scale) work(ctx context.Context) (sum serverWork) {
	for _, server := range s.servers {
		stats, err := statsOf(ctx, server.addr)
		if err != nil {
			continue // this server is lost
		}
		number := func(name string) int64 { n, _ := strconv.ParseInt(stats[name], 10, 64); return n }
		seconds := func(name string) float64 { x, _ := strconv.ParseFloat(stats[name], 64); return x }
		sum.cpu += time.Duration((seconds("rusage_user") + seconds("rusage_system")) * float64(time.Second))
		sum.bytes += number("bytes_read") + number("bytes_written")
		sum.connections = max(sum.connections, number("curr_connections"))
	}
	return sum
}

func statsOf(ctx context.Context, addr string) (map[string]string, error) {
	conn, err := memcached.Dialer{}.Dial(ctx, addr)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	return conn.Stats()
}

// A verdict compares the admitted calls with the limits.
type verdict struct {
	hot            int
	stayed, may    int // values that stayed on one server: admitted, and the sum of their limits
	moved, mayMove int // values that moved: their limit holds on each server
	over           int // admitted beyond a limit
}

func judge(periods []period, homes map[string][]string, hot string) (v verdict) {
	sum := make(map[string]int)
	for _, p := range periods {
		for value, n := range p.sum.Admitted {
			sum[value] += n
		}
	}
	for value, servers := range homes {
		limit := workerLimit * len(servers)
		switch {
		case value == hot:
			limit = hotLimit
			v.hot = sum[value]
		case len(servers) == 1:
			v.stayed += sum[value]
			v.may += limit
		default:
			v.moved += sum[value]
			v.mayMove += limit
		}
		v.over += max(0, sum[value]-limit)
	}
	return v
}

// errOver is the error of a run that admitted more than the limits.
var errOver = errors.New("admitted beyond the limits")

// runScale plays a scale and writes the result to out.
func runScale(ctx context.Context, processes int, phase time.Duration, out io.Writer) error {
	s, err := newScale(ctx, processes, phase)
	if err != nil {
		return err
	}
	defer s.close()
	homes, err := s.values()
	if err != nil {
		return err
	}
	periods, err := s.play(ctx)
	if err != nil {
		return err
	}
	v := judge(periods, homes, s.hot)
	s.write(out, periods, v)
	if v.over > 0 {
		return fmt.Errorf("%d %w", v.over, errOver)
	}
	return nil
}

func (s *scale) write(out io.Writer, periods []period, v verdict) {
	fmt.Fprintf(out, "%d processes of %d callers, who pause for %v between two calls; %d servers, %s; %v for each line\n\n",
		s.processes, workerCallers, workerPause, scaleServers, s.servers[0].version(), s.phase)
	fmt.Fprintln(out, "| period | decisions a second | open | of these, waited | median, µs | p99, ms | slowest, ms | "+
		"client's CPU, µs | servers' CPU, µs | bytes | exchanges |")
	fmt.Fprintln(out, "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |")
	for _, p := range periods {
		n := float64(max(1, p.sum.Decided))
		fmt.Fprintf(out, "| %s | %.0f | %d | %d | %d | %.1f | %.1f | %.1f | %.1f | %.0f | %.2f |\n", p.name,
			float64(p.sum.Decided)/p.took.Seconds(), p.sum.Open, p.sum.Waited,
			percentile(p.sum.Times, 50), float64(percentile(p.sum.Times, 99))/1000, float64(percentile(p.sum.Times, 100))/1000,
			float64(p.sum.CPU.Microseconds())/n, float64(p.servers.cpu.Microseconds())/n,
			float64(p.servers.bytes)/n, float64(p.sum.Exchanges)/n)
	}
	fmt.Fprintf(out, "\nThe value that all ask for: %d of %d admitted. Values that stayed: %d of %d. "+
		"Values that moved: %d, at most %d. Over-admitted: %d. Connections to a server: %d.\n",
		v.hot, hotLimit, v.stayed, v.may, v.moved, v.mayMove, v.over, periods[0].servers.connections)
}
