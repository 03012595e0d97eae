package login_test

import (
	"testing"

	"github.com/adaptivethrottler/throttler"
)

// keyed returns a guard over client with a key, and those before it.
func keyed(t *testing.T, client throttler.Client, key string, olds ...string) try {
	g := on(t, client)
	g.Keys = [][]byte{[]byte(key)}
	for _, old := range olds {
		g.Keys = append(g.Keys, []byte(old))
	}
	return g
}
