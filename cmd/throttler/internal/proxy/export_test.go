package proxy

import "time"

func init() { firstTimeout = 500 * time.Millisecond }
