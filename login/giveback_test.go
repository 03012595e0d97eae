package login_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/adaptivethrottler/throttler/memstore"
)

// left returns what remains of the address's limit at the office, and of the name's.
func (g try) left(name string) (address, ofName int) {
	for _, o := range g.begin(name, office).Decision.Outcomes {
		switch o.Name {
		case "address":
			address = o.Remaining + 1
		case "name":
			ofName = o.Remaining + 1
		}
	}
	return address, ofName
}

func TestSuccessGivesBackTheTyposBeforeIt(t *testing.T) {
	for _, test := range []struct {
		what           string
		do             func(g try)
		address, named int
	}{
		{"its own", func(g try) { g.fails(3, "alice", office); g.succeeds("alice", office) }, 50, 21},
		{"another spelling's", func(g try) { g.fails(3, "Alice", office); g.succeeds("alice", office) }, 47, 21},
		{"another name's", func(g try) { g.fails(3, "bob", office); g.succeeds("alice", office) }, 47, 24},
		{"from elsewhere", func(g try) { g.fails(3, "alice", home); g.succeeds("alice", office) }, 50, 21},
		{"of more than a minute ago", func(g try) {
			g.fails(3, "alice", office)
			time.Sleep(time.Minute)
			g.succeeds("alice", office)
		}, 47, 21},
		{"no more than four", func(g try) {
			g.NameAddress.Max = 10
			g.fails(7, "alice", office)
			g.succeeds("alice", office)
		}, 47, 17},
		{"once", func(g try) {
			g.fails(2, "alice", office)
			g.succeeds("alice", office)
			g.fails(2, "bob", office)
			g.succeeds("alice", office)
		}, 48, 22},
		{"not of another device", func(g try) {
			a := g.beginDevice("alice", office, "phone")
			require.NoError(g.t, a.Fail(g.t.Context()))
			g.succeeds("alice", office)
		}, 49, 23},
	} {
		synctest.Test(t, func(t *testing.T) {
			g := on(t, memstore.New())
			test.do(g)
			address, named := g.left("alice")
			require.Equal(t, test.address, address, test.what)
			require.InDelta(t, test.named, named, 1, test.what)
		})
	}
}
