//go:build !linux

package memcachedtest

import (
	"syscall"
	"time"
)

// endWithParent does nothing: elsewhere than on Linux a child may outlive a
// program that dies.
func endWithParent() *syscall.SysProcAttr { return nil }

// awaitPause returns when the process does not answer.
func (p *process) awaitPause() error {
	for {
		if _, err := ask(p.addr, "version", 10*time.Millisecond); err != nil {
			return nil
		}
	}
}
