//go:build !linux

package memcachedtest

import "syscall"

// endWithParent is for Linux alone: elsewhere a child may outlive a program that
// dies without ending it.
func endWithParent() *syscall.SysProcAttr { return nil }
