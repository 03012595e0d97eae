//go:build !linux

package memcachedtest

import "syscall"

// endWithParent does nothing: elsewhere than on Linux a child may outlive a
// program that dies.
func endWithParent() *syscall.SysProcAttr { return nil }
