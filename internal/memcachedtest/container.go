package memcachedtest

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

	containerapi "github.com/moby/moby/api/types/container"
	networkapi "github.com/moby/moby/api/types/network"
	"github.com/moby/moby/client"
	"github.com/testcontainers/testcontainers-go"
	"github.com/testcontainers/testcontainers-go/log"
)

const (
	memcachedPort = "11211/tcp" // in the container

	dockerTimeout    = 5 * time.Second  // for Docker's first answer
	pullTimeout      = 90 * time.Second // for one image
	containerTimeout = 60 * time.Second // for one step of a container
)

// image returns the image of containers.
func image() string {
	return cmp.Or(os.Getenv("THROTTLER_MEMCACHED_IMAGE"), "memcached:1.6-alpine")
}

// Container starts memcached in a container that ends with the test. args are
// as for [Process]. The test is skipped without Docker, or if there is no image
// and it cannot be pulled.
func Container(tb testing.TB, args ...string) *Server {
	tb.Helper()
	if err := containers(); err != nil {
		unavailable(tb, "cannot run memcached in a container: %v", err)
	}
	var err error
	for range 3 { // another program may take the port first
		c := &container{image: image(), args: args}
		if err = c.create(tb); err == nil {
			return &Server{Addr: c.addr, tb: tb, life: c}
		}
	}
	tb.Fatalf("memcachedtest: container of %s: %v", image(), err)
	return nil
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
	image, addr string
	args        []string

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
	_, port, _ := net.SplitHostPort(freeAddr(tb))
	c.addr = net.JoinHostPort(dialable(host), port)
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
	deadline := time.Now().Add(4 * patience)
	for {
		_, err := ask(c.addr, "version", time.Second)
		if err == nil {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("memcached does not answer at %s: %w", c.addr, err)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func (c *container) remove(tb testing.TB) {
	if err := testcontainers.TerminateContainer(c.c, testcontainers.StopTimeout(0)); err != nil {
		tb.Errorf("memcachedtest: remove container: %v", err)
	}
}

func (c *container) start() error {
	if c.running {
		return errors.New("it is running")
	}
	if err := c.within(c.c.Start); err != nil {
		return err
	}
	c.running = true
	return c.ready()
}

func (c *container) stop() error {
	return c.end(func(ctx context.Context) error {
		timeout := patience
		return c.c.Stop(ctx, &timeout)
	})
}

func (c *container) kill() error {
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

func (c *container) pause() error {
	return c.within(func(ctx context.Context) error {
		_, err := c.docker.ContainerPause(ctx, c.c.GetContainerID(), client.ContainerPauseOptions{})
		return err
	})
}

func (c *container) resume() error {
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
