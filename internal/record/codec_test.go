package record

import (
	"bufio"
	"encoding/hex"
	"flag"
	"fmt"
	"math"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var update = flag.Bool("update", false, "write the golden records of the current version")

// epoch is when the hits of most tests of the core happen: a whole second.
var epoch = time.Unix(1_800_000_000, 0)

func at(d time.Duration) time.Time { return epoch.Add(d) }

// goldenRecords are records of the current version. testdata/records.txt says what bytes they
// have, and have for ever.
var goldenRecords = []struct {
	name   string
	record []byte
}{
	{"empty", Record{}.Encode()},
	{"one hit under 1 ms", windowRecord(time.Millisecond, at(time.Millisecond))},
	{"three hits under a minute", windowRecord(time.Minute, at(18*time.Second), at(18*time.Second), at(time.Minute+1))},
	{"hits under 10 s, low bytes wrapping", windowRecord(10*time.Second, at(-time.Second), at(0), at(9*time.Second))},
	{"hits under 30 days", windowRecord(720*time.Hour, at(time.Hour), at(719*time.Hour))},
	{"hit under the longest TTL", windowRecord(math.MaxInt64, at(math.MaxInt64/2))},
	{"cells of a day", cellsRecord(24*time.Hour, 1001, 0, 255)},
	{"cells of a minute, in one", cellsRecord(time.Minute, 300_000)},
	{"cells with counts of two bytes", cellsRecord(time.Hour, 900, 256, 0, 0, 65_535)},
	{"cells of the longest TTL", cellsRecord(math.MaxInt64, 2000)},
	{"cells of the shortest TTL", cellsRecord(time.Millisecond, 2000, 1, 1)},
	{"ban of 1.5 s", banRecord(at(1500*time.Millisecond), 1500*time.Millisecond, 0)},
	{"ban of 40 days", banRecord(at(960*time.Hour), 960*time.Hour, 0)},
	{"third ban in a row, of 4 s", banRecord(at(4*time.Second), 4*time.Second, 3)},
	{"third ban in a row, which keeps its hits", keptRecord(ban{end: InstantOf(at(4 * time.Second)), length: Instant(4 * time.Second), repeats: 3, set: InstantOf(at(0)), before: InstantOf(at(-time.Hour))}, windowRecord(time.Minute, at(time.Minute)))},
	{"bucket", bucketRecord(leaky(3, time.Second), at(333_333_333), 1, 0)},
	{"bucket with two hits taken back", bucketRecord(leaky(10, time.Minute), at(20*time.Second), 0, 2)},
	{"bucket with a debt", bucketRecord(leaky(10, time.Minute), at(time.Hour), 0, 7)},
	{"bucket of the largest Max", Record{bucket: bucket{
		score: amount{whole: InstantOf(at(1))}, at: InstantOf(epoch), rate: rate{math.MaxInt64 / 2, math.MaxInt64 / 2}, cancels: 0xabcd,
	}}.Encode()},
	{"calendar", calendarRecord(at(-time.Hour), at(23*time.Hour), at(1), 4_999_000_001)},
	{"calendar whose hits were taken back", calendarRecord(at(-time.Hour), at(23*time.Hour), at(1), 0)},
	{"two leases", leasesRecord(lease{1, InstantOf(at(time.Minute)), Instant(time.Minute), 1}, lease{0xfedcba9876543210, InstantOf(at(1)), Instant(time.Second), 3})},
	{"window beside all else", bothRecord(leasesRecord(lease{1, InstantOf(at(time.Minute)), Instant(time.Minute), 1}),
		calendarRecord(at(0), at(time.Hour), at(2), 1), banRecord(at(time.Second), time.Second, 0),
		windowRecord(time.Minute, at(18*time.Second), at(time.Minute)), bucketRecord(leaky(3, time.Minute), at(20*time.Second), 0, 2))},
	{"cells beside a bucket", bothRecord(cellsRecord(time.Hour, 1000, 2), bucketRecord(leaky(3, time.Minute), at(20*time.Second), 0, 2))},
}

func keptRecord(b ban, hits []byte) []byte {
	r, _ := Decode(hits)
	r.ban = b
	return r.Encode()
}

func TestRecordsReadAsEver(t *testing.T) {
	const path = "testdata/records.txt"
	if *update {
		var b strings.Builder
		for _, g := range goldenRecords {
			fmt.Fprintf(&b, "%s\t%s\n", hex.EncodeToString(g.record), g.name)
		}
		require.NoError(t, os.WriteFile(path, []byte(b.String()), 0o644))
	}
	stored := readGolden(t, path)
	require.Len(t, stored, len(goldenRecords))
	for _, g := range goldenRecords {
		require.EqualValues(t, 1, g.record[0], g.name)
		require.Equal(t, stored[g.name], g.record, g.name)
		recoded, ok := recode(g.record)
		require.True(t, ok, g.name)
		require.Equal(t, g.record, recoded, g.name)
	}
	require.Equal(t, []time.Time{at(18 * time.Second), at(18 * time.Second), at(time.Minute + 1)}, expiriesIn(stored["three hits under a minute"]))
	end, length, ok := banIn(stored["ban of 40 days"])
	require.True(t, ok)
	require.Equal(t, at(960*time.Hour), end)
	require.Equal(t, 960*time.Hour, length)
	r, err := Decode(stored["bucket"])
	require.NoError(t, err)
	require.Equal(t, bucket{score: amount{InstantOf(at(333_333_333)), 1}, at: InstantOf(at(0)), rate: rate{Instant(time.Second), 3}}, r.bucket)
}

func TestOnlyTheNextVersionsAreKnownToBeNewer(t *testing.T) {
	for version := range 256 {
		for _, tail := range [][]byte{nil, {0}, make([]byte, 40)} {
			err := decodeError(append([]byte{byte(version)}, tail...))
			if version >= 2 && version <= 4 && len(tail) > 1 {
				require.ErrorIs(t, err, ErrNewerRecord)
			} else {
				require.NotErrorIs(t, err, ErrNewerRecord)
			}
		}
	}
	require.NotErrorIs(t, decodeError(nil), ErrNewerRecord)
}

func readGolden(t *testing.T, path string) map[string][]byte {
	f, err := os.Open(path)
	require.NoError(t, err)
	defer f.Close()
	records := make(map[string][]byte)
	for lines := bufio.NewScanner(f); lines.Scan(); {
		digits, name, ok := strings.Cut(lines.Text(), "\t")
		require.True(t, ok, lines.Text())
		records[name], err = hex.DecodeString(digits)
		require.NoError(t, err)
	}
	return records
}

func TestSizesOfRecords(t *testing.T) {
	require.Len(t, windowRecord(time.Minute, times(5, 6*time.Second)...), 18+5*5)
	require.Len(t, windowRecord(5*time.Minute, times(50, 6*time.Second)...), 18+50*5)
	require.Len(t, windowRecord(24*time.Hour, times(50, 6*time.Second)...), 18+50*6)
	require.Len(t, bucketRecord(leaky(1_000_000_000, time.Hour), at(1), 0, 0), 44)
	require.Len(t, calendarRecord(at(0), at(1), at(0), 1), 34)
	require.Len(t, banRecord(at(1), 1, 0), 18)
}

// times returns n times, every one by step later than the one before.
func times(n int, step time.Duration) []time.Time {
	ts := make([]time.Time, n)
	for i := range ts {
		ts[i] = at(time.Duration(i) * step)
	}
	return ts
}

func TestForeignBytesAreNoRecord(t *testing.T) {
	window := windowRecord(time.Minute, times(5, time.Second)...)
	ban := banRecord(at(time.Hour), time.Hour, 0)
	kept := keptRecord(ban3, nil)
	bucket := bucketRecord(leaky(3, time.Second), at(1), 2, 0)
	calendar := calendarRecord(at(0), at(time.Hour), at(0), 1)
	leases := leasesRecord(lease{1, 2, 3, 4})
	long := cellsRecord(time.Hour, 1001, 0, 256)
	change := func(b []byte, i int, to ...byte) []byte {
		b = slices.Clone(b)
		copy(b[i:], to)
		return b
	}
	zeros := make([]byte, 8)
	foreign := map[string][]byte{
		"nothing":               {},
		"a number":              []byte("42"),
		"text":                  []byte("a record of another program"),
		"the original's list":   []byte("1700000000#1700000001#1700000002"),
		"JSON":                  []byte(`{"hits":[1,2,3]}`),
		"zeros":                 make([]byte, 100),
		"version alone":         {1},
		"version long after":    change(window, 0, 5),
		"sections that lack":    {1, 0x41},
		"window without hits":   window[:18],
		"window with no TTL":    change(window, 2, zeros...),
		"TTL beyond all time":   change(window, 2, 0x80),
		"window at no time":     append([]byte{1, 0x40, 0, 0, 0, 0, 0, 0, 0, 1}, make([]byte, 9)...),
		"window beyond time":    change(window, 10, 0x80),
		"window and cells":      change(window, 1, 0xc0),
		"cells cut":             long[:len(long)-1],
		"cells without counts":  long[:2+cellsHead],
		"cells that end empty":  append(slices.Clone(long), 0, 0),
		"cells that begin so":   slices.Concat(long[:2+cellsHead], zeros[:2], long[2+cellsHead:]),
		"cells with no TTL":     change(long, 2, zeros...),
		"cells of too long":     change(long, 2, 0x80),
		"cells since never":     change(long, 10, 0x80),
		"cells beyond all time": change(long, 18, 0x01),
		"cells before all time": change(long, 18, 0, 0, 0, 0, 0, 0, 0, 2),
		"cells of no hits":      change(long, 26, 0, 0, 0, 0),
		"cells of all hits":     change(long, 26, 0x80),
		"counts of no bytes":    change(long, 30, 0),
		"counts of one byte":    change(long, 30, 1),
		"counts of 4 bytes":     append(change(long, 30, 4), 1, 1),
		"counts of idle bytes":  append(change(long, 30, 3)[:2+cellsHead], 0, 3, 0xe9, 0, 0, 0, 0, 1, 0),
		"too many cells":        append(change(long, 30, 1)[:2+cellsHead], slices.Repeat([]byte{1}, maxCells+1)...),
		"no lease":              {1, 8, 0, 0, 0, 0},
		"too many leases":       change(leases, 2, 0xff),
		"calendar of too much":  change(calendar, 26, 0x80),
		"calendar with no end":  change(calendar, 10, 0x80),
		"ban without an end":    change(ban, 2, zeros...),
		"ban of negative time":  change(ban, 10, 0x80),
		"no repeats":            append(change(ban, 1, 3), 0),
		"repeats without ban":   {1, 2, 1},
		"kept without ban":      append([]byte{1, 4}, kept[19:]...),
		"kept at no time":       change(kept, 19, zeros...),
		"kept before all time":  change(kept, 27, 0x80),
		"bucket without score":  change(bucket, 2, zeros...),
		"bucket of a whole":     change(bucket, 17, 3),
		"bucket before time":    change(bucket, 18, 0x80),
		"bucket with no TTL":    change(bucket, 26, zeros...),
		"bucket of no Max":      change(bucket, 34, zeros...),
		"bucket of too much":    change(bucket, 34, 0x80),
	}
	for name, b := range map[string][]byte{"window": window, "ban": ban, "kept": kept, "bucket": bucket, "calendar": calendar, "leases": leases} {
		foreign[name+" cut"] = b[:len(b)-1]
		foreign[name+" and a byte"] = append(slices.Clone(b), 0)
	}
	for name, b := range foreign {
		_, ok := recode(b)
		assert.False(t, ok, name)
		// It counts as none, and the first hit replaces it.
		o, next := decideBytes(epoch, Limit{Max: 2, TTL: time.Minute}, 0, b)
		assert.Equal(t, Outcome{Cost: 1, Remaining: 1, ResetAfter: time.Minute}, o, name)
		assert.Equal(t, windowRecord(time.Minute, at(time.Minute)), next, name)
	}
}

var ban3 = ban{end: InstantOf(at(time.Second)), length: Instant(time.Second), repeats: 3, set: InstantOf(at(0))}

// FuzzRecord feeds any bytes to the decoder and to a decision. Nothing may
// panic; what decodes must encode to the same bytes; and whatever is stored
// next must decode again and keep the promises on how long it may last.
func FuzzRecord(f *testing.F) {
	for _, g := range goldenRecords {
		f.Add(g.record, int64(0), 3, int64(time.Minute))
		f.Add(g.record, at(0).UnixNano(), 40, int64(time.Minute))
	}
	f.Add(cellOf(7), int64(0), 3, int64(time.Minute))
	f.Add([]byte("foreign"), int64(0), 1, int64(time.Hour))
	f.Fuzz(func(t *testing.T, b []byte, offset int64, max int, ttl int64) {
		recoded, ok := recode(b)
		if ok {
			require.Equal(t, b, recoded)
			r, _ := Decode(b)
			require.LessOrEqual(t, len(r.Facts().Expiries), MaxHits)
		}
		if offset < 0 {
			offset = -(offset / 2)
		}
		now := time.Unix(0, offset)
		for _, algorithm := range []Algorithm{Window, Bucket, Calendar, Leases} {
			for _, cost := range []int{1, max/2 + 1} {
				c := Limit{Max: max, TTL: time.Duration(ttl), Algorithm: algorithm, Cost: cost}
				if allowed(c) {
					requireSound(t, now, c, b)
				}
			}
		}
	})
}

// requireSound decides a call of c on b, whatever b is.
func requireSound(t require.TestingT, now time.Time, c Limit, b []byte) {
	before := slices.Clone(b)
	o, next := decideBytes(now, c, 0, b)
	require.Equal(t, before, b, "a decision must leave what it read alone")
	if !o.Banned && c.Algorithm == Window { // the hits may have been taken ahead
		longest := saturated(c.TTL, c.MostAhead()+time.Duration(tooLong(c.TTL)))
		require.LessOrEqual(t, o.RetryAfter, longest)
		require.LessOrEqual(t, o.ResetAfter, longest)
	}
	require.False(t, o.Blocked && o.RetryAfter == 0, "a refusal says when to come back")
	if next == nil {
		return
	}
	recoded, ok := recode(next)
	require.True(t, ok)
	require.Equal(t, next, recoded)
	takeBackEveryWay(now, c, next) // must not panic
}

func saturated(a, b time.Duration) time.Duration {
	if a > math.MaxInt64-b {
		return math.MaxInt64
	}
	return a + b
}
