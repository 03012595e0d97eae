package throttler_test

import (
	"bufio"
	"bytes"
	"fmt"
	"net"
	"strconv"
	"strings"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/internal/servertest"
	"github.com/stretchr/testify/require"
)

// How many records a server holds, and what is forgotten when there are more.
// docs/operations.md draws its conclusions from the figures that are logged here:
//
//	go test -v -run 'Megabyte|Memory' ./test
//
// memcached evicts the least recently used record of each size. So an attacker who goes on
// trying keeps the ban alive. One who fills the memory until it is evicted gets Max attempts:
// with Max 5 and 10,000 new records a second, every 15 minutes at 1 GB, and every 2 seconds
// at 2 MB. A ban that no call met was forgotten when the memory was filled once; one that was
// met 35 times per filling held to the end. With -o no_lru_maintainer either was forgotten:
// keep the segmented LRU, the default. -M refuses new records instead: bans hold, but calls
// for new values fail open. -o temporary_ttl protects short-lived items, the attacker's.
//
// With memcached 1.6.18, conditions of 50 hits in 5 minutes and a ban of 10 minutes, a
// megabyte holds, by key:
//
//	record            bytes  IPv4  IPv6 /64  40 bytes  249 bytes  hashed
//	window, 1 hit        21  8738      8738      8738       2730    6898
//	window, 5 hits       33  8738      6898      6898       2730    5461
//	window, 50 hits     168  3449      3449      3449       2184    3449
//	leaky bucket         12 10922      8738      8738       2730    6898
//	ban                  18  8738      8738      8738       2730    6898
//
// A record's memory is a chunk of fixed size (96, 120, 152, 192, 240, 304 bytes and so on).
// Besides -m, memcached needs 512 KiB for its hash table, more beyond 100,000 records, and
// buffers for each connection.

// stat returns one figure of the answer to a stats command.
func stat(t *testing.T, server *servertest.Memcached, command, name string) int {
	t.Helper()
	for _, line := range server.Command(t, command) {
		if text, ok := strings.CutPrefix(line, "STAT "+name+" "); ok {
			n, err := strconv.Atoi(text)
			require.NoError(t, err)
			return n
		}
	}
	require.Fail(t, "no such figure", "%s: %s", command, name)
	return 0
}

// recordsPerMegabyte stores what calls of rule leave behind on an empty server,
// and returns the record's bytes and how many of its kind memcached keeps in a
// page, which is a megabyte.
func recordsPerMegabyte(t *testing.T, server *servertest.Memcached, rule throttler.Rule, calls int) (size, records int) {
	t.Helper()
	server.Command(t, "flush_all")
	th := throttler.New(overPool(t, server))
	for range calls {
		require.NoError(t, authorize(t, th, rule).Err)
	}
	class := ""
	for _, line := range server.Command(t, "stats items") {
		var n int
		if _, err := fmt.Sscanf(strings.ReplaceAll(line, ":", " "), "STAT items %s number %d", &class, &n); err == nil && n == 1 {
			break
		}
	}
	c := rule.Either[0]
	answer := server.Command(t, "get "+throttler.RecordKey(rule.Identifier, c.Name, c.Value))
	require.Len(t, answer, 2)
	return len(answer[1]), stat(t, server, "stats slabs", class+":chunks_per_page")
}

func TestRecordsPerMegabyte(t *testing.T) {
	values := []struct{ key, value string }{
		{"IPv4", "203.0.113.217"},
		{"IPv6 /64", "2001:db8:1234:5678::/64"},
		{"40 bytes", strings.Repeat("x", 40-len("login#ip#"))},
		{"249 bytes", strings.Repeat("x", 249-len("login#ip#"))}, // the longest that is not hashed
		{"hashed", "any bytes"},
	}
	bucket := throttler.Condition{Max: 50, TTL: 5 * time.Minute, Algorithm: throttler.LeakyBucket}
	window := throttler.Condition{Max: 50, TTL: 5 * time.Minute}
	single := throttler.Condition{Max: 1, TTL: 5 * time.Minute, Lockout: 10 * time.Minute}
	records := []struct {
		name  string
		c     throttler.Condition
		calls int
	}{
		{"window, 1 hit", window, 1},
		{"window, 5 hits", window, 5},
		{"window, 50 hits", window, 50},
		{"leaky bucket", bucket, 50},
		{"ban", single, 2},
	}
	if !testing.Verbose() { // only the table has need of all
		values, records = values[:2], records[3:]
	}
	var table strings.Builder
	w := tabwriter.NewWriter(&table, 0, 0, 1, ' ', 0)
	fmt.Fprint(w, "| record\t| bytes\t")
	for _, v := range values {
		fmt.Fprintf(w, "| %s\t", v.key)
	}
	fmt.Fprintln(w, "|")
	for _, r := range records {
		var size int
		var cells string
		for _, v := range values {
			// A server of its own, since a slab once given to a class stays.
			server := servertest.NewMemcached(t)
			r.c.Name, r.c.Value = "ip", v.value
			n := 0
			size, n = recordsPerMegabyte(t, server, throttler.Rule{Identifier: "login", Either: []throttler.Condition{r.c}}, r.calls)
			require.NotZero(t, n)
			cells += fmt.Sprintf("| %d\t", n)
			server.Kill()
		}
		fmt.Fprintf(w, "| %s\t| %d\t%s|\n", r.name, size, cells)
	}
	w.Flush()
	t.Logf("records in a megabyte:\n%s", table.String())
}

// flood stores n one-off records of one hit each, under keys as long as those of
// an IPv6 network, no two floods under the same.
func flood(t *testing.T, server *servertest.Memcached, first, n int) {
	t.Helper()
	conn, err := net.Dial("tcp", server.Addr)
	require.NoError(t, err)
	defer conn.Close()
	require.NoError(t, conn.SetDeadline(time.Now().Add(time.Minute)))
	record := recordOf(t, either(condition("ip", 50, 5*time.Minute)))
	var b bytes.Buffer
	for i := range n {
		fmt.Fprintf(&b, "add %s 0 303 %d noreply\r\n%s\r\n", throttler.RecordKey("login", "ip", network64(first+i)), len(record), record)
	}
	b.WriteString("version\r\n")
	_, err = conn.Write(b.Bytes())
	require.NoError(t, err)
	for r := bufio.NewReader(conn); ; {
		line, err := r.ReadString('\n')
		require.NoError(t, err)
		if strings.HasPrefix(line, "VERSION") {
			return // all of them have been dealt with
		}
	}
}

// network64 returns the i-th of many networks.
func network64(i int) string {
	return fmt.Sprintf("2001:db8:%04x:%04x::/64", 0x1000+i>>12, 0x1000+i&0xfff)
}

// banOf is a rule that bans value at the second call, for an hour.
func banOf(value string) throttler.Rule {
	return throttler.Rule{Identifier: "login", Either: []throttler.Condition{
		{Name: "ip", Value: value, Max: 1, TTL: time.Minute, Lockout: time.Hour},
	}}
}

// banned reports whether the value of rule is banned. To memcached it is the same
// as a call that meets the ban.
func banned(t *testing.T, th *throttler.Throttler, rule throttler.Rule) bool {
	t.Helper()
	d := peek(t, th, rule)
	require.NoError(t, d.Err)
	return d.Outcomes[0].Banned
}

// fillUp bans two values on a server and then stores one-off records, four times
// as many as it holds. One ban is met each time that so many records have come
// in, the other one never. It returns how many records the server holds, and
// after how many the ban that is met was forgotten; 0 if it was not.
func fillUp(t *testing.T, server *servertest.Memcached, metEvery int) (holds, forgotten int) {
	t.Helper()
	th := throttler.New(overPool(t, server))
	idle, met := banOf("2001:db8:ffff:0001::/64"), banOf("2001:db8:ffff:0002::/64")
	for range 2 {
		authorize(t, th, idle)
		authorize(t, th, met)
	}
	n := 0
	for holds == 0 || n < 4*holds {
		require.Less(t, n, 200_000)
		flood(t, server, n, metEvery)
		n += metEvery
		if holds == 0 && stat(t, server, "stats", "evictions") > 0 {
			holds = stat(t, server, "stats", "curr_items")
		}
		if forgotten == 0 && !banned(t, th, met) {
			forgotten = n
		}
	}
	require.False(t, banned(t, th, idle), "%d records of %d, and an idle ban is still there", holds, n)
	require.Equal(t, throttler.Authorized, authorize(t, th, idle).Status)
	return holds, forgotten
}

// An attacker with very many addresses pushes out a ban that nobody meets. One
// that is met several times while the memory fills once stays, since memcached
// keeps apart what is asked for more than once.
func TestBansThatAreMetOutliveTheMemory(t *testing.T) {
	for _, test := range []struct {
		every int
		args  []string
	}{
		{500, nil},
		{2000, nil},
		{8000, nil},
		{500, []string{"-o", "no_lru_maintainer"}},
	} {
		if test.every > 500 && !testing.Verbose() {
			continue // it is logged, and no more
		}
		holds, forgotten := fillUp(t, servertest.NewMemcached(t, append([]string{"-m", "2"}, test.args...)...), test.every)
		became := "holds"
		if forgotten > 0 {
			became = fmt.Sprintf("is forgotten after %d", forgotten)
		}
		t.Logf("%v: room for %d records; a ban that is met every %d records %s", test.args, holds, test.every, became)
		if test.args == nil && test.every == 500 {
			require.Zero(t, forgotten)
		}
	}
}
