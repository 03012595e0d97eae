package robots_test

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/adaptivethrottler/throttler/robots"
)

// asnTable writes a table of n ranges, four fifths of them IPv4, and returns its path.
func asnTable(b testing.TB, n int) string {
	var table strings.Builder
	for i := range n * 4 / 5 {
		start := uint32(1<<24) + uint32(i)*4096
		fmt.Fprintf(&table, "%d\t%d\t%d\tXX\tName\n", start, start+4095, 1+i%60_000)
	}
	for i := range n / 5 {
		fmt.Fprintf(&table, "2600:%x:%x::\t2600:%[1]x:%[2]x:ffff:ffff:ffff:ffff:ffff\t%d\tXX\tName\n", i>>16, i&0xffff, 1+i%60_000)
	}
	path := filepath.Join(b.TempDir(), "asn.tsv")
	require.NoError(b, os.WriteFile(path, []byte(table.String()), 0o600))
	return path
}

func BenchmarkIdentify(b *testing.B) {
	d := open(b, robots.Options{Lists: lists(), ASN: []string{asnTable(b, 650_000)}, Networks: map[string][]string{"hoster": {"AS7"}}})
	random := rand.New(rand.NewPCG(1, 2))
	addrs := make([]netip.Addr, 1<<20)
	for i := range addrs {
		addrs[i] = netip.AddrFrom4([4]byte{byte(1 + random.IntN(200)), byte(random.Uint32()), byte(random.Uint32()), byte(random.Uint32())})
		if i%5 == 0 {
			addrs[i] = netip.AddrFrom16([16]byte{0x26, 0, 0, byte(random.IntN(2)), byte(random.Uint32()), byte(random.Uint32())})
		}
	}
	for _, agent := range []struct{ name, text string }{
		{"browser", chrome}, {"Googlebot", google}, {"iMessage", iMessage},
		{"512 bytes", strings.Repeat("facebookexternalhi Googlebo ", 20)},
	} {
		b.Run("agent="+agent.name, func(b *testing.B) {
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				d.Identify(agent.text, addrs[i%len(addrs)])
			}
		})
	}
}

func BenchmarkOpen(b *testing.B) {
	path := asnTable(b, 650_000)
	var before, after runtime.MemStats
	var d *robots.Directory
	for b.Loop() {
		d = nil
		runtime.GC()
		runtime.ReadMemStats(&before)
		d = open(b, robots.Options{ASN: []string{path}})
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	runtime.KeepAlive(d)
	b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/650_000, "B/range")
}
