//go:build !linux

package redistest

import (
	"syscall"
	"time"
)

// endWithParent does nothing: elsewhere than on Linux a child may outlive a
// program that dies.
func endWithParent() *syscall.SysProcAttr { return nil }

// awaitPause returns when the process does not answer.
func (s *Server) awaitPause() error {
	for {
		if _, err := s.try(10*time.Millisecond, "PING"); err != nil {
			return nil
		}
	}
}
