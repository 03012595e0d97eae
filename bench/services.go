package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/adaptivethrottler/throttler/internal/servertest"
)

// This file measures whole services for Envoy, as Envoy asks them: by gRPC, each in a
// process of its own, with the same file of limits.

// serviceRules is a file of envoyproxy/ratelimit.
const serviceRules = `
domain: edge
descriptors:
  - key: address
    rate_limit: {unit: day, requests_per_unit: 1000000}
  - key: few
    rate_limit: {unit: day, requests_per_unit: 5}
`

// asItem returns a file of envoyproxy/ratelimit as an item of throttler's rule file.
func asItem(file string) string {
	return "envoy:\n  - " + strings.ReplaceAll(strings.TrimSpace(file), "\n", "\n    ") + "\n"
}

// programs are the built services, by name.
type programs map[string]string

const (
	throttlerService = "throttler"
	ratelimitService = "envoyproxy/ratelimit"
)

// buildServices builds both services into dir.
func buildServices(ctx context.Context, dir string) (programs, error) {
	root, err := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}", "github.com/adaptivethrottler/throttler").Output()
	if err != nil {
		return nil, fmt.Errorf("where is throttler? run this in its repository: %w", err)
	}
	built := programs{throttlerService: filepath.Join(dir, "throttler"), ratelimitService: filepath.Join(dir, "ratelimit")}
	for name, pkg := range map[string]string{
		throttlerService: "github.com/adaptivethrottler/throttler/cmd/throttler",
		ratelimitService: "github.com/envoyproxy/ratelimit/src/service_cmd",
	} {
		build := exec.CommandContext(ctx, "go", "build", "-o", built[name], pkg)
		build.Dir = filepath.Join(strings.TrimSpace(string(root)), "bench")
		if output, err := build.CombinedOutput(); err != nil {
			return nil, fmt.Errorf("%s cannot be built: %w\n%s", name, err, output)
		}
	}
	return built, nil
}

// A service is one of the services over a store of its own.
type service struct {
	name    string // with its store
	store   *server
	process *server
	conn    *grpc.ClientConn
	client  pb.RateLimitServiceClient
}

// startService starts a service over a new store, and returns when it answers.
func startService(ctx context.Context, built programs, name string, kind backend) (s *service, err error) {
	s = &service{name: name + ", " + kinds[kind].program}
	defer func() {
		if err != nil {
			s.stop()
		}
	}()
	if s.store, err = start(ctx, kind, "tcp"); err != nil {
		return s, err
	}
	run := ratelimitOver
	if name == throttlerService {
		run = throttlerOver
	}
	if s.process, err = run(built[name], kind, s.store); err != nil {
		return s, err
	}
	return s, s.dial(ctx)
}

// throttlerOver starts throttler over a store.
func throttlerOver(program string, kind backend, store *server) (*server, error) {
	where := "--servers=" + store.addr
	if kind == onRedis {
		where = "--store=redis://" + store.addr
	}
	return serveThrottler(program, asItem(serviceRules), where)
}

// serveThrottler starts throttler for Envoy with a rule file, and more arguments.
func serveThrottler(program, rules string, more ...string) (*server, error) {
	return launchService(program, "rules.yaml", rules, func(addr, file string) (args, env []string) {
		return append([]string{"serve", "--rules", file, "--envoy", addr, "--listen", "127.0.0.1:0", "--admin=", "--api="}, more...), nil
	})
}

// ratelimitOver starts envoyproxy/ratelimit over a store, with its defaults but for idle
// connections to memcached: of 2 it would close most after each request.
func ratelimitOver(program string, kind backend, store *server) (*server, error) {
	return launchService(program, "ratelimit/config/rules.yaml", serviceRules, func(addr, file string) (args, env []string) {
		_, port, _ := strings.Cut(addr, ":")
		env = []string{
			"GRPC_HOST=127.0.0.1", "GRPC_PORT=" + port, "HOST=127.0.0.1", "PORT=0", "DEBUG_HOST=127.0.0.1", "DEBUG_PORT=0",
			"RUNTIME_ROOT=" + filepath.Dir(filepath.Dir(filepath.Dir(file))), "RUNTIME_SUBDIRECTORY=ratelimit", "RUNTIME_WATCH_ROOT=false",
			"USE_STATSD=false", "LOG_LEVEL=ERROR",
		}
		if kind == onRedis {
			return nil, append(env, "BACKEND_TYPE=redis", "REDIS_SOCKET_TYPE=tcp", "REDIS_URL="+store.addr)
		}
		return nil, append(env, "BACKEND_TYPE=memcache", "MEMCACHE_HOST_PORT="+store.addr, "MEMCACHE_MAX_IDLE_CONNS=128")
	})
}

// launchService starts a program with a file of its own.
func launchService(program, name, text string, with func(addr, file string) (args, env []string)) (*server, error) {
	dir, err := os.MkdirTemp("", "bench")
	if err != nil {
		return nil, err
	}
	s := &server{network: "tcp", dir: dir}
	file := filepath.Join(dir, name)
	var err1 error
	s.addr, err1 = servertest.FreeAddr(servertest.OtherPorts)
	if err := errors.Join(err1, os.MkdirAll(filepath.Dir(file), 0o700), os.WriteFile(file, []byte(text), 0o600)); err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	args, env := with(s.addr, file)
	s.cmd = exec.Command(program, args...)
	s.cmd.Env = append(os.Environ(), env...)
	if err := s.launch(); err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	return s, nil
}

// dial connects to s, and checks that it limits: 5 of 6.
func (s *service) dial(ctx context.Context) (err error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if s.conn, err = grpc.NewClient(s.process.addr, grpc.WithTransportCredentials(insecure.NewCredentials())); err != nil {
		return err
	}
	s.client = pb.NewRateLimitServiceClient(s.conn)
	for i := range 6 {
		r, err := s.client.ShouldRateLimit(ctx, asking("few", "x"), grpc.WaitForReady(true))
		if err != nil {
			return fmt.Errorf("%s: %w\n%s", s.name, err, s.process.output.String())
		}
		if over := r.OverallCode == pb.RateLimitResponse_OVER_LIMIT; over != (i == 5) {
			return fmt.Errorf("%s: request %d of a limit of 5: %v", s.name, i+1, r.OverallCode)
		}
		time.Sleep(500 * time.Millisecond) // envoyproxy/ratelimit on memcached counts after it has answered
	}
	return nil
}

func (s *service) stop() {
	if s.conn != nil {
		s.conn.Close()
	}
	for _, process := range []*server{s.process, s.store} {
		if process != nil {
			process.stop()
		}
	}
}

func asking(key, value string) *pb.RateLimitRequest {
	return &pb.RateLimitRequest{Domain: "edge", HitsAddend: 1, Descriptors: []*ratelimitv3.RateLimitDescriptor{
		{Entries: []*ratelimitv3.RateLimitDescriptor_Entry{{Key: key, Value: value}}},
	}}
}

// deadline is that of Envoy's filter, unless it is configured otherwise.
const deadline = 20 * time.Millisecond

// A serving is what a service has answered in one round.
type serving struct {
	took     time.Duration
	times    []time.Duration // of all requests, sorted
	late     int             // that were not answered before the deadline
	cpu      time.Duration   // of the service
	storeCPU time.Duration
}

func (s serving) answered() int { return len(s.times) - s.late }

// rate returns the answers a second.
func (s serving) rate() float64 { return float64(s.answered()) / s.took.Seconds() }

// each returns a time for each answer.
func (s serving) each(d time.Duration) time.Duration { return d / time.Duration(max(s.answered(), 1)) }

// serve lets callers ask s for a slice of time, about values of which none comes near its
// limit or, if full is set, about one that is over it.
func (s *service) serve(ctx context.Context, callers int, full bool, slice time.Duration) (r serving, err error) {
	value := func() *pb.RateLimitRequest { return asking("address", fmt.Sprint("10.0.", rand.IntN(4000))) }
	if full {
		value = func() *pb.RateLimitRequest { return asking("few", "x") }
	}
	cpu, storeCPU, err := s.cpu()
	if err != nil {
		return r, err
	}
	begin := time.Now()
	var all sync.WaitGroup
	var mu sync.Mutex
	for range callers {
		all.Go(func() {
			times, late, failed := s.askUntil(ctx, begin.Add(slice), value)
			mu.Lock()
			defer mu.Unlock()
			r.times, r.late, err = append(r.times, times...), r.late+late, errors.Join(err, failed)
		})
	}
	all.Wait()
	r.took = time.Since(begin)
	slices.Sort(r.times)
	time.Sleep(50 * time.Millisecond) // for what is counted after the answer
	after, storeAfter, err1 := s.cpu()
	r.cpu, r.storeCPU = after-cpu, storeAfter-storeCPU
	return r, errors.Join(err, err1, ctx.Err())
}

// askUntil asks one request after the other, each with the deadline.
func (s *service) askUntil(ctx context.Context, until time.Time, value func() *pb.RateLimitRequest) (times []time.Duration, late int, err error) {
	for last := time.Now(); last.Before(until); {
		ctx, cancel := context.WithTimeout(ctx, deadline)
		_, err := s.client.ShouldRateLimit(ctx, value())
		cancel()
		now := time.Now()
		switch {
		case status.Code(err) == codes.DeadlineExceeded:
			late++
		case err != nil:
			return nil, 0, fmt.Errorf("%s: %w", s.name, err)
		}
		times = append(times, now.Sub(last))
		last = now
	}
	return times, late, nil
}

// cpu returns the processor time that the service and its store have used.
func (s *service) cpu() (service, store time.Duration, err error) {
	service, err1 := processTimeOf(s.process.cmd.Process.Pid)
	store, err2 := processTimeOf(s.store.cmd.Process.Pid)
	return service, store, errors.Join(err1, err2)
}

// startServices starts all services.
func startServices(ctx context.Context, built programs) (all []*service, err error) {
	for _, kind := range []backend{onMemcached, onRedis} {
		for _, name := range []string{throttlerService, ratelimitService} {
			s, err := startService(ctx, built, name, kind)
			if err != nil {
				stopServices(all)
				return nil, err
			}
			all = append(all, s)
		}
	}
	return all, nil
}

func stopServices(all []*service) {
	for _, s := range all {
		s.stop()
	}
}

// runServices measures the services in turn, in random order, and writes a table.
func runServices(ctx context.Context, rounds int, slice time.Duration, out io.Writer) error {
	dir, err := os.MkdirTemp("", "bench")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	built, err := buildServices(ctx, dir)
	if err != nil {
		return err
	}
	all, err := startServices(ctx, built)
	if err != nil {
		return err
	}
	defer stopServices(all)
	for _, full := range []bool{false, true} {
		played := make([][][]serving, len(all)) // by service and number of callers
		for i := range played {
			played[i] = make([][]serving, len(callerCounts))
		}
		for range rounds {
			for c, callers := range callerCounts {
				for _, i := range rand.Perm(len(all)) {
					r, err := all[i].serve(ctx, callers, full, slice)
					if err != nil {
						return err
					}
					played[i][c] = append(played[i][c], r)
				}
			}
		}
		servicesTable(all, full, played).write(out)
	}
	return nil
}

// servicesTable returns the medians of the rounds.
func servicesTable(all []*service, full bool, played [][][]serving) table {
	t := table{
		title: "Services for Envoy: 4,000 values below their limit",
		head:  []string{"service", "requests a second", "p99, ms", "later than 20 ms, %", "service's CPU, µs a request", "store's CPU, µs", "± %"},
	}
	if full {
		t.title = "Services for Envoy: one value over its limit"
	}
	for i, s := range all {
		row := []string{s.name}
		for _, of := range []func(serving) float64{
			serving.rate,
			func(r serving) float64 { return percentile(r.times, 99).Seconds() * 1e3 },
			func(r serving) float64 { return 100 * float64(r.late) / float64(max(len(r.times), 1)) },
			func(r serving) float64 { return r.each(r.cpu).Seconds() * 1e6 },
			func(r serving) float64 { return r.each(r.storeCPU).Seconds() * 1e6 },
		} {
			var cells []string
			for _, rounds := range played[i] {
				_, median, _ := quartilesOf(rounds, of)
				cells = append(cells, short(median))
			}
			row = append(row, strings.Join(cells, " / "))
		}
		var spreads []string
		for _, rounds := range played[i] {
			low, median, high := quartilesOf(rounds, serving.rate)
			spreads = append(spreads, fmt.Sprintf("%.0f", 50*(high-low)/max(median, 1)))
		}
		t.rows = append(t.rows, append(row, strings.Join(spreads, " / ")))
	}
	return t
}
