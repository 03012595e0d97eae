package record

import (
	"encoding/binary"
	"math"
	"testing"
	"time"
	_ "time/tzdata"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// slim returns a zone by its rule alone, as compact zone data has it after the last change that
// it lists. Here that is the one of 1980.
func slim(t require.TestingT, rule string, east time.Duration) *time.Location {
	block := func(times int) []byte {
		b := append([]byte("TZif2"), make([]byte, 15)...)
		for _, n := range []uint32{0, 0, 0, uint32(times), 1, 4} {
			b = binary.BigEndian.AppendUint32(b, n)
		}
		for range times {
			b = binary.BigEndian.AppendUint64(b, uint64(time.Date(1980, 1, 1, 0, 0, 0, 0, time.UTC).Unix()))
			b = append(b, 0)
		}
		b = binary.BigEndian.AppendUint32(b, uint32(int32(east/time.Second)))
		return append(b, "\x00\x00LMT\x00"...)
	}
	data := append(append(block(0), block(1)...), "\n"+rule+"\n"...)
	l, err := time.LoadLocationFromTZData(rule, data)
	require.NoError(t, err)
	return l
}

// TestADayBeginsWhenItsDateIsFirstRead compares with a search through all minutes, in zone data
// that lists each change of the clock for decades, and in data that has rules only.
func TestADayBeginsWhenItsDateIsFirstRead(t *testing.T) {
	zones := []*time.Location{
		slim(t, "CET-1CEST,M3.5.0,M10.5.0/3", time.Hour), slim(t, "EST5EDT,M3.2.0,M11.1.0", -5*time.Hour),
		slim(t, "AEST-10AEDT,M10.1.0,M4.1.0/3", 10*time.Hour), slim(t, "<-04>4<-03>,M9.1.6/24,M4.1.6/24", -4*time.Hour),
		slim(t, "<+0330>-3:30<+0430>,J79/24,J263/24", 210*time.Minute), slim(t, "JST-9", 9*time.Hour),
	}
	for _, name := range []string{"UTC", "Europe/Berlin", "America/Havana", "America/Santiago", "Australia/Lord_Howe", "Asia/Gaza"} {
		zones = append(zones, zone(t, name))
	}
	for _, l := range zones {
		p := Period{Location: l}
		day := func(y int, m time.Month, d int) {
			want := time.Date(y, m, d, 0, 0, 0, 0, time.UTC).Add(-30 * time.Hour)
			for local := want.In(l); local.Year() != y || local.Month() != m || local.Day() != d; local = want.In(l) {
				want = want.Add(time.Minute)
			}
			require.Equal(t, InstantOf(want), p.firstInstant(y, m, d), "%v, %d-%02d-%02d", l, y, m, d)
		}
		for year := 2023; year < 2050; year++ {
			for d := range 6 { // around the end of a year, which may be a leap year
				at := time.Date(year, time.December, 29+d, 0, 0, 0, 0, time.UTC)
				day(at.Date())
			}
			for _, change := range []time.Month{time.March, time.April, time.September, time.October, time.November} {
				for _, d := range []int{1, 7, 8, 15, 25, 29} {
					day(year, change, d)
				}
			}
		}
	}
}

// TestPeriodsOfALeapYearEnd would not return if one of them did not.
func TestPeriodsOfALeapYearEnd(t *testing.T) {
	l := slim(t, "CET-1CEST,M3.5.0,M10.5.0/3", time.Hour)
	for at := time.Date(2028, 11, 30, 0, 0, 0, 0, time.UTC); at.Year() < 2030; at = at.Add(5 * time.Hour) {
		for _, unit := range []Unit{Day, Week, Month} {
			b := Period{Unit: unit, Location: l}.Around(InstantOf(at))
			require.LessOrEqual(t, b.Start, InstantOf(at))
			require.Greater(t, b.End, InstantOf(at))
		}
	}
}

func zone(t require.TestingT, name string) *time.Location {
	l, err := time.LoadLocation(name)
	require.NoError(t, err)
	return l
}

func TestPeriodsBeginAtTheFirstInstantOfTheirAnchorDay(t *testing.T) {
	for _, c := range []struct {
		name       string
		period     Period
		zone       string
		at         string
		start, end string
	}{
		{"day in UTC", Period{}, "", "2026-11-22T18:00:00Z", "2026-11-22T00:00:00Z", "2026-11-23T00:00:00Z"},
		{"first instant of a day", Period{}, "", "2026-11-22T00:00:00Z", "2026-11-22T00:00:00Z", "2026-11-23T00:00:00Z"},
		{"last instant of a day", Period{}, "", "2026-11-21T23:59:59.999999999Z", "2026-11-21T00:00:00Z", "2026-11-22T00:00:00Z"},
		{"day of 23 hours", Period{}, "Europe/Berlin", "2026-03-29T12:00:00Z", "2026-03-28T23:00:00Z", "2026-03-29T22:00:00Z"},
		{"day of 25 hours", Period{}, "Europe/Berlin", "2026-10-25T12:00:00Z", "2026-10-24T22:00:00Z", "2026-10-25T23:00:00Z"},
		{"midnight is skipped", Period{}, "America/Sao_Paulo", "2018-11-04T12:00:00Z", "2018-11-04T03:00:00Z", "2018-11-05T02:00:00Z"},
		{"midnight comes twice", Period{}, "America/Havana", "2026-11-01T12:00:00Z", "2026-11-01T04:00:00Z", "2026-11-02T05:00:00Z"},
		{"at its second midnight", Period{}, "America/Havana", "2026-11-01T05:00:00Z", "2026-11-01T04:00:00Z", "2026-11-02T05:00:00Z"},
		{"the hour before midnight comes twice", Period{}, "America/Sao_Paulo", "2018-02-18T02:30:00Z", "2018-02-17T02:00:00Z", "2018-02-18T03:00:00Z"},
		{"the clock goes back to the day before", Period{}, "America/St_Johns", "2010-11-07T12:00:00Z", "2010-11-07T02:30:00Z", "2010-11-08T03:30:00Z"},
		{"at the day before again", Period{}, "America/St_Johns", "2010-11-07T03:00:00Z", "2010-11-07T02:30:00Z", "2010-11-08T03:30:00Z"},
		{"half an hour around midnight is skipped", Period{}, "America/Toronto", "1919-03-31T12:00:00Z", "1919-03-31T04:30:00Z", "1919-04-01T04:00:00Z"},
		{"before a day that does not exist", Period{}, "Pacific/Apia", "2011-12-29T20:00:00Z", "2011-12-29T10:00:00Z", "2011-12-30T10:00:00Z"},
		{"month from a day that does not exist", Period{Unit: Month, Anchor: 30}, "Pacific/Apia", "2012-01-05T00:00:00Z", "2011-12-30T10:00:00Z", "2012-01-29T10:00:00Z"},
		{"week from Monday", Period{Unit: Week}, "", "2026-11-22T18:00:00Z", "2026-11-16T00:00:00Z", "2026-11-23T00:00:00Z"},
		{"week from Sunday", Period{Unit: Week, Anchor: 7}, "", "2026-11-22T18:00:00Z", "2026-11-22T00:00:00Z", "2026-11-29T00:00:00Z"},
		{"week with a change of the clock", Period{Unit: Week, Anchor: 3}, "Europe/Berlin", "2026-03-29T12:00:00Z", "2026-03-24T23:00:00Z", "2026-03-31T22:00:00Z"},
		{"week before 1970", Period{Unit: Week}, "", "1969-12-28T00:00:00Z", "1969-12-22T00:00:00Z", "1969-12-29T00:00:00Z"},
		{"month", Period{Unit: Month}, "", "2026-11-22T18:00:00Z", "2026-11-01T00:00:00Z", "2026-12-01T00:00:00Z"},
		{"month over the end of a year", Period{Unit: Month, Anchor: 15}, "", "2027-01-14T00:00:00Z", "2026-12-15T00:00:00Z", "2027-01-15T00:00:00Z"},
		{"month from the 15th in Berlin", Period{Unit: Month, Anchor: 15}, "Europe/Berlin", "2026-03-29T12:00:00Z", "2026-03-14T23:00:00Z", "2026-04-14T22:00:00Z"},
		{"month from the 31st, in January", Period{Unit: Month, Anchor: 31}, "", "2027-01-31T00:00:00Z", "2027-01-31T00:00:00Z", "2027-02-28T00:00:00Z"},
		{"month from the 31st, in February", Period{Unit: Month, Anchor: 31}, "", "2027-02-28T00:00:00Z", "2027-02-28T00:00:00Z", "2027-03-31T00:00:00Z"},
		{"month from the 31st, in a leap year", Period{Unit: Month, Anchor: 31}, "", "2028-02-28T23:00:00Z", "2028-01-31T00:00:00Z", "2028-02-29T00:00:00Z"},
		{"month from the 31st, in April", Period{Unit: Month, Anchor: 31}, "", "2027-04-29T00:00:00Z", "2027-03-31T00:00:00Z", "2027-04-30T00:00:00Z"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.zone != "" {
				c.period.Location = zone(t, c.zone)
			}
			at, err := time.Parse(time.RFC3339Nano, c.at)
			require.NoError(t, err)
			b := c.period.Around(InstantOf(at))
			require.Equal(t, c.start, time.Unix(0, int64(b.Start)).UTC().Format(time.RFC3339Nano))
			require.Equal(t, c.end, time.Unix(0, int64(b.End)).UTC().Format(time.RFC3339Nano))
		})
	}
}

// TestEveryInstantIsInOnePeriod looks at any time in any zone: periods follow each other
// without a gap, and each begins at the first instant of an anchor day.
func TestEveryInstantIsInOnePeriod(t *testing.T) {
	zones := []string{"UTC", "Europe/Berlin", "America/Sao_Paulo", "America/Havana", "America/Toronto", "America/St_Johns",
		"Pacific/Apia", "Asia/Beirut", "Africa/Cairo", "Asia/Kolkata", "Asia/Manila", "Pacific/Kwajalein", "Australia/Lord_Howe"}
	rapid.Check(t, func(t *rapid.T) {
		p := Period{
			Unit:     rapid.SampledFrom([]Unit{Day, Week, Month}).Draw(t, "unit"),
			Location: zone(t, rapid.SampledFrom(zones).Draw(t, "zone")),
		}
		p.Anchor = uint8(rapid.IntRange(0, map[Unit]int{Day: 1, Week: 7, Month: 31}[p.Unit]).Draw(t, "anchor"))
		at := Instant(rapid.Int64Range(-2e18, 8e18).Draw(t, "at"))
		b := p.Around(at)
		start, end := b.Start, b.End
		require.LessOrEqual(t, start, at)
		require.Less(t, at, end)
		require.Equal(t, start, p.Around(start-1).End)
		require.Equal(t, end, p.Around(end).Start)
		if at > 0 { // without the local mean times of long ago, and the days that they skip
			_, longest := p.Length()
			require.LessOrEqual(t, time.Duration(end-start), longest+24*time.Hour) // and a day if a country moves over the date line
		}
		first := time.Unix(0, int64(start)).In(p.Location)
		instantBefore := first.Add(-1)
		require.NotEqual(t, first.Day(), instantBefore.Day())
	})
}

func TestPeriodsEndWhereTimeEnds(t *testing.T) {
	for _, at := range []Instant{0, 1, -1 << 63, 1<<63 - 1} {
		for _, unit := range []Unit{Day, Week, Month} {
			b := Period{Unit: unit, Location: zone(t, "Asia/Tokyo")}.Around(at)
			require.LessOrEqual(t, b.Start, at)
			require.GreaterOrEqual(t, b.End, at)
		}
	}
}

func TestUnixTimesBeyondAllInstantsAreTheClosestOnes(t *testing.T) {
	const last = math.MaxInt64 / int64(time.Second)
	for seconds, want := range map[int64]Instant{
		0:             0,
		last:          Instant(last * int64(time.Second)),
		last + 1:      math.MaxInt64,
		math.MaxInt64: math.MaxInt64,
		-last:         Instant(-last * int64(time.Second)),
		-last - 1:     math.MinInt64,
		math.MinInt64: math.MinInt64,
	} {
		require.Equal(t, want, instantOf(seconds), "%d", seconds)
	}
}
