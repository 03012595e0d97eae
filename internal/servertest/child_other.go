//go:build !linux

package servertest

import (
	"os/exec"
	"syscall"
)

func reserve(int) bool { return true }

func endWithParent() *syscall.SysProcAttr { return nil }

func awaitPause(_ *exec.Cmd, answers func() bool) error {
	for answers() {
	}
	return nil
}
