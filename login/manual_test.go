package login

import (
	"fmt"
	"math"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// The table of limits in docs/login.md: what is told of each default, and of what comes
// when a limit is full.
func TestTheManualHasTheDefaultOfEachLimit(t *testing.T) {
	text, err := os.ReadFile("../docs/login.md")
	require.NoError(t, err)
	_, table, ok := strings.Cut(string(text), "\n| condition | counts | default | when it is full |\n| --- | --- | --- | --- |\n")
	require.True(t, ok)
	table, _, _ = strings.Cut(table, "\n\n")
	g := new(Guard).limits()
	require.Negative(t, g.nameLong.Max, "none by default")
	told := map[string]string{}
	for _, row := range strings.Split(table, "\n") {
		cells := strings.Split(row, " | ")
		require.Len(t, cells, 4, row)
		told[strings.Trim(cells[0], "| `")] = cells[2] + "; " + strings.TrimSuffix(cells[3], " |")
	}
	require.Equal(t, map[string]string{
		byNameAddress:  window(g.nameAddress) + "; " + bans(g.nameAddress),
		byAddress:      window(g.address) + "; banned likewise",
		byAddressDay:   bucket(g.addressDay),
		byNetwork56:    bucket(g.network56),
		byNetwork48:    bucket(g.network48),
		byNetwork32:    bucket(g.network32),
		byName:         bucket(g.name),
		byNameLong:     "none; [opens after a second step](login-lockout.md#patient-attackers)",
		byKnown:        bucket(g.known),
		byKnownLong:    "as `name-long`; likewise",
		byAddressKnown: "as `address-day`; likewise",
	}, told)
	require.Equal(t, g.nameAddress.Lockout, g.address.Lockout, "banned likewise")
}

// What docs/login-lockout.md tells of the alarm.
func TestTheManualHasTheThresholdsOfTheAlarm(t *testing.T) {
	text, err := os.ReadFile("../docs/login-lockout.md")
	require.NoError(t, err)
	told := strings.Join(strings.Fields(string(text)), " ")
	require.Contains(t, told, fmt.Sprintf("never below %d ([", defaultSiegeFloor))
	require.Contains(t, told, fmt.Sprintf("and always at %s. It ends %v minutes after", thousands(siegeCeiling), siegeLasts.Minutes()))
}

func window(l Limit) string { return fmt.Sprintf("%d in %s", l.Max, inWords(l.TTL)) }

// bucket is of a limit by the day.
func bucket(l Limit) string {
	most := thousands(l.Max)
	return fmt.Sprintf("%s at once, then %s a day; one more every %s", most, most,
		strings.TrimPrefix(inWords(l.TTL/time.Duration(l.Max)), "1 "))
}

// bans are those of a limit whose values are banned again and again.
func bans(l Limit) string {
	lengths := []string{}
	next := l.Lockout
	for ; next < defaultLimits.maxLockout; next *= 2 {
		lengths = append(lengths, fmt.Sprint(next.Minutes()))
	}
	return fmt.Sprintf("banned for %s minutes, then %s, at most %v", lengths[0], strings.Join(lengths[1:], ", "), defaultLimits.maxLockout.Minutes())
}

// inWords rounds d to hours, minutes or seconds, of which there is more than one.
func inWords(d time.Duration) string {
	n, unit := d.Seconds(), "second"
	if d >= time.Hour {
		n, unit = d.Hours(), "hour"
	} else if d >= 2*time.Minute || d == time.Minute {
		n, unit = d.Minutes(), "minute"
	}
	n = math.Round(n)
	if n != 1 {
		unit += "s"
	}
	return fmt.Sprintf("%v %s", n, unit)
}

func thousands(n int) string {
	if n < 1000 {
		return fmt.Sprint(n)
	}
	return fmt.Sprintf("%d,%03d", n/1000, n%1000)
}
