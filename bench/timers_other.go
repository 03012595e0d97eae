//go:build !linux

package main

// fineTimers does nothing: timers are as fine as the system has them.
func fineTimers() (stop func()) { return func() {} }
