package storetest

import (
	"slices"
	"testing"
	"time"

	"github.com/adaptivethrottler/throttler"
)

// RunFaults checks that a store over a network carries out once what is sent twice: each
// operation of a throttler, by each algorithm, meets each fault of the connection. addr is that
// of a real server. open returns a client of the server at another address, which leads there,
// and which waits for its answers for timeout.
//
// A request is lost before or after the server has carried it out. It may then be covered: another
// process changes the record before it is sent again. Or it comes late: the caller has left, or
// the client has given it up.
func RunFaults(t *testing.T, addr string, open func(t *testing.T, addr string, timeout time.Duration) throttler.Client) {
	for _, c := range []throttler.Condition{
		{TTL: time.Hour},
		{TTL: 20 * time.Hour, Algorithm: throttler.LeakyBucket},
		{TTL: time.Hour, Algorithm: throttler.InFlight},
		{Algorithm: throttler.Calendar, Period: throttler.Period{Unit: throttler.Month, Anchor: min(time.Now().UTC().AddDate(0, 0, 10).Day(), 28)}},
	} {
		t.Run(c.Algorithm.String(), func(t *testing.T) {
			t.Parallel()
			w := newWire(t, addr)
			patient, hasty := throttler.New(open(t, w.addr, 10*time.Second)), throttler.New(open(t, w.addr, hasty))
			m := &matrix{wire: w, other: throttler.New(open(t, addr, 10*time.Second)), c: c}
			for _, f := range faults {
				for _, op := range ops {
					if op.only == nil || slices.Contains(op.only, c.Algorithm) {
						m.th = patient
						if f.late && !f.leaves {
							m.th = hasty
						}
						t.Run(f.name+"/"+op.name, func(t *testing.T) { m.meet(t, f, op) })
					}
				}
			}
		})
	}
}

// A fault is what happens to a request.
type fault struct {
	name    string
	done    bool // the server carries it out before the connection is lost
	covered bool // another process counts a hit then
	late    bool // it is held up until its caller has its answer, which is an error
	leaves  bool // since the caller has left; else the client has given up
}

var faults = []fault{
	{name: "lost before"},
	{name: "lost after", done: true},
	{name: "covered, lost before", covered: true},
	{name: "covered, lost after", covered: true, done: true},
	{name: "late for its caller", late: true, leaves: true},
	{name: "late for the client", late: true},
}

// hasty is how long a client waits that is to give up: no longer than a test may take, and longer
// than a busy machine keeps it waiting.
const hasty = 500 * time.Millisecond
