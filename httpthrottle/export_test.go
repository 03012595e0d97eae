package httpthrottle

import "time"

// BackOffs returns the pauses after n refusals of requests sent then, none of which is stored.
func BackOffs(sent time.Time, n int) (pauses []time.Duration) {
	var k knowledge
	for range n {
		pauses = append(pauses, k.backOff(sent))
	}
	return pauses
}
