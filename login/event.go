package login

import (
	"fmt"
	"net/netip"

	"github.com/adaptivethrottler/throttler"
)

// Result is what became of an attempt.
type Result int

const (
	Refused   Result = iota // the password was not to be looked at
	Succeeded               // it was right
	Failed                  // it was wrong
	Canceled                // it was neither: the attempt was taken back
)

// String returns "refused", "succeeded", "failed" or "canceled".
func (r Result) String() string {
	switch r {
	case Refused:
		return "refused"
	case Succeeded:
		return "succeeded"
	case Failed:
		return "failed"
	case Canceled:
		return "canceled"
	}
	return fmt.Sprintf("Result(%d)", int(r))
}

// An Event is the end of one attempt.
type Event struct {
	Name     string     // after normalization
	Addr     netip.Addr // where the attempt came from
	Known    bool       // the name is known from there
	Decision throttler.Decision
	Result   Result
}
