package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
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
domain: %s
descriptors:
  - key: v
    rate_limit: {unit: day, requests_per_unit: %d}
`

// asItem returns a file of envoyproxy/ratelimit as an item of throttler's rule file.
func asItem(file string) string {
	return "envoy:\n  - " + strings.ReplaceAll(strings.TrimSpace(file), "\n", "\n    ") + "\n"
}

// deadline is that of Envoy's filter, unless it is configured otherwise.
const deadline = 20 * time.Millisecond

// services compares the services that [buildServices] has built into dir.
func services(dir string) comparison {
	var all []system
	for _, b := range []backend{onMemcached, onRedis} {
		all = append(all,
			service("throttler", b, filepath.Join(dir, "throttler"), throttlerOver),
			service("envoyproxy/ratelimit", b, filepath.Join(dir, "ratelimit"), ratelimitOver))
	}
	below := work{name: "below", about: "4,000 values below their limit", limit: limit{1_000_000, day}, values: anyOf(spreadNames)}
	return comparison{
		part: "services", title: "Requests of Envoy", note: fmt.Sprintf("Their deadline is %v.", deadline),
		scenes:  []scene{{work: below, systems: all}, {work: usedUp("over", "one value over its limit", limit{5, day}, "few"), systems: all}},
		callers: callerCounts, long: true,
		columns: []column{
			counted("requests a second", func(r round) float64 { return float64(r.decisions-r.late) / r.answered.Seconds() }),
			timed("p99, ms", time.Millisecond, func(r round) time.Duration { return r.p99 }),
			counted("late, %", func(r round) float64 { return 100 * float64(r.late) / float64(max(r.decisions, 1)) }),
			timed("service's CPU, µs a request", time.Microsecond, func(r round) time.Duration { return r.per(r.cpu) }),
			timed("store's CPU, µs", time.Microsecond, func(r round) time.Duration { return r.per(r.storeCPU) }),
			spreadColumn,
		},
	}
}

// buildServices builds both services into dir.
func buildServices(ctx context.Context, dir string) error {
	root, err := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}", "github.com/adaptivethrottler/throttler").Output()
	if err != nil {
		return fmt.Errorf("where is throttler? run this in its repository: %w", err)
	}
	for name, pkg := range map[string]string{
		"throttler": "github.com/adaptivethrottler/throttler/cmd/throttler",
		"ratelimit": "github.com/envoyproxy/ratelimit/src/service_cmd",
	} {
		build := exec.CommandContext(ctx, "go", "build", "-o", filepath.Join(dir, name), pkg)
		build.Dir = filepath.Join(strings.TrimSpace(string(root)), "bench")
		if output, err := build.CombinedOutput(); err != nil {
			return fmt.Errorf("%s cannot be built: %w\n%s", name, err, output)
		}
	}
	return nil
}

// service is a service over a store, asked on one connection.
func service(name string, b backend, program string, serve func(program, rules string, store *server) (*server, error)) system {
	s := system{name: name, how: kinds[b].program, backend: b, deadline: deadline}
	s.open = func(e env, l limit) (limiter, error) {
		process, err := serve(program, fmt.Sprintf(serviceRules, e.space, l.Max), e.server)
		if err != nil {
			return limiter{}, err
		}
		conn, err := grpc.NewClient(process.addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			process.stop()
			return limiter{}, err
		}
		answers := asked(conn, e.space)
		svc := simple(answers, func() { conn.Close(); process.stop() })
		svc.flush = func() { time.Sleep(100 * time.Millisecond) } // envoyproxy/ratelimit on memcached counts after it has answered
		svc.cpu = func() (service, store time.Duration) {
			return processTimeOf(process.PID()), processTimeOf(e.server.PID())
		}
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if _, err := answers(ctx, "ready?"); err != nil {
			svc.close()
			return limiter{}, fmt.Errorf("%w\n%s", err, process.Output())
		}
		return svc, nil
	}
	return s
}

// asked returns a function that asks a service, and waits until it is there.
func asked(conn *grpc.ClientConn, domain string) allow {
	client := pb.NewRateLimitServiceClient(conn)
	return func(ctx context.Context, value string) (bool, error) {
		r, err := client.ShouldRateLimit(ctx, asking(domain, value), grpc.WaitForReady(true))
		if status.Code(err) == codes.DeadlineExceeded {
			err = context.DeadlineExceeded
		}
		return r.GetOverallCode() == pb.RateLimitResponse_OK, err
	}
}

func asking(domain, value string) *pb.RateLimitRequest {
	return &pb.RateLimitRequest{Domain: domain, HitsAddend: 1, Descriptors: []*ratelimitv3.RateLimitDescriptor{
		{Entries: []*ratelimitv3.RateLimitDescriptor_Entry{{Key: "v", Value: value}}},
	}}
}

// throttlerOver starts throttler over a store.
func throttlerOver(program, rules string, store *server) (*server, error) {
	where := "--servers=" + store.addr
	if store.kind == onRedis {
		where = "--store=redis://" + store.addr
	}
	return serveThrottler(program, asItem(rules), where)
}

// serveThrottler starts throttler for Envoy with a rule file, and more arguments.
func serveThrottler(program, rules string, more ...string) (*server, error) {
	return launchService(program, "rules.yaml", rules, func(addr, file string) (args, env []string) {
		return append([]string{"serve", "--rules", file, "--envoy", addr, "--listen", "127.0.0.1:0", "--admin=", "--api="}, more...), nil
	})
}

// ratelimitOver starts envoyproxy/ratelimit over a store, with its defaults but for idle
// connections to memcached: of 2 it would close most after each request.
func ratelimitOver(program, rules string, store *server) (*server, error) {
	return launchService(program, "ratelimit/config/rules.yaml", rules, func(addr, file string) (args, env []string) {
		_, port, _ := strings.Cut(addr, ":")
		env = []string{
			"GRPC_HOST=127.0.0.1", "GRPC_PORT=" + port, "HOST=127.0.0.1", "PORT=0", "DEBUG_HOST=127.0.0.1", "DEBUG_PORT=0",
			"RUNTIME_ROOT=" + filepath.Dir(filepath.Dir(filepath.Dir(file))), "RUNTIME_SUBDIRECTORY=ratelimit", "RUNTIME_WATCH_ROOT=false",
			"USE_STATSD=false", "LOG_LEVEL=ERROR",
		}
		if store.kind == onRedis {
			return nil, append(env, "BACKEND_TYPE=redis", "REDIS_SOCKET_TYPE=tcp", "REDIS_URL="+store.addr)
		}
		return nil, append(env, "BACKEND_TYPE=memcache", "MEMCACHE_HOST_PORT="+store.addr, "MEMCACHE_MAX_IDLE_CONNS=128")
	})
}

// launchService starts a program with a file of its own.
func launchService(program, name, text string, with func(addr, file string) (args, env []string)) (*server, error) {
	return launch("tcp", func(s *server) (*servertest.Process, error) {
		file := filepath.Join(s.dir, name)
		args, env := with(s.addr, file)
		p := &servertest.Process{Path: program, Args: args, Env: env, Answers: func(int, time.Duration) (bool, error) {
			conn, err := net.Dial("tcp", s.addr)
			if err == nil {
				conn.Close()
			}
			return err == nil, err
		}}
		return p, errors.Join(os.MkdirAll(filepath.Dir(file), 0o700), os.WriteFile(file, []byte(text), 0o600))
	})
}

// processTimeOf returns the processor time of another process, in user and kernel mode, or
// 0 where /proc does not say it.
func processTimeOf(pid int) time.Duration {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0
	}
	fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:])) // from the third on
	user, _ := strconv.Atoi(fields[11])
	kernel, _ := strconv.Atoi(fields[12])
	const tick = 10 * time.Millisecond // USER_HZ, 100 on all machines that Go runs on
	return time.Duration(user+kernel) * tick
}
