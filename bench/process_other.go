//go:build !unix

package main

import "time"

// processTime returns 0: the time is unknown on this system.
func processTime() time.Duration { return 0 }
