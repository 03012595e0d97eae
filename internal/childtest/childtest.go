// Package childtest starts and pauses the servers of tests as child processes.
package childtest

import (
	"os/exec"
	"runtime"
)

// Start starts cmd. exited is closed when it has ended. On Linux it is killed when this
// program dies without ending it, as after a panic or a test's timeout.
func Start(cmd *exec.Cmd) (exited <-chan struct{}, err error) {
	cmd.SysProcAttr = endWithParent()
	started, ended := make(chan error), make(chan struct{})
	go func() {
		runtime.LockOSThread() // the thread counts as the parent
		err := cmd.Start()
		started <- err
		if err == nil {
			cmd.Wait()
		}
		close(ended)
	}()
	return ended, <-started
}

// Pause makes the process of cmd hang: it accepts connections and never answers. It returns
// when all its threads have stopped, or, elsewhere than on Linux, when answers is false.
func Pause(cmd *exec.Cmd, answers func() bool) error {
	if err := cmd.Process.Signal(pauseSignal); err != nil {
		return err
	}
	return awaitPause(cmd, answers)
}

// Resume continues a process that was paused.
func Resume(cmd *exec.Cmd) error { return cmd.Process.Signal(resumeSignal) }
