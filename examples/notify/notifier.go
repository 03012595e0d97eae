package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log"
	"os"
	"os/exec"
	"time"

	"github.com/adaptivethrottler/throttler"
)

// A notifier hands over the messages of a queue, as fast as its rule allows.
type notifier struct {
	queue     *queue
	throttler *throttler.Throttler
	rule      throttler.Rule
	deliver   func(ctx context.Context, id string, message *os.File) error
	retry     time.Duration // the delay of a message if deliver fails

	events, problems *log.Logger

	putOff map[string]time.Time // until when, by ID
	failed bool                 // a failure of memcached was reported
}

// runFolder hands over the messages in the queue: once if watch is 0, otherwise
// again at that interval until ctx ends.
func (n *notifier) runFolder(ctx context.Context, watch time.Duration) error {
	return n.run(ctx, func() bool {
		if watch == 0 {
			return false
		}
		sleep(ctx, watch)
		return true
	})
}

// runInput queues the lines of input and hands them over, until input or ctx
// ends.
func (n *notifier) runInput(ctx context.Context, input io.Reader) error {
	arrived := make(chan struct{}, 1) // holds a token if messages have arrived
	ended := make(chan error, 1)
	go func() { ended <- n.enqueue(input, arrived) }()
	var inputErr error
	var over bool
	err := n.run(ctx, func() bool {
		select {
		case <-arrived:
		case inputErr = <-ended:
			over = true
		case <-time.After(n.retry): // for those that were put off
		case <-ctx.Done():
		}
		return !over
	})
	if !over {
		select {
		case inputErr = <-ended:
		case <-time.After(grace):
		}
	}
	return errors.Join(inputErr, err)
}

// enqueue puts the lines of input into the queue, and after each a token into
// arrived, if it is empty.
func (n *notifier) enqueue(input io.Reader, arrived chan<- struct{}) error {
	lines := bufio.NewReader(input)
	rejects := 0
	for {
		line, readErr := lines.ReadBytes('\n')
		if line = bytes.TrimSpace(line); len(line) > 0 {
			queued, err := n.accept(line)
			switch {
			case err != nil:
				return fmt.Errorf("a line could not be queued, and no further one is read: %w", err)
			case !queued:
				rejects++
			case len(arrived) == 0:
				arrived <- struct{}{}
			}
		}
		switch {
		case errors.Is(readErr, io.EOF) && rejects > 0:
			return fmt.Errorf("%d lines are not JSON", rejects)
		case errors.Is(readErr, io.EOF):
			return nil
		case readErr != nil:
			return fmt.Errorf("reading: %w", readErr)
		}
	}
}

// accept queues a line and acknowledges it, or rejects it if it is not JSON.
func (n *notifier) accept(line []byte) (queued bool, err error) {
	if !json.Valid(line) {
		path, err := n.queue.reject(line)
		if err == nil {
			n.problems.Printf("not JSON, kept in %s: %.60q", path, line)
		}
		return false, err
	}
	id, err := n.queue.put(line)
	if err == nil {
		n.events.Printf("queued %s", id)
	}
	return true, err
}

// run hands over the messages of the queue until ctx ends, or until idle, which
// waits for more, returns false because no more will come.
func (n *notifier) run(ctx context.Context, idle func() bool) error {
	err := n.pass(ctx)
	for more := true; more && err == nil; {
		more = idle()
		err = n.pass(ctx)
	}
	switch {
	case err != nil && errors.Is(err, ctx.Err()):
		return nil
	case err == nil && len(n.putOff) > 0:
		return fmt.Errorf("%d messages could not be handed over and are kept in %s", len(n.putOff), n.queue.dir)
	}
	return err
}

// pass hands over the messages that are in the queue now, in order, except
// those that are put off.
func (n *notifier) pass(ctx context.Context) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	ids, err := n.queue.list()
	if err != nil {
		return err
	}
	for _, id := range ids {
		if time.Now().Before(n.putOff[id]) {
			continue
		}
		if err := n.send(ctx, id); err != nil {
			return err
		}
	}
	return nil
}

// send hands over a message when the rule allows it. If that fails, it puts the
// message off and returns nil.
func (n *notifier) send(ctx context.Context, id string) error {
	d, err := n.throttler.Wait(ctx, n.rule)
	if err != nil {
		return err
	}
	n.report(d.Err)
	message, err := n.queue.open(id)
	if err != nil {
		// No message was handed over, so take the hit back. If that fails, it
		// expires.
		n.report(n.throttler.Cancel(ctx, d))
	} else {
		err = n.deliver(ctx, id, message)
		message.Close()
	}
	switch {
	case errors.Is(err, fs.ErrNotExist) && message == nil:
		delete(n.putOff, id) // another program has removed it
		return nil
	case err != nil:
		n.problems.Printf("kept %s: %v", id, err)
		n.putOff[id] = time.Now().Add(n.retry)
		return nil
	}
	if err := n.queue.remove(id); err != nil {
		return fmt.Errorf("a message was handed over and will be again: %w", err)
	}
	delete(n.putOff, id)
	n.events.Printf("sent %s", id)
	return nil
}

// report logs the first failure of memcached.
func (n *notifier) report(err error) {
	if err != nil && !n.failed {
		n.failed = true
		n.problems.Printf("memcached does not answer, so this process keeps the rate on its own: %v", err)
	}
}

// A shell hands messages to a command line.
type shell struct {
	command string
	timeout time.Duration
	output  io.Writer
}

// run runs the command on a message. It does not end with ctx: stopping the
// command could hand the message over twice.
//
// The command gets the file itself and not a pipe. If this process is killed,
// the command still reads the whole message.
func (s shell) run(ctx context.Context, id string, message *os.File) error {
	ctx, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), s.timeout,
		fmt.Errorf("the command has taken longer than %v", s.timeout))
	defer cancel()
	cmd := exec.CommandContext(ctx, "sh", "-c", s.command)
	cmd.Env = append(os.Environ(), "NOTIFY_ID="+id)
	cmd.Stdin = message
	cmd.Stdout, cmd.Stderr = s.output, s.output
	cmd.WaitDelay = time.Second // for processes that the command left running
	err := cmd.Run()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// sleep returns after d, or when ctx ends.
func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}
