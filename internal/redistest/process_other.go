//go:build !linux

package redistest

import "syscall"

// endWithParent does nothing: elsewhere than on Linux a child may outlive a
// program that dies.
func endWithParent() *syscall.SysProcAttr { return nil }
