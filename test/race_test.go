//go:build race

package throttler_test

func init() { forgotten = 4 }
