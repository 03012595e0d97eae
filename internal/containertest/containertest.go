// Package containertest gives tests a memcached in a container, by
// testcontainers-go. It is no part of package servertest, so that only those
// test binaries link Docker's client that start containers.
//
// THROTTLER_MEMCACHED_IMAGE is the image. Default: memcached:1.6-alpine. Its
// command must be found as "memcached".
//
// The variables of testcontainers-go apply, above all
// TESTCONTAINERS_RYUK_DISABLED=true, which saves the image of its reaper: then
// the test itself removes its containers, unless it is killed.
//
// Only tests may import this package.
package containertest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/adaptivethrottler/throttler/internal/servertest"
	containerapi "github.com/moby/moby/api/types/container"
	networkapi "github.com/moby/moby/api/types/network"
	"github.com/moby/moby/client"
	"github.com/testcontainers/testcontainers-go"
	"github.com/testcontainers/testcontainers-go/log"
)

const (
	memcachedPort = "11211/tcp" // in the container

	dockerTimeout    = 30 * time.Second // for Docker's first answer
	pullTimeout      = 90 * time.Second // for one image
	containerTimeout = 60 * time.Second // for one step of a container
	stopTimeout      = 5 * time.Second  // for memcached to end by itself
	readyTimeout     = 20 * time.Second // for its first answer
)

// image returns the image of containers.
func image() string {
	return cmp.Or(os.Getenv("THROTTLER_MEMCACHED_IMAGE"), "memcached:1.6-alpine")
}

// Memcached starts memcached in a container that ends with the test. args are
// as for [servertest.NewMemcached]. The test is skipped without Docker, or if there
// is no image and it cannot be pulled.
func Memcached(tb testing.TB, args ...string) *servertest.Memcached {
	tb.Helper()
	s, err := try(tb, args...)
	if err != nil {
		servertest.Unavailable(tb, "cannot run memcached in a container: %v", err)
	}
	return s
}

func init() { servertest.Container = try }

// try is Memcached, but returns why there can be no container.
func try(tb testing.TB, args ...string) (*servertest.Memcached, error) {
	tb.Helper()
	if err := containers(); err != nil {
		return nil, err
	}
	var err error
	for range 3 { // another program may take the port first
		c := &container{image: image(), args: args}
		if err = c.create(tb); err == nil {
			return c.server, nil
		}
	}
	tb.Fatalf("containertest: %s: %v", image(), err)
	return nil, err
}

// containers returns nil if Docker runs and has the necessary images, or can
// pull them. It checks once per process.
var containers = sync.OnceValue(func() error {
	log.SetDefault(log.NewNoopLogger())
	docker, err := findDocker()
	if err != nil {
		return fmt.Errorf("no Docker (install it, and let this user use it): %w", err)
	}
	defer docker.Close()
	if err := haveImage(docker, image()); err != nil {
		return fmt.Errorf("%w (or set THROTTLER_MEMCACHED_IMAGE)", err)
	}
	if docker.Config().Config.RyukDisabled {
		return nil
	}
	//lint:ignore SA1019 there is no other way to learn which image the reaper needs
	reaper := testcontainers.ReaperDefaultImage
	if err := haveImage(docker, reaper); err != nil {
		return fmt.Errorf("%w (or set TESTCONTAINERS_RYUK_DISABLED=true)", err)
	}
	return nil
})

// findDocker is [newDocker] with a timeout, which the library has not.
func findDocker() (*testcontainers.DockerProvider, error) {
	type result struct {
		docker *testcontainers.DockerProvider
		err    error
	}
	found := make(chan result, 1)
	go func() {
		docker, err := newDocker()
		found <- result{docker, err}
	}()
	select {
	case r := <-found:
		return r.docker, r.err
	case <-time.After(dockerTimeout):
		return nil, fmt.Errorf("no answer within %v", dockerTimeout)
	}
}

// newDocker connects to Docker and checks that it answers.
func newDocker() (docker *testcontainers.DockerProvider, err error) {
	defer func() { // without Docker the library may panic
		if r := recover(); r != nil {
			docker, err = nil, fmt.Errorf("%v", r)
		}
	}()
	docker, err = testcontainers.NewDockerProvider()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), dockerTimeout)
	defer cancel()
	if err := docker.Health(ctx); err != nil {
		docker.Close()
		return nil, err
	}
	return docker, nil
}

// haveImage returns nil if Docker has the image or pulls it now.
func haveImage(docker *testcontainers.DockerProvider, name string) error {
	ctx, cancel := context.WithTimeout(context.Background(), pullTimeout)
	defer cancel()
	if _, err := docker.Client().ImageInspect(ctx, name); err == nil {
		return nil
	}
	pull, err := docker.Client().ImagePull(ctx, name, client.ImagePullOptions{})
	if err == nil {
		err = pull.Wait(ctx)
	}
	if err != nil {
		return fmt.Errorf("there is no image %s; to get it: docker pull %[1]s: %w", name, err)
	}
	return nil
}

// container is memcached in a container.
type container struct {
	image  string
	args   []string
	server *servertest.Memcached // whose life this is

	docker  client.APIClient
	c       *testcontainers.DockerContainer
	running bool
}

// create creates the container, which ends with tb, and starts it.
func (c *container) create(tb testing.TB) error {
	docker, err := newDocker()
	if err != nil {
		return err
	}
	tb.Cleanup(func() { docker.Close() })
	c.docker = docker.Client()

	ctx, cancel := context.WithTimeout(context.Background(), containerTimeout)
	defer cancel()
	host, err := docker.DaemonHost(ctx)
	if err != nil {
		return err
	}
	free, err := servertest.FreeAddr(servertest.MemcachedPorts)
	if err != nil {
		return err
	}
	_, port, _ := net.SplitHostPort(free)
	c.server = servertest.MemcachedAt(tb, net.JoinHostPort(dialable(host), port), c)
	c.c, err = testcontainers.Run(ctx, c.image,
		testcontainers.WithCmd(slices.Concat([]string{"memcached"}, c.args)...),
		testcontainers.WithExposedPorts(memcachedPort),
		testcontainers.WithHostConfigModifier(bind(host, port)))
	tb.Cleanup(func() { c.remove(tb) })
	if err != nil {
		return err
	}
	c.running = true
	return c.ready()
}

// dialable returns host for a dialer: one address, not a name that may have
// two.
func dialable(host string) string {
	if host == "localhost" {
		return "127.0.0.1"
	}
	return host
}

// bind publishes memcached at a fixed port, since a port chosen by Docker
// changes with a restart. If Docker is local, it is published to this machine
// only.
func bind(host, port string) func(*containerapi.HostConfig) {
	ip := netip.IPv4Unspecified()
	if dialable(host) == "127.0.0.1" {
		ip = netip.MustParseAddr("127.0.0.1")
	}
	return func(hc *containerapi.HostConfig) {
		hc.PortBindings = networkapi.PortMap{
			networkapi.MustParsePort(memcachedPort): {{HostIP: ip, HostPort: port}},
		}
	}
}

// ready waits until memcached answers. The published port accepts connections
// before.
func (c *container) ready() error {
	deadline := time.Now().Add(readyTimeout)
	for {
		err := c.server.Ping(time.Second)
		if err == nil {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("memcached does not answer at %s: %w", c.server.Addr, err)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func (c *container) remove(tb testing.TB) {
	if err := testcontainers.TerminateContainer(c.c, testcontainers.StopTimeout(0)); err != nil {
		tb.Errorf("containertest: remove container: %v", err)
	}
}

func (c *container) Start() error {
	if c.running {
		return errors.New("it is running")
	}
	if err := c.within(c.c.Start); err != nil {
		return err
	}
	c.running = true
	return c.ready()
}

func (c *container) Stop() error {
	return c.end(func(ctx context.Context) error {
		timeout := stopTimeout
		return c.c.Stop(ctx, &timeout)
	})
}

func (c *container) Kill() error {
	return c.end(func(ctx context.Context) error {
		_, err := c.docker.ContainerKill(ctx, c.c.GetContainerID(), client.ContainerKillOptions{Signal: "KILL"})
		return err
	})
}

func (c *container) end(how func(context.Context) error) error {
	if !c.running {
		return nil
	}
	if err := c.within(how); err != nil {
		return err
	}
	c.running = false
	return nil
}

func (c *container) Pause() error {
	return c.within(func(ctx context.Context) error {
		_, err := c.docker.ContainerPause(ctx, c.c.GetContainerID(), client.ContainerPauseOptions{})
		return err
	})
}

func (c *container) Resume() error {
	err := c.within(func(ctx context.Context) error {
		_, err := c.docker.ContainerUnpause(ctx, c.c.GetContainerID(), client.ContainerUnpauseOptions{})
		return err
	})
	if err != nil {
		return err
	}
	return c.ready()
}

// within takes one step of the container with a timeout.
func (c *container) within(step func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(context.Background(), containerTimeout)
	defer cancel()
	return step(ctx)
}
