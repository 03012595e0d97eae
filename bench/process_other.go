//go:build !linux

package main

import (
	"time"
)

// processTime returns 0: the time is unknown on this system.
func processTime() time.Duration { return 0 }

// processTimeOf is not known here.
func processTimeOf(int) (time.Duration, error) { return 0, nil }
