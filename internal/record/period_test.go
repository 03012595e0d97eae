package record

import (
	"testing"
	"time"
	_ "time/tzdata"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

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
			start, end := c.period.Around(InstantOf(at))
			require.Equal(t, c.start, time.Unix(0, int64(start)).UTC().Format(time.RFC3339Nano))
			require.Equal(t, c.end, time.Unix(0, int64(end)).UTC().Format(time.RFC3339Nano))
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
		start, end := p.Around(at)
		require.LessOrEqual(t, start, at)
		require.Less(t, at, end)
		_, before := p.Around(start - 1)
		require.Equal(t, start, before)
		after, _ := p.Around(end)
		require.Equal(t, end, after)
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
			start, end := Period{Unit: unit, Location: zone(t, "Asia/Tokyo")}.Around(at)
			require.LessOrEqual(t, start, at)
			require.GreaterOrEqual(t, end, at)
		}
	}
}
