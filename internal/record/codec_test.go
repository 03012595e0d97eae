package record

import (
	"bufio"
	"encoding/hex"
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

var update = flag.Bool("update", false, "write the golden records of the current version")

// epoch is when the hits of most tests of the core happen: a whole second.
var epoch = time.Unix(1_800_000_000, 0)

func at(d time.Duration) time.Time { return epoch.Add(d) }

// goldenRecords are records of the current version. Its file in testdata says
// what bytes they have, and have for ever.
var goldenRecords = []struct {
	name   string
	record []byte
}{
	{"empty", windowRecord(1, time.Second)},
	{"one hit under 1 ms", windowRecord(1, time.Millisecond, at(time.Millisecond))},
	{"one hit under a minute, to the nanosecond", windowRecord(1, time.Minute, at(time.Minute+1))},
	{"three hits under a minute", windowRecord(3, time.Minute, at(18*time.Second), at(18*time.Second), at(time.Minute))},
	{"hits under 10 s, low bytes wrapping", windowRecord(3, 10*time.Second, at(-time.Second), at(0), at(9*time.Second))},
	{"hit under the longest TTL", windowRecord(1, math.MaxInt64, at(math.MaxInt64/2))},
	{"coarse hits under 5 minutes", windowRecord(50, 5*time.Minute, at(1), at(time.Minute), at(5*time.Minute))},
	{"coarse hits under 30 days", windowRecord(50, 720*time.Hour, at(time.Hour), at(719*time.Hour))},
	{"coarse hit under the longest TTL", windowRecord(50, math.MaxInt64, at(math.MaxInt64/2))},
	{"ban of 1.5 s", banRecord(at(1500*time.Millisecond), 1500*time.Millisecond, 0)},
	{"ban of 40 days", banRecord(at(960*time.Hour), 960*time.Hour, 0)},
	{"third ban in a row, of 4 s", banRecord(at(4*time.Second), 4*time.Second, 3)},
	{"bucket", bucketRecord(at(60*time.Second+1), 0)},
	{"bucket with two hits taken back", bucketRecord(at(20*time.Second), 2)},
}

// goldenOf2 are records of version 2, with both algorithms.
var goldenOf2 = []struct {
	name   string
	record []byte
}{
	{"window and bucket", bothRecord(windowRecord(3, time.Minute, at(18*time.Second), at(time.Minute)), bucketRecord(at(20*time.Second), 2))},
	{"coarse window and bucket", bothRecord(windowRecord(50, 5*time.Minute, at(1), at(5*time.Minute)), bucketRecord(at(1), 0))},
	{"window and bucket after a third ban", bothRecord(banRecord(at(4*time.Second), 4*time.Second, 3),
		windowRecord(1, time.Minute, at(time.Minute)), bucketRecord(at(20*time.Second), 0xabcd))},
}

// goldenOf3 are records of version 3, with a section that the others do not have.
var goldenOf3 = []struct {
	name   string
	record []byte
}{
	{"calendar", calendarRecord(at(-time.Hour), at(23*time.Hour), at(1), 4_999_000_001)},
	{"calendar whose hits were taken back", calendarRecord(at(-time.Hour), at(23*time.Hour), at(1), 0)},
	{"two leases", leasesRecord(lease{1, InstantOf(at(time.Minute)), Instant(time.Minute), 1}, lease{0xfedcba9876543210, InstantOf(at(1)), Instant(time.Second), 3})},
	{"a lease beside all else", bothRecord(leasesRecord(lease{1, InstantOf(at(time.Minute)), Instant(time.Minute), 1}),
		calendarRecord(at(0), at(time.Hour), at(2), 1), banRecord(at(time.Second), time.Second, 0),
		windowRecord(3, time.Minute, at(18*time.Second), at(time.Minute)), bucketRecord(at(20*time.Second), 2))},
	{"bucket with a debt", debtRecord(at(time.Hour), 2)},
	{"bucket with a debt beside a calendar", bothRecord(calendarRecord(at(0), at(time.Hour), at(2), 1), debtRecord(at(time.Minute), 0))},
	{"bucket with a debt that a ban keeps", bothRecord(banRecord(at(4*time.Second), 4*time.Second, 0), debtRecord(at(time.Hour), 7), bucketRecord(at(0), 7))},
	{"calendar beside a window and a bucket", bothRecord(calendarRecord(at(0), at(time.Hour), at(2), 1),
		windowRecord(3, time.Minute, at(18*time.Second), at(time.Minute)), bucketRecord(at(20*time.Second), 2))},
	{"calendar that a third ban keeps", bothRecord(banRecord(at(4*time.Second), 4*time.Second, 3),
		calendarRecord(at(-time.Hour), at(0), at(-time.Minute), 2), bucketRecord(at(-time.Second), 0))},
	{"cells of a day", cellsRecord(24*time.Hour, 1001, 0, 255)},
	{"cells of a minute, in one", cellsRecord(time.Minute, 300_000)},
	{"cells with counts of two bytes", cellsRecord(time.Hour, 900, 256, 0, 0, 65_535)},
	{"cells of the longest TTL", cellsRecord(math.MaxInt64, 2000)},
	{"cells of the shortest TTL", cellsRecord(time.Millisecond, 2000, 1, 1)},
	{"cells beside all else", bothRecord(leasesRecord(lease{1, InstantOf(at(time.Minute)), Instant(time.Minute), 1}),
		calendarRecord(at(0), at(time.Hour), at(2), 1), banRecord(at(time.Second), time.Second, 0),
		cellsRecord(time.Hour, 1000, 2), bucketRecord(at(20*time.Second), 2))},
}

func TestRecordsOfEveryVersionReadAsEver(t *testing.T) {
	for version, written := range map[byte][]struct {
		name   string
		record []byte
	}{1: goldenRecords, 2: goldenOf2, 3: goldenOf3} {
		path := fmt.Sprintf("testdata/records/v%d.txt", version)
		if *update {
			var b strings.Builder
			for _, g := range written {
				fmt.Fprintf(&b, "%s\t%s\n", hex.EncodeToString(g.record), g.name)
			}
			require.NoError(t, os.WriteFile(path, []byte(b.String()), 0o644))
		}
		stored := readGolden(t, path)
		require.Len(t, stored, len(written))
		for _, g := range written {
			require.Equal(t, version, g.record[0], g.name)
			require.Equal(t, stored[g.name], g.record, g.name)
			recoded, ok := recode(g.record)
			require.True(t, ok, g.name)
			require.Equal(t, g.record, recoded, g.name)
		}
	}
	stored := readGolden(t, "testdata/records/v1.txt")
	require.Equal(t,
		[]time.Time{at(18 * time.Second), at(18 * time.Second), at(time.Minute)},
		expiriesIn(stored["three hits under a minute"]))
	require.Equal(t,
		[]time.Time{at(18 * time.Second), at(time.Minute)},
		expiriesIn(readGolden(t, "testdata/records/v2.txt")["window and bucket"]))
	end, length, ok := banIn(stored["ban of 40 days"])
	require.True(t, ok)
	require.Equal(t, at(960*time.Hour), end)
	require.Equal(t, 960*time.Hour, length)
}

func TestOnlyTheNextVersionIsKnownToBeNewer(t *testing.T) {
	for version := range 256 {
		for _, tail := range [][]byte{nil, {0}, make([]byte, 40)} {
			err := decodeError(append([]byte{byte(version)}, tail...))
			if version == 4 {
				require.ErrorIs(t, err, ErrNewerRecord)
			} else {
				require.NotErrorIs(t, err, ErrNewerRecord)
			}
		}
	}
	require.NotErrorIs(t, decodeError(nil), ErrNewerRecord)
	for _, unknown := range []byte{2, 0x80} {
		require.ErrorIs(t, decodeError([]byte{3, unknown, 0, 0}), ErrNewerRecord, "a section of version 3 that is not known")
	}
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

func TestRecordOf50HitsOver5MinutesTakes180BytesAtMost(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 100 {
		var hits []time.Time
		for range 50 {
			hits = append(hits, at(time.Duration(random.Int64N(int64(5*time.Minute)))))
		}
		slices.SortFunc(hits, time.Time.Compare)
		require.LessOrEqual(t, len(windowRecord(50, 5*time.Minute, hits...)), 180)
	}
	require.Len(t, windowRecord(50, 5*time.Minute, times(50, 6*time.Second)...), 168)
	require.Len(t, windowRecord(5, time.Minute, times(5, 6*time.Second)...), 43)
}

// times returns n times, every one by step later than the one before.
func times(n int, step time.Duration) []time.Time {
	ts := make([]time.Time, n)
	for i := range ts {
		ts[i] = at(time.Duration(i) * step)
	}
	return ts
}

func TestWhatWasWrittenReadsBack(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		max := rapid.SampledFrom([]int{1, maxFine, maxFine + 1, maxTimes}).Draw(t, "max")
		ttl := time.Duration(rapid.Int64Range(int64(time.Millisecond), math.MaxInt64).Draw(t, "ttl"))
		latest := min(int64(ttl), math.MaxInt64-epoch.UnixNano())
		offsets := rapid.SliceOfN(rapid.Int64Range(0, latest), 1, 100).Draw(t, "offsets")
		slices.Sort(offsets)
		var want []time.Time
		for _, o := range offsets {
			if max > maxFine {
				o = o / int64(time.Duration(coarse)) * int64(time.Duration(coarse))
			}
			want = append(want, at(time.Duration(o)))
		}
		require.Equal(t, want, expiriesIn(windowRecord(max, ttl, want...)))
	})
}

func TestForeignBytesAreNoRecord(t *testing.T) {
	window := windowRecord(5, time.Minute, times(5, time.Second)...)
	ban := banRecord(at(time.Hour), time.Hour, 0)
	bucket := bucketRecord(at(time.Hour), 0)
	calendar := calendarRecord(at(0), at(time.Hour), at(0), 1)
	leases := leasesRecord(lease{1, 2, 3, 4})
	debt := debtRecord(at(time.Hour), 0)
	long := cellsRecord(time.Hour, 1001, 0, 256)
	change := func(b []byte, i int, to byte) []byte {
		b = slices.Clone(b)
		b[i] = to
		return b
	}
	foreign := map[string][]byte{
		"nothing":               {},
		"a number":              []byte("42"),
		"text":                  []byte("a record of another program"),
		"the original's list":   []byte("1700000000#1700000001#1700000002"),
		"JSON":                  []byte(`{"hits":[1,2,3]}`),
		"zeros":                 make([]byte, 100),
		"version alone":         {1},
		"version without need":  change(window, 0, 2),
		"version 3 of an old":   change(window, 0, 3),
		"version long after":    change(window, 0, 5),
		"version 3 cut":         calendar[:len(calendar)-1],
		"version 3 and a byte":  append(slices.Clone(calendar), 0),
		"version 3 alone":       {3},
		"half of its sections":  {3, 0},
		"no new section":        append([]byte{3, 0, 4}, window[2:]...),
		"leases cut":            leases[:len(leases)-1],
		"leases and a byte":     append(slices.Clone(leases), 0),
		"no lease":              {3, 0, 0x20, 0, 0, 0, 0},
		"too many leases":       change(leases, 3, 0xff),
		"calendar of too much":  change(calendar, len(calendar)-8, 0x80),
		"debt cut":              debt[:len(debt)-1],
		"debt and a byte":       append(slices.Clone(debt), 0),
		"debt without a bucket": append([]byte{3, 0, 0x80}, debt[3:11]...),
		"negative debt":         change(debt, 3, 0x80),
		"debt of nothing":       append(append([]byte{3, 0, 0x90}, make([]byte, 8)...), debt[11:]...),
		"cells cut":             long[:len(long)-1],
		"cells and a byte":      append(slices.Clone(long), 0),
		"cells without counts":  long[:3+cellsHead],
		"cells that end empty":  append(slices.Clone(long), 0, 0),
		"cells that begin so":   append(slices.Clone(long[:3+cellsHead]), append([]byte{0, 0}, long[3+cellsHead:]...)...),
		"cells with no TTL":     append(append(slices.Clone(long[:3]), make([]byte, 8)...), long[11:]...),
		"cells of too long":     change(long, 3, 0x01),
		"cells since never":     change(long, 11, 0x80),
		"cells beyond all time": change(long, 19, 0x01),
		"cells of no hits":      append(append(slices.Clone(long[:27]), make([]byte, 4)...), long[31:]...),
		"cells of all hits":     change(long, 27, 0x80),
		"counts of no bytes":    change(long, 31, 0),
		"counts of one byte":    change(long, 31, 1),
		"counts of 4 bytes":     append(change(long, 31, 4), 1, 1),
		"counts of idle bytes":  append(change(long, 31, 3)[:3+cellsHead], 0, 3, 0xe9, 0, 0, 0, 0, 1, 0),
		"cells and a window":    change(long, 2, 4),
		"too many cells":        append(change(long, 31, 1)[:3+cellsHead], slices.Repeat([]byte{1}, maxCells+1)...),
		"cells before all time": append(append(slices.Clone(long[:19]), 0, 0, 0, 0, 0, 0, 0, 2), long[27:]...),
		"calendar with no end":  change(calendar, 11, 0x80),
		"unknown section":       change(window, 1, 0x24),
		"window without hits":   window[:18],
		"window with no TTL":    append(append([]byte{1, 4}, make([]byte, 8)...), window[10:]...),
		"TTL beyond all time":   change(window, 2, 0x80),
		"window at no time":     append([]byte{1, 4, 0, 0, 0, 0, 0, 0, 0, 1}, make([]byte, 9)...),
		"window cut by a byte":  window[:len(window)-1],
		"window cut by a hit":   window[:len(window)-5],
		"window and a byte":     append(slices.Clone(window), 0),
		"window and 4 bytes":    append(slices.Clone(window), window[len(window)-4:]...),
		"window with a hit too": append(slices.Clone(window), 1, 2, 3, 4, 5),
		"ban cut":               ban[:len(ban)-1],
		"ban with a tail":       append(slices.Clone(ban), 0),
		"ban without an end":    append([]byte{1, 1}, make([]byte, 16)...),
		"ban of negative time":  change(ban, 10, 0x80),
		"no repeats":            append([]byte{1, 3}, append(ban[2:], 0)...),
		"bucket cut":            bucket[:len(bucket)-1],
		"bucket with a tail":    append(slices.Clone(bucket), 0),
		"bucket without score":  append([]byte{1, 16}, make([]byte, 10)...),
		"sections that lack":    {1, 5},
		"both algorithms":       append([]byte{1, 20}, window[2:]...),
		"both units":            append([]byte{1, 12}, window[2:]...),
		"repeats without ban":   {1, 2, 1},
	}
	for name, b := range foreign {
		_, ok := recode(b)
		assert.False(t, ok, name)
		// It counts as none, and the first hit replaces it.
		o, next := decideBytes(epoch, Limit{Max: 2, TTL: time.Minute}, 0, b)
		assert.Equal(t, Outcome{Cost: 1, Remaining: 1, ResetAfter: time.Minute}, o, name)
		assert.Equal(t, windowRecord(2, time.Minute, at(time.Minute)), next, name)
	}
}

// FuzzRecord feeds any bytes to the decoder and to a decision. Nothing may
// panic; what decodes must encode to the same bytes; and whatever is stored
// next must decode again and keep the promises on how long it may last.
func FuzzRecord(f *testing.F) {
	for _, g := range goldenRecords {
		f.Add(g.record, int64(0), 3, int64(time.Minute))
		f.Add(g.record, int64(-time.Hour), 1, int64(time.Millisecond))
	}
	for _, g := range goldenOf2 {
		f.Add(g.record, int64(0), 3, int64(time.Minute))
		f.Add(g.record, int64(time.Minute), 40, int64(time.Minute))
	}
	for _, g := range goldenOf3 {
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
	if !o.Banned && c.Algorithm == Window {
		require.LessOrEqual(t, o.RetryAfter, saturated(c.TTL, time.Duration(tooLong(c.TTL))))
		require.LessOrEqual(t, o.ResetAfter, saturated(c.TTL, time.Duration(tooLong(c.TTL))))
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
